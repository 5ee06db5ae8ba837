"""Runs a random sample of mutants of the pure cores: ``python -m tests.mutation [GROUP...] --count 60 --seed 1``.

Each mutant is one child process that imports the changed module in place of the real one and runs the tests of its
group, the module's own test file first. A mutant dies when a test fails or the tests take five times as long. What is
printed: each survivor with its line, and the share that died. The exit status is 1 below ``--at-least`` percent.

Nothing is written to the work tree: the changed module exists in the child alone.
"""

import argparse
import ast
import importlib.abc
import importlib.machinery
import importlib.util
import os
import random
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from tests.mutation.mutants import Mutant, mutants, mutated

ROOT: Final = Path(__file__).resolve().parents[2]
SLACK_S: Final = 20.0
FACTOR: Final = 5.0


@dataclass(frozen=True)
class Group:
    """Modules, and the tests that must notice a change in them."""

    files: tuple[str, ...]
    tests: tuple[str, ...]


GROUPS: Final = {
    "flow": Group(("tidegate/flow/*.py",), ("tests/tidegate/flow", "tests/property", "tests/activator")),
    "wire": Group(("tidegate/wire/*/*.py",), ("tests/tidegate/wire", "tests/golden")),
    "traffic": Group(("traffic/*.py",), ("tests/traffic",)),
    "plan": Group(("deploy/plan.py",), ("tests/deploy/test_plan.py", "tests/deploy")),
    "policies": Group(("autoscaler/policies/*.py", "autoscaler/policies/*/*.py"), ("tests/autoscaler", "tests/golden")),
}


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds one module, and runs its changed tree."""

    def __init__(self, name: str, path: Path, tree: ast.Module) -> None:
        self._name, self._path, self._tree = name, path, tree

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._tree, str(self._path), "exec"), module.__dict__)  # noqa: S102 - what importing does


def module_of(path: Path) -> str:
    """Returns the name that a file is imported by."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts if parts[0] == "tidegate" else ("tidegate", *parts))


def own_tests(path: Path) -> list[str]:
    """Returns the test file that mirrors a module, if there is one."""
    relative = path.relative_to(ROOT)
    mirrored = Path("tests") / relative.parent / f"test_{relative.name}"
    return [str(mirrored)] if (ROOT / mirrored).exists() else []


def run(path: Path, tests: Sequence[str], limit_s: float, mutant: Mutant | None) -> tuple[bool, float]:
    """Runs tests in a child process; returns whether all passed, and the seconds they took."""
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        os.setsid()
        code = 3
        try:
            with open(os.devnull, "w") as quiet, redirect_stdout(quiet), redirect_stderr(quiet):  # noqa: PTH123
                os.dup2(quiet.fileno(), 1)
                os.dup2(quiet.fileno(), 2)
                if mutant is not None:
                    tree = mutated(path.read_text(encoding="utf-8"), mutant)
                    sys.meta_path.insert(0, _Changed(module_of(path), path, tree))
                code = int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "--no-header", *tests]))
        finally:
            os._exit(code)
    status = _wait(child, limit_s)
    return status == 0, time.monotonic() - began


def _wait(child: int, limit_s: float) -> int | None:
    """Returns the exit status; None if the child took too long and was ended."""
    handle = os.pidfd_open(child)
    try:
        ready, _, _ = select.select([handle], [], [], limit_s)
    finally:
        os.close(handle)
    if not ready:
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) if ready else None


def sample(group: Group, count: int, rng: random.Random) -> list[tuple[Path, Mutant]]:
    """Returns ``count`` mutants of a group's modules; 0: all."""
    files = sorted(path for pattern in group.files for path in ROOT.glob(pattern) if path.name != "__init__.py")
    every = [(path, mutant) for path in files for mutant in mutants(path.read_text(encoding="utf-8"))]
    return every if count == 0 or count >= len(every) else sorted(rng.sample(every, count), key=str)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("groups", nargs="*", choices=[[], *GROUPS], help="default: all")
    parser.add_argument("--count", type=int, default=60, help="mutants of each group; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-least", type=float, default=90.0, help="percent that must die")
    options = parser.parse_args()
    is_enough = True
    for name in options.groups or GROUPS:
        is_enough &= judge(name, options.count, options.seed) >= options.at_least
    return 0 if is_enough else 1


def judge(name: str, count: int, seed: int) -> float:
    """Runs the sample of one group and prints it; returns the percentage that died."""
    group, rng = GROUPS[name], random.Random(f"{name} {seed}")
    limits: dict[Path, float] = {}
    died, chosen = 0, sample(group, count, rng)
    for path, mutant in chosen:
        tests = [*own_tests(path), *group.tests]
        if path not in limits:
            passed, seconds = run(path, tests, 1200.0, None)
            if not passed:
                raise SystemExit(f"{name}: the tests of {path.relative_to(ROOT)} fail without any change")
            limits[path] = SLACK_S + FACTOR * seconds
        survived, _ = run(path, tests, limits[path], mutant)
        died += not survived
        if survived:
            say(f"{name}: SURVIVED {path.relative_to(ROOT)}:{mutant}")
    share = 100.0 * died / len(chosen)
    say(f"{name}: {died} of {len(chosen)} mutants died ({share:.0f} %), seed {seed}")
    return share


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
