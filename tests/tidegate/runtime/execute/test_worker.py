"""The thread that runs a model."""

import asyncio
import threading

import pytest

from tidegate.runtime.execute.engine import call
from tidegate.runtime.execute.worker import Worker


def test_jobs_run_in_order_in_one_thread() -> None:
    async def main() -> None:
        worker = Worker("test")
        names = [await call(worker, lambda: threading.current_thread().name) for _ in range(2)]
        assert names == ["test", "test"]
        with pytest.raises(ZeroDivisionError):
            await call(worker, lambda: 1 // 0)
        assert repr(worker) in ("<Worker test idle>", "<Worker test busy>")
        worker.stop()
        assert worker.join(5)

    asyncio.run(main())


def test_a_result_that_none_waits_for_is_dropped() -> None:
    async def main() -> None:
        worker = Worker("test")
        go = threading.Event()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await call(worker, go.wait)
        assert not worker.join(0)
        go.set()
        assert await call(worker, lambda: "next") == "next"
        worker.stop()
        assert worker.join(5)

    asyncio.run(main())
