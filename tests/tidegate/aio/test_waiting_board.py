"""The figures of all workers in one mapped file: written without messages, right when a process is killed."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.aio import waiting_board
from tidegate.aio.waiting_board import WaitingBoard
from tidegate.flow.rooms.figures import FunctionBoard, Others

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="locks of open file descriptions")

KILLED = """
import os, signal, sys
from pathlib import Path
from tidegate.aio.waiting_board import WaitingBoard
WaitingBoard(Path(sys.argv[1])).of("echo").publish(7, 700, 0.5)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "waiting"


def figures(board: WaitingBoard, name: str = "echo") -> FunctionBoard:
    found = board.of(name)
    assert found is not None
    return found


def test_each_reads_the_sums_of_the_others(file: Path) -> None:
    one, two, three = WaitingBoard(file), WaitingBoard(file), WaitingBoard(file)
    figures(one).publish(2, 200, 0.25)
    figures(two).publish(3, 300, 0.5)
    figures(two, "other").publish(9, 900, 0.0)
    assert figures(three).others() == Others(5, 500, 0.5)
    assert figures(one).others() == Others(3, 300, 0.5)
    two.close()
    assert figures(three).others() == Others(2, 200, 0.25)
    assert not three.drop_ended(), "the others live"
    one.close()
    three.close()


def test_a_killed_process_takes_no_place(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_board, "CHECK_S", 0.0)
    one = WaitingBoard(file)
    done = subprocess.run([sys.executable, "-c", KILLED, str(file)], check=False)
    assert done.returncode == -9
    assert figures(one).others().requests == 7
    assert one.drop_ended()
    assert figures(one).others() == Others()
    two = WaitingBoard(file)
    assert figures(two).others() == Others()
    figures(one).publish(1, 1, 0.0)
    assert figures(two).others().requests == 1, "the row of the dead one is used again, and is empty"
    one.close()
    two.close()


def test_the_file_of_an_earlier_run_counts_for_nothing(file: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(file)], check=False)
    one = WaitingBoard(file)
    assert figures(one).others() == Others()
    one.close()


def test_functions_beyond_the_directory_have_no_figures(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_board, "SLOTS", 4)
    one, two = WaitingBoard(file), WaitingBoard(file)
    for number in range(4):
        figures(one, f"f{number}").publish(number, 0, 0.0)
    assert one.of("f9") is None
    assert [figures(two, f"f{number}").others().requests for number in range(4)] == [0, 1, 2, 3]
    one.close()
    two.close()


def test_more_processes_than_rows_are_an_error(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_board, "ROWS", 2)
    boards = [WaitingBoard(file), WaitingBoard(file)]
    with pytest.raises(OSError, match="2 gateway workers run already"):
        WaitingBoard(file)
    for board in boards:
        board.close()
