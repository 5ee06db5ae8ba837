"""Calls that may never return, in threads that the process's end does not wait for."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


async def in_daemon_thread(call: Callable[[*Ts], T], *arguments: *Ts) -> T:
    """Returns what ``call`` returns, or raises what it raises. A cancelled wait leaves the thread running."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def give(found: T | Exception) -> None:
        if answer.done():
            return
        if isinstance(found, Exception):
            answer.set_exception(found)
        else:
            answer.set_result(found)

    def run() -> None:
        try:
            found: T | Exception = call(*arguments)
        except Exception as error:  # raised by the caller
            found = error
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(give, found)

    threading.Thread(target=run, name="device driver", daemon=True).start()
    return await answer
