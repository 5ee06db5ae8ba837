"""The load client of a demo in a process of its own.

Beside it the demo reads figures and draws its table. In one interpreter that would delay the times which the client
reads, each by up to 5 ms.
"""

import asyncio
import contextlib
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, Final

from tidegate.errors import TidegateError
from tidegate.loadgen.clients.outcomes import RequestOutcome, Shot

REPORT_S: Final = 0.2
"""Interval of the client's reports."""
END_S: Final = 5.0

Report = tuple[Sequence[RequestOutcome], int]
"""(The outcomes since the report before, the requests in flight)."""


class SenderError(TidegateError):
    """The process of the load client has ended before its load."""


class Sender:
    """A load under way in the process ``pid``."""

    def __init__(self, results: Connection, pid: int) -> None:
        self._results = results
        self.pid = pid

    async def began(self) -> float:
        """Waits until the load begins. Returns when, in seconds of the monotonic clock: due times count from there.
        Raises SenderError if the process has ended."""
        began: float = await asyncio.to_thread(self._receive)
        return began

    async def report(self) -> Report | None:
        """Waits for the next report. Returns None at the end of the load. Raises SenderError if the process ended
        before."""
        report: Report | None = await asyncio.to_thread(self._receive)
        return report

    def _receive(self) -> Any:
        try:
            return self._results.recv()
        except (EOFError, OSError) as error:
            raise SenderError("the process of the load client has ended before its load") from error


@contextlib.contextmanager
def sending(address: str, path: str, shots: Sequence[Shot]) -> Iterator[Sender]:
    """Sends ``shots`` as JSON POSTs to ``path`` at ``host:port`` from another process, which ends with the context."""
    context = multiprocessing.get_context("spawn")
    results, child_end = context.Pipe(duplex=False)
    process = context.Process(target=_main, args=(child_end, address, path, shots), name="load", daemon=True)
    process.start()
    child_end.close()
    try:
        assert process.pid is not None, "it was started"
        yield Sender(results, process.pid)
    finally:
        process.terminate()
        process.join(END_S)
        results.close()


def _main(results: Connection, address: str, path: str, shots: Sequence[Shot]) -> None:
    from tidegate.aio.loop.run import run

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the demo ends this process
    run(_send(results, address, path, shots))


async def _send(results: Connection, address: str, path: str, shots: Sequence[Shot]) -> None:
    from tidegate.loadgen.clients.outcomes import posts

    outcomes: list[RequestOutcome] = []
    async with posts(address, path, outcomes.append) as load, asyncio.TaskGroup() as group:
        sending = group.create_task(load.open_loop(shots), name="load")
        await asyncio.sleep(0)  # it has begun
        results.send(load.began)
        while not sending.done():
            await asyncio.wait((sending,), timeout=REPORT_S)
            results.send((tuple(outcomes), load.unfinished))
            outcomes.clear()
    results.send(None)
