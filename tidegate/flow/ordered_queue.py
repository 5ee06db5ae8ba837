"""The order in which requests wait: priority class, then arrival.

Requests of one tenant, or of nobody in particular. Turns between tenants are :mod:`tidegate.flow.fair_queue`'s.

A deadline removes an item, it never promotes one, unless the function asks for it: then an item counts as having
arrived earlier by as much as its time is shorter. An item that left for a moment (its credit was refused) comes
back with its old key and so to its old place. Removal is lazy: a removed item stays until it comes to the head, or
until half of the heap is dead.
"""

import heapq
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

Key = tuple[int, float, int]
"""(priority class, seconds at which it counts as having arrived, arrival number); lower goes first."""


class Item(Protocol):
    """What can wait. ``key`` is unique and fixed; ``entry`` belongs to the queue: 0 while the item is in none."""

    key: Key
    entry: int


T = TypeVar("T", bound=Item)


class OrderedQueue(Generic[T]):
    """Items by key."""

    __slots__ = ("_classes", "_heap", "_last_entry", "_length")

    def __init__(self) -> None:
        self._heap: list[tuple[Key, int, T]] = []
        """(key, entry number, item); an entry whose number is not the item's is dead."""
        self._length = 0
        self._last_entry = 0
        self._classes: dict[int, int] = {}
        """Items by priority class."""

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        """All waiting items, in no order."""
        return (item for _, entry, item in self._heap if item.entry == entry)

    def __repr__(self) -> str:
        return f"<OrderedQueue {self._length} waiting>"

    def count(self, priority: int) -> int:
        """Items of one priority class."""
        return self._classes.get(priority, 0)

    def push(self, item: T) -> None:
        """Adds an item that is in no queue."""
        self._last_entry += 1
        item.entry = self._last_entry
        self._length += 1
        priority = item.key[0]
        self._classes[priority] = self._classes.get(priority, 0) + 1
        heapq.heappush(self._heap, (item.key, self._last_entry, item))

    def head(self) -> T | None:
        """The item that goes first, without removing it."""
        heap = self._heap
        while heap:
            _, entry, item = heap[0]
            if item.entry == entry:
                return item
            heapq.heappop(heap)
        return None

    def pop(self) -> T | None:
        """Removes the item that goes first."""
        item = self.head()
        if item is not None:
            self.remove(item)
        return item

    def remove(self, item: T) -> bool:
        """Takes an item out wherever it stands; False when it was not waiting."""
        if not item.entry:
            return False
        item.entry = 0
        self._length -= 1
        self._classes[item.key[0]] -= 1
        if len(self._heap) > 2 * self._length + 64:
            self._heap = [row for row in self._heap if row[2].entry == row[1]]
            heapq.heapify(self._heap)
        return True

    def items(self) -> list[T]:
        """All waiting items in their order."""
        return [item for _, entry, item in sorted(self._heap, key=lambda row: row[0]) if item.entry == entry]
