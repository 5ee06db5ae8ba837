"""What hostile and slow HTTP/2 clients can make our processes hold: resident memory.

Each test states its bound in MB and what it is made of.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial

import pytest

from tests.support.deadline import Patience
from tests.support.http.doors import Door
from tests.support.http.loopback import until
from tests.support.http2.capture import H2Capture
from tests.support.http2.echo import message
from tests.support.http2.live import H2Client, is_alive
from tests.support.http2.view import View, call_block
from tests.support.live import growth
from tidegate.wire.http2 import frames as wire
from tidegate.wire.http2.hpack import literal

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

LIMITS = {"head_timeout_s": 2.0, "idle_timeout_s": 20.0, "trusted_proxies": []}
CONNECTIONS, STREAMS = 10, 100
NUMBERS = range(1, 2 * STREAMS, 2)
"""Of the streams of a connection."""
MB = 1 << 20
KB = 1 << 10


def headers(number: int, method: str, flags: int = 0) -> bytes:
    return wire.headers(number, call_block(f"/corpus.Echo/{method}"), flags, 16384)


def data(number: int, payload: bytes, flags: int = 0) -> bytes:
    return wire.frame_head(len(payload) << 8, flags, number) + payload


def call(number: int, method: str, text: bytes) -> bytes:
    """A whole request."""
    return headers(number, method) + data(number, message(text), wire.END_STREAM)


class Scene(growth.Scene):
    """The backend behind the door, too."""

    greeting = wire.PREFACE + wire.settings()

    def __init__(self, way: Door, backend: H2Capture) -> None:
        super().__init__(way)
        self.backend = backend

    async def warm_up(self) -> None:
        """A hundred calls on each of ten connections."""
        clients = [await self.opened() for _ in range(CONNECTIONS)]
        for client, view in clients:
            await _warm(client, view)

    def begin(self) -> None:
        self.backend.begin()
        super().begin()

    async def is_served(self) -> bool:
        for _ in range(20):  # what the sockets of a flood still hold is read first
            if await is_alive(self.address):
                return True
        return False

    async def opened(self, *settings: tuple[int, int]) -> tuple[H2Client, View]:
        """A connection whose SETTINGS are exchanged, with a wide window: only its streams are short of credit."""
        client = await self.connect()
        view = View({"name": "memory"}, client.write)
        client.on_data = view.received
        client.write(wire.PREFACE + wire.settings(*settings) + wire.window_update(0, 1 << 30))
        await until(lambda: view.unacked_settings > 0 or client.closed, 10.0)
        view.acknowledge()
        return client, view


async def _warm(client: H2Client, view: View) -> None:
    """A call on each of the streams of a connection, which then ends."""
    client.write(b"".join(call(number, "Unary", b"w" * 1000) for number in NUMBERS))
    await until(lambda: all(number in view.answers and view.answers[number].ended for number in NUMBERS), 10.0)
    client.transport.abort()


def play(kind: str, scenario: Callable[[Scene], Awaitable[None]]) -> None:
    backend = H2Capture()
    growth.play(kind, backend, LIMITS, lambda way: Scene(way, backend), scenario)


# --- floods ----------------------------------------------------------------------------------------------------------


def _pings() -> Iterator[bytes]:
    while True:
        yield wire.ping(b"12345678", 0) * 1000


def _settings() -> Iterator[bytes]:
    while True:
        yield wire.settings((wire.MAX_FRAME_SIZE, 16384)) * 1000


def _empty_data() -> Iterator[bytes]:
    yield headers(1, "Bidi")
    while True:
        yield data(1, b"") * 1000


def _continuations() -> Iterator[bytes]:
    """A block that never ends, in the largest frames."""
    block = literal(b"x-a", b"a" * 8000)
    yield wire.frame_head(len(block) << 8 | wire.HEADERS, 0, 1) + block
    while True:
        yield (wire.frame_head(len(block) << 8 | wire.CONTINUATION, 0, 1) + block) * 8


def _resets(undo: Callable[[int], bytes]) -> Iterator[bytes]:
    """Calls, each of which comes with the frame that ends it."""
    number = 1
    while True:
        frames = b""
        for _ in range(100):
            frames += headers(number, "Stuck") + undo(number)
            number += 2
        yield frames


def _updates() -> Iterator[bytes]:
    """A hundred answers that have no credit of their own, and credit for the connection, a byte at a time."""
    yield wire.settings((wire.INITIAL_WINDOW_SIZE, 0)) + b"".join(call(n, "Big", b"1000") for n in NUMBERS)
    while True:
        yield wire.window_update(0, 1) * 1000


def _stream_updates() -> Iterator[bytes]:
    """One answer, taken a byte at a time."""
    yield wire.settings((wire.INITIAL_WINDOW_SIZE, 0)) + wire.window_update(0, 1 << 30) + call(1, "Big", b"%d" % MB)
    while True:
        yield wire.window_update(1, 1) * 1000


def _late_updates() -> Iterator[bytes]:
    """Credit for a stream that has long ended."""
    yield call(1, "Unary", b"") + wire.rst_stream(1, wire.CANCEL)
    while True:
        yield wire.window_update(1, 1) * 1000


def _priorities() -> Iterator[bytes]:
    """Of streams that are never opened: a tree of them must not grow."""
    number = 1
    while True:
        frames = b""
        for _ in range(1000):
            frames += wire.frame_head(5 << 8 | wire.PRIORITY, 0, number) + (number - 1).to_bytes(4, "big") + b"\x10"
            number += 2
        yield frames


def _unknown() -> Iterator[bytes]:
    """Frames of a kind that no standard names, large and empty ones."""
    while True:
        yield wire.frame_head(8 * KB << 8 | 0xF0, 0xFF, 1) + bytes(8 * KB) + wire.frame_head(0xF0, 0, 0) * 100


def _stray_data() -> Iterator[bytes]:
    """Bodies of a call that its client has taken back."""
    yield headers(1, "Hold") + wire.rst_stream(1, wire.CANCEL)
    while True:
        yield data(1, bytes(8 * KB)) * 8


def _table_churn() -> Iterator[bytes]:
    """Each call writes a new field of 2 KB into the dynamic table, whose size is changed before."""
    number = 1
    while True:
        frames = b""
        for _ in range(20):
            value = b"%d" % number + bytes(b"t" * 2 * KB)
            field = b"\x40\x01t\x7f" + bytes(((len(value) - 127) & 127 | 128, (len(value) - 127) >> 7)) + value
            block = b"\x20\x3f\xe1\x1f" + call_block("/corpus.Echo/Missing", table=4096) + field
            frames += wire.headers(number, block, wire.END_STREAM, 16384)
            number += 2
        yield frames


def _reset_in_turn() -> Iterator[bytes]:
    """All the other ways to make us reset a stream, one after the other."""
    number = 1
    while True:
        frames = b""
        for _ in range(25):
            block = call_block("/corpus.Echo/Stuck")
            frames += headers(number, "Stuck") + wire.window_update(number, wire.MAX_VALUE)
            frames += headers(number + 2, "Stuck", wire.END_STREAM) + data(number + 2, b"late")
            frames += headers(number + 4, "Stuck") + wire.frame_head(4 << 8 | wire.PRIORITY, 0, number + 4) + bytes(4)
            frames += headers(number + 6, "Stuck", wire.END_STREAM) + wire.headers(number + 6, block, 0, 16384)
            number += 8
        yield frames


FLOOD_KINDS: dict[str, Callable[[], Iterator[bytes]]] = {
    "ping": _pings,
    "settings": _settings,
    "empty data": _empty_data,
    "window update": _updates,
    "window update of a stream": _stream_updates,
    "window update too late": _late_updates,
    "priority": _priorities,
    "unknown frames": _unknown,
    "stray data": _stray_data,
    "header table": _table_churn,
    "continuation": _continuations,
    "rapid reset": partial(_resets, lambda number: wire.rst_stream(number, wire.CANCEL)),
    "made you reset": partial(_resets, lambda number: wire.window_update(number, 0)),
    "made you reset in other ways": _reset_in_turn,
}
FLOOD_BOUND_MB = 24.0
"""50 connections, each at most one read of 256 KB and an unfinished block of 64 KB: 16 MB, and as much as half of
that again for what the allocator keeps."""
OF_CALLS_MB = 40.0
"""More where the flood is of valid calls: 50 times 100 open streams, 8 KB each for a head of 2 KB, what is sent on
of it, and the call's objects."""
_OF_CALLS = ("header table",)


@pytest.mark.parametrize("flood", FLOOD_KINDS)
@pytest.mark.parametrize("kind", growth.KINDS)
def test_a_flood_leaves_memory_as_it_is(kind: str, flood: str) -> None:
    async def scenario(found: Scene) -> None:
        await found.flooded(FLOOD_KINDS[flood])
        assert found.grown() < FLOOD_BOUND_MB + OF_CALLS_MB * (flood in _OF_CALLS)
        assert not found.backend.record.malformed

    play(kind, scenario)


# --- many that are slow ----------------------------------------------------------------------------------------------

SLOW = 1000
"""Connections at once."""
SLOW_BOUND_MB = 16.0
"""16 KB for each of them: the protocol's objects, an unfinished block, what the loop keeps."""


@pytest.mark.parametrize("kind", growth.KINDS)
@pytest.mark.parametrize(
    "what", [*(pytest.param(each, marks=pytest.mark.deep) for each in ("preface", "frame")), "block"]
)
def test_a_thousand_heads_that_come_byte_by_byte(kind: str, what: str) -> None:
    """They take little, and are cut off when the time of a head is over; what is served meanwhile is not late."""
    block = call_block("/corpus.Echo/Unary")
    slowly = {
        "preface": wire.PREFACE,
        "frame": wire.PREFACE + wire.settings() + headers(1, "Unary"),
        "block": wire.PREFACE + wire.settings() + wire.frame_head(5 << 8 | wire.HEADERS, 0, 1) + block[:5],
    }[what]
    at_once = {"preface": 0, "frame": len(wire.PREFACE) + 9, "block": len(slowly)}[what]

    async def scenario(found: Scene) -> None:
        clients = [await found.connect() for _ in range(SLOW)]
        for client in clients:
            client.write(slowly[:at_once])
        patience, at = Patience(20.0), at_once
        while not all(client.closed for client in clients):
            assert not patience.is_over, f"{sum(not client.closed for client in clients)} connections are still open"
            for client in clients:
                client.write(slowly[at : at + 1] if what != "block" else wire.frame_head(wire.CONTINUATION, 0, 1))
            at = min(at + 1, len(slowly) - 1)
            await found.watched(0.2)
            assert await is_alive(found.address)
        assert found.grown() < SLOW_BOUND_MB

    play(kind, scenario)


# --- consumers that are slow or take nothing -------------------------------------------------------------------------

HELD_BOUND_MB = 128.0
"""1,000 streams with a first window of 64 KB each that is full: 64 MB, and once that for the heads, frames and what the
allocator keeps."""


@pytest.mark.parametrize("kind", growth.KINDS)
def test_a_thousand_answers_to_zero_windows(kind: str) -> None:
    """10 connections of 100 streams ask for 1 MB each and give no credit: 1 GB that is not taken."""

    async def scenario(found: Scene) -> None:
        clients = [await found.opened((wire.INITIAL_WINDOW_SIZE, 0)) for _ in range(CONNECTIONS)]
        for client, _ in clients:
            client.write(b"".join(call(n, "Big", b"%d" % MB) for n in NUMBERS))
        await found.watched_until(lambda: len(found.backend.record.calls) == CONNECTIONS * STREAMS, 15.0)
        assert len(found.backend.record.calls) == CONNECTIONS * STREAMS
        await found.watched(3.0)
        assert found.grown() < HELD_BOUND_MB
        assert await found.is_served()
        await found.leave()

    play(kind, scenario)


@pytest.mark.parametrize("kind", growth.KINDS)
def test_a_thousand_uploads_that_the_backend_does_not_take(kind: str) -> None:
    """Each client sends all that it has credit for, up to 1 MB a stream; the backend gives none."""

    async def scenario(found: Scene) -> None:
        clients = [await found.opened() for _ in range(CONNECTIONS)]
        for client, _ in clients:
            client.write(b"".join(headers(n, "Hold") + data(n, EMPTY) for n in NUMBERS))
        await found.watched_until(lambda: len(found.backend.record.calls) == CONNECTIONS * STREAMS, 15.0)
        assert len(found.backend.record.calls) == CONNECTIONS * STREAMS
        async with asyncio.TaskGroup() as group:
            for client, view in clients:
                group.create_task(_upload(client, view))
            await found.watched(8.0)
        assert found.grown() < HELD_BOUND_MB
        assert await found.is_served()
        await found.leave()

    play(kind, scenario)


EMPTY = message(b"")
"""A first message, with which a gateway sends a call to its replica."""


async def _upload(client: H2Client, view: View) -> None:
    """Sends on every stream while there is credit."""
    piece = b"u" * (8 * KB)
    window = dict.fromkeys(NUMBERS, view.initial_window - len(EMPTY))
    connection = 65535 - STREAMS * len(EMPTY)
    end = asyncio.get_running_loop().time() + 6.0
    while asyncio.get_running_loop().time() < end and not client.closed:
        sent = 0
        for number in window:
            left = window[number] + view.credit.get(number, 0)
            if min(left, connection + view.credit.get(0, 0)) >= len(piece):
                client.write(data(number, piece))
                window[number] -= len(piece)
                connection -= len(piece)
                sent += 1
        with suppress(TimeoutError):
            await client.drain(1.0)
        await asyncio.sleep(0 if sent else 0.02)


@pytest.mark.parametrize("kind", growth.KINDS)
def test_a_thousand_streams_with_slow_consumers(kind: str) -> None:
    """10 connections of 100 streams, 1 MB each, taken at 16 KB a stream and second: all go on, nothing piles up."""

    async def scenario(found: Scene) -> None:
        clients = [await found.opened((wire.INITIAL_WINDOW_SIZE, 16 * KB)) for _ in range(CONNECTIONS)]
        for client, _ in clients:
            client.write(b"".join(call(n, "Big", b"%d" % MB) for n in NUMBERS))
        for share in range(1, 7):
            await found.watched_until(partial(_have, clients, 16 * KB), 15.0)
            assert _have(clients, 16 * KB), f"not every stream has got its {share}. share"
            await found.watched(1.0)
            for client, view in clients:
                assert max(len(view.answers[n].data) for n in NUMBERS) == 16 * KB
                for number in NUMBERS:
                    view.answers[number].data.clear()
                client.write(b"".join(wire.window_update(n, 16 * KB) for n in NUMBERS))
        assert found.grown() < HELD_BOUND_MB
        await found.leave()

    play(kind, scenario)


def _have(clients: list[tuple[H2Client, View]], size: int) -> bool:
    """Whether so much has come on every stream."""
    return all(n in view.answers and len(view.answers[n].data) >= size for _, view in clients for n in NUMBERS)


@pytest.mark.parametrize("kind", growth.KINDS)
def test_streams_that_are_taken_fast_and_then_not_at_all(kind: str) -> None:
    """2 connections of 100 streams take 640 KB of each answer as fast as it comes, and then give no more credit: what
    a stream was allowed for being taken must not be held for all of them."""

    async def scenario(found: Scene) -> None:
        clients = [await found.opened((wire.INITIAL_WINDOW_SIZE, 64 * KB)) for _ in range(2)]
        for client, _ in clients:
            client.write(b"".join(call(n, "Big", b"%d" % (4 * MB)) for n in NUMBERS))
        async with asyncio.TaskGroup() as group:
            for client, view in clients:
                group.create_task(_take(client, view, 640 * KB))
        await found.watched(3.0)
        assert found.grown() < HELD_BOUND_MB
        assert await found.is_served()
        await found.leave()

    play(kind, scenario)


async def _take(client: H2Client, view: View, most: int) -> None:
    """Gives credit for all that comes, until each stream has brought so much; what came is forgotten."""
    left = dict.fromkeys(NUMBERS, most - 64 * KB)
    async with asyncio.timeout(40.0):
        while any(left.values()):
            await asyncio.sleep(0.002)
            for number in NUMBERS:
                answer = view.answers.get(number)
                if answer is None or not answer.data:
                    continue
                more = min(left[number], len(answer.data))
                answer.data.clear()
                if more:
                    left[number] -= more
                    client.write(wire.window_update(number, more))


@pytest.mark.parametrize("kind", growth.KINDS)
def test_connections_that_are_not_read(kind: str) -> None:
    """100 clients with wide windows who do not read their sockets, each with an answer of 16 MB on the way.

    Beside the kernel's buffers a connection may hold one stream window and one write: 100 x (1 MB + 256 KB)."""

    async def scenario(found: Scene) -> None:
        for _ in range(100):
            client, _ = await found.opened((wire.INITIAL_WINDOW_SIZE, (1 << 31) - 1))
            client.transport.pause_reading()
            client.write(call(1, "Big", b"%d" % (16 * MB)))
        await found.watched(6.0)
        assert found.grown() < 128.0
        assert await found.is_served()
        await found.leave()

    play(kind, scenario)
