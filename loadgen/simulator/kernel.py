"""Discrete events in virtual time: a heap of (time, sequence, action, argument), and a feed of arrivals beside it.

Actions of one moment run in the order in which they were asked for, those of the feed last: what ends at a moment has
ended for who comes then. So equal inputs give equal runs. The kernel is a :class:`tidegate.clock.Clock`; product code
that wants one gets it.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any, Protocol

Action = Callable[[float, Any], None]
"""(the moment in seconds, the argument that it was asked for with)."""


class Feed(Protocol):
    """What comes one after the other, the next not before the last: it need not go through the heap."""

    at_s: float
    """When the next comes; infinity: none does."""

    def comes(self, now: float) -> None:
        """It is here."""
        ...


class Nothing:
    """A feed without anything."""

    at_s = inf

    def comes(self, now: float) -> None: ...


class Kernel:
    """The clock of one simulation, and what is to come. Times in seconds."""

    __slots__ = ("_is_over", "_now", "heap", "sequence")

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, Action, Any]] = []
        """What is to come. Whoever asks for something with every request pushes here by itself, with a time that has
        not passed: :meth:`at` written out, one call less."""
        self.sequence = count()
        self._now = 0.0
        self._is_over = False

    def now(self) -> float:
        """The moment of the event that runs."""
        return self._now

    def at(self, when: float, action: Action, argument: Any = None) -> None:
        """``action(when, argument)`` then; at once, after what was asked for before, if the time has passed."""
        heappush(self.heap, (when if when > self._now else self._now, next(self.sequence), action, argument))

    def run(self, until: float, feed: Feed | None = None) -> None:
        """Lets everything happen that is due before or at ``until``, or until :meth:`stop`; then it is ``until``."""
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
