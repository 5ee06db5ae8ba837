"""Alarm: one timer of the event loop."""

import asyncio
from collections.abc import Callable
from time import monotonic


class Alarm:
    """One timer; while it is set, its time only ever comes nearer."""

    __slots__ = ("_handle", "_loop", "_ring", "_when")

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None
        self._when = 0.0

    def at(self, when: float) -> None:
        """Rings at ``when`` (seconds of ``time.monotonic``), unless it rings before."""
        if self._handle is not None:
            if when >= self._when:
                return
            self._handle.cancel()
        self._when = when
        self._handle = self._loop.call_later(max(0.0, when - monotonic()), self._rung)

    def cancel(self) -> None:
        """Cancels the timer until it is set again."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _rung(self) -> None:
        self._handle = None
        self._ring()

    def __repr__(self) -> str:
        return f"<Alarm at {self._when:.3f}>" if self._handle is not None else "<Alarm not set>"
