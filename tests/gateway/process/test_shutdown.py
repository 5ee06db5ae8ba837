"""A gateway worker's end."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate.aio.loop.services import LoopServices
from tidegate.aio.proxy.server import Limits, ProxyServer
from tidegate.gateway.config import WorkerConfig
from tidegate.gateway.live import GatewayWorker

ORDERS: dict[str, Callable[[GatewayWorker], None]] = {
    "nothing": lambda _: None,
    "retire": lambda worker: worker._shutdown.retire(),
    "drain": lambda worker: worker._shutdown.drain(),
}


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_the_first_signal_lets_a_worker_finish_whatever_it_was_reported_before(order: str, tmp_path: Path) -> None:
    """A hot restart and then the end of everything: what the retiring worker still has is answered."""

    async def main() -> tuple[bool, bool]:
        config = WorkerConfig(worker="g0", listen_fd=-1, admin="/a", table_file=str(tmp_path / "t"), token="secret")
        worker = GatewayWorker(config, incarnation="i", rng=random.Random(1))
        services = LoopServices(asyncio.get_running_loop())
        worker._front_door.server = server = ProxyServer(worker.core.chain, Limits(), services)
        server._empty.clear()  # A connection is busy.
        ORDERS[order](worker)
        worker._shutdown.signalled()
        await asyncio.sleep(0)
        first = worker._shutdown.stopped.is_set()
        worker._shutdown.signalled()
        second = worker._shutdown.stopped.is_set()
        await worker._tasks.close()
        worker._sweeper.close()
        services.close()
        return first, second

    assert asyncio.run(main()) == (False, True)
