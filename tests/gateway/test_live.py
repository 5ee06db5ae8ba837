"""A gateway worker's begin."""

import asyncio
import random
import socket
from pathlib import Path

import pytest

from tidegate.gateway.config import WorkerConfig
from tidegate.gateway.live import GatewayWorker


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
