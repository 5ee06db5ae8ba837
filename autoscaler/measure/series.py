"""Sums and histograms over the last seconds, in slots of fixed length: bounded memory whatever arrives.

Unlike the windows of ``tidegate.autoscaler.policies.kpa.windows`` these forget by themselves: seconds without a record
count as zeros.
"""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from operator import add, sub

import msgspec

from tidegate.autoscaler.measure.plausible import PLAUSIBLE, is_histogram
from tidegate.histogram import BUCKETS, bucket_upper_micros
from tidegate.records.replica_sample import SparseHistogram

UPPER_MICROS = tuple(bucket_upper_micros(index) for index in range(BUCKETS))
LOWER_MICROS = (0, *UPPER_MICROS[:-1])


class RecentSums:
    """Sums of a fixed set of figures over the last ``slots`` slots of ``slot_s`` seconds.

    A ring of slots; the totals are kept, not summed at every reading. They are zero again, exactly, when the window is
    empty.
    """

    __slots__ = ("_filled", "_newest", "_rows", "_slot_s", "_slots", "_started", "_totals", "_zeros")

    def __init__(self, width: int, slots: int = 10, slot_s: float = 1.0) -> None:
        self._slots = slots
        self._slot_s = slot_s
        self._zeros = [0.0] * width
        self._rows: list[Sequence[float] | None] = [None] * slots
        self._totals = self._zeros
        self._filled = 0
        """Slots with a record."""
        self._newest = 0
        """The last slot of the ring, while one is filled."""
        self._started: int | None = None
        """Slot of the first record since the last silence as long as the window."""

    def add(self, now: float, values: Sequence[float]) -> None:
        """Adds one value to each figure; a record older than the window is dropped."""
        slot = math.floor(now / self._slot_s)
        if not self._filled:
            self._started = self._newest = slot
        elif slot > self._newest:
            self._advance(slot)
            if not self._filled:
                self._started = slot
        elif slot <= self._newest - self._slots:
            return
        at = slot % self._slots
        row = self._rows[at]
        if row is None:
            self._filled += 1
            self._rows[at] = values
        else:
            self._rows[at] = list(map(add, row, values))
        self._totals = list(map(add, self._totals, values))

    def sums(self, now: float) -> Sequence[float]:
        """Returns the sums at ``now``."""
        if self._filled:
            slot = math.floor(now / self._slot_s)
            if slot > self._newest:
                self._advance(slot)
        return self._totals

    def span_s(self, now: float) -> float:
        """Returns the seconds that :meth:`sums` covers: the window, or less while it fills; at least one slot."""
        slot = math.floor(now / self._slot_s)
        seen = self._slots if self._started is None else slot - self._started + 1
        return max(1, min(self._slots, seen)) * self._slot_s

    def _advance(self, slot: int) -> None:
        """Moves the window on, to end with ``slot``."""
        rows, size = self._rows, self._slots
        for passed in range(self._newest + 1, min(slot, self._newest + size) + 1):
            row = rows[passed % size]
            if row is not None:
                rows[passed % size] = None
                self._filled -= 1
                self._totals = [left if left > 0.0 else 0.0 for left in map(sub, self._totals, row)]
        self._newest = slot
        if not self._filled:
            self._totals = self._zeros

    def __repr__(self) -> str:
        return f"<RecentSums {self._filled}/{self._slots} slots of {self._slot_s:g} s>"


Done = tuple[float, float, float, float]
"""Work of replicas: requests, inferences, and the sums of their execution and queueing seconds."""
NOTHING_DONE: Done = (0.0, 0.0, 0.0, 0.0)


class RecentWork:
    """The work of the last ``window_s`` seconds, from reading to reading. Noting costs an addition per figure. A
    reading covers the time since the latest earlier reading that is at least the window old."""

    __slots__ = ("_execution_s", "_inferences", "_marks", "_queue_s", "_requests", "_window_s")

    def __init__(self, window_s: float = 10.0) -> None:
        self._window_s = window_s
        self._marks: deque[tuple[float, Done]] = deque(((-math.inf, NOTHING_DONE),))
        """(time, all work until then) of earlier readings."""
        self._requests: float = 0
        self._inferences: float = 0
        self._execution_s = self._queue_s = 0.0

    def note(self, requests: float, inferences: float, execution_s: float, queue_s: float) -> None:
        self._requests += requests
        self._inferences += inferences
        self._execution_s += execution_s
        self._queue_s += queue_s

    def read(self, now: float) -> Done:
        """Returns the recent work; no work at all is exactly zero."""
        marks, oldest = self._marks, now - self._window_s
        while len(marks) > 1 and marks[1][0] <= oldest:
            marks.popleft()
        requests, inferences, execution_s, queue_s = marks[0][1]
        until = self._requests, self._inferences, self._execution_s, self._queue_s
        if until[0] <= requests:
            # Back to small numbers: sums that grow for ever would lose small terms.
            self._requests = self._inferences = 0
            self._execution_s = self._queue_s = 0.0
            marks.clear()
            marks.append((-math.inf, NOTHING_DONE))
            return NOTHING_DONE
        if not 0.0 <= now - marks[-1][0] < MARK_S:
            marks.append((now, until))
        execution_s, queue_s = until[2] - execution_s, until[3] - queue_s
        return (
            until[0] - requests,
            until[1] - inferences,
            execution_s if execution_s > 0.0 else 0.0,
            queue_s if queue_s > 0.0 else 0.0,
        )

    def __repr__(self) -> str:
        return f"<RecentWork {self._requests:g} requests, {len(self._marks)} marks in {self._window_s:g} s>"


MARK_S = 0.9
"""Readings nearer to each other leave one mark."""


class Reading(msgspec.Struct, frozen=True, gc=False):
    """Quantile and counts of a histogram."""

    quantile_s: float | None
    total: int
    late: int
    """Observations in buckets that lie above the limit."""


NOTHING = Reading(None, 0, 0)


Seen = tuple[tuple[int, ...], tuple[int, ...]]
"""A cumulative histogram as it is kept until the next one: rising buckets, and their counts."""
NOTHING_SEEN: Seen = ((), ())
Gain = tuple[tuple[int, ...], Sequence[int], int]
"""The growth of a cumulative histogram since a moment: rising buckets, their counts, and the sum of these."""
NO_GAIN: Gain = ((), (), 0)


def seen(histogram: SparseHistogram) -> Seen:
    """Returns ``histogram`` in the form that is kept; an impossible one counts as empty."""
    found = gained(histogram, NOTHING_SEEN)
    return NOTHING_SEEN if found is None else found[1]


def gained(histogram: SparseHistogram, before: Seen) -> tuple[Gain, Seen] | None:
    """Returns the growth since ``before``, and what is to be kept for the next time; None if the histogram is
    impossible. Buckets that shrank (an unannounced reset) have grown by nothing."""
    if not histogram:
        return NO_GAIN, NOTHING_SEEN
    buckets, counts = zip(*histogram)  # noqa: B905 - a check of the pairs would take as long as all the rest
    known_buckets, known = before
    if buckets == known_buckets:
        # Nearly always the same buckets as before; a NaN fails a comparison.
        if counts == known:
            return NO_GAIN, before
        more = list(map(sub, counts, known))
        total = sum(more)
        if total <= PLAUSIBLE and min(more) >= 0:
            return (known_buckets, more, total), (known_buckets, counts)
    if not is_histogram(histogram):
        return None
    get = dict(zip(known_buckets, known, strict=True)).get
    more = [max(0, count - get(index, 0)) for index, count in histogram]
    return (buckets, more, sum(more)), (buckets, counts)


_Mark = tuple[int, Sequence[int], int]
"""A slot, and the counts by bucket and their sum when it began."""


class RecentHistogram:
    """Observations of the last ``slots`` slots of ``slot_s`` seconds, in the buckets of ``tidegate.histogram``.

    One running count per bucket, for the buckets seen since the window was last empty. A mark keeps the counts of the
    moment when a slot began, and the window is what came since the mark of its oldest slot: adding is one addition per
    bucket, forgetting none.
    """

    __slots__ = (
        "_buckets",
        "_cached_limit_s",
        "_cached_q",
        "_counts",
        "_marks",
        "_reading",
        "_slot_s",
        "_slots",
        "_total",
    )

    def __init__(self, slots: int = 6, slot_s: float = 5.0) -> None:
        self._slots = slots
        self._slot_s = slot_s
        self._buckets: tuple[int, ...] = ()
        """Rising buckets; the counts have one for each."""
        self._counts: Sequence[int] = ()
        self._total = 0
        self._marks: deque[_Mark] = deque()
        """Marks of the slots with observations, in their order."""
        self._cached_q: float | None = None
        self._cached_limit_s = 0.0
        """Arguments of the last reading, while nothing has changed since."""
        self._reading = NOTHING

    def add(self, now: float, observations: Iterable[tuple[int, int]]) -> None:
        """Adds (bucket, count) pairs of ``now``, in any order."""
        counts: dict[int, int] = {}
        for index, count in observations:
            counts[index] = counts.get(index, 0) + count
        buckets = tuple(sorted(counts))
        self.gain(now, (buckets, [counts[index] for index in buckets], sum(counts.values())))

    def gain(self, now: float, more: Gain) -> None:
        """Adds growth at ``now``, which never goes back by a whole slot."""
        buckets, counts, total = more
        if not total:
            return
        slot, marks = math.floor(now / self._slot_s), self._marks
        if not marks or slot > marks[-1][0]:
            self._drop(slot)
            marks.append((slot, self._counts, self._total))
        if buckets != self._buckets:
            counts = self._aligned(buckets, counts)
        self._counts = list(map(add, self._counts, counts)) if self._total else counts
        self._total += total
        self._cached_q = None

    def _aligned(self, buckets: Sequence[int], counts: Sequence[int]) -> Sequence[int]:
        """Returns ``counts`` by the buckets kept here; new ones of ``buckets`` are added to these."""
        kept = self._buckets
        if not self._total:
            self._buckets = tuple(buckets)
            return counts
        union = tuple(sorted({*kept, *buckets}))
        if union != kept:
            for at, (slot, before, total) in enumerate(self._marks):
                self._marks[at] = slot, _spread(kept, before, union) if total else (), total
            self._counts = _spread(kept, self._counts, union)
            self._buckets = union
        return _spread(buckets, counts, union)

    def quantile(self, now: float, q: float) -> float | None:
        """Returns the q-quantile in seconds, interpolated inside its bucket; None without observations."""
        return self.reading(now, q, math.inf).quantile_s

    def reading(self, now: float, q: float, limit_s: float) -> Reading:
        """Returns the q-quantile and the number of observations, in all and later than ``limit_s``."""
        marks = self._marks
        if not marks:
            return NOTHING
        slot = math.floor(now / self._slot_s)
        if slot - marks[0][0] >= self._slots:
            self._drop(slot)
        if self._cached_q != q or self._cached_limit_s != limit_s:
            self._cached_q, self._cached_limit_s = q, limit_s
            self._reading = self._read(q, limit_s) if marks else NOTHING
        return self._reading

    def _read(self, q: float, limit_s: float) -> Reading:
        _, before, known = self._marks[0]
        total, buckets, counts = self._total - known, self._buckets, self._counts
        late = 0
        if limit_s < math.inf:
            first_late = bisect_left(buckets, bisect_left(LOWER_MICROS, limit_s * 1e6))
            if first_late < len(buckets):
                late = sum(counts[first_late:]) - sum(before[first_late:])
        rank, below, quantile_s = q * total, total, None
        for at in range(len(counts) - 1, -1, -1):
            count = counts[at] - before[at] if known else counts[at]
            below -= count
            if count and (below < rank or below <= 0):
                index = buckets[at]
                lower = LOWER_MICROS[index]
                share = (rank - below) / count if rank > below else 0.0
                quantile_s = (lower + (UPPER_MICROS[index] - lower) * share) / 1e6
                break
        return Reading(quantile_s, total, late)

    def _drop(self, slot: int) -> None:
        """Forgets the slots that the window of ``slot`` does not reach back to."""
        marks, oldest = self._marks, slot - self._slots + 1
        while marks and marks[0][0] < oldest:
            marks.popleft()
            self._cached_q = None
        if not marks:
            self._buckets, self._counts, self._total = (), (), 0

    def __repr__(self) -> str:
        return f"<RecentHistogram {len(self._marks)}/{self._slots} slots of {self._slot_s:g} s>"


def _spread(buckets: Sequence[int], counts: Sequence[int], over: Sequence[int]) -> list[int]:
    """Returns ``counts`` of ``buckets``, with zeros for the other buckets of ``over``."""
    get = dict(zip(buckets, counts, strict=True)).get
    return [get(index, 0) for index in over]
