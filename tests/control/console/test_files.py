"""The console's files: what is served, and that the libraries are those recorded."""

import hashlib
import re
from pathlib import Path

import pytest

from tests.support.vendored import RECORD, Library, faults_of, libraries
from tidegate.control.console.files import FOLDER, names, static_file

OURS = sorted(path for path in FOLDER.rglob("*") if path.is_file() and "vendor" not in path.parts)
IMPORT = re.compile(r'from "(\.[^"]+)"')


@pytest.mark.parametrize("library", libraries(), ids=lambda each: str(each.package))
def test_a_vendored_library_has_its_licence_and_the_recorded_hashes_and_nothing_else(library: Library) -> None:
    there = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in library.folder.iterdir()}
    del there[RECORD]
    assert there == library.names()
    assert "LICENSE" in there


def test_there_is_a_library_to_check() -> None:
    assert [each.package for each in libraries()] == ["uplot"]


def test_a_package_that_differs_from_its_record_is_not_taken() -> None:
    (library,) = libraries()
    contents = {path: (library.folder / Path(path).name).read_bytes() for path in library.files}
    faults = faults_of(library, b"another archive", contents | {"dist/uPlot.esm.js": b"changed"})
    assert len(faults) == 2
    assert faults[0].startswith("integrity is sha512-") and faults[1].startswith("dist/uPlot.esm.js is ")
    assert faults_of(library, b"", {})[1:] == [f"{path} is missing" for path in library.files]


def test_only_files_of_the_console_are_served() -> None:
    for name in ("../routes.py", "/etc/passwd", "vendor/uplot/LICENSE", "vendor/uplot/vendored.json", "", "pages"):
        assert static_file(name) is None
    found = static_file("console.js")
    assert found is not None and found.media_type.startswith("text/javascript")


def test_every_file_that_a_module_imports_or_the_page_names_is_served() -> None:
    for path in OURS:
        if path.suffix == ".js":
            for target in IMPORT.findall(path.read_text(encoding="utf-8")):
                assert (path.parent / target).resolve().relative_to(FOLDER.resolve()).as_posix() in names(), (
                    path.name,
                    target,
                )
    page = (FOLDER / "console.html").read_text(encoding="utf-8")
    named = re.findall(r'(?:src|href)="/console/static/([^"]+)"', page)
    assert len(named) >= 4 and set(named) <= names()


def test_nothing_is_inline_and_nothing_comes_from_elsewhere() -> None:
    """The content security policy refuses it; a browser would show it as an error."""
    page = (FOLDER / "console.html").read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]* src=)|<style|style=|\son\w+=", page) == []
    for path in OURS:
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert re.findall(r"https?://|innerHTML|insertAdjacentHTML|eval\(|setAttribute\(\"style", text) == [], path.name
