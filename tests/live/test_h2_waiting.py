"""Large gRPC calls that wait at a gateway while their function sleeps: what they hold, and that none is lost."""

import asyncio
import random
from typing import Any

import pytest

from tests.support.deadline import Patience
from tests.support.http.doors import default_table
from tests.support.http.loopback import run_on, until
from tests.support.http2.capture import H2Capture
from tests.support.http2.live import Address, H2Client, connect, rss_mb
from tests.support.http2.view import View, call_block
from tests.support.live.live_edge import Edge, edge, table
from tidegate.records.route_table import RouteTable
from tidegate.wire.http2 import frames

pytestmark = [pytest.mark.live, pytest.mark.early]

CONNECTIONS, STREAMS = 5, 100
NUMBERS = range(1, 2 * STREAMS, 2)
BODY = 300_000
"""Of each call: 150 MB in all, were they taken in."""
PREFIX = b"\0" + BODY.to_bytes(4, "big")
MESSAGE = len(PREFIX) + BODY
WAITS: dict[str, Any] = {"timeout_s": 100.0, "max_wait_s": 100.0}
"""Longer than a busy machine takes to send them."""
HELD_BOUND_MB = 96.0
"""500 calls that wait hold the first window of their streams, 64 KB: 32 MB; twice that for heads, frames, the 32 MB by
which the allocator grows, and what it keeps."""


def _request(number: int) -> bytes:
    return frames.headers(number, call_block("/corpus.Echo/Unary"), 0, 16384)


class _Caller:
    """One connection: all its calls are sent as fast as there is credit, and their answers taken as they come."""

    def __init__(self, client: H2Client, seed: int) -> None:
        self.client = client
        self.view = View({"name": "waiting"}, client.write)
        client.on_data = self.view.received
        self._source = random.Random(seed).randbytes(BODY + NUMBERS[-1])
        self._sent = dict.fromkeys(NUMBERS, 0)
        self.is_right: dict[int, bool] = {}
        """Of each call that is over, whether its answer was what it sent: only that is kept of an answer."""

    async def begin(self) -> None:
        settings = frames.settings((frames.INITIAL_WINDOW_SIZE, (1 << 31) - 1))
        self.client.write(frames.PREFACE + settings + frames.window_update(0, 1 << 30))
        await until(lambda: self.view.unacked_settings > 0, 10.0)
        self.view.acknowledge()
        self.client.write(b"".join(map(_request, NUMBERS)))

    async def send(self) -> None:
        """Until all is sent."""
        connection = 0
        while any(sent < MESSAGE for sent in self._sent.values()):
            moved = False
            for number, sent in self._sent.items():
                room = self.view.initial_window + self.view.credit.get(number, 0) - sent
                all_room = 65535 + self.view.credit.get(0, 0) - connection
                size = min(MESSAGE - sent, room, all_room, 16384)
                if size <= 0:
                    continue
                ends = frames.END_STREAM if sent + size == MESSAGE else 0
                self.client.write(frames.frame_head(size << 8, ends, number) + self._piece(number, sent, size))
                self._sent[number] += size
                connection += size
                moved = True
            await self.client.drain(20.0)
            await asyncio.sleep(0 if moved else 0.01)

    def _piece(self, number: int, at: int, size: int) -> bytes:
        """Bytes of the message of a call. Each call has one of its own, and none is kept."""
        head = PREFIX[at : at + size]
        begin = number + max(0, at - len(PREFIX))
        return head + self._source[begin : begin + size - len(head)]

    def answered(self) -> int:
        """Calls that are over; looks at the answers of those that have ended since it was called last."""
        for number, answer in self.view.answers.items():
            if number in self._sent and answer.over and number not in self.is_right:
                is_echo = answer.data == self._piece(number, 0, MESSAGE)
                self.is_right[number] = is_echo and answer.last("grpc-status") == "0"
                answer.data.clear()
        return len(self.is_right)


def _asleep(world: Edge) -> RouteTable:
    routes: RouteTable = table(1, **WAITS)
    return RouteTable(epoch=routes.epoch, number=1, workers=1, default="f", functions=routes.functions)


async def _waiting(world: Edge) -> int:
    sample = await world.sample(world.gateway_admin())
    return sum(int(demand["waiting"]) for demand in sample["demands"])


async def _until_waiting(world: Edge, count: int, limit_s: float) -> None:
    patience = Patience(limit_s)
    while (found := await _waiting(world)) != count:
        assert not patience.is_over, f"{found} calls wait in the place of {count} after {patience}"
        await asyncio.sleep(0.05)


async def _callers(address: Address) -> list[_Caller]:
    callers = [_Caller(await connect(address), seed) for seed in range(CONNECTIONS)]
    for caller in callers:
        await caller.begin()
    return callers


@pytest.mark.parametrize("ends", ["a replica comes", "the clients go"])
def test_large_calls_wait_for_a_function_that_sleeps(ends: str) -> None:
    async def main() -> None:
        backend = H2Capture()
        address = await backend.start()
        async with edge() as world:
            world.start_gateway()
            await world.gateway_ready()
            await world.put_table(_asleep(world))
            pid = world.workers[0].pid
            before = rss_mb([pid])
            callers = await _callers(("127.0.0.1", world.port))

            def are_answered() -> bool:
                for call in backend.record.calls:
                    if call.finished:
                        call.body = b""  # it has been echoed
                return sum(caller.answered() for caller in callers) == CONNECTIONS * STREAMS

            try:
                async with asyncio.TaskGroup() as group:
                    work = [group.create_task(caller.send()) for caller in callers]
                    await _until_waiting(world, CONNECTIONS * STREAMS, 10.0)
                    await asyncio.sleep(2.0)
                    assert rss_mb([pid]) - before < HELD_BOUND_MB
                    if ends == "the clients go":
                        for task in work:
                            task.cancel()
                    else:
                        replica = world.start_replica(
                            limit="8",
                            model=False,
                            settings={"TIDEGATE_UPSTREAM": address, "TIDEGATE_READINESS_PATH": ""},
                        )
                        await world.replica_ready(replica)
                        await world.put_table(default_table(replica, 2, **WAITS))
                        await until(are_answered, 40.0)
                if ends == "the clients go":
                    for caller in callers:
                        caller.client.transport.abort()
                    await _until_waiting(world, 0, 2.0)
                else:
                    right = sum(sum(caller.is_right.values()) for caller in callers)
                    assert right == CONNECTIONS * STREAMS, "the others were not answered with their own bytes"
                assert await _waiting(world) == 0
                assert not backend.record.malformed
            finally:
                for caller in callers:
                    caller.client.transport.abort()
                await asyncio.sleep(0.02)
                await backend.close()

    run_on("uvloop", main())
