"""Tasks with a name, an owner and an end.

Every background coroutine belongs to a :class:`TaskOwner`; closing the owner cancels its tasks and waits for them.
A task that fails is reported once through the owner's ``report`` (standard error by default), never lost.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tidegate.aio.log_stream import say, say_error

Report = Callable[[str, BaseException], None]


def report_to_stderr(name: str, error: BaseException) -> None:
    """Writes the name of the failed task and its traceback to standard error."""
    say(f"task {name} failed: {error!r}", level="error")
    say_error(error)


class TaskOwner:
    """Owns tasks; the end of the owner is the end of its tasks."""

    __slots__ = ("_report", "_tasks", "name")

    def __init__(self, name: str, report: Report = report_to_stderr) -> None:
        self.name = name
        self._report = report
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, coroutine: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Starts ``coroutine`` as a task of this owner; needs a running loop."""
        task = asyncio.get_running_loop().create_task(coroutine, name=f"{self.name}/{name}")
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def report(self, name: str, error: BaseException) -> None:
        """Reports an error that no caller can get."""
        self._report(f"{self.name}/{name}", error)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._report(task.get_name(), error)

    async def close(self) -> None:
        """Cancels what still runs and waits until all of it has ended."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    def __repr__(self) -> str:
        return f"<TaskOwner {self.name}: {len(self._tasks)} tasks>"


def spawn(coroutine: Coroutine[Any, Any, Any], *, name: str, owner: TaskOwner) -> asyncio.Task[Any]:
    """Starts ``coroutine`` as a named task of ``owner``."""
    return owner.spawn(coroutine, name=name)
