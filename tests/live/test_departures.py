"""Clients that leave while their bodies are not read: the slot is free for the next request, over HTTP/1.1 and HTTP/2.

The model server takes one read of a body and no more, so that its rest fills everything up to the client. A client
leaves while its request runs there, or while it waits for the slot; the time counts until the gateway and the
queue_proxy have forgotten it.
"""

import asyncio
import json
import statistics
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from time import monotonic
from typing import cast

import pytest

from tests.support.deadline import Patience, starved_s
from tests.support.http.doors import default_table
from tests.support.http.loopback import run_on
from tests.support.http2.echo import message
from tests.support.http2.live import H2Client, connect
from tests.support.http2.view import View, call_block
from tests.support.live.live_edge import Edge, Replica, edge
from tidegate.wire.http2 import frames
from tidegate.wire.http2.hpack import literal

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

ROUNDS = 6
BODY = 40_000_000
"""More than all buffers on the way take."""
FULL_S = 0.1
"""A connection that takes no byte for so long is full."""
LOOK_S = 0.002
PIECE = b"b" * 16_384
FIELDS = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/upload"),
    (b":authority", b"a"),
    (b"content-length", b"%d" % BODY),
)
WAYS = ["http1 reset", "http2 stream reset", "http2 closed", "http2 reset", "grpc stream reset", "grpc closed"]
"""How a client leaves. The end of an HTTP/1.1 connection that is closed stands behind the bytes that fill it."""


class Unread(asyncio.Protocol):
    """A model server's connection of which one read is taken."""

    def __init__(self, open_ones: "set[Unread]") -> None:
        self._open = open_ones

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._open.add(self)
        self.transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.discard(self)


class Http1:
    """A client that sends its body for as long as it is taken."""

    async def begin(self, port: int) -> None:
        self._client = await connect(("127.0.0.1", port))
        self._client.write(b"POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % BODY)
        try:
            while True:
                self._client.write(PIECE)
                await self._client.drain(FULL_S)
        except TimeoutError:
            pass

    def leave(self, way: str) -> None:
        self._client.reset()

    def end(self) -> None:
        self._client.transport.abort()


class Http2:
    """The same on stream 1, for as long as there is credit."""

    head, body = b"".join(literal(*field) for field in FIELDS), PIECE

    async def begin(self, port: int) -> None:
        self._client: H2Client = await connect(("127.0.0.1", port))
        view = View({"name": "departs"}, self._client.write)
        self._client.on_data = view.received
        self._client.write(frames.PREFACE + frames.settings() + frames.window_update(0, 1 << 30))
        self._client.write(frames.headers(1, self.head, 0, 16384))
        piece, is_answered = self.body, False
        sent, at = 0, monotonic()
        while not is_answered or monotonic() < at + FULL_S:
            if view.unacked_settings:
                view.acknowledge()  # The first connection of a process loads HTTP/2, which takes longer than FULL_S.
                is_answered, at = True, monotonic()
            room = min(view.initial_window + view.credit.get(1, 0), 65_535 + view.credit.get(0, 0)) - sent
            if room < len(PIECE):
                await asyncio.sleep(0.005)
                continue
            self._client.write(frames.frame_head(len(PIECE) << 8, 0, 1) + piece)
            piece, sent, at = PIECE, sent + len(PIECE), monotonic()
            await self._client.drain(10.0)

    def leave(self, way: str) -> None:
        if way.endswith("stream reset"):
            self._client.write(frames.rst_stream(1, frames.CANCEL))
        elif way.endswith("closed"):
            self._client.transport.close()
        else:
            self._client.reset()

    def end(self) -> None:
        self._client.transport.abort()


class Grpc(Http2):
    """A call whose first message has no end."""

    head, body = call_block("/a.B/Upload"), message(b"b" * BODY)[: len(PIECE)]


KINDS: dict[str, type[Http1] | type[Http2]] = {"http1": Http1, "http2": Http2, "grpc": Grpc}


@asynccontextmanager
async def world() -> AsyncIterator[tuple[Edge, Replica, set[Unread]]]:
    """A gateway worker, and a replica with one slot whose model server reads no more than once."""
    async with edge() as found:
        taken: set[Unread] = set()
        upstream = found.directory / "model"
        server = await asyncio.get_running_loop().create_unix_server(lambda: Unread(taken), str(upstream))
        found.start_gateway()
        settings = {"TIDEGATE_UPSTREAM": f"unix:{upstream}", "TIDEGATE_READINESS_PATH": ""}
        replica = found.start_replica(limit="1", model=False, settings=settings)
        await found.gateway_ready()
        await found.replica_ready(replica)
        await found.put_table(default_table(replica, 1, timeout_s=100.0, max_wait_s=100.0))
        try:
            yield found, replica, taken
        finally:
            for each in list(taken):
                each.transport.abort()
            server.close()
            await asyncio.sleep(0.02)


async def counts(found: Edge, replica: Replica) -> tuple[int, int]:
    """Requests that wait at the gateway, and that run at the replica."""
    demands = (await found.sample(found.gateway_admin()))["demands"]
    return sum(each["waiting"] for each in demands), (await found.sample(replica.admin))["in_flight"]


@pytest.mark.parametrize("way", WAYS)
def test_a_client_whose_body_is_not_read_leaves_and_its_request_with_it(way: str) -> None:
    kind = KINDS[way.split()[0]]

    async def main() -> None:
        async with world() as (found, replica, taken):

            async def reached(*wanted: int) -> float:
                """Returns the seconds until then, without those in which a process waited for a processor."""
                patience, starved = Patience(10.0), starved_s()
                while (now := await counts(found, replica)) != wanted:
                    assert not patience.is_over, f"{now} wait and run in the place of {wanted} after {patience}"
                    await asyncio.sleep(LOOK_S)
                return patience.passed_s - (starved_s() - starved)

            delays: dict[str, list[float]] = {"running": [], "waiting": []}
            for _ in range(ROUNDS):
                async with AsyncExitStack() as clients:
                    first, second = kind(), kind()
                    await first.begin(found.port)
                    clients.callback(first.end)
                    await reached(0, 1)
                    await second.begin(found.port)
                    clients.callback(second.end)
                    await reached(1, 1)
                    second.leave(way)
                    delays["waiting"].append(await reached(0, 1))
                    first.leave(way)
                    delays["running"].append(await reached(0, 0))
                    for each in taken:
                        each.transport.abort()
            for what, found_s in delays.items():
                median, longest = statistics.median(found_s) * 1e3, max(found_s) * 1e3
                line = {"left": f"{way}, {what}", "p50_ms": round(median, 1), "max_ms": round(longest, 1)}
                sys.stdout.write(json.dumps(line) + "\n")
                assert median < 500.0
                assert longest < 2500.0

    run_on("uvloop", main())
