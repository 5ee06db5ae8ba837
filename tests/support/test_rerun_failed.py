"""The second look of ``.ci/run`` at tests that failed once: what it forgives, and what it never does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.rerun_failed import Ended

ROOT = Path(__file__).resolve().parents[2]
FAILED = Ended(1, frozenset({"a", "b"}), {"c": "why", "d": "why"})


def test_only_few_failures_of_a_whole_run_are_run_again() -> None:
    assert FAILED.deserves_rerun(2)
    assert not FAILED.deserves_rerun(1)
    assert not FAILED.deserves_rerun(0)
    assert not Ended(1).deserves_rerun(3), "pytest failed and no test did"
    assert not Ended(0, frozenset("a")).deserves_rerun(3)


@pytest.mark.parametrize("status", [None, 2, 3, 4, 5, -11])
def test_a_run_that_did_not_come_to_its_end_is_none_of_them(status: int | None) -> None:
    cut = Ended(status, FAILED.passed, FAILED.failed)
    assert not cut.deserves_rerun(3)
    assert not (FAILED + cut).deserves_rerun(9)
    assert not (cut + FAILED).is_complete


def test_failures_of_several_runs_count_together() -> None:
    both = FAILED + Ended(1, frozenset("x"), {"y": "why"})
    assert both == Ended(1, frozenset("abx"), {"c": "why", "d": "why", "y": "why"})
    assert both.deserves_rerun(3)
    assert not both.deserves_rerun(2)
    assert Ended(0, frozenset("x")) + FAILED == Ended(1, frozenset("abx"), FAILED.failed)


def test_all_that_failed_must_have_passed_the_second_time() -> None:
    assert Ended(0, frozenset({"c", "d"})).has_mended(FAILED)
    assert not Ended(0, frozenset({"c"})).has_mended(FAILED), "the other one was skipped, or not found"
    assert not Ended(1, frozenset({"c"}), {"d": "why"}).has_mended(FAILED)
    assert not Ended(None, frozenset({"c", "d"})).has_mended(FAILED)


MODULE = """
import os, pathlib, pytest

def again(name):
    mark = pathlib.Path(name)
    known = mark.exists()
    mark.touch()
    return known

@pytest.mark.parametrize("number", range(5))
def test_fine(number):
    assert not again(f"fine-{number}"), "it passed, and was run again"

"""


def _ends(folder: Path, tests: str, *options: str, most: str = "3") -> tuple[int, str]:
    """The exit code and the output for ``tests`` beside five that pass, and pass once."""
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    live\naddopts = -m 'not live'\n")
    (folder / "test_it.py").write_text(MODULE + tests)
    command = [sys.executable, "-m", "tests.support.rerun_failed", "--most", most]
    command += ["-q", "-m", "", "-p", "no:cacheprovider", *options]
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.returncode, done.stdout


@pytest.mark.live
@pytest.mark.timeout(120)
class TestRuns:
    def test_what_passes_the_second_time_is_reported_with_what_it_said(self, tmp_path: Path) -> None:
        code, output = _ends(tmp_path, "@pytest.mark.live\ndef test_once(): assert again('x'), 'a hiccup'\n")
        assert code == 0, output
        assert "failed once, passed when run again: test_it.py::test_once" in output
        last = output.rpartition("what it said the first time:")[2]
        assert "AssertionError: a hiccup" in last, "in view at the end, too"

    def test_what_fails_again_fails(self, tmp_path: Path) -> None:
        code, output = _ends(tmp_path, "def test_a(): assert again('a')\ndef test_b(): assert False, 'always'\n")
        assert code == 1, output
        assert "failed once, passed when run again: test_it.py::test_a" in output
        assert "failed once, NOT passed when run again: test_it.py::test_b" in output

    def test_a_fixture_counts_as_its_test(self, tmp_path: Path) -> None:
        fixture = "@pytest.fixture\ndef end():\n    yield\n    assert again('x')\n"
        code, output = _ends(tmp_path, fixture + "def test_it(end): pass\n")
        assert code == 0, output
        assert "failed once, passed when run again: test_it.py::test_it" in output

    @pytest.mark.parametrize(
        "tests",
        [
            "def test_skips():\n    if again('x'): pytest.skip('not today')\n    assert False\n",
            "@pytest.mark.parametrize('n', range(4))\ndef test_many(n): assert again(f'm{n}')\n",
            "def test_cut_off():\n    if not again('x'): os._exit(1)\n",
            "def test_cut_off_later():\n    if again('x'): os._exit(0)\n    assert False\n",
            "def test_stopped():\n    if not again('x'): raise KeyboardInterrupt\n",
            "assert again('x')\n",
        ],
        ids=["skipped", "four", "cut off", "cut off the second time", "interrupted", "not collected"],
    )
    def test_nothing_else_is_forgiven(self, tmp_path: Path, tests: str) -> None:
        code, output = _ends(tmp_path, tests)
        assert code == 1, output

    def test_a_run_without_failures_is_one_run(self, tmp_path: Path) -> None:
        code, output = _ends(tmp_path, "")
        assert code == 0, output
        assert "again" not in output

    def test_side_by_side_as_in_one_process(self, tmp_path: Path) -> None:
        code, output = _ends(
            tmp_path, "def test_once(): assert again('x'), 'a hiccup'\n", "-p", "xdist.plugin", "-n", "2"
        )
        assert code == 0, output
        assert "failed once, passed when run again: test_it.py::test_once" in output
        assert "AssertionError: a hiccup" in output.rpartition("what it said the first time:")[2]

    def test_a_worker_that_crashes_is_not_forgiven(self, tmp_path: Path) -> None:
        tests = "def test_cut_off():\n    if not again('x'): os._exit(1)\n"
        code, output = _ends(tmp_path, tests, "-p", "xdist.plugin", "-n", "2")
        assert code == 1, output
        assert "when run again" not in output

    def test_of_two_runs_both_are_run_and_their_failures_run_again(self, tmp_path: Path) -> None:
        tests = "def test_a(): assert again('a')\n@pytest.mark.live\ndef test_b(): assert again('b')\n"
        code, output = _ends(tmp_path, tests, "-m", "not live", "--", "-q", "-p", "no:cacheprovider", "-m", "live")
        assert code == 0, output
        for name in "ab":
            assert f"failed once, passed when run again: test_it.py::test_{name}" in output

    def test_where_people_work_nothing_is_forgiven(self, tmp_path: Path) -> None:
        code, output = _ends(tmp_path, "def test_once(): assert again('x')\n", most="0")
        assert code == 1, output
        assert "when run again" not in output
