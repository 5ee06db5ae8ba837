"""Credit in many small pieces: waiting bytes are sent once per read, not once per piece."""

import pytest

from tests.support.http2.view import call_block
from tidegate.wire.http2 import frames
from tidegate.wire.http2.block_memory import REQUEST, Blocks
from tidegate.wire.http2.events import RESET, SENT
from tidegate.wire.http2.roles import H2Server
from tidegate.wire.http2.streams import Stream

UPDATES = 1000
OK = b"\x88"


def waiting(window: int, streams: int, size: int) -> tuple[H2Server, list[Stream]]:
    """Returns a connection of streams with a window each, and a response of this size, sent as far as possible."""
    engine = H2Server(Blocks(REQUEST))
    engine.receive(frames.PREFACE + frames.settings((frames.INITIAL_WINDOW_SIZE, window)), 0.0)
    found = []
    for number in range(1, 2 * streams, 2):
        ((_, stream, _, _),) = engine.receive(
            frames.headers(number, call_block("/a.B/C"), frames.END_STREAM, 16384), 0.0
        )
        engine.head(stream, OK, False)
        engine.data(stream, bytes(size), False)
        found.append(stream)
    engine.take()
    return engine, found


def sent(engine: H2Server) -> list[tuple[int, int]]:
    """Returns the sent DATA frames: stream and length."""
    data, at, found = engine.take(), 0, []
    while at < len(data):
        head, _, number = frames.read_head(data, at)
        at += frames.HEAD_BYTES + (head >> 8)
        if head & 255 == frames.DATA:
            found.append((number, head >> 8))
    return found


def test_a_stream_that_gets_credit_byte_by_byte_sends_one_frame() -> None:
    engine, (stream,) = waiting(0, 1, 4 * UPDATES)
    events = engine.receive(frames.window_update(1, 1) * UPDATES, 0.0)
    assert events == [(SENT, stream, UPDATES, False)]
    assert sent(engine) == [(1, UPDATES)]
    events = engine.receive(frames.window_update(1, 3 * UPDATES), 0.0)
    assert events == [(SENT, stream, 3 * UPDATES, True)]


def test_a_connection_that_gets_credit_byte_by_byte_sends_one_frame() -> None:
    engine, (first, second) = waiting(frames.DEFAULT_WINDOW, 2, frames.DEFAULT_WINDOW)
    assert (first.waiting, second.waiting) == (0, frames.DEFAULT_WINDOW)
    events = engine.receive(frames.window_update(0, 1) * UPDATES, 0.0)
    assert events == [(SENT, second, UPDATES, False)]
    assert sent(engine) == [(3, UPDATES)]


@pytest.mark.parametrize("ends", ["a reset", "an overflow"])
def test_a_stream_that_ends_behind_its_credit_sends_nothing(ends: str) -> None:
    engine, (first, second) = waiting(0, 2, 100)
    end = frames.rst_stream(1, frames.CANCEL) if ends == "a reset" else frames.window_update(1, frames.MAX_VALUE)
    events = engine.receive(frames.window_update(1, 50) + frames.window_update(3, 50) + end, 0.0)
    kinds = [(kind, stream) for kind, stream, _, _ in events]
    assert kinds == [(RESET, first), (SENT, second)]
    assert sent(engine) == [(3, 50)]
