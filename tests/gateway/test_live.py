"""A gateway worker's begin and end."""

import asyncio
import random
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate.aio.loop.services import LoopServices
from tidegate.aio.proxy.server import Limits, ProxyServer
from tidegate.gateway.config import WorkerConfig
from tidegate.gateway.live import GatewayWorker

ORDERS: dict[str, Callable[[GatewayWorker], None]] = {
    "nothing": lambda _: None,
    "retire": GatewayWorker._retire,
    "drain": GatewayWorker._drain,
}


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_the_first_signal_lets_a_worker_finish_whatever_it_was_reported_before(order: str, tmp_path: Path) -> None:
    """A hot restart and then the end of everything: what the retiring worker still has is answered."""

    async def main() -> tuple[bool, bool]:
        config = WorkerConfig(worker="g0", listen_fd=-1, admin="/a", table_file=str(tmp_path / "t"), token="secret")
        worker = GatewayWorker(config, incarnation="i", rng=random.Random(1))
        services = LoopServices(asyncio.get_running_loop())
        worker._server = server = ProxyServer(worker.core.chain, Limits(), services)
        server._empty.clear()  # A connection is busy.
        ORDERS[order](worker)
        worker._signalled()
        await asyncio.sleep(0)
        first = worker._stopped.is_set()
        worker._signalled()
        second = worker._stopped.is_set()
        await worker._tasks.close()
        worker._sweeper.close()
        services.close()
        return first, second

    assert asyncio.run(main()) == (False, True)


@pytest.mark.live
def test_a_worker_that_cannot_start_takes_no_connection_along(tmp_path: Path) -> None:
    """Its admin socket cannot be had: connections in the listener's queue are still there for the other workers."""
    taken = tmp_path / "admin"
    taken.mkdir()

    async def main(listener: socket.socket) -> None:
        config = WorkerConfig(
            worker="g0", listen_fd=-1, admin=f"unix:{taken}", table_file=str(tmp_path / "t"), token="secret"
        )
        worker = GatewayWorker(config, incarnation="i", rng=random.Random(1))
        with pytest.raises(OSError):
            await worker.serve(listener)
        await asyncio.sleep(0)
        await worker._tasks.close()
        worker._sweeper.close()

    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
        copy = listener.dup()
        asyncio.run(main(copy))
        copy.close()
        listener.settimeout(1.0)
        accepted, _ = listener.accept()
        accepted.close()
