"""Log lines as JSON objects: what is printed, warned, raised, and said with a request's id."""

import io
import json
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest

from tidegate.aio.log_stream import LONGEST, JsonStream, json_line, say, say_error, say_request_failed
from tidegate.control.state.json_formatter import JsonFormatter

FIELDS = {"logger": "model-server", "function": "f", "revision": "f-00001", "replica": "f-00001-a"}


class Written:
    """A stream into a file, and the lines in that."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.stream = JsonStream(file, "info", FIELDS)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in Path(self._file.name).read_text().splitlines()]

    def messages(self) -> list[str]:
        return [line["message"] for line in self.lines()]


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    with (tmp_path / "log").open("w") as file:
        yield Written(file)


def test_a_line_has_a_time_of_rfc_3339_and_every_field() -> None:
    line = json_line(1_700_000_100.5, "warning", FIELDS, 'a "b"\nc', request_id="r-1")
    assert json.loads(line) == {
        "time": "2023-11-14T22:15:00.500Z",
        "level": "warning",
        **FIELDS,
        "request_id": "r-1",
        "message": 'a "b"\nc',
    }
    assert "\n" not in line
    assert "request_id" not in json_line(0.0, "info", FIELDS, "m")


def test_what_is_printed_is_a_line_each_and_a_text_of_several_lines_is_one(written: Written) -> None:
    print("one", 1, file=written.stream)
    print("part", end="", file=written.stream)
    print(" of a line", file=written.stream)
    print("", file=written.stream)
    written.stream.write("first\nsecond\n")
    assert written.messages() == ["one 1", "part of a line", "first\nsecond"]
    assert {line["level"] for line in written.lines()} == {"info"}


def test_a_line_without_an_end_is_cut_before_it_fills_the_memory(written: Written) -> None:
    for _ in range(3 * LONGEST // 1000):
        written.stream.write("x" * 1000)
    assert [len(message) for message in written.messages()] == [LONGEST // 1000 * 1000 + 1000] * 2


def test_threads_do_not_mix_their_lines(written: Written) -> None:
    def write(letter: str) -> None:
        for _ in range(200):
            print(letter, end="", file=written.stream)
            print(letter, file=written.stream)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(written.messages()) == ["aa"] * 200 + ["bb"] * 200 + ["cc"] * 200


def test_an_error_is_one_line_with_its_traceback(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", written.stream)
    try:
        raise ValueError("why")
    except ValueError as error:
        say_error(error)
    say("a plain word", level="info", request_id="r-2")
    say_request_failed("no luck", "r-3")
    failed, plain, request = written.lines()
    assert failed["level"] == "error"
    assert failed["message"].startswith("Traceback") and failed["message"].endswith("ValueError: why")
    assert (plain["message"], plain["level"], plain["request_id"]) == ("a plain word", "info", "r-2")
    assert (request["message"], request["request_id"]) == ("the request has failed: no luck", "r-3")


def test_code_that_needs_a_usual_stream_runs(written: Written) -> None:
    written.stream.reconfigure(line_buffering=True)
    written.stream.buffer.write(b'{"level": "info", "message": "bytes"}\n')
    written.stream.buffer.flush()
    print("after", file=written.stream, flush=True)
    assert written.messages() == ["bytes", "after"]


def test_text_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    monkeypatch.setattr(sys, "stderr", text)
    say("a plain word", level="info", request_id="r-2")
    say_request_failed("no luck", "r-3")
    assert text.getvalue() == "a plain word\n"


def test_a_full_disk_stops_nothing() -> None:
    with Path("/dev/full").open("w") as full:
        print("lost", file=JsonStream(full, "info", FIELDS))


def test_the_control_processs_records_have_the_same_form() -> None:
    record = logging.LogRecord("tidegate.faults", logging.ERROR, "", 0, 'g0: "%s"', ("why",), None)
    record.subject = "g0"
    record.created = 1_700_000_100.5
    assert json.loads(JsonFormatter().format(record)) == {
        "time": "2023-11-14T22:15:00.500Z",
        "level": "error",
        "logger": "tidegate.faults",
        "subject": "g0",
        "message": 'g0: "why"',
    }
