"""The end of log files, and what is added to them."""

import asyncio
import json
from pathlib import Path

from tidegate.control.api.logs import LINE_BYTES, Tail, files, lines
from tidegate.control.state.notices import ChangeSignal


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


def test_a_line_without_end_is_told_when_it_is_long(tmp_path: Path) -> None:
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
    assert files(tmp_path / "nowhere", None, "all") == []


def test_files_by_source_and_replica(tmp_path: Path) -> None:
    for name in ("a.server.log", "a.proxy.log", "b.server.log", "a.server.log.1"):
        (tmp_path / name).write_text("")
    assert [path.name for path in files(tmp_path, None, "server")] == ["a.server.log", "b.server.log"]
    assert {path.name for path in files(tmp_path, "a", "all")} == {"a.server.log", "a.proxy.log"}


def test_following_goes_on_until_the_end(tmp_path: Path) -> None:
    async def run() -> None:
        pulse = ChangeSignal()
        (tmp_path / "a.server.log").write_text("one\n")
        stream = lines(tmp_path, tail=10, follow=True, replica=None, source="server", until=pulse)
        assert json.loads(await anext(stream))["line"] == "one"
        (tmp_path / "b.server.log").write_text("another\n")
        assert json.loads(await anext(stream)) == {"replica": "b", "source": "server", "line": "another"}
        pulse.end()
        assert [each async for each in stream] == []

    asyncio.run(run())
