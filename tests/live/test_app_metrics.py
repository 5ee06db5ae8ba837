"""A real queue_proxy reads metrics of all kinds; its traffic never notices."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.live.live_edge import Edge, Replica, client, edge, run

pytestmark = [pytest.mark.live, pytest.mark.timeout(60)]

GOOD = b"tgi_request_success %d\ntgi_queue_size 2\ntgi_batch_current_size 3\n"
BROKEN = {
    "garbage": "none of the known series",
    "huge": "larger than",
    "refused": "answered 500",
    "slow": "no answer from",
}


class Teller:
    """A metrics endpoint that behaves as the test says."""

    def __init__(self) -> None:
        self.mode = "good"
        self.asked = 0
        self.port = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            self.asked += 1
            if self.mode == "slow":
                await reader.read()
            elif self.mode == "huge":
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 50000000\r\n\r\n")
                for _ in range(50):
                    writer.write(b"x 1\n" * 250_000)
                    await writer.drain()
            else:
                body = GOOD % self.asked if self.mode == "good" else b"\x00{<>" * 4000
                status = 500 if self.mode == "refused" else 200
                writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the queue_proxy hung up
        finally:
            writer.close()


@asynccontextmanager
async def telling() -> AsyncIterator[Teller]:
    teller = Teller()
    server = await asyncio.start_server(teller.answer, "127.0.0.1", 0)
    teller.port = server.sockets[0].getsockname()[1]
    try:
        yield teller
    finally:
        server.close()


async def app(edge: Edge, replica: Replica) -> dict[str, Any]:
    found: dict[str, Any] = (await edge.sample(replica.admin))["app"] or {}
    return found


async def until(edge: Edge, replica: Replica, **wanted: object) -> dict[str, Any]:
    while True:
        found = await app(edge, replica)
        if all(found.get(key) == value for key, value in wanted.items()):
            return found
        await asyncio.sleep(0.05)


async def serves(replica: Replica, count: int = 30) -> None:
    async with client(replica.address) as http:
        answers = await asyncio.gather(*(http.post("/work", content=b"{}") for _ in range(count)))
    assert {answer.status_code for answer in answers} == {200}


def high_water_kib(replica: Replica) -> int:
    lines = Path(f"/proc/{replica.proxy.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def test_metrics_that_are_broken_in_any_way_never_disturb_the_traffic() -> None:
    async def main() -> None:
        async with telling() as teller, edge() as world:
            where = {"TIDEGATE_METRICS_PATH": "/metrics", "TIDEGATE_METRICS_ADDRESS": f"127.0.0.1:{teller.port}"}
            replica = world.start_replica(limit="4", settings=where)
            await world.replica_ready(replica)
            good = await until(world, replica, up=True)
            assert (good["engine"], good["pending"], good["running"]) == ("tgi", 2.0, 3.0)
            assert "queue_s (tgi_request_queue_duration_sum)" in good["missing"]
            await serves(replica)
            before = high_water_kib(replica)
            for mode, why in BROKEN.items():
                teller.mode = mode
                while why not in ((await app(world, replica))["fault"] or ""):
                    await serves(replica)
            assert high_water_kib(replica) - before < 24 * 1024
            stale = await until(world, replica, up=False)
            assert stale["pending"] is None
            assert stale["requests"] >= good["requests"], "one more reading may have come before the first fault"
            await serves(replica)
            teller.mode = "good"
            back = await until(world, replica, up=True)
            assert back["requests"] > stale["requests"]
            async with client(replica.admin) as http:
                text = (await http.get("/metrics")).text
            assert "tidegate_app_metrics_up{" in text
            assert 'engine="tgi"' in text

    run(main())


def test_nothing_is_read_where_nothing_is_declared() -> None:
    async def main() -> None:
        async with edge() as world:
            replica = world.start_replica()
            await world.replica_ready(replica)
            assert (await world.sample(replica.admin))["app"] is None

    run(main())
