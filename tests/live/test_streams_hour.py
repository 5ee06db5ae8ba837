"""A WebSocket that is silent for an hour, through two proxies: their sweepers see it pass, the sockets are real."""

import asyncio
from time import monotonic

import pytest

from tests.support.http.backend import ScriptedBackend, read_request
from tests.support.http.loopback import LOOPS, Relay, run_on, start_relay, until
from tidegate.aio.proxy.server import Limits

pytestmark = [pytest.mark.live, pytest.mark.parametrize("loop", sorted(LOOPS))]

HOUR_S = 3600.0
STEP_S = 5.0
UPGRADE = b"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n\r\n"


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
    while data := await reader.read(1000):
        writer.write(data)


async def pass_time(hops: list[Relay], since: float, until_s: float) -> None:
    """The sweepers look every five seconds from ``since`` (seconds of the monotonic clock) on, for so many seconds."""
    for number in range(round(until_s / STEP_S) + 1):
        for hop in hops:
            hop.services.tick(since + number * STEP_S)
    await asyncio.sleep(0)


def test_a_websocket_that_is_silent_for_an_hour_lives_and_one_that_is_forgotten_is_closed(loop: str) -> None:
    async def main() -> None:
        backend = ScriptedBackend(echo)
        inner = await start_relay(await backend.start(), sweep_s=1e6)
        outer = await start_relay(inner.address, sweep_s=1e6)
        hops = [outer, inner]
        try:
            reader, writer = await outer.connect()
            writer.write(UPGRADE)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
            for word in (b"before", b"after"):
                writer.write(word)
                assert await reader.readexactly(len(word)) == word
                await pass_time(hops, monotonic(), HOUR_S)
            assert [hop.server.connections for hop in hops] == [1, 1]
            await pass_time(hops, monotonic(), Limits().tunnel_idle_timeout_s + STEP_S)
            assert await reader.read() == b"", "an abandoned tunnel does not stay for ever"
            await until(lambda: not any(hop.server.connections or hop.app.running for hop in hops))
        finally:
            for hop in hops:
                await hop.close()
            await backend.close()

    run_on(loop, main())
