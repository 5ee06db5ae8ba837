"""Averages over the last seconds, with the exact doubles of Knative's buffers, and the scale-down delay's maximum.

A window is a ring of one-second buckets. A record *adds* to the bucket of its second, so the sources of one second
sum up. Three consequences surprise people and are all deliberate here:

- seconds without a record *between* two records count as zeros, seconds after the last record do not: when samples
  stop, the linear average stays where it was and the window ends up empty one window length later;
- a window that is not full yet divides by the seconds seen, not by its length;
- the sum of the ring is a running total in doubles, because a fresh summation differs in the sixth decimal.

Every ``now`` is in Unix seconds (or any clock with whole-second phase); fractions are cut off.
"""

import math
from typing import Protocol

MIN_SMOOTHING = 0.2
"""Lower bound of the weighted average's coefficient; it binds for windows of 42 s and more."""
WEIGHT_SHARE = 0.9999
"""Share of the exponential weights that lies inside the window."""


class Average(Protocol):
    """The part of a window that a decision needs."""

    def record(self, now: float, value: float) -> None: ...

    def average(self, now: float) -> float: ...

    def is_empty(self, now: float) -> bool: ...

    def resize(self, now: float, seconds: float) -> None: ...


def round_micro(value: float) -> float:
    """Rounds to six decimals, in doubles, half away from zero; ``round(x, 6)`` is decimal and differs in the last
    bits."""
    scaled = value * 1e6
    whole = math.trunc(scaled)
    if abs(scaled - whole) >= 0.5:
        whole += 1 if scaled > 0 else -1
    return whole / 1e6


class LinearWindow:
    """A window in which every second weighs the same."""

    __slots__ = ("_buckets", "_first", "_last", "_size", "_total", "seconds")

    def __init__(self, seconds: float) -> None:
        if not (math.isfinite(seconds) and seconds > 0):
            raise ValueError(f"a window lasts a positive number of seconds, got {seconds}")
        self.seconds = seconds
        self._size = math.ceil(seconds)
        self._buckets = [0.0] * self._size
        self._total = 0.0
        self._first: int | None = None
        """Second of the oldest record; None if nothing was recorded, or a resize dropped it."""
        self._last: int | None = None
        """Second of the newest record."""

    def record(self, now: float, value: float) -> None:
        """Adds ``value`` to the second of ``now``; a record older than the window is dropped."""
        second = math.floor(now)
        last, size = self._last, self._size
        if last is None or second - last >= self.seconds:
            self._clear()
            self._first = self._last = second
        elif second != last:
            if second <= last - self.seconds:
                return
            for passed in range(last + 1, second + 1):
                slot = passed % size
                self._total -= self._buckets[slot]
                self._buckets[slot] = 0.0
            if self._first is None or self._first > second:
                self._first = second
            self._last = max(second, last)
        self._buckets[second % size] += value
        self._total += value

    def is_empty(self, now: float) -> bool:
        """Returns True if nothing was recorded within the window (exactly one window ago still counts)."""
        return self._last is None or math.floor(now) - self._last > self.seconds

    def average(self, now: float) -> float:
        """Returns the mean per second at ``now``; 0 for an empty window."""
        last = self._last
        if last is None:
            return 0.0
        elapsed = math.floor(now) - last
        if elapsed >= self.seconds:
            return 0.0
        total, size = self._total, self._size
        for passed in range(last + 1, last + elapsed + 1):
            total -= self._buckets[passed % size]
        room = size - max(elapsed, 0)
        seen = room if self._first is None else min(last - self._first + 1, room)
        return round_micro(total / seen)

    def resize(self, now: float, seconds: float) -> None:
        """Changes the length; the newest seconds survive unless the window is empty by its old length."""
        size = math.ceil(seconds)
        if size == self._size:
            return
        old, old_size, kept_total = self._buckets, self._size, 0.0
        buckets = [0.0] * size
        if self._last is None or self.is_empty(now):
            self._first = None
        else:
            for back in range(min(size, old_size)):
                second = self._last - back
                value = old[second % old_size]
                buckets[second % size] = value
                kept_total += value
            self._first = self._last - (old_size - 1)
        self.seconds, self._size, self._buckets, self._total = seconds, size, buckets, kept_total

    def _clear(self) -> None:
        self._buckets = [0.0] * self._size
        self._total = 0.0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.seconds:g} s, total {self._total:g}, last record {self._last}>"


class WeightedWindow(LinearWindow):
    """A window in which newer seconds weigh more, exponentially. Not normalised: a first sample x reads as 0.2 x in a
    60 s window."""

    __slots__ = ("_weights",)

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self._weights = weights(self._size)

    def average(self, now: float) -> float:
        """Returns the weighted sum at ``now``, not rounded; 0 for an empty window."""
        last = self._last
        if last is None or self.is_empty(now):
            return 0.0
        elapsed = max(0, math.floor(now) - last)
        size, buckets = self._size, self._buckets
        newest = last % size
        newest_first = buckets[newest::-1] + buckets[:newest:-1]
        return sum(weight * value for weight, value in zip(self._weights[elapsed:], newest_first, strict=False))

    def resize(self, now: float, seconds: float) -> None:
        super().resize(now, seconds)
        self._weights = weights(self._size)


def smoothing(buckets: int) -> float:
    """Returns the coefficient at which ``WEIGHT_SHARE`` of the weights lies in ``buckets`` seconds, at least
    ``MIN_SMOOTHING``."""
    return max(MIN_SMOOTHING, 1.0 - math.pow(1.0 - WEIGHT_SHARE, 1.0 / buckets))


def weights(buckets: int) -> list[float]:
    """Returns the weight of the value that is i seconds old, for each i."""
    coefficient = smoothing(buckets)
    return [coefficient * math.pow(1.0 - coefficient, age) for age in range(buckets)]


class DelayWindow:
    """Sliding maximum over the scale-down delay, in slots of ``granularity_s`` aligned to Unix time.

    Two values in one slot keep the larger. Built once: its length never changes.
    """

    __slots__ = ("_granularity_s", "_slots", "_values")

    def __init__(self, duration_s: float, granularity_s: float = 2.0) -> None:
        self._granularity_s = granularity_s
        self._slots = max(1, math.ceil(duration_s / granularity_s))
        self._values: dict[int, int] = {}

    def record(self, now: float, value: int) -> int:
        """Puts ``value`` into the slot of ``now`` and returns the largest one of the window."""
        slot = math.floor(now / self._granularity_s)
        oldest = slot - self._slots + 1
        self._values = {at: kept for at, kept in self._values.items() if at >= oldest}
        self._values[slot] = max(value, self._values.get(slot, value))
        return max(self._values.values())

    def __repr__(self) -> str:
        return f"<DelayWindow {self._slots} slots of {self._granularity_s:g} s, values {self._values}>"
