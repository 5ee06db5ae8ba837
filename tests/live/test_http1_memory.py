"""What slow and greedy HTTP/1 clients can make our processes hold: resident memory."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import pytest

from tests.support.deadline import Patience
from tests.support.http.backend import OK, ScriptedBackend, answering
from tests.support.http.loopback import until
from tests.support.live import growth

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

LIMITS = {"head_timeout_s": 2.0, "body_idle_timeout_s": 2.0, "idle_timeout_s": 20.0, "trusted_proxies": []}
GET = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


class Scene(growth.Scene):
    async def warm_up(self) -> None:
        for _ in range(300):
            await self.is_served()

    async def is_served(self) -> bool:
        """A request on a connection of its own is answered within five seconds."""
        client, came = await self.connect(), bytearray()
        client.on_data = came.extend
        client.write(GET)
        with suppress(AssertionError):
            await until(lambda: came.endswith(b"ok") or client.closed, 5.0)
        client.transport.abort()
        return came.endswith(b"ok")


def play(kind: str, scenario: Callable[[Scene], Awaitable[None]]) -> None:
    growth.play(kind, ScriptedBackend(answering(OK)), LIMITS, Scene, scenario)


# --- clients that take their time ------------------------------------------------------------------------------------

SLOW = 1000
SLOWLY = {
    "heads": (b"GET /" + b"a" * 4000, b"a"),
    "empty lines": (b"\r\n" * 4, b"\r"),
    "fields": (b"GET / HTTP/1.1\r\nhost: a\r\n" + b"x-long: %b\r\n" % (b"v" * 2000), b"x"),
    "bodies": (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n", b""),
    "chunks": (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n", b""),
    "chunk extensions": (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1;", b"e"),
}
SELDOM = ("empty lines", "fields", "bodies", "chunks")
"""As the others; only in the long run."""
SLOW_BOUND_MB = 32.0
"""32 KB for each of them: objects, 4 KB of a head, a connection to the model server where a body is on its way."""


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=pytest.mark.deep) if what in SELDOM else what for what in SLOWLY]
)
@pytest.mark.parametrize("kind", growth.KINDS)
def test_a_thousand_clients_that_never_come_to_an_end(kind: str, what: str) -> None:
    """A byte now and then, or none: each is cut off when its time is over; others are served meanwhile."""
    first, more = SLOWLY[what]

    async def scenario(found: Scene) -> None:
        clients = [await found.connect() for _ in range(SLOW)]
        for client in clients:
            client.write(first)
        patience = Patience(30.0)
        while not all(client.closed for client in clients):
            assert not patience.is_over, f"{sum(not client.closed for client in clients)} are still there"
            for client in clients:
                client.write(more)
            await found.watched(0.2)
            assert await found.is_served()
        assert found.grown() < SLOW_BOUND_MB

    play(kind, scenario)


# --- clients that want too much --------------------------------------------------------------------------------------

FLOOD_BOUND_MB = 32.0
"""50 connections with a read of 256 KB, 64 KB that wait and 256 KB that are not taken: 29 MB, and what the allocator
keeps."""


def _requests() -> Iterator[bytes]:
    while True:
        yield GET * 2000


def _large_heads() -> Iterator[bytes]:
    while True:
        yield b"GET / HTTP/1.1\r\nhost: a\r\nx-a: %b\r\n\r\n" % (b"a" * 15_000)


def _one_byte_chunks() -> Iterator[bytes]:
    yield b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
    while True:
        yield b"1\r\nx\r\n" * 10_000


def _faults() -> Iterator[bytes]:
    while True:
        yield b"GET / HTTP/9.9\r\n" * 1000


def _interim() -> Iterator[bytes]:
    while True:
        yield b"POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\nx" * 500


FLOOD_KINDS: dict[str, Callable[[], Iterator[bytes]]] = {
    "pipelined requests": _requests,
    "large heads": _large_heads,
    "one byte chunks": _one_byte_chunks,
    "faults": _faults,
    "expectations": _interim,
}


@pytest.mark.parametrize("flood", FLOOD_KINDS)
@pytest.mark.parametrize("kind", growth.KINDS)
def test_a_flood_leaves_memory_as_it_is(kind: str, flood: str) -> None:
    async def scenario(found: Scene) -> None:
        await found.flooded(FLOOD_KINDS[flood])
        assert found.grown() < FLOOD_BOUND_MB

    play(kind, scenario)
