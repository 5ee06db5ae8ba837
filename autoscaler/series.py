"""Sums and histograms over the last seconds, in slots of fixed length: bounded memory whatever arrives.

Unlike the windows of ``autoscaler.windows`` these forget by themselves: silence counts as silence.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.histogram import BUCKETS, bucket_upper_micros

UPPER_MICROS = tuple(bucket_upper_micros(index) for index in range(BUCKETS))
TIE = 1e-9
"""A rank this near to a cumulative count counts as equal to it."""


class RecentSums:
    """Sums of a fixed set of figures over the last ``slots`` slots of ``slot_s`` seconds.

    The totals are kept, not summed at every reading; they are zero again, exactly, when the window is empty.
    """

    __slots__ = ("_oldest", "_rows", "_slot_s", "_slots", "_started", "_totals", "_width")

    def __init__(self, width: int, slots: int = 10, slot_s: float = 1.0) -> None:
        self._width = width
        self._slots = slots
        self._slot_s = slot_s
        self._rows: dict[int, list[float]] = {}
        self._totals = [0.0] * width
        self._oldest: int | None = None
        """The oldest slot kept."""
        self._started: int | None = None
        """Slot of the first record since the last silence as long as the window."""

    def add(self, now: float, values: Sequence[float]) -> None:
        """Adds one value to each figure; a record older than the window is forgotten at the next one."""
        slot = math.floor(now / self._slot_s)
        row = self._rows.get(slot)
        if row is None:
            self._drop(slot)
            if self._oldest is None:
                self._started = self._oldest = slot
            elif slot < self._oldest:
                self._oldest = slot
            row = self._rows[slot] = [0.0] * self._width
        totals = self._totals
        for index, value in enumerate(values):
            row[index] += value
            totals[index] += value

    def sums(self, now: float) -> Sequence[float]:
        """The sums at ``now``; not to be kept, they change with the next record."""
        if self._oldest is not None:
            self._drop(math.floor(now / self._slot_s))
        return self._totals

    def span_s(self, now: float) -> float:
        """Seconds that :meth:`sums` covers: the window, or less while it fills; at least one slot."""
        slot = math.floor(now / self._slot_s)
        seen = self._slots if self._started is None else slot - self._started + 1
        return max(1, min(self._slots, seen)) * self._slot_s

    def _drop(self, slot: int) -> None:
        oldest = slot - self._slots + 1
        if self._oldest is None or self._oldest >= oldest:
            return
        rows, totals = self._rows, self._totals
        for old in [at for at in rows if at < oldest]:
            for index, value in enumerate(rows.pop(old)):
                totals[index] = max(0.0, totals[index] - value)
        self._oldest = min(rows, default=None)
        if self._oldest is None:
            self._totals = [0.0] * self._width

    def __repr__(self) -> str:
        return f"<RecentSums {len(self._rows)}/{self._slots} slots of {self._slot_s:g} s>"


@dataclass(frozen=True, slots=True)
class Reading:
    """What a histogram tells."""

    quantile_s: float | None
    total: int
    late: int
    """Observations in buckets that lie above the limit."""


NOTHING = Reading(None, 0, 0)


class RecentHistogram:
    """Observations of the last ``slots`` slots of ``slot_s`` seconds, in the buckets of ``tidegate.histogram``.

    The sum over the slots is kept beside them, and a reading looks at the upper buckets only.
    """

    __slots__ = ("_asked", "_merged", "_oldest", "_reading", "_rows", "_slot_s", "_slots", "_total")

    def __init__(self, slots: int = 6, slot_s: float = 5.0) -> None:
        self._slots = slots
        self._slot_s = slot_s
        self._rows: dict[int, list[Sequence[tuple[int, int]]]] = {}
        """What was added in each slot."""
        self._merged: dict[int, int] = {}
        self._total = 0
        self._oldest: int | None = None
        """The oldest slot kept."""
        self._asked: tuple[float, float] | None = None
        """What was last asked for, while nothing has changed since."""
        self._reading = NOTHING

    def add(self, now: float, observations: Sequence[tuple[int, int]]) -> None:
        """Adds (bucket, count) pairs of ``now``; what is older than the window is dropped."""
        slot = math.floor(now / self._slot_s)
        if self._oldest is not None:
            self._drop(slot)
        rows = self._rows.get(slot)
        if rows is None:
            rows = self._rows[slot] = []
            self._oldest = slot if self._oldest is None else min(slot, self._oldest)
        rows.append(observations)
        merged, total = self._merged, 0
        for index, count in observations:
            merged[index] = merged.get(index, 0) + count
            total += count
        self._total += total
        self._asked = None

    def quantile(self, now: float, q: float) -> float | None:
        """The q-quantile in seconds, interpolated inside its bucket; None without observations."""
        return self.reading(now, q, math.inf).quantile_s

    def reading(self, now: float, q: float, limit_s: float) -> Reading:
        """The q-quantile and how many observations there are, in all and later than ``limit_s``."""
        if self._oldest is None:
            return NOTHING
        self._drop(math.floor(now / self._slot_s))
        if self._asked != (q, limit_s):
            self._asked = (q, limit_s)
            self._reading = self._read(q, limit_s)
        return self._reading

    def _read(self, q: float, limit_s: float) -> Reading:
        merged, total = self._merged, self._total
        if total <= 0:
            return NOTHING
        rank, below, late = q * total, total, 0
        limit_micros, quantile_s = limit_s * 1e6, None
        for index in sorted(merged, reverse=True):
            count = merged[index]
            below -= count
            lower = UPPER_MICROS[index - 1] if index else 0
            if lower >= limit_micros:
                late += count
            if quantile_s is None and (below < rank or below <= 0):
                share = max(0.0, rank - below) / count
                quantile_s = (lower + (UPPER_MICROS[index] - lower) * share) / 1e6
            if quantile_s is not None and lower < limit_micros:
                break
        return Reading(quantile_s, total, late)

    def _drop(self, slot: int) -> None:
        oldest = slot - self._slots + 1
        if self._oldest is None or self._oldest >= oldest:
            return
        merged = self._merged
        for old in [at for at in self._rows if at < oldest]:
            for observations in self._rows.pop(old):
                for index, count in observations:
                    self._total -= count
                    left = merged[index] - count
                    if left > 0:
                        merged[index] = left
                    else:
                        del merged[index]
        self._oldest, self._asked = min(self._rows, default=None), None

    def __repr__(self) -> str:
        return f"<RecentHistogram {len(self._rows)}/{self._slots} slots of {self._slot_s:g} s>"


def histogram_quantile(q: float, buckets: Sequence[tuple[float | None, float]]) -> float | None:
    """The q-quantile of cumulative buckets ``(upper bound, count)``, as model servers publish them; an upper bound of
    None is infinity. Linear inside the bucket, whose lower edge is the bound before it, 0 for the first; in the
    infinite bucket the largest finite bound. None without observations."""
    total = buckets[-1][1] if buckets else 0.0
    if not total > 0:
        return None
    rank, lower, below = q * total, 0.0, 0.0
    for upper, count in buckets:
        own = count - below
        if own > 0 and count >= rank - TIE:
            if upper is None:
                return lower
            return lower + (upper - lower) * min(1.0, max(0.0, rank - below) / own)
        lower, below = lower if upper is None else upper, max(below, count)
    return lower
