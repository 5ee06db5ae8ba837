"""Discrete events in virtual time: a heap of (time, sequence, action, argument), and a feed of arrivals beside it.

Actions of one moment run in the order in which they were scheduled, those of the feed last: an arrival finds everything
ended that ends at its moment. So equal inputs give equal runs. The kernel is a :class:`tidegate.clock.Clock` for
product code.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any, Protocol

Action = Callable[[float, Any], None]
"""Called with (time in seconds, the argument it was scheduled with)."""


class Feed(Protocol):
    """A sequence of events in order of time, which need not go through the heap."""

    at_s: float
    """Time of the next event; infinity without one."""

    def comes(self, now: float) -> None:
        """Takes the event at its time."""
        ...


class Nothing:
    """An empty feed."""

    at_s = inf

    def comes(self, now: float) -> None: ...


class Kernel:
    """The clock of one simulation and its future events. Times in seconds."""

    __slots__ = ("_is_over", "_now", "heap", "sequence")

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, Action, Any]] = []
        """Future events. Code that schedules something for every request pushes here directly, with a time that has not
        passed: :meth:`at` inlined, one call less."""
        self.sequence = count()
        self._now = 0.0
        self._is_over = False

    def now(self) -> float:
        """Returns the time of the present event."""
        return self._now

    def at(self, when: float, action: Action, argument: Any = None) -> None:
        """Schedules ``action(when, argument)``; a time that has passed means now, after everything scheduled before."""
        heappush(self.heap, (when if when > self._now else self._now, next(self.sequence), action, argument))

    def run(self, until: float, feed: Feed | None = None) -> None:
        """Runs all events up to and including ``until``, or until :meth:`stop`; then sets the time to ``until``."""
        heap, source = self.heap, Nothing() if feed is None else feed
        self._is_over = False
        while not self._is_over:
            at_s = source.at_s
            if heap and heap[0][0] <= at_s:
                when = heap[0][0]
                if when > until:
                    break
                event = heappop(heap)
                self._now = when
                event[2](when, event[3])
            elif at_s <= until and at_s < inf:
                self._now = at_s
                source.comes(at_s)
            else:
                break
        if not self._is_over and self._now < until < inf:
            self._now = until

    def stop(self) -> None:
        """Ends :meth:`run` after the present event."""
        self._is_over = True

    def __repr__(self) -> str:
        return f"<Kernel at {self._now:g} s, {len(self.heap)} events to come>"
