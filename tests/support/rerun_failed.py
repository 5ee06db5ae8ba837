"""Runs tests, and in ``.ci/run`` the few tests that failed once more, alone, when all others are done.

``python -m tests.support.rerun_failed --most N ARGUMENTS -- ARGUMENTS`` runs pytest with each of these lists of
arguments, one after the other, and with this module as its plugin, which records how each test ended. At most ``N``
failed tests are run again. Only tests that failed in runs that came to their end are: a run that was interrupted, that
could not collect, that crashed, that lost a worker of pytest-xdist or was cut off fails as it is. See docs/adr/0045.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

_TESTS_FAILED = 1
_CRASHED = 3
"""What pytest returns for an error of its own."""
_VARIABLE = "--ended-as"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run of pytest ended; ``status`` is None if it never came to its end."""

    status: int | None = None
    passed: frozenset[str] = frozenset()
    """Node ids; the same below."""
    failed: dict[str, str] = field(default_factory=dict)
    """With pytest's report of each: of its call, and of its fixtures."""

    @property
    def is_complete(self) -> bool:
        """Whether every test was run and has its outcome."""
        return self.status == 0 or (self.status == _TESTS_FAILED and bool(self.failed))

    def deserves_rerun(self, most: int) -> bool:
        return self.is_complete and 0 < len(self.failed) <= most

    def __add__(self, other: "Ended") -> "Ended":
        """Returns both runs as one."""
        if not (self.is_complete and other.is_complete):
            return Ended()
        status = max(self.status or 0, other.status or 0)
        return Ended(status, self.passed | other.passed, {**self.failed, **other.failed})

    def has_mended(self, before: "Ended") -> bool:
        """Whether this run, of what failed ``before``, passed all of it: a skipped test has not passed."""
        return self.status == 0 and self.passed == before.failed.keys()


def summary(first: Ended, second: Ended) -> list[str]:
    """What both runs of the tests that failed at first have to say, a line or a report each."""
    lines = []
    for name, report in first.failed.items():
        outcome = "passed when run again" if name in second.passed else "NOT passed when run again"
        lines += [f"failed once, {outcome}: {name}", f"what it said the first time:\n{report}"]
    return lines


# --- the plugin -------------------------------------------------------------------------------------------------------


class Writer:
    """Collects how tests end and writes it when pytest is through; with pytest-xdist in the process that leads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._has_crashed = False
        self._passed: set[str] = set()
        self._failed: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid
        if report.failed:
            said = f"[{report.when}]\n{report.longreprtext}\n"
            self._failed[name] = self._failed.get(name, "") + said
        elif report.when == "call" and report.passed:
            self._passed.add(name)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, error: object) -> None:
        """A worker of pytest-xdist has ended; its crash is reported as a failed test."""
        self._has_crashed |= error is not None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self._has_crashed:
            session.exitstatus = exitstatus = _CRASHED
        passed = sorted(self._passed - self._failed.keys())
        written = {"status": int(exitstatus), "passed": passed, "failed": self._failed}
        self._path.write_text(json.dumps(written), encoding="utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(_VARIABLE, type=Path, help="where to write how each test ended, in JSON")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption(_VARIABLE)
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Writer(path))


# --- the command ------------------------------------------------------------------------------------------------------


def run(arguments: Sequence[str]) -> Ended:
    """Runs pytest; its output goes where ours does."""
    with tempfile.TemporaryDirectory(prefix="second-look-") as folder:
        path = Path(folder) / "ended.json"
        plugin = ("-p", "tests.support.rerun_failed", f"{_VARIABLE}={path}")
        code = subprocess.run((sys.executable, "-m", "pytest", *plugin, *arguments), check=False).returncode
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return Ended()
    if found["status"] != code:  # It was killed after its last word, or something else changed its mind.
        return Ended()
    return Ended(code, frozenset(found["passed"]), found["failed"])


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0 if all tests passed, at the first or at the second run."""
    most, ended = 0, None
    if arguments[:1] == ["--most"]:
        most, arguments = int(arguments[1]), arguments[2:]
    for each in _lists(arguments):
        found = run(each)
        ended = found if ended is None else ended + found
        if not ended.is_complete:
            return 1
    assert ended is not None
    if not ended.deserves_rerun(most):
        return 0 if ended.status == 0 else 1
    _say([f"{len(ended.failed)} failed; once more, alone:", *ended.failed])
    second = run(("-q", "-m", "", *ended.failed))
    _say(summary(ended, second))
    return 0 if second.has_mended(ended) else 1


def _lists(arguments: Sequence[str]) -> list[list[str]]:
    """Splits at each ``--``."""
    found: list[list[str]] = [[]]
    for each in arguments:
        if each == "--":
            found.append([])
        else:
            found[-1].append(each)
    return found


def _say(lines: Sequence[str]) -> None:
    rule = "!" * 118
    sys.stdout.write("\n".join(("", rule, *lines, rule, "")))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
