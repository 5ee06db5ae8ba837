"""One ticker instead of a timer per request: coarse clock, deadlines, idle pool entries, log flush.

Whoever has deadlines registers a ``sweep(now)`` callable; it is called every 250 ms and acts on what is due.
A deadline is therefore met up to 250 ms late, which is the price of having no timer per request (a timer costs
0.7 us on uvloop, 1.6 us on asyncio).
"""

import asyncio
import time
from collections.abc import Callable

from tidegate.aio.loop.flush_queue import FlushQueue
from tidegate.aio.loop.outbox import Outbox
from tidegate.aio.loop.splice import Splicer
from tidegate.aio.loop.tasks import Report, report_to_stderr
from tidegate.wire.http2.limits import Windows

INTERVAL_S = 0.25
_DAYS = (b"Mon", b"Tue", b"Wed", b"Thu", b"Fri", b"Sat", b"Sun")
_MONTHS = (b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec")


class LoopServices:
    """The ticker of one event loop. ``now`` is the coarse clock: ``time.monotonic`` at the last tick, in seconds."""

    __slots__ = (
        "_handle", "_interval_s", "_loop", "_sweeps", "date", "now", "outbox", "report", "splicer", "turn", "windows",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        interval_s: float = INTERVAL_S,
        report: Report = report_to_stderr,
    ) -> None:
        self._loop = loop
        self._interval_s = interval_s
        self.report = report
        self.outbox = Outbox(loop, report)
        """Writes at the end of a turn; here because all connections of a loop share it."""
        self.splicer = Splicer()
        self._sweeps: dict[int, Callable[[float], None]] = {}
        self.turn = FlushQueue(loop, report)
        """The same for HTTP/2, whose connections collect what they send."""
        self.windows = Windows()
        """What all of HTTP/2 here may take for wide windows."""
        self.now = time.monotonic()
        self.date = _date()
        """Value of a ``date`` field, IMF-fixdate, at most one tick old."""
        self._handle: asyncio.TimerHandle | None = loop.call_later(interval_s, self._tick)

    def add(self, sweep: Callable[[float], None]) -> Callable[[], None]:
        """Calls ``sweep(now)`` at every tick until the returned function is called."""
        key = max(self._sweeps, default=0) + 1
        self._sweeps[key] = sweep
        return lambda: self._remove(key)

    def _remove(self, key: int) -> None:
        self._sweeps.pop(key, None)

    def _tick(self) -> None:
        self._handle = self._loop.call_later(self._interval_s, self._tick)
        self.tick(time.monotonic())

    def tick(self, now: float) -> None:
        """One sweep at ``now`` (seconds of ``time.monotonic``). A failing sweep is reported; the others still run."""
        self.now = now
        self.date = _date()
        for sweep in tuple(self._sweeps.values()):
            try:
                sweep(now)
            except Exception as error:  # the ticker must survive: without it no deadline is ever met again
                self.report("sweeper", error)

    def close(self) -> None:
        """Stops the ticker."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._sweeps.clear()
        self.splicer.close()

    def __repr__(self) -> str:
        return f"<Sweeper every {self._interval_s} s, {len(self._sweeps)} sweeps>"


def _date() -> bytes:
    year, month, day, hour, minute, second, weekday, _, _ = time.gmtime()
    return b"%s, %02d %s %d %02d:%02d:%02d GMT" % (_DAYS[weekday], day, _MONTHS[month - 1], year, hour, minute, second)
