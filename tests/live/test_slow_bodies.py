"""Clients that send their bodies slowly, against a gateway with one slot behind it: they take none of it, and end."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.http.loopback import run_on, until
from tests.support.http2.echo import message
from tests.support.http2.live import H2Client, connect
from tests.support.http2.view import View, call_block
from tests.support.live.live_edge import V2_BODY, Edge, edge, infer, table
from tidegate.records.route_table import RouteTable
from tidegate.wire.http2 import frames
from tidegate.wire.http2.hpack import literal

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

CLIENTS = 24
LIMITS = {"body_idle_timeout_s": 3.0, "body_min_rate": 100.0}
HEAD = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n"
FIELDS = (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/v2/models/m/infer"), (b":authority", b"a")
REST = b"\x20" + b"".join(literal(*field) for field in FIELDS)


@asynccontextmanager
async def one_slot() -> AsyncIterator[Edge]:
    """A gateway worker and a replica that runs one request at a time."""
    async with edge() as world:
        world.limits = LIMITS
        world.start_gateway()
        replica = world.start_replica(limit="1")
        await world.gateway_ready()
        await world.replica_ready(replica)
        routes = table(1, replica)
        await world.put_table(RouteTable(epoch=5, number=1, workers=1, default="f", functions=routes.functions))
        async with world.client() as http:
            assert (await infer(http)).status_code == 200
        yield world


async def arrivals(world: Edge) -> int:
    sample = await world.sample(world.gateway_admin())
    return sum(int(demand["arrivals"]) for demand in sample["demands"])


async def awaited(world: Edge, count: int) -> None:
    """Waits until the bodies of so many requests are awaited."""
    for _ in range(200):
        if await world.metric("tidegate_gateway_awaited_bodies") == count:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"not {count}: {await world.metric('tidegate_gateway_awaited_bodies')}")


async def drips(world: Edge) -> bytes:
    """One byte now and then, until an answer comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
    try:
        writer.write(HEAD + b"\r\n{")
        while True:
            try:
                async with asyncio.timeout(0.3):
                    return await reader.read()
            except TimeoutError:
                writer.write(b" ")
    finally:
        writer.close()


def test_bodies_that_drip_take_no_slot_and_end_with_408() -> None:
    async def main() -> None:
        async with one_slot() as world, world.client() as http:
            async with asyncio.TaskGroup() as group:
                dripping = [group.create_task(drips(world)) for _ in range(CLIENTS)]
                await awaited(world, CLIENTS)
                assert [(await infer(http)).status_code for _ in range(3)] == [200] * 3, "the slot is free"
                assert not any(each.done() for each in dripping)
            for each in dripping:
                head, _, body = each.result().partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 408 ")
                assert "limits.body-min-rate 100 bytes/s" in json.loads(body)["error"]["message"]
            assert await world.metric("tidegate_gateway_slow_bodies_total") == CLIENTS
            assert await arrivals(world) == 4, "they never were requests for a replica"
            await awaited(world, 0)

    run_on("uvloop", main())


def test_a_client_that_expects_100_gets_it_before_a_slot_and_its_answer_after() -> None:
    async def main() -> None:
        async with one_slot() as world:
            body = V2_BODY % 1
            reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
            head = HEAD.replace(b"1000", b"%d" % len(body))
            writer.write(head + b"Expect: 100-continue\r\n\r\n")
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            assert await arrivals(world) == 1, "it is not there yet"
            writer.write(body)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200 "), "and no second 100"
            writer.close()
            assert await arrivals(world) == 2

    run_on("uvloop", main())


def begin_streams(kind: str, client: H2Client, numbers: range) -> None:
    """A request on each stream, and the first byte or two of its body."""
    for number in numbers:
        block = REST if kind == "rest" else call_block("/corpus.Echo/Unary")
        client.write(frames.headers(number, block, 0, 16384))
        client.write(frames.frame_head(7 << 8, 0, number) + message(b"x" * 900)[:7])


@pytest.mark.parametrize("kind", ["rest", "grpc"])
def test_streams_that_drip_take_no_slot_and_end(kind: str) -> None:
    async def main() -> None:
        async with one_slot() as world, world.client() as http:
            client = await connect(("127.0.0.1", world.port))
            view = View({"name": "slow"}, client.write)
            client.on_data = view.received
            try:
                client.write(frames.PREFACE + frames.settings())
                await until(lambda: view.unacked_settings > 0, 10.0)
                view.acknowledge()
                numbers = range(1, 2 * CLIENTS, 2)
                begin_streams(kind, client, numbers)
                await awaited(world, CLIENTS)
                assert (await infer(http)).status_code == 200
                await until(lambda: all(n in view.answers and view.answers[n].over for n in numbers), 20.0)
                name, value = (":status", "408") if kind == "rest" else ("grpc-status", "4")
                assert {view.answers[number].last(name) for number in numbers} == {value}
                assert await world.metric("tidegate_gateway_slow_bodies_total") == CLIENTS
                assert await arrivals(world) == 2
            finally:
                client.transport.abort()
                await asyncio.sleep(0.02)

    run_on("uvloop", main())
