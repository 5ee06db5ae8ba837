"""WebSockets over real sockets: what a tunnel holds for a side that does not read."""

import asyncio
from typing import cast

import pytest

from tests.support.http.loopback import LOOPS, Relay, RelayApp, play, until
from tidegate.aio.loop.writes import WRITE_BUFFER_BYTES
from tidegate.aio.proxy.exchange import Exchange

pytestmark = [pytest.mark.live, pytest.mark.parametrize("loop", sorted(LOOPS))]

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
WEBSOCKET = b"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
SWITCH = b"HTTP/1.1 101 x\r\nConnection: upgrade\r\nUpgrade: websocket\r\nx-pad: %b\r\n\r\n" % (b"p" * 8000)
SPOKEN = 32 << 20


def held(relay: Relay) -> int:
    """Bytes that wait for the client."""
    transports = [one.transport for one in relay.server.connections_now()]
    transports += [tunnel._client.transport for tunnel in relay.server.tunnels]
    return sum(transport.get_write_buffer_size() for transport in transports)


def test_a_client_that_filled_its_buffer_with_the_101_is_not_sent_more_than_it_reads(loop: str) -> None:
    class Filling(RelayApp):
        """Answers until the client's buffer lacks less than what a 101 brings, then forwards."""

        def start(self, ex: Exchange) -> None:
            if ex.head.upgrade is not None:
                super().start(ex)
                return
            self.running += 1
            (relay,) = relays
            ex.respond(200, b"x" * max(1, min(WRITE_BUFFER_BYTES - 2300 - held(relay), 60_000)))

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCH)
        for _ in range(SPOKEN >> 16):
            writer.write(b"\0" * 65536)
            await writer.drain()
        spoken.set()
        await reader.read()

    async def scene(relay: Relay) -> None:
        relays.append(relay)
        reader, writer = await relay.connect()
        transport = cast(asyncio.Transport, writer.transport)
        transport.pause_reading()
        ended = relay.app.ended
        while held(relay) < WRITE_BUFFER_BYTES - 4000:
            ended.clear()
            writer.write(GET)
            await until(lambda: len(ended) == 1)
        assert held(relay) <= WRITE_BUFFER_BYTES, "the 101 is what fills it"
        writer.write(WEBSOCKET)
        await until(lambda: len(relay.server.tunnels) == 1)
        (tunnel,) = relay.server.tunnels
        await until(lambda: not tunnel._upstream.transport.is_reading())
        assert WRITE_BUFFER_BYTES < held(relay) < 2 * WRITE_BUFFER_BYTES
        assert not spoken.is_set()
        transport.resume_reading()
        got = 0
        while got < SPOKEN:
            piece = await reader.read(1 << 20)
            assert piece
            got += piece.count(b"\0")
        writer.close()

    relays: list[Relay] = []
    spoken = asyncio.Event()
    play(loop, script, scene, app=Filling())
