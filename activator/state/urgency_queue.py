"""The order in which requests wait by urgency: priority class, then the time left over the time needed.

A request with 2 s left that needs 1 s goes before one with 4 s left that needs 1 s; waiting makes every request more
urgent. Of equally urgent ones the shortest goes first, then the earliest (OLTunes, section 3.4). The time needed is
taken as proportional to the request's inferences, so only their number counts.

Which of two requests of different sizes is more urgent changes while both wait, so no fixed key gives this order. Items
of about one size (within a factor of two) stand in one line by the time when they are due, and the heads of at most
twenty lines are compared at each look.
"""

from collections.abc import Iterator
from typing import Protocol, TypeVar

from tidegate.flow.ordered_queue import Item, OrderedQueue


class SizedItem(Item, Protocol):
    """An item that can wait by urgency."""

    inferences: int


T = TypeVar("T", bound=SizedItem)


class UrgencyClock:
    """The moment at which a function's waiting requests are compared."""

    __slots__ = ("horizon_s", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self.horizon_s = 0.0
        """An item is due at the second number of its key plus this."""

    def __repr__(self) -> str:
        return f"<UrgencyClock at {self.now:g}>"


class UrgencyQueue(OrderedQueue[T]):
    """Items by priority class and urgency. ``key`` contains the time at which the item is due, less the horizon."""

    __slots__ = ("_clock", "_lines")

    def __init__(self, clock: UrgencyClock) -> None:
        super().__init__()
        self._clock = clock
        self._lines: dict[tuple[int, int], OrderedQueue[T]] = {}
        """By priority class and number of binary digits of the size; none is empty."""

    def __iter__(self) -> Iterator[T]:
        return (item for line in self._lines.values() for item in line)

    def __repr__(self) -> str:
        return f"<UrgencyQueue {self.length} waiting in {len(self._lines)} lines>"

    def like(self) -> "UrgencyQueue[T]":
        return UrgencyQueue(self._clock)

    def push(self, item: T) -> None:
        name = _line_of(item)
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = OrderedQueue()
        line.push(item)
        self.length += 1
        self._classes[name[0]] = self._classes.get(name[0], 0) + 1

    def head(self) -> T | None:
        best: T | None = None
        least: tuple[int, float, int, int] | None = None
        for line in self._lines.values():
            item = line.head()
            assert item is not None  # empty lines are removed
            rank = self._rank(item)
            if least is None or rank < least:
                best, least = item, rank
        return best

    def remove(self, item: T) -> bool:
        name = _line_of(item)
        line = self._lines.get(name)
        if line is None or not line.remove(item):
            return False
        self.length -= 1
        self._classes[name[0]] -= 1
        if not line.length:
            del self._lines[name]
        return True

    def items(self) -> list[T]:
        return sorted(self, key=self._rank)

    def _rank(self, item: T) -> tuple[int, float, int, int]:
        priority, since, number = item.key
        left_s = since + self._clock.horizon_s - self._clock.now
        return (priority, left_s / item.inferences, item.inferences, number)


def _line_of(item: SizedItem) -> tuple[int, int]:
    return (item.key[0], item.inferences.bit_length())
