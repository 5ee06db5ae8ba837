"""``tidegate simulate`` as a process: Ctrl-C in the middle, and a terminal that shows how it gets on."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.control.cli.simulate.test_command import ACCELERATORS, FUNCTION, PROFILES

pytestmark = pytest.mark.live


def command(tmp_path: Path, *more: str) -> list[str]:
    for name, text in (("f.yaml", FUNCTION), ("a.yaml", ACCELERATORS), ("p.yaml", PROFILES)):
        (tmp_path / name).write_text(text)
    files = ("--function", "f.yaml", "--accelerators", "a.yaml", "--profile", "p.yaml")
    return [sys.executable, "-m", "tidegate.control.cli", "simulate", *files, "--policy", "kpa", *more]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}


def test_ctrl_c_leaves_partial_files_and_ends_with_130(tmp_path: Path) -> None:
    """The rows of seconds go through a pipe: the first of them says that it is in the middle of a day."""
    rows = tmp_path / "rows.csv"
    os.mkfifo(rows)
    given = ("--rate", "20", "--for", "24h", "--csv", str(rows), "--report", "r.html", "--log", "d.jsonl", "--json")
    with subprocess.Popen(
        command(tmp_path, *given), stdout=subprocess.PIPE, cwd=tmp_path, env=environment(), text=True
    ) as process:
        with rows.open(encoding="utf-8") as file:
            assert file.readline().startswith("policy,at_s")
            assert file.readline().startswith("kpa,0,")
            process.send_signal(signal.SIGINT)
            seconds = len(file.readlines()) + 1
        assert process.stdout is not None
        report = json.loads(process.stdout.read())
        assert process.wait() == 130
    assert report["is_partial"] is True
    assert report["policies"][0]["figures"]["duration_s"] == pytest.approx(seconds, abs=1.0)
    assert "Interrupted" in (tmp_path / "r.html").read_text()
    assert (tmp_path / "r.html").read_text().endswith("</html>\n")
    assert all(json.loads(line)["policy"] == "kpa" for line in (tmp_path / "d.jsonl").read_text().splitlines())


def test_a_terminal_sees_how_it_gets_on_and_the_result_stays_clean(tmp_path: Path) -> None:
    terminal, end = os.openpty()
    output = tmp_path / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            command(tmp_path, "--rate", "100", "--for", "300s", "--no-bound"),
            stdout=file, stderr=end, cwd=tmp_path, env={**environment(), "TERM": "xterm"},
        )  # fmt: skip
    os.close(end)
    shown = b"".join(read(terminal))
    assert process.wait() == 0
    assert b"kpa" in shown
    assert b"\x1b" not in output.read_bytes()
    assert output.read_bytes().startswith(b"function ")


def read(terminal: int) -> Iterator[bytes]:
    """What is written to a terminal until no process has it open any more, which reading it reports as an error."""
    with contextlib.suppress(OSError):
        while data := os.read(terminal, 65_536):
            yield data
    os.close(terminal)
