"""The documentation is a path: its links resolve, every page is reachable, files that it names exist."""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from docs.drawings.draw import SourceError, render

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md"), *ROOT.glob("examples/**/README.md")])

# Code is shown as it is: the words of the style sheet are for prose.
CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]+`|<!--.*?-->", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)#\s]*)(?:#([^)\s]*))?\)|<img[^>]* src=\"([^\"]+)\"")
NAMED = re.compile(r"`(?:\.\./)*((?:[\w.-]+/)+[\w.-]+\.(?:py|toml|jsonl|yaml|txt|svg|md))(?::[^`]*)?`")
BARE = re.compile(r"`(\w+\.py)`")
MODULE = re.compile(
    r"python3?(?: -[A-Z])? -m (?!pytest|pip|venv)([\w.]+)|^from ((?:tidegate|benchmarks|tests)\.[\w.]+)", re.M
)
DOTTED = re.compile(r"`((?:tidegate|tests|benchmarks)(?!\.toml)(?:\.\w+)+)[`(]")
# Files of users: handlers, and what may lie beside them.
OF_USERS = {"handler.py", "gateway.py", "control.py", "own.py"}
TOP = {path.name for path in ROOT.iterdir() if path.is_dir()}
BANNED = re.compile(r"\b(told|tells|whoever|nobody|somebody|whom|anew)\b", re.IGNORECASE)
PLAIN_TESTS = (
    "activator",
    "autoscaler",
    "benchmarks",
    "control",
    "deploy",
    "gateway",
    "golden",
    "live",
    "loadgen",
    "property",
    "queue_proxy",
    "support",
    "tidegate",
    "traffic",
)
"""Folders of tests whose names, comments and strings are as plain as the documentation; those of ``benchmarks`` too."""
PERSONS = re.compile(r"(?<![a-z])(told|whoever|nobody)(?![a-z])", re.IGNORECASE)
WORDS = 40
"""Most words of the glossary."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def links(page: Path) -> list[tuple[Path, str]]:
    """Targets of a page's relative links, and the heading of each ("" for the whole page)."""
    text = re.sub(r"^(```|~~~).*?^\1", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    found = []
    for match in LINK.finditer(text):
        target, heading = match[1] or match[3] or "", match[2] or ""
        if "://" not in target:
            found.append(((page.parent / target).resolve() if target else page, heading))
    return found


@cache
def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings get: lower case, hyphens for spaces, punctuation left out."""
    text = re.sub(r"^(```|~~~).*?^\1", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = [line.lstrip("#").strip() for line in text.splitlines() if re.match(r"#{1,6} ", line)]
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


@cache
def modules() -> frozenset[str]:
    """Names of the Python files of the repository, at the top excepted."""
    shown = (ROOT / name for name in TOP if not name.startswith(".") and name != "build")
    return frozenset(path.name for folder in shown for path in folder.rglob("*.py"))


def check(faults: Iterable[str]) -> None:
    """Fails with all of them at once."""
    found = list(faults)
    assert not found, "\n".join(("", *found))


def test_every_relative_link_resolves() -> None:
    def faults() -> Iterator[str]:
        for page in PAGES:
            for target, heading in links(page):
                if not target.exists():
                    yield f"{name_of(page)} links to {target}, which does not exist"
                elif heading and heading not in anchors(target):
                    yield f"{name_of(page)} links to {name_of(target)}#{heading}: no such heading"

    check(faults())


def test_every_page_is_reached_from_the_index() -> None:
    seen = {DOCS / "README.md"}
    queue = [DOCS / "README.md"]
    while queue:
        for target, _ in links(queue.pop()):
            page = target / "README.md" if target.is_dir() else target
            if page.suffix == ".md" and page.exists() and page not in seen:
                seen.add(page)
                queue.append(page)
    missing = [name_of(page) for page in PAGES if page not in seen]
    assert not missing, "not reached from docs/README.md; a decision gets its line in docs/adr/README.md"


def test_the_readme_links_to_the_index_and_to_the_first_steps() -> None:
    targets = {target for target, _ in links(ROOT / "README.md")}
    assert {DOCS / "README.md", DOCS / "getting-started.md", DOCS / "behaviour.md"} <= targets


def test_files_and_modules_that_a_page_names_exist() -> None:
    check(
        f"{name_of(page)} names {name}, which does not exist"
        for page in PAGES
        for name in unknown(page.read_text(encoding="utf-8"))
    )


def unknown(text: str) -> Iterator[str]:
    """Yields files and modules of ours that a page names and that are not there."""
    for name in NAMED.findall(text):
        if name.split("/")[0] in TOP and not name.startswith("build/") and not (ROOT / name).exists():
            yield name
    yield from set(BARE.findall(text)) - OF_USERS - modules()
    for command, imported in MODULE.findall(text):
        module = command or imported
        path = ROOT / module.rstrip(".").replace(".", "/")
        if not (path.with_suffix(".py").exists() or path.is_dir()):
            yield f"-m {module}"
    for dotted in DOTTED.findall(text):
        path, attributes = ROOT, str(dotted).split(".")
        while attributes and (path / attributes[0]).is_dir():
            path = path / attributes.pop(0)
        if attributes and not (path / f"{attributes[0]}.py").exists():
            yield dotted


def test_each_row_of_the_page_for_clients_names_its_test() -> None:
    page = (ROOT / "docs" / "use" / "clients.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 8
    for row in rows:
        assert "`tests/" in row, row.split("|")[1]


def test_the_glossary_is_short() -> None:
    rows = re.findall(r"^\| \*\*(.*?)\*\*", (DOCS / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    words = [word for row in rows for word in row.split(", ")]
    assert 20 <= len(words) <= WORDS and len(set(words)) == len(words)


def test_programs_are_not_people() -> None:
    def faults() -> Iterator[str]:
        for page in PAGES:
            text = CODE.sub(lambda match: "\n" * match[0].count("\n"), page.read_text(encoding="utf-8"))
            for number, line in enumerate(text.splitlines(), start=1):
                if (found := BANNED.search(line)) is not None:
                    yield f"{name_of(page)}:{number} says {found[0]!r}: data is sent, reported, recorded"

    check(faults())


def test_benchmarks_and_tests_of_these_folders_are_in_plain_words() -> None:
    def faults() -> Iterator[str]:
        for folder in (ROOT / "benchmarks", *(ROOT / "tests" / each for each in PLAIN_TESTS)):
            for path in (each for each in folder.rglob("*") if each.suffix in {".py", ".go"}):
                for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                    if found := PERSONS.search(line):
                        yield f"{name_of(path)}:{number} says {found[0]!r}: data is sent, reported, recorded"

    check(faults())


def test_decisions_have_a_number_each_and_its_title_begins_with_it() -> None:
    numbers = [int(path.name[:4]) for path in (DOCS / "adr").glob("[0-9]*.md")]
    assert len(set(numbers)) == len(numbers)
    for path in (DOCS / "adr").glob("[0-9]*.md"):
        title = path.read_text(encoding="utf-8").splitlines()[0]
        assert re.match(rf"# {int(path.name[:4])}\. [A-Z]", title), f"{name_of(path)}: '# NUMBER. Decision'"


def test_the_index_of_decisions_is_in_order_and_has_their_titles() -> None:
    index = (DOCS / "adr" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(\d+)\]\(([^)]+)\) \| (.+) \|$", index, re.MULTILINE)
    titles = [
        (path.name, path.read_text(encoding="utf-8").splitlines()[0]) for path in sorted((DOCS / "adr").glob("0*"))
    ]
    assert [(name, f"# {number}. {title}") for number, name, title in rows] == titles


@pytest.mark.parametrize("source", sorted((DOCS / "drawings").glob("*.txt")), ids=name_of)
def test_drawings_are_what_their_sources_say(source: Path) -> None:
    drawn = render(source.read_text(encoding="utf-8"), source.name)
    assert source.with_suffix(".svg").read_text(encoding="utf-8") == drawn, "stale: run `make docs`"
    assert "prefers-color-scheme: dark" in drawn


def test_a_fault_of_a_drawing_names_its_line() -> None:
    with pytest.raises(SourceError, match=r"^x\.txt:2: 'a text of many letters' is wider than its box$"):
        render("drawing 40 20 | x\nbox a 1 1 5 5 ours | a text of many letters", "x.txt")
    with pytest.raises(SourceError, match=r"^x\.txt:1: no statement is called circle$"):
        render("circle 1 1", "x.txt")
