"""The order in which requests wait: priority class, then the tenant's fair turn, then arrival.

A deadline removes an item, it never promotes one. An item that left for a moment (its credit was refused) comes
back with its old key and so to its old place. Removal is lazy: a removed item stays until it comes to the head, or
until half of the heap is dead.
"""

import heapq
from typing import Generic, Protocol, TypeVar


class Item(Protocol):
    """What can wait: ``key`` is unique and fixed, ``waiting`` turns False when it left the queue."""

    key: "Key"
    waiting: bool


Key = tuple[int, int, int]
"""(priority class, fair turn, arrival number); lower goes first."""

T = TypeVar("T", bound=Item)


class FairQueue(Generic[T]):
    """Items by key. The owner sets ``item.waiting``; the queue counts and forgets those that do not wait."""

    __slots__ = ("_heap", "_length")

    def __init__(self) -> None:
        self._heap: list[tuple[Key, T]] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"<FairQueue {self._length} waiting>"

    def push(self, item: T) -> None:
        """Adds an item and marks it as waiting."""
        item.waiting = True
        self._length += 1
        heapq.heappush(self._heap, (item.key, item))

    def head(self) -> T | None:
        """The item that goes first, without removing it."""
        heap = self._heap
        while heap:
            item = heap[0][1]
            if item.waiting:
                return item
            heapq.heappop(heap)
        return None

    def pop(self) -> T | None:
        """Removes the item that goes first."""
        item = self.head()
        if item is not None:
            heapq.heappop(self._heap)
            item.waiting = False
            self._length -= 1
        return item

    def remove(self, item: T) -> bool:
        """Takes an item out wherever it stands; False when it was not waiting."""
        if not item.waiting:
            return False
        item.waiting = False
        self._length -= 1
        if len(self._heap) > 2 * self._length + 64:
            self._heap = [entry for entry in self._heap if entry[1].waiting]
            heapq.heapify(self._heap)
        return True

    def items(self) -> list[T]:
        """All waiting items in their order."""
        return [item for _, item in sorted(self._heap, key=lambda entry: entry[0]) if item.waiting]
