"""Writes of one event loop, gathered so that kernel and interpreter work on several at a time.

- HTTP/1 (:class:`Outbox`): under load an iteration of the loop reads from many connections. Reading, deciding and
  writing in alternation makes kernel and interpreter evict each other from the caches for each message; all writes in
  one row cost 10-15 % less CPU per proxied request (32 connections: 29.0 to 25.5 us). With few active connections an
  iteration has one message, and waiting for its end only costs; so the outbox measures its gain and steps aside where
  there is none.
- HTTP/2 (:class:`FlushQueue`): one read brings bytes for several connections (the answers of one upstream to many
  clients), and several reads of one iteration bring bytes for one connection. Each engine is emptied once, at the end
  of the iteration in which it was touched, whatever happens to those before it: a connection left out would keep its
  mark and never write again. A connection whose write fails is aborted: its peer would find a gap in what it reads.
- Small writes (:class:`SmallWrites`) that wait for a peer which does not read count by their number, too. Waiting bytes
  are bounded by ``WRITE_BUFFER_BYTES``, but for each iteration with a write uvloop keeps some 800 bytes beside its
  data: 50,000 events of six bytes are 40 MB. Over TLS the transport reports nothing as waiting before 64 KB do, so that
  the count begins later there: some 2 MB.
"""

import asyncio
from typing import Protocol

from tidegate.aio.loop.tasks import Report, report_to_stderr

FEW = 4
"""An iteration of the loop with no more messages than this gains nothing by waiting for its end."""
MANY = 32
"""This number of messages is written at once: more gain nothing, and the first one would wait for the last."""
SAMPLED = 256
"""After an iteration that gained nothing this number of messages is written directly, then the gain is measured
again."""


class Outbox:
    """Small whole messages of one loop iteration, written together at its end.

    Code that writes to a transport by other ways calls :meth:`flush` before. A write that raises leaves a gap in what
    its peer reads: it is reported, its connection is aborted, and the caller and the messages behind it go on.
    """

    __slots__ = ("_direct", "_loop", "_report", "_turn", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, report: Report = report_to_stderr) -> None:
        self._loop = loop
        self._report = report
        self._direct = 0
        self._turn = 0
        """0 if the end of this iteration is not waited for; else 1 plus the messages of it that were written."""
        self._waiting: list[tuple[asyncio.Transport, bytes]] = []

    def write(self, transport: asyncio.Transport, data: bytes) -> None:
        """Writes ``data`` now or at the end of this iteration of the loop."""
        if self._direct:
            self._direct -= 1
            try:
                transport.write(data)
            except Exception as error:
                self._failed(transport, error)
            return
        waiting = self._waiting
        waiting.append((transport, data))
        if not self._turn:
            self._turn = 1
            self._loop.call_soon(self._end_of_turn)
        elif len(waiting) == MANY:
            self.flush()

    def flush(self) -> None:
        """Writes all waiting messages, in order."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._turn += len(waiting)
            for transport, data in waiting:
                # A transport that met an error, or was aborted since, refuses writes.
                if not transport.is_closing():
                    try:
                        transport.write(data)
                    except Exception as error:
                        self._failed(transport, error)

    def _failed(self, transport: asyncio.Transport, error: Exception) -> None:
        self._report("write", error)
        transport.abort()

    def _end_of_turn(self) -> None:
        self.flush()
        if self._turn <= FEW:
            self._direct = SAMPLED
        self._turn = 0

    def __repr__(self) -> str:
        return f"<Outbox {len(self._waiting)} waiting, {self._direct} to go directly>"


WRITE_BUFFER_BYTES = 256 * 1024
"""With more than this waiting to be written, the other side of an exchange is not read."""
SMALL_BYTES = 1024
"""A write below this is small."""
SMALL_WRITES = 256
"""This number of waiting writes below ``SMALL_BYTES`` counts as a full buffer, whatever they carry."""


class SmallWrites:
    """A count of the small writes that wait in one transport, whose limit is ``WRITE_BUFFER_BYTES``."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting = 0

    def note(self, transport: asyncio.Transport) -> None:
        """Counts a small write that is about to be made on a transport that has not reported a full buffer.

        With too many of them the transport reports one.
        """
        if not transport.get_write_buffer_size():
            self._waiting = 0
        elif self._waiting < SMALL_WRITES:
            self._waiting += 1
        else:
            transport.set_write_buffer_limits(high=0)

    def forget(self, transport: asyncio.Transport) -> None:
        """Resets the count: the transport has room again, or gets another protocol."""
        if self._waiting >= SMALL_WRITES and not transport.is_closing():
            transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._waiting = 0

    def __repr__(self) -> str:
        return f"<SmallWrites {self._waiting}>"


class Flushed(Protocol):
    """A connection whose engine collects bytes to be sent."""

    transport: asyncio.Transport

    def flush(self) -> None:
        """Writes the collected bytes."""


class FlushQueue:
    """The HTTP/2 connections of one event loop that have something to send."""

    __slots__ = ("_loop", "_report", "_touched")

    def __init__(self, loop: asyncio.AbstractEventLoop, report: Report) -> None:
        """``report``: called with the exceptions of a connection's flush."""
        self._loop = loop
        self._report = report
        self._touched: list[Flushed] = []

    def touch(self, connection: Flushed) -> None:
        """Notes that ``connection`` has something to send.

        Called once per iteration: the connection keeps a mark until it is flushed.
        """
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
        return f"<FlushQueue {len(self._touched)} touched>"
