"""The thread that brings events to their sinks: URLs, files, what happens when one is dead or slow, and the end."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.payloads.test_events import REQUEST
from tests.support.deadline import Patience
from tidegate.gateway.payloads import live
from tidegate.gateway.payloads.events import Payload
from tidegate.gateway.payloads.live import PayloadSinks
from tidegate.records.payload_rules import PayloadRules


class Sink:
    """A server that takes events; ``status`` is its answer, and it answers while ``is_open``."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.status = 200
        self.is_open = threading.Event()
        self.is_open.set()
        self.events: list[dict[str, Any]] = []
        self.types: set[str] = set()


@contextmanager
def sink() -> Iterator[Sink]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            found.is_open.wait(60.0)
            if found.status == 200:
                found.types.add(self.headers["content-type"])
                found.events.append(json.loads(body))
            self.send_response(found.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *words: object) -> None:
            """Writes nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        found = Sink(f"http://127.0.0.1:{server.server_port}/events")
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield found
        finally:
            found.is_open.set()
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "EVERY_S", 0.01)
    monkeypatch.setattr(live, "LONGEST_PAUSE_S", 0.02)
    monkeypatch.setattr(live, "TIMEOUT_S", 0.2)


def pair(url: str | None, number: int = 0, size: int = 10) -> tuple[Payload, Payload]:
    rules = PayloadRules(percent=10.0, sink=url)
    fields = {**{name: getattr(REQUEST, name) for name in REQUEST.__struct_fields__}, "rules": rules}
    fields |= {"request_id": f"id-{number}", "data": b"x" * size, "size": size, "content_type": "text/plain"}
    return Payload(**fields), Payload(**{**fields, "kind": "response", "status": 200})


def until(found: Callable[[], object]) -> None:
    patience = Patience(10.0)
    while not found():
        assert not patience.is_over, f"waited {patience}"
        time.sleep(0.01)


def test_events_come_to_a_url_in_their_order(tmp_path: Path) -> None:
    with sink() as server:
        thread = PayloadSinks(str(tmp_path), "g0")
        for number in range(100):
            thread.put(pair(server.url, number))
        until(lambda: thread.delivered == 200)
        thread.close()
        assert [event["id"] for event in server.events[:3]] == ["id-0.request", "id-0.response", "id-1.request"]
        assert server.types == {"application/cloudevents+json; charset=UTF-8"}
        assert (thread.dropped, thread.fault) == (0, None)
        assert list(tmp_path.iterdir()) == []


def test_without_a_url_they_come_to_a_file_of_the_function_that_is_kept_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "FILE_BYTES", 1500)
    thread = PayloadSinks(str(tmp_path / "payloads"), "g0")
    for number in range(4):
        thread.put(pair(None, number))
    thread.close()
    found = {path.name: path.read_text().splitlines() for path in tmp_path.rglob("*.js*")}
    files = {name: [json.loads(line)["id"] for line in lines] for name, lines in found.items()}
    assert set(files) == {"echo.g0.jsonl", "echo.g0.jsonl.1"}
    assert files["echo.g0.jsonl.1"][0] == "id-0.request" and files["echo.g0.jsonl"][-1] == "id-3.response"
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*.js*")} == {0o600}


@pytest.mark.parametrize("fault", ["dead", "slow", "failing"])
def test_a_sink_that_fails_is_one_line_and_loses_nothing_that_finds_room(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], fault: str
) -> None:
    with sink() as server:
        if fault == "slow":
            server.is_open.clear()
        server.status = 503 if fault == "failing" else 200
        url = "http://127.0.0.1:1/events" if fault == "dead" else server.url
        thread = PayloadSinks(str(tmp_path), "g0")
        thread.put(pair(url))
        thread.put(pair(None))
        until(lambda: thread.fault)
        until(lambda: thread.delivered == 2)  # Another sink goes on.
        assert thread.fault is not None and "127.0.0.1" in thread.fault and "/events" not in thread.fault
        server.is_open.set()
        server.status = 200
        if fault != "dead":
            until(lambda: thread.delivered == 4)
            assert thread.fault is None
        thread.close()
        written = capfd.readouterr().err
        assert written.count("do not reach") == 1
        assert written.count("again") == (fault != "dead")
        assert thread.dropped == (2 if fault == "dead" else 0), "at the end of the worker it is asked once more"


def test_what_a_sink_refuses_is_dropped_and_counted(tmp_path: Path) -> None:
    with sink() as server:
        server.status = 400
        thread = PayloadSinks(str(tmp_path), "g0")
        thread.put(pair(server.url))
        until(lambda: thread.dropped == 2)
        assert thread.fault is not None and "it answers 400" in thread.fault
        server.status = 200
        thread.put(pair(server.url))
        until(lambda: thread.delivered == 2 and thread.fault is None)
        thread.close()


def test_a_refused_event_holds_up_no_other_and_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "LONGEST_PAUSE_S", 30.0)
    with sink() as server:
        server.status = 400
        thread = PayloadSinks(str(tmp_path), "g0")
        for number in range(20):
            thread.put(pair(server.url, number))
        until(lambda: thread.dropped == 40)
        server.status = 200
        thread.put(pair(server.url))
        until(lambda: thread.delivered == 2)
        thread.close()
        assert capfd.readouterr().err.count("refuses payload events") == 1


def test_a_sink_that_hangs_takes_neither_time_nor_room_from_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "KEPT_BYTES", 100_000)
    monkeypatch.setattr(live, "TIMEOUT_S", 30.0)
    with sink() as hanging, sink() as working:
        hanging.is_open.clear()
        thread = PayloadSinks(str(tmp_path), "g0")
        for number in range(30):
            thread.put(pair(hanging.url, number, size=1000))
        lost = thread.dropped
        assert lost > 0
        for number in range(10):
            thread.put(pair(working.url, number, size=1000))
        until(lambda: len(working.events) == 20)
        assert thread.dropped == lost
        hanging.is_open.set()
        thread.close()


def test_a_sink_that_no_function_names_any_more_ends_with_what_waits_for_it(tmp_path: Path) -> None:
    with sink() as server:
        thread = PayloadSinks(str(tmp_path), "g0")
        dead = "http://127.0.0.1:1/events"
        thread.put(pair(dead))
        thread.put(pair(server.url))
        until(lambda: thread.fault and thread.delivered == 2)
        thread.keep({server.url})
        assert thread.fault is None
        until(lambda: thread.dropped == 2)
        thread.keep({server.url})
        assert (thread.delivered, thread.dropped) == (2, 2)
        thread.put(pair(server.url))
        until(lambda: thread.delivered == 4)
        thread.close()


def test_events_that_find_no_room_are_dropped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "KEPT_BYTES", 100_000)
    with sink() as server:
        server.is_open.clear()
        thread = PayloadSinks(str(tmp_path), "g0")
        for number in range(100):
            thread.put(pair(server.url, number, size=1000))
        assert thread.dropped == 2 * (100 - 50_000 // (2 * 2024)), "its part is half of the room"
        assert thread.fault is None or "events were dropped" in thread.fault
        server.is_open.set()
        until(lambda: thread.delivered + thread.dropped == 200)
        thread.put(pair(server.url, size=1000))
        until(lambda: thread.delivered + thread.dropped == 202)
        thread.close()


def test_a_folder_that_cannot_be_written_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    thread = PayloadSinks(str(tmp_path / "file"), "g0")
    thread.put(pair(None))
    until(lambda: thread.fault)
    thread.close()
    assert thread.delivered == 0
