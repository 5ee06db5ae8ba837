"""What waits in a connection to an upstream that does not read, on a pair of sockets."""

import asyncio
import socket
from typing import Any

import pytest

from tests.support.http.loopback import LOOPS, run_on, until
from tidegate.aio.loop.services import LoopServices
from tidegate.aio.loop.writes import SMALL_WRITES
from tidegate.aio.upstream.http1 import UpstreamConn
from tidegate.aio.upstream.pool import UpstreamPool

pytestmark = [pytest.mark.live, pytest.mark.parametrize("loop", sorted(LOOPS))]


class Slowness:
    """In an exchange's place: what is reported to it of the upstream."""

    def __init__(self) -> None:
        self.reported: list[bool] = []

    def upstream_slow(self, slow: bool) -> None:
        self.reported.append(slow)

    def upstream_lost(self, why: str) -> None:
        """The test ends it."""


def test_small_pieces_that_wait_count_by_their_number(loop: str) -> None:
    """A client that sends byte by byte would make uvloop hold 800 bytes for each."""

    async def main() -> None:
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        ours.setblocking(False)
        theirs.setblocking(False)
        running = asyncio.get_running_loop()
        services = LoopServices(running)
        pool = UpstreamPool("127.0.0.1:1", services)
        _, upstream = await running.create_connection(lambda: UpstreamConn(pool), sock=ours)
        exchange: Any = Slowness()
        upstream.exchange = exchange
        got = 0

        async def drip(count: int) -> int:
            for number in range(count):
                if upstream.full:
                    return number
                upstream.write(b"d")
                await asyncio.sleep(0)
            return count

        async def read(size: int) -> None:
            nonlocal got
            while got < size:
                got += len(await running.sock_recv(theirs, 1 << 16))

        try:
            for _ in range(2 * SMALL_WRITES):  # what is read meanwhile is never slow
                upstream.write(b"d")
                await read(got + 1)
            assert exchange.reported == []
            upstream.write(b"x" * 50_000)
            for again in range(2):  # the second time as the first
                written = got + 50_000
                dripped = await drip(10 * SMALL_WRITES)
                assert SMALL_WRITES < dripped < 2 * SMALL_WRITES
                assert exchange.reported == [True, False] * again + [True]
                await read(written + dripped)
                await until(lambda: not upstream.full)
                assert exchange.reported == [True, False] * (again + 1)
                upstream.write(b"x" * 50_000)
            assert not upstream.full, "bytes count as before"
        finally:
            upstream.discard()
            pool.close()
            services.close()
            theirs.close()
            await asyncio.sleep(0)

    run_on(loop, main())
