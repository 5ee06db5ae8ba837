"""Credit in many small pieces: waiting bytes are sent once per read, not once per piece."""

import pytest

from tests.support.http2.view import call_block
from tidegate.wire.http2 import frames
from tidegate.wire.http2.block_memory import REQUEST, RESPONSE, Blocks
from tidegate.wire.http2.events import RESET, SENT
from tidegate.wire.http2.roles import H2Client, H2Server
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


def test_streams_take_turns_of_a_frame_each() -> None:
    engine, streams = waiting(1 << 20, 3, 100_000)
    assert [stream.waiting for stream in streams] == [34_465, 100_000, 100_000]
    events = engine.receive(frames.window_update(0, 6 * 16_384), 0.0)
    assert sent(engine) == [(1, 16_384), (3, 16_384), (5, 16_384)] * 2
    assert events == [(SENT, stream, 32_768, False) for stream in streams]
    engine.receive(frames.window_update(0, 1 << 20), 0.0)
    assert sent(engine)[:3] == [(1, 1697), (3, 16_384), (5, 16_384)]
    assert [stream.waiting for stream in streams] == [0, 0, 0]


@pytest.mark.parametrize("ends", [False, True])
def test_a_piece_without_bytes_is_sent_only_as_an_end(ends: bool) -> None:
    engine, (stream,) = waiting(100, 1, 10)
    assert engine.data(stream, b"", ends) == 0
    assert engine.take() == (frames.frame_head(0, frames.END_STREAM, 1) if ends else b"")
    assert stream.number in engine.streams or ends


@pytest.mark.parametrize("ends", [False, True])
def test_a_piece_without_bytes_behind_waiting_ones_waits_only_as_an_end(ends: bool) -> None:
    engine, (stream,) = waiting(4, 1, 10)
    assert engine.data(stream, b"", ends) == 0
    assert (stream.waiting, stream.closing, engine.take()) == (6, ends, b"")
    assert engine.receive(frames.window_update(1, 6), 0.0) == [(SENT, stream, 6, True)]
    assert engine.take() == frames.frame_head(6 << 8, frames.END_STREAM if ends else 0, 1) + bytes(6)
    assert (stream.number in engine.streams) is not ends
    assert engine.stalled(1.0, 0.0) == engine.stalled(9.0, 0.0) == [], "nothing waits"


@pytest.mark.parametrize("credit", [9, 10, 11])
def test_credit_is_used_to_its_last_byte(credit: int) -> None:
    for number in (0, 1):
        engine, (first, *_) = waiting(0 if number else 1 << 20, 1, 10 if number else frames.DEFAULT_WINDOW + 10)
        assert (first.waiting, engine.is_out_of_credit) == (10, not number)
        assert engine.receive(frames.window_update(number, credit), 0.0) == [
            (SENT, first, min(credit, 10), credit >= 10)
        ]
        assert sent(engine) == [(1, min(credit, 10))]
        assert engine.is_out_of_credit == (number == 0 and credit <= 10)
        engine.trailers(first, OK)
        assert (first.tail == OK) == (credit < 10)


def test_what_each_side_says_first() -> None:
    more = frames.window_update(0, 2_147_418_112)
    ours = ((4, 65_536), (5, 262_144), (6, 16_384))
    assert H2Server(Blocks(REQUEST)).take() == frames.settings((1, 0), (3, 100), *ours) + more
    assert H2Client(Blocks(RESPONSE)).take() == frames.PREFACE + frames.settings((1, 0), (2, 0), *ours) + more


def test_a_connection_shows_how_it_is() -> None:
    engine, _ = waiting(4, 2, 10)
    assert repr(engine) == "<H2Server open, 2 streams, 2 wait for credit>"
    assert (engine.is_closing, engine.is_over, engine.is_full) == (False, False, False)
    engine.goaway()
    assert repr(engine) == "<H2Server closing, 2 streams, 2 wait for credit>"
    engine.end()
    assert repr(engine) == "<H2Server over, 0 streams, 0 wait for credit>"
    assert H2Client(Blocks(RESPONSE)).peer_streams == frames.MAX_VALUE
