"""Ordinary requests over HTTP/2 without sockets: how the pieces of a body go on to an HTTP/1.1 upstream."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.worlds.h2_world import Wire, World, block
from tidegate.aio.proxy.http1_exchange import HttpExchange
from tidegate.aio.proxy.limits import Limits
from tidegate.aio.upstream.http1 import UpstreamConn
from tidegate.wire.http2 import frames
from tidegate.wire.http2.events import RESET
from tidegate.wire.http2.streams import Stream

POST = (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"a.example")


class Upstream(Wire):
    """One HTTP/1.1 connection to the upstream, and each write to it."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.is_full = False
        """Says so with its next write."""
        self.ours = UpstreamConn(world.pool)
        self.ours.connection_made(self)
        world.pool.put(self.ours)

    def write(self, data: Any) -> None:
        super().write(data)
        self.writes.append(bytes(data))
        if self.is_full:
            self.ours.pause_writing()


@pytest.fixture
def limits() -> Limits:
    return Limits()


@pytest.fixture
def world(limits: Limits) -> Iterator[World]:
    made = World(limits)
    yield made
    made.close()


def begin(world: World, *fields: tuple[bytes, bytes]) -> tuple[Stream, Upstream]:
    """A request whose body is still to come."""
    upstream = Upstream(world)
    stream = world.client.request(block(*POST, *fields), False, None)
    world.go()
    assert upstream.sent.endswith(b"\r\n\r\n"), "its head"
    upstream.writes.clear()
    return stream, upstream


def exchange_of(upstream: Upstream) -> HttpExchange:
    """The exchange that the connection carries."""
    exchange = upstream.ours.exchange
    assert isinstance(exchange, HttpExchange)
    return exchange


def tiny(*streams: Stream, count: int = 1000) -> bytes:
    """Frames of two bytes, of each stream in turn."""
    return b"".join(
        frames.frame_head(2 << 8, 0, one.number) + b"%02d" % (n % 100) for n in range(count) for one in streams
    )


TEXT = b"".join(b"%02d" % (n % 100) for n in range(1000))


def test_tiny_frames_of_one_read_go_on_as_one_write_of_each_stream(world: World) -> None:
    """In uvloop a write that waits takes some hundred bytes beside what it carries."""
    announced, first = begin(world, (b"content-length", b"%d" % (2 * len(TEXT))))
    chunked, second = begin(world)
    world.feed(tiny(announced, chunked))
    assert first.writes == [TEXT], "at once: it may be all for a long time"
    assert second.writes == [b"7d0\r\n%b\r\n" % TEXT]
    world.feed(tiny(announced, chunked))
    assert first.writes == [TEXT] * 2
    assert len(second.writes) == 2
    assert [exchange_of(one).body_complete for one in (first, second)] == [True, False]


def test_the_end_of_a_body_comes_behind_what_came_with_it(world: World) -> None:
    stream, upstream = begin(world)
    trailers = block((b"x-sum", b"1"))
    end = frames.headers(stream.number, trailers, frames.END_STREAM, 16384)
    world.feed(tiny(stream) + end)
    assert b"".join(upstream.writes) == b"7d0\r\n%b\r\n0\r\nx-sum: 1\r\n\r\n" % TEXT
    exchange = exchange_of(upstream)
    assert (exchange.body_complete, exchange.bytes_in) == (True, len(TEXT))


def test_of_a_request_that_is_cancelled_in_the_same_read_nothing_goes_on(world: World) -> None:
    stream, upstream = begin(world)
    world.feed(tiny(stream) + frames.rst_stream(stream.number, frames.CANCEL))
    assert upstream.writes == []
    assert upstream.is_aborted
    assert world.app.log[-1] == "finished 499"


@pytest.mark.parametrize("limits", [Limits(body_bytes=1500)])
def test_a_body_that_is_too_large_is_refused_with_what_came_before_it(world: World) -> None:
    stream, upstream = begin(world)
    world.feed(tiny(stream))
    assert upstream.writes == []
    world.go()
    assert world.heard(stream)[0][1].status == 413


def test_there_is_no_credit_for_a_read_that_fills_the_upstream(world: World) -> None:
    """Nor for what comes after it, until there is room."""
    stream, upstream = begin(world)
    upstream.is_full = True
    window = stream.window
    world.client.data(stream, b"x" * 40_000, False)
    world.go()
    assert stream.window == window - 40_000
    upstream.is_full = False
    upstream.ours.resume_writing()
    world.go()
    assert stream.window == window
    assert not any(kind == RESET for kind, _ in world.heard(stream))
