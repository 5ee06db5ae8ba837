"""Both sides of HTTP/2 write once per turn: whoever has put something into an engine says so here.

What one read brings goes to several connections (the answers of one upstream to many clients), and several reads of one
turn go to one connection. Each engine is emptied once, at the end of the turn in which it was touched, whatever
becomes of those before it: one that were left out would keep its mark and never write again. One that could not be
written to is aborted: its peer would find a hole in what it reads.
"""

import asyncio
from typing import Protocol

from tidegate.aio.loop.tasks import Report


class Flushed(Protocol):
    """A connection with an engine that collects what is to be sent."""

    transport: asyncio.Transport

    def flush(self) -> None:
        """Writes it."""


class FlushQueue:
    """Of one event loop."""

    __slots__ = ("_loop", "_report", "_touched")

    def __init__(self, loop: asyncio.AbstractEventLoop, report: Report) -> None:
        """``report`` is told what a connection's flush raises."""
        self._loop = loop
        self._report = report
        self._touched: list[Flushed] = []

    def touch(self, connection: Flushed) -> None:
        """``connection`` has something to send. Once per turn: it keeps a mark until it is flushed."""
        touched = self._touched
        touched.append(connection)
        if len(touched) == 1:
            self._loop.call_soon(self._end)

    def _end(self) -> None:
        touched, self._touched = self._touched, []
        for connection in touched:
            try:
                connection.flush()
            except Exception as error:
                self._report("HTTP/2 turn", error)
                connection.transport.abort()

    def __repr__(self) -> str:
        return f"<Turn {len(self._touched)} touched>"
