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
import json
import math
import os
import random
import resource
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
EQUIVALENT: Final = Path(__file__).with_name("equivalent.toml")
LEFT_OUT: Final = frozenset({"__init__.py", "forecast_weights.py"})
"""Modules without code: the latter has the numbers of a trained network."""
SLOWER: Final = 3.0
"""A mutant with which the tests take so many times the processor time has died: it loops."""
TEST_S: Final = 120
HANGS_S: Final = 7200.0
"""Wall time of one test and of all. A busy machine must not kill a mutant."""


@dataclass(frozen=True, slots=True)
class Group:
    """Modules by glob, below the root, and the tests that judge them."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


GROUPS: Final = {
    "flow": Group(("tidegate/flow/*.py",), ("tests/tidegate/flow", "tests/property")),
    "http1": Group(("tidegate/wire/*.py", "tidegate/wire/http1/*.py"), ("tests/tidegate/wire/http1",)),
    "http2": Group(("tidegate/wire/http2/*.py",), ("tests/tidegate/wire/http2",)),
    "grpc": Group(("tidegate/wire/grpc/*.py",), ("tests/tidegate/wire/grpc", "tests/tidegate/runtime")),
    "bodies": Group(("tidegate/wire/bodies/*.py",), ("tests/tidegate/wire/bodies",)),
    "traffic": Group(("traffic/*.py",), ("tests/traffic",)),
    "plan": Group(("deploy/plan.py", "deploy/placement/*.py"), ("tests/deploy",)),
    "policies": Group(("autoscaler/policies/*.py", "autoscaler/policies/*/*.py"), ("tests/autoscaler", "tests/golden")),
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one module; ``was`` and ``becomes`` are the changed source lines without indentation."""

    module: str
    definition: str
    operator: str
    was: str
    becomes: str
    outcome: str

    @property
    def key(self) -> tuple[str, str, str]:
        """Identifies the mutant in ``equivalent.toml``, wherever its line moves to."""
        return self.module, self.was, self.becomes

    @property
    def shown(self) -> dict[str, str]:
        """The line that the runner prints: ``survived``, or what went wrong before a test had run."""
        return {self.outcome: self.module, "in": self.definition, "was": self.was, "becomes": self.becomes}


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
            died += mutant.outcome == "killed"
            if mutant.outcome != "killed":
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
    limit_s = math.ceil(SLOWER * passes(name, folder, group.tests)) + 5
    modules = sorted(path for pattern in group.modules for path in folder.glob(pattern) if path.name not in LEFT_OUT)
    sessions = [listed(folder, module, group.tests, limit_s) for module in modules]
    drawn = draw(sessions, sample, rng)
    for session in sessions:
        jobs = {job for owner, job in drawn if owner is session}
        if jobs:
            leave_out(session, partial(is_other, jobs))
            subprocess.run(cosmic_ray("exec", session), cwd=folder, check=True, env=environment(folder))
            yield from outcomes(session, jobs)


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    """cosmic-ray's configuration and database for one module."""

    config: Path
    database: Path


def passes(name: str, folder: Path, tests: Iterable[str]) -> float:
    """Runs a group's tests without a mutant, keeps the bytecode and returns the processor seconds. Ends the program if
    a test fails, since every mutant would seem to die."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    bytecode = {**environment(folder), "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(pytest(*tests), cwd=folder, env=bytecode, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{name}: the tests fail without a mutant\n{done.stdout}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def listed(folder: Path, module: Path, tests: tuple[str, ...], limit_s: int) -> Session:
    """Lists the mutants of a module. ``limit_s``: processor seconds that a run of tests may take."""
    relative = module.relative_to(folder)
    runs = " && ".join(shlex.join(pytest(*each)) for each in stages(folder, relative, tests))
    command = f"ulimit -t {limit_s} && {runs}"
    stem = relative.as_posix().replace("/", "-")
    session = Session(folder / f"{stem}.toml", folder / f"{stem}.sqlite")
    session.config.write_text(
        "[cosmic-ray]\n"
        f"module-path = {json.dumps(relative.as_posix())}\ntimeout = {HANGS_S}\nexcluded-modules = []\n"
        f"test-command = {json.dumps(shlex.join(['sh', '-c', command]))}\n"
        '[cosmic-ray.distributor]\nname = "local"\n'
    )
    subprocess.run(cosmic_ray("init", session), cwd=folder, check=True, env=environment(folder))
    leave_out(session, unseen(ast.parse(module.read_text(encoding="utf-8"))))
    return session


def stages(folder: Path, module: Path, tests: tuple[str, ...]) -> Iterator[Sequence[str]]:
    """Yields the runs of pytest for a module: its own tests, the others of their folder, the others of the group."""
    mirror = Path("tests") / module.parent
    own = mirror / f"test_{module.stem}.py"
    has_own = (folder / own).exists()
    if has_own:
        yield (str(own),)
    if any(path.name != own.name for path in (folder / mirror).rglob("test_*.py")):
        yield (str(mirror), *(("--ignore", str(own)) if has_own else ()))
    if tests != (str(mirror),):
        yield (*(each for each in tests if each != str(mirror)), "--ignore", str(mirror))


def pytest(*tests: str) -> list[str]:
    profile = ("--hypothesis-profile", "mutation", "--timeout", str(TEST_S))
    return [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *profile, *tests]


def cosmic_ray(command: str, session: Session) -> list[str]:
    return [str(Path(sys.executable).with_name("cosmic-ray")), command, str(session.config), str(session.database)]


def environment(folder: Path) -> Mapping[str, str]:
    """The tests of a copy import the copy; no bytecode of a mutant is written, since files change within a second."""
    return {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}


def database(session: Session) -> Any:
    """Opens a session. cosmic-ray is installed for this alone (``make mutation``)."""
    from cosmic_ray.work_db import use_db

    return use_db(str(session.database))


def draw(sessions: Iterable[Session], sample: int, rng: random.Random) -> list[tuple[Session, str]]:
    """Draws jobs from all sessions together, each mutant with the same chance."""
    every: list[tuple[Session, str]] = []
    for session in sessions:
        with database(session) as work:
            items = sorted(work.pending_work_items, key=lambda item: place(item.mutations[0]))
            every += [(session, item.job_id) for item in items]
    return every if not 0 < sample < len(every) else rng.sample(every, sample)


def place(mutation: Any) -> tuple[str, int]:
    """Orders the mutants of a module; job ids differ from listing to listing."""
    return mutation.operator_name, mutation.occurrence


def unseen(tree: ast.Module) -> Callable[[Any], bool]:
    """Returns a test for mutants that change nothing at run time: annotations of variables, options of dataclasses,
    protocols."""
    nodes: list[ast.expr | ast.stmt] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign):
            nodes.append(node.annotation)
        elif isinstance(node, ast.ClassDef):
            nodes += node.decorator_list
            if any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases):
                nodes.append(node)
    spans = [((each.lineno, each.col_offset), (each.end_lineno, each.end_col_offset)) for each in nodes]
    return lambda item: any(first <= item.mutations[0].start_pos <= last for first, last in spans)


def is_other(jobs: Collection[str], item: Any) -> bool:
    return item.job_id not in jobs


def leave_out(session: Session, is_left_out: Callable[[Any], bool]) -> None:
    """Marks jobs as skipped."""
    from cosmic_ray.work_item import WorkerOutcome, WorkResult

    with database(session) as work:
        rest = [item.job_id for item in work.pending_work_items if is_left_out(item)]
        work.set_multiple_results(rest, WorkResult(worker_outcome=WorkerOutcome.SKIPPED))


def outcomes(session: Session, jobs: Collection[str]) -> Iterator[Mutant]:
    """Yields the tested mutants of a session."""
    with database(session) as work:
        found = {item.job_id: (item, result) for item, result in work.completed_work_items if item.job_id in jobs}
    for item, result in found.values():
        mutation = item.mutations[0]
        changed = [
            line for line in (result.diff or "").split("\n") if line[:1] in "+-" and line[:3] not in ("+++", "---")
        ]
        yield Mutant(
            module=Path(mutation.module_path).as_posix(),
            definition=mutation.definition_name or "",
            operator=mutation.operator_name,
            was=" ".join(line[1:].strip() for line in changed if line[0] == "-"),
            becomes=" ".join(line[1:].strip() for line in changed if line[0] == "+"),
            outcome=str(result.test_outcome.value)
            if result.test_outcome is not None
            else str(result.worker_outcome.value),
        )


if __name__ == "__main__":
    sys.exit(main())
