"""The live suite for ``.ci/run``: at most three tests that fail are run once more, alone, when all others are done.

``python -m tests.support.rerun_failed ARGUMENTS`` runs pytest with these arguments and with this module as its plugin,
which writes down how each test ended. Nothing but tests that failed in a run that came to its end is looked at again: a
run that was interrupted, that could not collect, that crashed or was cut off fails as it is. See docs/adr/0045.
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

MOST = 3
"""So many failures may be the machine's; more are the code's."""
_TESTS_FAILED = 1
_VARIABLE = "--ended-as"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run of pytest ended; ``status`` None: it never came to its end."""

    status: int | None = None
    passed: frozenset[str] = frozenset()
    """Node ids; the same below."""
    failed: dict[str, str] = field(default_factory=dict)
    """With what pytest said of each: of its call, and of what stands around it."""

    @property
    def deserves_a_second_look(self) -> bool:
        return self.status == _TESTS_FAILED and 0 < len(self.failed) <= MOST

    def has_mended(self, before: "Ended") -> bool:
        """Whether this run, of what failed ``before``, passed all of it: a skipped test has not passed."""
        return self.status == 0 and self.passed == before.failed.keys()


def told(first: Ended, second: Ended) -> list[str]:
    """What both runs of the tests that failed at first have to say, a line or a report each."""
    lines = []
    for name, report in first.failed.items():
        outcome = "passed when run again" if name in second.passed else "NOT passed when run again"
        lines += [f"failed once, {outcome}: {name}", f"what it said the first time:\n{report}"]
    return lines


# --- the plugin -------------------------------------------------------------------------------------------------------


class Writer:
    """Collects how tests end and writes it when pytest is through."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._passed: set[str] = set()
        self._failed: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            said = f"[{report.when}]\n{report.longreprtext}\n"
            self._failed[report.nodeid] = self._failed.get(report.nodeid, "") + said
        elif report.when == "call" and report.passed:
            self._passed.add(report.nodeid)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        passed = sorted(self._passed - self._failed.keys())
        written = {"status": int(exitstatus), "passed": passed, "failed": self._failed}
        self._path.write_text(json.dumps(written), encoding="utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(_VARIABLE, type=Path, help="where to write how each test ended, in JSON")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption(_VARIABLE)
    if path is not None:
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
    """The exit code: 0 where all tests passed, at the first or at the second look."""
    first = run(arguments)
    if not first.deserves_a_second_look:
        return 0 if first.status == 0 else 1
    _say([f"{len(first.failed)} failed; once more, alone:", *first.failed])
    second = run(("-q", "-m", "", *first.failed))
    _say(told(first, second))
    return 0 if second.has_mended(first) else 1


def _say(lines: Sequence[str]) -> None:
    rule = "!" * 118
    sys.stdout.write("\n".join(("", rule, *lines, rule, "")))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
