"""Sums and histograms over the last seconds, in slots of fixed length: bounded memory whatever arrives.

Unlike the windows of ``autoscaler.windows`` these forget by themselves: silence counts as silence.
"""

import math
from collections.abc import Iterable

from tidegate.histogram import quantile
from tidegate.records import SparseHistogram


class RecentSums:
    """Sums of a fixed set of figures over the last ``slots`` slots of ``slot_s`` seconds."""

    __slots__ = ("_rows", "_slot_s", "_slots", "_started", "_width")

    def __init__(self, width: int, slots: int = 10, slot_s: float = 1.0) -> None:
        self._width = width
        self._slots = slots
        self._slot_s = slot_s
        self._rows: dict[int, list[float]] = {}
        self._started: int | None = None
        """Slot of the first record since the last silence as long as the window."""

    def add(self, now: float, values: Iterable[float]) -> None:
        """Adds one value to each figure; a record older than the window is forgotten at the next one."""
        slot = math.floor(now / self._slot_s)
        row = self._rows.get(slot)
        if row is None:
            self._drop(slot)
            if not self._rows:
                self._started = slot
            row = self._rows[slot] = [0.0] * self._width
        for index, value in enumerate(values):
            row[index] += value

    def sums(self, now: float) -> list[float]:
        self._drop(math.floor(now / self._slot_s))
        if not self._rows:
            return [0.0] * self._width
        return [math.fsum(column) for column in zip(*self._rows.values(), strict=True)]

    def span_s(self, now: float) -> float:
        """Seconds that :meth:`sums` covers: the window, or less while it fills; at least one slot."""
        slot = math.floor(now / self._slot_s)
        seen = self._slots if self._started is None else slot - self._started + 1
        return max(1, min(self._slots, seen)) * self._slot_s

    def _drop(self, slot: int) -> None:
        oldest = slot - self._slots + 1
        for old in [at for at in self._rows if at < oldest]:
            del self._rows[old]

    def __repr__(self) -> str:
        return f"<RecentSums {len(self._rows)}/{self._slots} slots of {self._slot_s:g} s>"


class RecentHistogram:
    """Observations of the last ``slots`` slots of ``slot_s`` seconds, in the buckets of ``tidegate.histogram``."""

    __slots__ = ("_counts", "_slot_s", "_slots")

    def __init__(self, slots: int = 6, slot_s: float = 5.0) -> None:
        self._slots = slots
        self._slot_s = slot_s
        self._counts: dict[int, dict[int, int]] = {}

    def add(self, now: float, observations: SparseHistogram) -> None:
        slot = math.floor(now / self._slot_s)
        counts = self._counts.setdefault(slot, {})
        for index, count in observations:
            counts[index] = counts.get(index, 0) + count
        self._drop(slot)

    def quantile(self, now: float, q: float) -> float | None:
        """The q-quantile in seconds, upper bound of its bucket; None without observations."""
        self._drop(math.floor(now / self._slot_s))
        if not self._counts:
            return None
        merged: dict[int, int] = {}
        for counts in self._counts.values():
            for index, count in counts.items():
                merged[index] = merged.get(index, 0) + count
        return quantile(merged.items(), q)

    def _drop(self, slot: int) -> None:
        oldest = slot - self._slots + 1
        for old in [at for at in self._counts if at < oldest]:
            del self._counts[old]

    def __repr__(self) -> str:
        return f"<RecentHistogram {len(self._counts)}/{self._slots} slots of {self._slot_s:g} s>"
