"""The thread on which a gateway worker uses the store of jobs: no request waits for the disk on the event loop."""

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tidegate.gateway.jobs.records import FILE, JobBounds, JobStore, JobStoreError

if TYPE_CHECKING:
    from tidegate.gateway.jobs.store.sqlite import SqliteJobs

T = TypeVar("T")


class JobThread:
    """The store of one worker process, opened at its first use, on a thread of its own (a ``RunInStore``)."""

    def __init__(self, loop: asyncio.AbstractEventLoop, folder: Path, owner: str, bounds: JobBounds) -> None:
        self._loop = loop
        self._folder = folder
        self._owner = owner
        self._bounds = bounds
        self._opened: SqliteJobs | None = None
        self._not_opened: str | None = None
        """Why the store could not be opened."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="jobs")

    @property
    def has_jobs(self) -> bool:
        """There is a store, perhaps of an earlier process."""
        return (self._folder / FILE).exists()

    @property
    def fault(self) -> str | None:
        """Why jobs cannot be kept; None if the last write was well."""
        reason = self._not_opened if self._opened is None else self._opened.fault
        return None if reason is None else f"jobs cannot be written to {self._folder}: {reason}"

    def __call__(self, action: Callable[[JobStore], T], done: Callable[[T | JobStoreError], None]) -> None:
        def work() -> None:
            result: T | JobStoreError
            try:
                result = action(self._open())
            except JobStoreError as error:
                result = error
            except Exception as error:  # a client waits for the result
                result = JobStoreError(repr(error))
            with contextlib.suppress(RuntimeError):  # The loop is closed: the process ends.
                self._loop.call_soon_threadsafe(done, result)

        self._thread.submit(work)

    def _open(self) -> JobStore:
        if self._opened is None:
            from tidegate.gateway.jobs.store.sqlite import (
                SqliteJobs,  # milliseconds that workers without jobs do not spend
            )

            try:
                self._opened = SqliteJobs(self._folder, self._owner, self._bounds)
            except JobStoreError as error:
                self._not_opened = str(error)
                raise
            self._not_opened = None
        return self._opened

    async def close(self) -> None:
        """Waits for what was begun, then closes the store."""

        def end() -> None:
            if self._opened is not None:
                self._opened.close()

        await self._loop.run_in_executor(self._thread, end)
        self._thread.shutdown()

    def __repr__(self) -> str:
        return f"<JobThread {self._folder} of {self._owner}>"


def new_id() -> str:
    """Returns an unguessable id of 128 bits."""
    return f"tg-{secrets.token_hex(16)}"
