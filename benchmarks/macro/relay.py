"""The smallest proxy on the engine: everything goes to one upstream. The floor under every real application.

python -P -m benchmarks.macro.relay 127.0.0.1:9000 127.0.0.1:9001
"""

import asyncio
import signal
import sys

from tidegate.aio.loop import run as loop
from tidegate.aio.loop import sockets
from tidegate.aio.loop.services import LoopServices
from tidegate.aio.proxy.exchange import Exchange
from tidegate.aio.proxy.server import Limits, serve_proxy
from tidegate.aio.upstream.pool import UpstreamPool
from tidegate.errors import DEADLINE, REPLICA_BROKE, Executed
from tidegate.wire.bodies.v2 import BatchSizer
from tidegate.wire.message_heads import AnyResponseHead


class Relay:
    """Counts inferences and forwards."""

    __slots__ = ("_sizer", "inferences", "pool")

    def __init__(self, pool: UpstreamPool) -> None:
        self.pool = pool
        self.inferences = 0
        self._sizer = BatchSizer()

    def start(self, ex: Exchange) -> None:
        ex.inferences = self._sizer.of(ex.head, ex.body)
        ex.forward(self.pool)

    def abandoned(self, ex: Exchange) -> None:
        """Nothing is held for a request."""

    def expired(self, ex: Exchange) -> None:
        ex.fail(DEADLINE, "deadline passed", executed=Executed.UNKNOWN)

    def answering(self, ex: Exchange, head: AnyResponseHead) -> bytes | None:
        return b""

    def upstream_failed(self, ex: Exchange, sent: bool, why: str) -> None:
        if ex.may_retry(sent, idempotent=False):
            ex.forward(self.pool)
        else:
            ex.fail(REPLICA_BROKE, why, executed=Executed.UNKNOWN)

    def finished(self, ex: Exchange) -> None:
        self.inferences += ex.inferences


async def main(listen: str, upstream: str) -> None:
    """Serves until SIGTERM."""
    running = asyncio.get_running_loop()
    services = LoopServices(running)
    server = await serve_proxy(Relay(UpstreamPool(upstream, services)), sockets.listen(listen), Limits(), services)
    stop = asyncio.Event()
    running.add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await server.drain(1.0)


if __name__ == "__main__":
    loop.run(main(*sys.argv[1:3]))
