"""The end of log files, and what is added to them."""

import asyncio
import json
from pathlib import Path

from tidegate.control.api.logs import LINE_BYTES, Tail, files, lines
from tidegate.control.state.notices import ChangeSignal
from tidegate.deploy.local.logs import trim


def test_a_name_says_replica_and_source() -> None:
    tail = Tail(Path("/logs/echo/echo-00001-abcde.server.log"))
    assert (tail.replica, tail.source) == ("echo-00001-abcde", "server")


def test_the_last_lines_then_what_is_added(tmp_path: Path) -> None:
    path = tmp_path / "r.server.log"
    path.write_text("one\ntwo\nthree\nhal")
    tail = Tail(path)
    assert tail.last(2) == ["two", "three"]
    assert tail.more() == []
    with path.open("a") as file:
        file.write("f\r\nfour\n")
    assert tail.more() == ["half", "four"]


def test_a_file_that_was_cut_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "r.server.log"
    path.write_text("old old old\n")
    tail = Tail(path)
    assert tail.last(0) == []
    path.write_text("new\n")
    assert tail.more() == ["new"]


def test_a_line_without_end_is_reported_when_it_is_long(tmp_path: Path) -> None:
    path = tmp_path / "r.server.log"
    path.write_text("")
    tail = Tail(path)
    assert tail.last(5) == []
    path.write_bytes(b"x" * (LINE_BYTES + 1))
    assert [len(line) for line in tail.more()] == [LINE_BYTES + 1]


def test_what_is_not_there_has_no_lines(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "none.server.log")
    assert tail.last(5) == []
    assert tail.more() == []
    assert files([tmp_path / "nowhere"], None, "all") == []


def test_files_by_source_and_replica(tmp_path: Path) -> None:
    for name in ("a.server.log", "a.proxy.log", "b.server.log", "a.server.log.1"):
        (tmp_path / name).write_text("")
    assert [path.name for path in files([tmp_path], None, "server")] == ["a.server.log", "b.server.log"]
    assert {path.name for path in files([tmp_path], "a", "all")} == {"a.server.log", "a.proxy.log"}


def test_following_goes_on_until_the_end(tmp_path: Path) -> None:
    async def run() -> None:
        pulse = ChangeSignal()
        (tmp_path / "a.server.log").write_text("one\n")
        stream = lines([tmp_path], tail=10, follow=True, replica=None, source="server", until=pulse)
        assert json.loads(await anext(stream))["line"] == "one"
        (tmp_path / "b.server.log").write_text("another\n")
        assert json.loads(await anext(stream)) == {"replica": "b", "source": "server", "line": "another"}
        pulse.end()
        assert [each async for each in stream] == []

    asyncio.run(run())


def _write(path: Path, *numbers: int) -> None:
    with path.open("a") as file:
        file.write("".join(f"{number:03}\n" for number in numbers))


def test_a_cut_between_two_readings_loses_no_line(tmp_path: Path) -> None:
    path = tmp_path / "r.server.log"
    _write(path, *range(90))
    tail = Tail(path)
    assert tail.last(1) == ["089"]
    _write(path, *range(90, 110))
    with path.open("a") as file:
        file.write("hal")
    assert trim(path, 400)
    with path.open("a") as file:
        file.write("f\nnew\n")
    assert tail.more() == [f"{number:03}" for number in range(90, 110)] + ["half", "new"]
    assert tail.more() == []
    assert Tail(path).last(3) == ["109", "half", "new"]


def test_a_cut_file_that_has_grown_beyond_the_place_of_the_reader_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "r.server.log"
    _write(path, *range(100))
    tail = Tail(path)
    tail.last(0)
    assert trim(path, 300)
    _write(path, *range(200, 400))
    assert tail.more() == [str(number) for number in range(200, 400)]


def test_lines_that_cuts_dropped_are_reported_where_they_were(tmp_path: Path) -> None:
    path = tmp_path / "r.server.log"
    _write(path, 1)
    tail = Tail(path)
    assert tail.last(5) == ["001"]
    _write(path, *range(2, 102))
    assert trim(path, 40)
    assert tail.more() == ["-- tidegate: cut 1, 388 bytes before this line are lost", "098", "099", "100", "101"]
    for first in (200, 300):  # two cuts between two readings
        _write(path, *range(first, first + 100))
        assert trim(path, 40)
    lines = tail.more()
    assert lines[0].startswith("-- tidegate: cut 3, ")
    assert lines[-1] == "399"


def test_as_many_last_lines_as_are_wanted_are_found(tmp_path: Path) -> None:
    path = tmp_path / "r.server.log"
    path.write_bytes(b"%0199d\n" % 1 * 5000)
    assert len(Tail(path).last(4000)) == 4000
    trim(path, 900_000)
    lines = Tail(path).last(100_000)
    assert lines[0].startswith("-- tidegate: cut 1, ")
    assert len(lines) == 1 + 2250 - 1
