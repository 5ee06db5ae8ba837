"""A thread that runs a model.

It is a daemon thread of our own instead of an executor: a model that hangs must not keep the process from ending.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue


class Worker:
    """A named thread with a queue of jobs, which run one after the other."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._busy = False
        self._thread.start()

    @property
    def busy(self) -> bool:
        """True while a job runs."""
        return self._busy

    def submit(self, job: Callable[[], None]) -> None:
        """Queues ``job``, which must not raise."""
        self._jobs.put(job)

    def stop(self) -> None:
        """Ends the thread after the jobs already queued."""
        self._jobs.put(None)

    def join(self, timeout_s: float) -> bool:
        """Waits for the end of the thread. Returns False if it still runs after ``timeout_s`` seconds."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._busy = True
            job()
            self._busy = False

    def __repr__(self) -> str:
        return f"<Worker {self._thread.name} {'busy' if self._busy else 'idle'}>"
