"""One thread that runs a model, fed from the event loop.

A daemon thread of our own instead of an executor: a model that hangs must not keep the process from ending.
"""

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class Worker:
    """A named thread with a queue of jobs; jobs run one after the other."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._busy = False
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a job runs at this moment."""
        return self._busy

    def submit(self, job: Callable[[], None]) -> None:
        """Queues ``job``, which must not raise."""
        self._jobs.put(job)

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """Runs ``function`` in the thread and returns what it returns, or raises what it raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def deliver(value: T | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(value)  # type: ignore[arg-type]  # a T wherever there is no error

        def job() -> None:
            try:
                value = function(*args)
            except BaseException as error:
                loop.call_soon_threadsafe(deliver, None, error)
            else:
                loop.call_soon_threadsafe(deliver, value, None)

        self.submit(job)
        return await future

    def stop(self) -> None:
        """Ends the thread after the jobs already queued."""
        self._jobs.put(None)

    def join(self, timeout_s: float) -> bool:
        """Waits for the end of the thread; False when it still runs after ``timeout_s`` seconds."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._busy = True
            job()
            self._busy = False

    def __repr__(self) -> str:
        return f"<Worker {self._thread.name} {'busy' if self._busy else 'idle'}>"
