"""Bodies that a gateway waits for, and that come in the smallest pieces that there are.

What they take is bounded by their bytes: a piece of two bytes must not cost what an object for it costs.
"""

import asyncio
from contextlib import suppress

import pytest

from tests.support.http.loopback import run_on, until
from tests.support.http2.echo import message
from tests.support.http2.live import H2Client, connect, rss_mb
from tests.support.http2.view import View, call_block
from tests.support.live.live_edge import Edge, edge, table
from tidegate.records.route_table import RouteTable
from tidegate.wire.http2 import frames
from tidegate.wire.http2.hpack import literal

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

STREAMS = 40
NUMBERS = range(1, 2 * STREAMS, 2)
SIZE = 65_000
"""Of each body: no more than a stream's first window."""
WAITS_S = 100.0
"""Longer than a busy machine takes for 40 bodies of such pieces."""
BOUND_MB = 20.0
"""40 bodies of 64 KB: 2.6 MB; the reads, what the allocator keeps, and as much again."""
REST = b"\x20" + b"".join(
    literal(*field)
    for field in (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/any"),
        (b":authority", b"a"),
        (b"tidegate-batch-size", b"1"),
    )
)


async def _waiting(world: Edge) -> int:
    return await world.metric("tidegate_gateway_awaited_bodies")


async def _send(client: H2Client, body: bytes) -> None:
    """The body on every stream, two bytes to a frame."""
    for number in NUMBERS:
        head = frames.frame_head(2 << 8, 0, number)
        client.write(b"".join(head + body[at : at + 2] for at in range(0, SIZE, 2)))
        with suppress(TimeoutError):
            await client.drain(20.0)


@pytest.mark.parametrize("kind", ["rest", "grpc"])
def test_small_pieces_of_bodies_that_wait_take_what_their_bytes_take(kind: str) -> None:
    async def main() -> None:
        async with edge() as world:
            world.start_gateway()
            await world.gateway_ready()
            routes = table(1, timeout_s=WAITS_S, max_wait_s=WAITS_S)
            await world.put_table(
                RouteTable(epoch=routes.epoch, number=1, workers=1, default="f", functions=routes.functions)
            )
            pid = world.workers[0].pid
            client = await connect(("127.0.0.1", world.port))
            view = View({"name": "pieces"}, client.write)
            client.on_data = view.received
            try:
                client.write(frames.PREFACE + frames.settings())
                await until(lambda: view.unacked_settings > 0, 10.0)
                view.acknowledge()
                block = REST if kind == "rest" else call_block("/corpus.Echo/Unary")
                client.write(b"".join(frames.headers(number, block, 0, 16384) for number in NUMBERS))
                for _ in range(200):
                    if await _waiting(world) == STREAMS:
                        break
                    await asyncio.sleep(0.05)
                assert await _waiting(world) == STREAMS
                before = rss_mb([pid])
                await _send(client, message(bytes(range(256)) * 300)[:SIZE])
                await asyncio.sleep(1.0)
                grown = rss_mb([pid]) - before
                print(kind, f"grown by {grown:.0f} MB")  # noqa: T201
                assert await _waiting(world) == STREAMS
                assert grown < BOUND_MB
            finally:
                client.transport.abort()
                await asyncio.sleep(0.02)

    run_on("uvloop", main())
