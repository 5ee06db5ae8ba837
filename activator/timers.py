"""Times at which entries have to be looked at again, in order; entries that no longer matter are skipped.

The times of requests rise nearly always, since each may wait as long as the one before it. Those stand in a line, where
a step costs the same however long the line is. A heap beside it has the others.
"""

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

MAX_DEAD: Final = 1024
"""A sweep follows this many entries, and as many more as were alive at the last one."""

T = TypeVar("T")


class Timers(Generic[T]):
    """Entries by time. ``matters`` returns whether an entry still has to be looked at."""

    __slots__ = ("_heap", "_line", "_matters", "_number", "_sweep_at")

    def __init__(self, matters: Callable[[T], bool]) -> None:
        self._matters = matters
        self._line: deque[tuple[float, int, T]] = deque()
        self._heap: list[tuple[float, int, T]] = []
        self._number = 0
        self._sweep_at = MAX_DEAD
        """The number of the entry at which dead ones are removed: so many have come since, whatever became of them."""

    def __len__(self) -> int:
        return len(self._line) + len(self._heap)

    def __repr__(self) -> str:
        return f"<Timers {len(self)} entries>"

    def at(self, when: float, what: T) -> None:
        """Schedules a look at the entry."""
        self._number += 1
        heappush(self._heap, (when, self._number, what))
        if self._number > self._sweep_at:
            self._sweep()

    def append(self, when: float, what: T) -> None:
        """Does the same as :meth:`at`, for one of many entries with times that rise nearly always."""
        line = self._line
        if line and when < line[-1][0]:
            self.at(when, what)
            return
        self._number = number = self._number + 1
        line.append((when, number, what))
        if number > self._sweep_at:
            self._sweep()

    def first(self) -> float | None:
        """Returns the next time at which an entry has to be looked at."""
        line, heap, matters = self._line, self._heap, self._matters
        while line and not matters(line[0][2]):
            line.popleft()
        while heap and not matters(heap[0][2]):
            heappop(heap)
        if line and not (heap and heap[0] < line[0]):
            return line[0][0]
        return heap[0][0] if heap else None

    def due(self, now: float) -> T | None:
        """Removes and returns the next entry that is due; None if no entry is due."""
        when = self.first()
        if when is None or when > now:
            return None
        line, heap = self._line, self._heap
        return (heappop(heap) if not line or (heap and heap[0] < line[0]) else line.popleft())[2]

    def _sweep(self) -> None:
        """Removes dead entries."""
        self._line = deque(row for row in self._line if self._matters(row[2]))
        self._heap = [row for row in self._heap if self._matters(row[2])]
        heapify(self._heap)
        self._sweep_at = self._number + len(self) + MAX_DEAD
