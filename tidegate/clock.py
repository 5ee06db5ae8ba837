"""Time as all components read it.

``now`` is Unix seconds, read once at process start, plus monotonic progress: it never jumps (DESIGN.md section 3).
Shells own a clock; cores receive ``now`` as an argument.
"""

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Returns seconds, comparable within one process only."""
        ...


class LiveClock:
    """Unix time at construction plus monotonic progress."""

    __slots__ = ("_offset",)

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        return time.monotonic() + self._offset


def monotonic() -> float:
    """Returns seconds of the system's monotonic clock: it never jumps, is the same in all processes, and begins again
    when the machine starts."""
    return time.monotonic()


def wall() -> float:
    """Returns Unix seconds of the wall clock, which may jump; used only for time windows that people state."""
    return time.time()


class ManualClock:
    """A clock that a test or the simulator advances."""

    __slots__ = ("_now",)

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Moves forward by ``seconds`` >= 0; raises ValueError for a negative step."""
        if seconds < 0:
            raise ValueError(f"time never runs backwards, got {seconds}")
        self._now += seconds
