"""What commands print: control characters of others' text are escaped."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from rich.table import Table

from tidegate.control.cli import common
from tidegate.control.cli.common import as_flags, console, escaped, print_text, say
from tidegate.control.sdk import ApiError
from tidegate.control.views.errors import ErrorDetail

HOSTILE = "\x1b]0;owned\x07\x1b[31mred \x9b2J \u202eback\rover"
ESCAPED = r"\x1b]0;owned\x07\x1b[31mred \x9b2J \u202eback\rover"


def test_what_moves_a_cursor_is_escaped_and_the_rest_stays() -> None:
    assert escaped(HOSTILE) == ESCAPED
    assert escaped("one\n\ttwo \u3000 \u00e9 \U0001f600") == "one\n\ttwo \u3000 \u00e9 \U0001f600"
    assert escaped("\ud800") == r"\ud800"


def test_every_way_of_printing_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    say(HOSTILE)
    print_text(HOSTILE)
    console().print(HOSTILE, markup=False)
    table = Table(box=None, show_header=False)
    table.add_row(HOSTILE)
    console().print(table)
    shown = capsys.readouterr()
    assert shown.err == f"{ESCAPED}\n"
    by_rich = ESCAPED.replace(r"\x07", "").replace(r"\r", "")  # rich drops these by itself
    assert [line.strip() for line in shown.out.splitlines()] == [ESCAPED, by_rich, by_rich]


def test_faults_of_the_control_process_name_the_flags_that_were_typed() -> None:
    message = "resize\n  max_batch: got 9; allowed: 1 to max_batch: 4\n  split of 1: got 101\n  name: got max_batch"
    detail = ErrorDetail(code="invalid_input", message=message)
    with pytest.raises(ApiError) as raised, as_flags({"max_batch": "--batch", "split": "--to"}):
        raise ApiError(422, detail)
    wanted = "resize\n  --batch: got 9; allowed: 1 to max_batch: 4\n  --to of 1: got 101\n  name: got max_batch"
    assert (str(raised.value), raised.value.detail.code) == (wanted, "invalid_input")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is full")
@pytest.mark.parametrize("words", [("down", "--json"), ("tenant-key",)])
def test_an_output_that_cannot_be_written_is_an_error_without_a_traceback(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    state = ("--state", str(tmp_path / "none")) if words[0] == "down" else ()
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "tidegate", *words, *state]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert (done.returncode, last) == (1, "error: standard output cannot be written: No space left on device")
    assert "Traceback" not in done.stderr


def test_a_file_that_cannot_be_written_is_named(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "_discard_output", lambda: None)
    with pytest.raises(typer.Exit), common.exit_codes():
        raise OSError(errno.ENOSPC, "No space left on device", "a/b")
    assert capfd.readouterr().err == "error: a/b cannot be written: No space left on device\n"
