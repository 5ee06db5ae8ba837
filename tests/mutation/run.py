"""Mutation tests of the pure cores with cosmic-ray: ``python -m tests.mutation.run [GROUP ...] [--sample N]``.

Each group names modules and the tests that must notice a change in them. The runner copies the tree to
``build/mutation/GROUP``, where the tests must pass, lists every mutant of the group's modules and draws a sample.
A mutant meets the tests of its own module, then those of its folder, then the others of the group, until one fails.
The runner prints one JSON line per survivor and one per group. Exit code 1: fewer than ``--least`` percent died in
some group.

A survivor that no test can notice is named in ``equivalent.toml`` with its reason and does not count.
"""

import argparse
import ast
import difflib
import json
import math
import os
import random
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
EQUIVALENT: Final = Path(__file__).with_name("equivalent.toml")
LEFT_OUT: Final = frozenset({"__init__.py", "forecast_weights.py"})
"""Modules without code: the latter has the numbers of a trained network."""
SAME: Final = frozenset(
    f"core/ReplaceComparisonOperator_{was}_{becomes}"
    for pair in (("Eq", "Is"), ("NotEq", "IsNot"))
    for was, becomes in (pair, pair[::-1])
)
"""Operators left out: equal small integers, members of enums and classes are one object in CPython."""
SLOWER: Final = 3.0
"""A mutant with which the tests take so many times the processor time has died: it loops."""
TEST_S: Final = 120
"""Wall time of one test. A busy machine must not kill a mutant."""
LONGEST_S: Final = 3600
"""Processor seconds of a group's tests without a mutant."""


@dataclass(frozen=True, slots=True)
class Group:
    """Modules by glob, below the root, and the tests that judge them."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


GROUPS: Final = {
    "flow": Group(("tidegate/flow/*.py",), ("tests/tidegate/flow", "tests/property")),
    "http1": Group(("tidegate/wire/*.py", "tidegate/wire/http1/*.py"), ("tests/tidegate/wire/http1",)),
    "http2": Group(("tidegate/wire/http2/*.py",), ("tests/tidegate/wire/http2",)),
    "grpc": Group(
        ("tidegate/wire/grpc/*.py",),
        (
            "tests/tidegate/wire/grpc",
            "tests/tidegate/runtime/test_extensions.py",
            "tests/tidegate/runtime/test_grpc_server.py",
            "tests/tidegate/runtime/protocols",
        ),
    ),
    "bodies": Group(("tidegate/wire/bodies/*.py",), ("tests/tidegate/wire/bodies",)),
    "traffic": Group(("traffic/*.py",), ("tests/traffic",)),
    "plan": Group(
        ("deploy/plan.py", "deploy/placement/*.py"),
        (
            "tests/deploy/placement",
            "tests/deploy/test_backoff.py",
            "tests/deploy/test_plan.py",
            "tests/deploy/test_revocation.py",
        ),
    ),
    "policies": Group(
        ("autoscaler/policies/*.py", "autoscaler/policies/*/*.py"),
        (
            "tests/autoscaler/policies/test_policy_state.py",
            "tests/autoscaler/policies/test_properties.py",
            "tests/golden/test_decisions.py",
            "tests/golden/test_knative_aux.py",
            "tests/golden/test_knative_kpa.py",
            "tests/golden/test_papers.py",
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one module; ``was`` and ``becomes`` are the changed source lines without indentation."""

    module: str
    definition: str
    was: str
    becomes: str
    died: bool

    @property
    def key(self) -> tuple[str, str, str]:
        """Identifies the mutant in ``equivalent.toml``, wherever its line moves to."""
        return self.module, self.was, self.becomes

    @property
    def shown(self) -> dict[str, str]:
        """The line that the runner prints."""
        return {"survived": self.module, "in": self.definition, "was": self.was, "becomes": self.becomes}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", choices=[*GROUPS, []], metavar="GROUP", help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--sample", type=int, default=100, help="mutants of each group; 0 is all of them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--least", type=float, default=90.0, help="percent that must die")
    given = parser.parse_args(arguments)
    known = equivalent()
    failed = False
    for name in given.groups or GROUPS:
        judged = died = named = 0
        for mutant in run(name, GROUPS[name], given.sample, random.Random(given.seed)):
            if mutant.key in known:
                named += 1
                continue
            judged += 1
            died += mutant.died
            if not mutant.died:
                print(json.dumps(mutant.shown), flush=True)
        percent = 100.0 * died / max(1, judged)
        figures = {"group": name, "mutants": judged, "died": died, "percent": round(percent, 1), "equivalent": named}
        print(json.dumps(figures), flush=True)
        failed |= percent < given.least
    return int(failed)


def equivalent() -> set[tuple[str, str, str]]:
    """Returns the keys of the mutants that ``equivalent.toml`` names."""
    entries = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")).get("mutants", [])
    return {(entry["module"], entry["was"], entry["becomes"]) for entry in entries}


def run(name: str, group: Group, sample: int, rng: random.Random) -> Iterator[Mutant]:
    """Tests a sample of a group's mutants in a copy of the tree."""
    folder = copied(name)
    modules = sorted(path for pattern in group.modules for path in folder.glob(pattern) if path.name not in LEFT_OUT)
    drawn = draw([site for module in modules for site in listed(module)], sample, rng)
    runs = {site.module: stages(folder, site.module.relative_to(folder), group.tests) for site in drawn}
    tests = Tests(folder)
    limit_s = math.ceil(SLOWER * passes(name, tests, runs[drawn[0].module])) + 5
    passes(name, tests, runs[drawn[0].module][:1])  # Now in a fork of a process that has imported what they need.
    for number, site in enumerate(drawn, start=1):
        print(f"{name}: {number} of {len(drawn)}", file=sys.stderr, flush=True)
        yield tried(site, site.module.relative_to(folder), partial(tests.fail, runs[site.module], limit_s))


def copied(name: str) -> Path:
    """Copies the tree to the folder of a group."""
    folder = ROOT / "build" / "mutation" / name
    subprocess.run(["rm", "-rf", str(folder)], check=True)
    folder.mkdir(parents=True)
    tree = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    pack = subprocess.Popen(["tar", "-c", "--null", "-T", "-"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    unpack = subprocess.Popen(["tar", "-x"], cwd=folder, stdin=pack.stdout)
    assert pack.stdin is not None
    pack.stdin.write(tree)
    pack.stdin.close()
    if pack.wait() or unpack.wait():
        raise SystemExit(f"{name}: the tree cannot be copied to {folder}")
    return folder


class Tests:
    """A process that forks for each run of pytest in a copy of the tree (``forks.py``)."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.mutation.forks"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder), "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def answer(self, runs: Sequence[Sequence[str]], limit_s: int) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"runs": runs, "limit_s": limit_s}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def fail(self, runs: Sequence[Sequence[str]], limit_s: int) -> bool:
        """Returns whether one of the runs fails. ``limit_s``: processor seconds that each may take."""
        return bool(self.answer(runs, limit_s)["failed"])


def passes(name: str, tests: Tests, runs: Sequence[Sequence[str]]) -> float:
    """Runs a group's tests without a mutant and returns the processor seconds. Ends the program if a test fails, since
    every mutant would seem to die."""
    answer = tests.answer(runs, LONGEST_S)
    if answer["failed"]:
        raise SystemExit(f"{name}: the tests fail without a mutant\n{answer['shown']}")
    return float(answer["spent_s"])


@dataclass(frozen=True, slots=True)
class Site:
    """One possible change: the ``occurrence``-th place in a module where an operator has something to do."""

    module: Path
    definition: str
    operator: str
    occurrence: int


def listed(module: Path) -> list[Site]:
    """Lists the possible changes of a module, in the same order in every listing."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.ast.ast_query import ASTQuery
    from cosmic_ray.plugins import get_operator, operator_names

    text = module.read_text(encoding="utf-8")
    is_unseen = unseen(ast.parse(text))
    nodes = list(ast_nodes(get_ast(text)))
    found: list[Site] = []
    for operator in sorted(operator_names()):
        if operator in SAME or get_operator(operator).arguments():
            continue
        places = get_operator(operator)().mutation_positions
        positions = ((node, at) for node in nodes for at, _ in places(node))
        found += [
            Site(module, ASTQuery(node).get_definition_name() or "", operator, occurrence)
            for occurrence, (node, at) in enumerate(positions)
            if not is_unseen(at)
        ]
    return found


def draw(sites: list[Site], sample: int, rng: random.Random) -> list[Site]:
    """Draws from all modules together, each mutant with the same chance, and orders the drawn by module."""
    return sites if not 0 < sample < len(sites) else sorted(rng.sample(sites, sample), key=lambda site: site.module)


def tried(site: Site, relative: Path, fails: Callable[[], bool]) -> Mutant:
    """Changes a module, runs the tests and puts the module back, with its time: its bytecode is valid again."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    original, times = site.module.read_text(encoding="utf-8"), site.module.stat()
    changed = mutate_code(original, get_operator(site.operator)(), site.occurrence)
    try:
        site.module.write_text(changed, encoding="utf-8")
        died = fails()
    finally:
        site.module.write_text(original, encoding="utf-8")
        os.utime(site.module, ns=(times.st_atime_ns, times.st_mtime_ns))
    lines = difflib.unified_diff(original.split("\n"), changed.split("\n"), lineterm="", n=0)
    diff = [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    return Mutant(
        module=relative.as_posix(),
        definition=site.definition,
        was=" ".join(line[1:].strip() for line in diff if line[0] == "-").strip(),
        becomes=" ".join(line[1:].strip() for line in diff if line[0] == "+").strip(),
        died=died,
    )


def stages(folder: Path, module: Path, tests: tuple[str, ...]) -> list[list[str]]:
    """Returns the runs of pytest for a module: its own tests, the others of their folder, the others of the group."""
    mirror = Path("tests") / module.parent
    own = mirror / f"test_{module.stem}.py"
    beside = sorted(str(path.relative_to(folder)) for path in (folder / mirror).glob("test_*.py"))
    runs = [pytest(str(own))] if str(own) in beside else []
    others = [each for each in beside if each != str(own)]
    if others:
        runs.append(pytest(*others))
    done = [argument for each in beside for argument in ("--ignore", each)]
    rest = [each for each in tests if each not in beside]
    if rest:
        runs.append(pytest(*rest, *done))
    return runs


def pytest(*tests: str) -> list[str]:
    profile = ("--hypothesis-profile", "mutation", "--timeout", str(TEST_S))
    return ["-q", "-x", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning", *profile, *tests]


def unseen(tree: ast.Module) -> Callable[[tuple[int, int]], bool]:
    """Returns a test for places whose mutants change nothing at run time: annotations of variables, options of
    dataclasses, protocols."""
    nodes: list[ast.expr | ast.stmt] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign):
            nodes.append(node.annotation)
        elif isinstance(node, ast.ClassDef):
            nodes += node.decorator_list
            if any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases):
                nodes.append(node)
    spans = [((each.lineno, each.col_offset), (each.end_lineno, each.end_col_offset)) for each in nodes]
    return lambda at: any(first <= at <= last for first, last in spans)


if __name__ == "__main__":
    sys.exit(main())
