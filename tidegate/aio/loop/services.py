"""Services that all connections of one event loop share: ticker, clock, date, writes, splicer, HTTP/2 windows."""

import asyncio
import time
from collections.abc import Callable

from tidegate.aio.loop.absence import AbsenceWatch
from tidegate.aio.loop.splice import Splicer
from tidegate.aio.loop.tasks import Report, report_to_stderr
from tidegate.aio.loop.ticker import INTERVAL_S, Ticker
from tidegate.aio.loop.writes import FlushQueue, Outbox
from tidegate.wire.http2.limits import Windows

_DAYS = (b"Mon", b"Tue", b"Wed", b"Thu", b"Fri", b"Sat", b"Sun")
_MONTHS = (b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec")


class LoopServices:
    """The shared services of one event loop."""

    __slots__ = ("_ticker", "absence", "date", "flush_queue", "now", "outbox", "report", "splicer", "windows")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        interval_s: float = INTERVAL_S,
        report: Report = report_to_stderr,
    ) -> None:
        self.report = report
        """Called with errors that no caller can get."""
        self.outbox = Outbox(loop, report)
        """Writes of HTTP/1 at the end of a loop iteration."""
        self.flush_queue = FlushQueue(loop, report)
        """Writes of HTTP/2 at the end of a loop iteration."""
        self.splicer = Splicer()
        self.absence = AbsenceWatch(loop)
        """Clients that are not read from."""
        self.windows = Windows()
        """The memory that all HTTP/2 connections of the loop may use for wide windows."""
        self.now = time.monotonic()
        """The coarse clock: ``time.monotonic`` at the last tick, in seconds."""
        self.date = _date()
        """Value of a ``date`` field, IMF-fixdate, at most one tick old."""
        self._ticker = Ticker(loop, interval_s, self._ticked, report)

    def add(self, sweep: Callable[[float], None]) -> Callable[[], None]:
        """Calls ``sweep(now)`` at every tick until the returned function is called."""
        return self._ticker.add(sweep)

    def tick(self, now: float) -> None:
        """One tick at ``now`` (seconds of ``time.monotonic``)."""
        self._ticker.tick(now)

    def _ticked(self, now: float) -> None:
        self.now = now
        self.date = _date()

    def close(self) -> None:
        """Stops the ticker and closes the splicer's pipe."""
        self._ticker.close()
        self.splicer.close()
        self.absence.close()

    def __repr__(self) -> str:
        return f"<LoopServices {self._ticker!r}>"


def _date() -> bytes:
    year, month, day, hour, minute, second, weekday, _, _ = time.gmtime()
    return b"%s, %02d %s %d %02d:%02d:%02d GMT" % (_DAYS[weekday], day, _MONTHS[month - 1], year, hour, minute, second)
