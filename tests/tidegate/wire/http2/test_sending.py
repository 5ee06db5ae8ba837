"""Credit that comes in many small pieces: what waited for it goes out once per read, not once per piece."""

import pytest

from tests.support.http2.view import call_block
from tidegate.wire.http2 import frames as wire
from tidegate.wire.http2.events import RESET, SENT
from tidegate.wire.http2.header_blocks import REQUEST, Blocks
from tidegate.wire.http2.roles import H2Server
from tidegate.wire.http2.streams import Stream

UPDATES = 1000
OK = b"\x88"


def waiting(window: int, streams: int, size: int) -> tuple[H2Server, list[Stream]]:
    """A connection whose streams have a window each, and an answer of so many bytes, as much of it sent as could be."""
    engine = H2Server(Blocks(REQUEST))
    engine.receive(wire.PREFACE + wire.settings((wire.INITIAL_WINDOW_SIZE, window)), 0.0)
    found = []
    for number in range(1, 2 * streams, 2):
        ((_, stream, _, _),) = engine.receive(wire.headers(number, call_block("/a.B/C"), wire.END_STREAM, 16384), 0.0)
        engine.head(stream, OK, False)
        engine.data(stream, bytes(size), False)
        found.append(stream)
    engine.take()
    return engine, found


def sent(engine: H2Server) -> list[tuple[int, int]]:
    """The DATA frames that go out: stream and length."""
    data, at, found = engine.take(), 0, []
    while at < len(data):
        head, _, number = wire.read_head(data, at)
        at += wire.HEAD_BYTES + (head >> 8)
        if head & 255 == wire.DATA:
            found.append((number, head >> 8))
    return found


def test_a_stream_that_gets_credit_byte_by_byte_sends_one_frame() -> None:
    engine, (stream,) = waiting(0, 1, 4 * UPDATES)
    events = engine.receive(wire.window_update(1, 1) * UPDATES, 0.0)
    assert events == [(SENT, stream, UPDATES, False)]
    assert sent(engine) == [(1, UPDATES)]
    events = engine.receive(wire.window_update(1, 3 * UPDATES), 0.0)
    assert events == [(SENT, stream, 3 * UPDATES, True)]


def test_a_connection_that_gets_credit_byte_by_byte_sends_one_frame() -> None:
    engine, (first, second) = waiting(wire.DEFAULT_WINDOW, 2, wire.DEFAULT_WINDOW)
    assert (first.waiting, second.waiting) == (0, wire.DEFAULT_WINDOW)
    events = engine.receive(wire.window_update(0, 1) * UPDATES, 0.0)
    assert events == [(SENT, second, UPDATES, False)]
    assert sent(engine) == [(3, UPDATES)]


@pytest.mark.parametrize("ends", ["a reset", "an overflow"])
def test_a_stream_that_ends_behind_its_credit_sends_nothing(ends: str) -> None:
    engine, (first, second) = waiting(0, 2, 100)
    end = wire.rst_stream(1, wire.CANCEL) if ends == "a reset" else wire.window_update(1, wire.MOST)
    events = engine.receive(wire.window_update(1, 50) + wire.window_update(3, 50) + end, 0.0)
    kinds = [(kind, stream) for kind, stream, _, _ in events]
    assert kinds == [(RESET, first), (SENT, second)]
    assert sent(engine) == [(3, 50)]
