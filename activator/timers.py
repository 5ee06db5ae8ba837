"""When to look at what again: a heap of times, in which entries that no longer matter are skipped."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

SPARE: Final = 1024
"""So many entries may lie there dead before anybody looks."""

T = TypeVar("T")


class Timers(Generic[T]):
    """Entries by time. ``matters`` tells whether an entry still has to be looked at."""

    __slots__ = ("_heap", "_matters", "_number", "_sweep_at")

    def __init__(self, matters: Callable[[T], bool]) -> None:
        self._matters = matters
        self._heap: list[tuple[float, int, T]] = []
        self._number = 0
        self._sweep_at = SPARE
        """Length at which dead entries are taken out."""

    def __len__(self) -> int:
        return len(self._heap)

    def __repr__(self) -> str:
        return f"<Timers {len(self._heap)} entries>"

    def at(self, when: float, what: T) -> None:
        """Look at it then."""
        self._number += 1
        heappush(self._heap, (when, self._number, what))
        if len(self._heap) > self._sweep_at:
            self._heap = [entry for entry in self._heap if self._matters(entry[2])]
            heapify(self._heap)
            self._sweep_at = 2 * len(self._heap) + SPARE

    def first(self) -> float | None:
        """The next time at which there is something to look at."""
        heap = self._heap
        while heap:
            if self._matters(heap[0][2]):
                return heap[0][0]
            heappop(heap)
        return None

    def due(self, now: float) -> T | None:
        """Takes out the next entry whose time has come; call it until None."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            entry = heappop(heap)[2]
            if self._matters(entry):
                return entry
        return None
