"""``tidegate experiment`` with processes: the same output by several, and what an interruption leaves."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.loadgen.experiments.small import TEXT

pytestmark = pytest.mark.live
ROOT = Path(__file__).resolve().parents[2]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tidegate.control.cli", "experiment", *arguments]


def own(tmp_path: Path) -> list[str]:
    """A quick experiment, and one that takes its time."""
    quick, long = tmp_path / "quick.toml", tmp_path / "long.toml"
    quick.write_text(TEXT, encoding="utf-8")
    long.write_text(TEXT.replace('"small"', '"long"').replace("requests = 20", "requests = 3000000"), encoding="utf-8")
    return [f"--definition={quick}", f"--definition={long}"]


@pytest.mark.timeout(120)
def test_several_processes_print_the_same(tmp_path: Path) -> None:
    quick = own(tmp_path)[0]
    one, two = (
        subprocess.run(
            command(quick, "--seeds", "3", "--json", "--jobs", jobs), capture_output=True, cwd=ROOT, check=True
        )
        for jobs in ("1", "2")
    )
    assert one.returncode == two.returncode == 0
    assert one.stdout == two.stdout


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("jobs", "number"), [("1", signal.SIGINT), ("2", signal.SIGTERM)])
def test_an_interruption_leaves_a_partial_report(tmp_path: Path, jobs: str, number: int) -> None:
    page = tmp_path / "page.html"
    process = subprocess.Popen(
        command(*own(tmp_path), "--json", "--jobs", jobs, "--report", str(page)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    process.send_signal(number)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert rest == "" and "Traceback" not in errors
    assert (first["name"], first["partial"]) == ("small", False)
    written = page.read_text(encoding="utf-8")
    assert "Interrupted, this report is partial: not run: long" in written
    assert written.endswith("</html>\n")
