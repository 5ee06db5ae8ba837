"""The order in which requests wait: priority class, then arrival.

For requests of one tenant, or without a tenant. :mod:`tidegate.flow.fair_queue` orders between tenants.

A deadline removes an item, it never promotes one, unless the function asks for it: then an item counts as having
arrived earlier by as much as its time is shorter. An item that left for a moment (its credit was refused) comes back
with its old key and so to its old place.

Nearly all items come in the order in which they go: those stand in a line, where a step costs the same however long it
is. Items that go before the last one there (a better class, an old place, a shorter deadline) are in a heap beside it.
Removal is lazy: a removed item stays until it comes to the head, or until half of the entries are dead.
"""

import heapq
from collections import deque
from collections.abc import Iterator
from itertools import chain, count
from typing import Final, Generic, Protocol, TypeVar

Key = tuple[int, float, int]
"""(priority class, seconds at which it counts as having arrived, arrival number); lower goes first."""


class Item(Protocol):
    """An item that can wait. ``key`` is unique and fixed; ``entry`` belongs to its queue: 0 while the item is in
    none."""

    key: Key
    entry: int


T = TypeVar("T", bound=Item)

_next_entry: Final = count(1).__next__
"""Numbers entries of all queues: an item that goes to another queue is dead in the one that it was in."""


class OrderedQueue(Generic[T]):
    """Items by key."""

    __slots__ = ("_classes", "_heap", "_line", "length")

    def __init__(self) -> None:
        self._line: deque[tuple[Key, int, T]] = deque()
        """(key, entry number, item) in the order of the keys; an entry whose number is not the item's is dead."""
        self._heap: list[tuple[Key, int, T]] = []
        """Entries of the same form for items that came out of order."""
        self.length = 0
        """The number of waiting items; ``len`` asks for it by a call."""
        self._classes: dict[int, int] = {}
        """Items by priority class."""

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[T]:
        """Yields all waiting items, in no order."""
        return (item for _, entry, item in chain(self._line, self._heap) if item.entry == entry)

    def __repr__(self) -> str:
        return f"<OrderedQueue {self.length} waiting>"

    def like(self) -> "OrderedQueue[T]":
        """Returns an empty queue of the same order."""
        return OrderedQueue()

    def count(self, priority: int) -> int:
        """Returns the items of one priority class."""
        return self._classes.get(priority, 0)

    def push(self, item: T) -> None:
        """Adds an item that is in no queue."""
        item.entry = entry = _next_entry()
        self.length += 1
        key, classes, line = item.key, self._classes, self._line
        priority = key[0]
        classes[priority] = classes.get(priority, 0) + 1
        if not line or line[-1][0] <= key:
            line.append((key, entry, item))
        else:
            heapq.heappush(self._heap, (key, entry, item))

    def head(self) -> T | None:
        """Returns the item that goes first, without removing it."""
        line, heap = self._line, self._heap
        while line and line[0][2].entry != line[0][1]:
            line.popleft()
        while heap and heap[0][2].entry != heap[0][1]:
            heapq.heappop(heap)
        if line and not (heap and heap[0][0] < line[0][0]):
            return line[0][2]
        return heap[0][2] if heap else None

    def pop(self) -> T | None:
        """Removes the item that goes first."""
        item = self.head()
        if item is not None:
            self.remove(item)
        return item

    def remove(self, item: T) -> bool:
        """Removes an item wherever it stands; returns False if it was not waiting."""
        if not item.entry:
            return False
        item.entry = 0
        self.length = length = self.length - 1
        self._classes[item.key[0]] -= 1
        if len(self._line) + len(self._heap) > 2 * length + 64:
            self._sweep()
        return True

    def items(self) -> list[T]:
        """Returns all waiting items in their order."""
        return sorted(self, key=lambda item: item.key)

    def _sweep(self) -> None:
        """Removes dead entries."""
        self._line = deque(row for row in self._line if row[2].entry == row[1])
        self._heap = [row for row in self._heap if row[2].entry == row[1]]
        heapq.heapify(self._heap)
