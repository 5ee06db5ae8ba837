"""A log-linear histogram of durations, like HDR histograms: bounded memory, bounded relative error.

Buckets are at most 1/128 of an octave of microseconds wide, and a bucket is represented by its middle. A percentile is
off by at most 1/256 (0.4 %) of itself, or half a microsecond. Smallest, largest and mean are exact.
"""

from typing import Final

SUB_BITS: Final = 7
SUB_BUCKETS: Final = 1 << SUB_BITS
MAX_MICROS: Final = (1 << 39) - 1
"""Six days; longer durations count as this in percentiles."""
RELATIVE_ERROR: Final = 1.0 / (2 * SUB_BUCKETS)


def bucket(micros: int) -> int:
    """Returns the bucket of a duration in microseconds; negative durations count as 0."""
    micros = min(max(micros, 0), MAX_MICROS)
    if micros < SUB_BUCKETS:
        return micros
    shift = micros.bit_length() - SUB_BITS - 1
    return (shift << SUB_BITS) + (micros >> shift)


def middle(index: int) -> float:
    """Returns the middle of a bucket, in seconds."""
    if index < 2 * SUB_BUCKETS:
        return (index + 0.5) / 1e6
    shift = (index >> SUB_BITS) - 1
    return ((index - (shift << SUB_BITS)) + 0.5) * (1 << shift) / 1e6


class FineHistogram:
    """Counts of durations by bucket; empty buckets take no memory."""

    __slots__ = ("counts", "largest", "smallest", "sum", "total")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.total = 0
        self.sum = 0.0
        self.smallest = 0.0
        self.largest = 0.0

    def record(self, seconds: float) -> None:
        """Adds one duration."""
        index = bucket(int(seconds * 1e6))
        counts = self.counts
        counts[index] = counts.get(index, 0) + 1
        if not self.total or seconds < self.smallest:
            self.smallest = seconds
        if seconds > self.largest:
            self.largest = seconds
        self.total += 1
        self.sum += seconds

    def add(self, other: "FineHistogram") -> None:
        """Adds all counts of another histogram."""
        if not other.total:
            return
        for index, count in other.counts.items():
            self.counts[index] = self.counts.get(index, 0) + count
        self.smallest = min(self.smallest, other.smallest) if self.total else other.smallest
        self.largest = max(self.largest, other.largest)
        self.total += other.total
        self.sum += other.sum

    @property
    def mean(self) -> float | None:
        """Mean in seconds; None without observations."""
        return self.sum / self.total if self.total else None

    def quantile(self, q: float) -> float | None:
        """Returns the q-quantile (0 <= q <= 1) in seconds: the least duration that a share of q does not exceed."""
        return self.quantiles((q,))[0]

    def quantiles(self, qs: tuple[float, ...]) -> tuple[float | None, ...]:
        """Returns several quantiles; ``qs`` rise."""
        if not self.total:
            return (None,) * len(qs)
        found: list[float | None] = []
        buckets = iter(sorted(self.counts.items()))
        index, running = next(buckets)
        for q in qs:
            while running < q * self.total - 1e-9:
                more = next(buckets)
                index, running = more[0], running + more[1]
            found.append(min(max(middle(index), self.smallest), self.largest))
        return tuple(found)

    def __repr__(self) -> str:
        return f"<FineHistogram {self.total} observations, p50 {self.quantile(0.5)} s, p99 {self.quantile(0.99)} s>"
