"""What slow and greedy HTTP/1 clients can make our processes hold: resident memory, read from the kernel.

As in ``test_h2_memory.py`` each door is warmed up first, and growth counts to the worst moment.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress

import pytest

from tests.support.h2_live import H2Client, connect, rss_mb
from tests.support.http_backend import OK, ScriptedBackend, answering
from tests.support.http_doors import Door, door
from tests.support.loopback import run_on, until
from tests.support.patience import Patience

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

KINDS = ("queue_proxy", "gateway")
LIMITS = {"head_timeout_s": 2.0, "body_idle_timeout_s": 2.0, "idle_timeout_s": 20.0, "trusted_proxies": []}
SLOTS = "2000"
GET = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


class Scene:
    """A door, and how much its processes have grown."""

    def __init__(self, way: Door) -> None:
        self._way = way
        self._clients: list[H2Client] = []
        self._before: dict[int, float] = {}
        self._most = 0.0

    async def connect(self) -> H2Client:
        client = await connect(self._way.address)
        self._clients.append(client)
        return client

    async def ask(self) -> bytes:
        """A request on a connection of its own: what is answered within five seconds."""
        client, came = await self.connect(), bytearray()
        client.on_data = came.extend
        client.write(GET)
        with suppress(AssertionError):
            await until(lambda: came.endswith(b"ok") or client.closed, 5.0)
        client.transport.abort()
        return bytes(came)

    def begin(self) -> None:
        self._before = {pid: rss_mb([pid]) for pid in self._way.pids}
        self._most = 0.0

    def grown(self) -> float:
        """MB, of the process that grew most, at the worst moment so far."""
        self._most = max(self._most, *(rss_mb([pid]) - before for pid, before in self._before.items()))
        return self._most

    async def watched(self, seconds: float) -> None:
        patience = Patience(seconds)
        while not patience.is_over:
            await asyncio.sleep(0.02)
            self.grown()

    async def leave(self) -> None:
        for client in self._clients:
            client.transport.abort()
        self._clients.clear()
        assert await self._way.left_in_flight() == 0


@asynccontextmanager
async def scene(kind: str) -> AsyncIterator[Scene]:
    backend = ScriptedBackend(answering(OK))
    async with door(kind, "uvloop", await backend.start(), LIMITS, slots=SLOTS) as way:
        found = Scene(way)
        try:
            for _ in range(300):
                await found.ask()
            found.begin()
            yield found
        finally:
            await found.leave()
            await backend.close()


def play(kind: str, scenario: Callable[[Scene], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(100), scene(kind) as found:
            await scenario(found)
            print(kind, f"grown by {found.grown():.0f} MB")  # noqa: T201
            assert (await found.ask()).endswith(b"ok"), "a request is not answered afterwards"

    run_on("uvloop", main())


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
@pytest.mark.parametrize("kind", KINDS)
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
            assert (await found.ask()).endswith(b"ok")
        assert found.grown() < SLOW_BOUND_MB

    play(kind, scenario)


# --- clients that want too much --------------------------------------------------------------------------------------

FLOODS = 50
FLOOD_S = 2.0
FLOOD_BOUND_MB = 32.0
"""FLOODS connections with a read of 256 KB, 64 KB that wait and 256 KB that are not taken: 29 MB, and what the
allocator keeps."""


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


async def _flood(found: Scene, make: Callable[[], Iterator[bytes]], reads: bool, end: float) -> int:
    used, clock = 0, asyncio.get_running_loop().time
    while clock() < end:
        client = await found.connect()
        used += 1
        if not reads:
            client.transport.pause_reading()
        for piece in make():
            client.write(piece)
            with suppress(TimeoutError):
                await client.drain(max(0.0, end - clock()))
            await asyncio.sleep(0)
            if client.closed or clock() >= end:
                break
        client.transport.abort()
    return used


@pytest.mark.parametrize("flood", FLOOD_KINDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_flood_leaves_memory_as_it_is(kind: str, flood: str) -> None:
    """As fast as the sockets take it; every other client does not read."""

    async def scenario(found: Scene) -> None:
        end = asyncio.get_running_loop().time() + FLOOD_S
        async with asyncio.TaskGroup() as group:
            floods = [group.create_task(_flood(found, FLOOD_KINDS[flood], n % 2 == 0, end)) for n in range(FLOODS)]
            await found.watched(FLOOD_S)
        await found.watched(0.3)
        assert found.grown() < FLOOD_BOUND_MB
        assert sum(task.result() for task in floods) >= FLOODS

    play(kind, scenario)
