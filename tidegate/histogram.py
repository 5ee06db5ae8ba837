"""A latency histogram of plain integers: exact counts in buckets of 1/8 octave over microseconds.

The index comes from ``int.bit_length`` with eight sub-buckets per power of two, so recording costs a shift and an
addition, the relative width of a bucket is at most 1/8, and two histograms add bucket by bucket.
"""

from collections.abc import Iterable
from itertools import compress

SUB_BITS = 3
SUB_BUCKETS = 1 << SUB_BITS
BUCKETS = (40 - SUB_BITS) * SUB_BUCKETS
"""Up to 2**39 us (six days); larger values count in the last bucket."""
FINE_BITS = 7
"""Of fine buckets, for percentiles that people read: at most 1/128 wide, so that a percentile is less than 1 % off."""


def bucket_index(micros: int) -> int:
    """Returns the bucket of a duration in microseconds; a negative duration counts as 0."""
    if micros < SUB_BUCKETS:
        return micros if micros > 0 else 0
    shift = micros.bit_length() - SUB_BITS - 1
    index = (shift + 1) * SUB_BUCKETS + (micros >> shift) - SUB_BUCKETS
    return index if index < BUCKETS else BUCKETS - 1


def fine_index(micros: int) -> int:
    """Returns the fine bucket of a duration in microseconds; a negative duration counts as 0."""
    if micros < 1 << FINE_BITS:
        return micros if micros > 0 else 0
    shift = micros.bit_length() - FINE_BITS - 1
    return (shift << FINE_BITS) + (micros >> shift)


def bucket_upper_micros(index: int, bits: int = SUB_BITS) -> int:
    """Returns the exclusive upper bound of a bucket in microseconds, of those with ``2**bits`` per power of two."""
    if index < 1 << bits:
        return index + 1
    shift, sub = divmod(index, 1 << bits)
    return ((1 << bits) + sub + 1) << (shift - 1)


KNOWN = 1 << 15
INDEX = b"".join(
    bytes([index]) * (bucket_upper_micros(index) - (bucket_upper_micros(index - 1) if index else 0))
    for index in range(bucket_index(KNOWN))
)
"""Bucket by microseconds, for the most frequent durations: a look-up costs half of the arithmetic."""
FAR = KNOWN << 10
FAR_BUCKETS = 10 * SUB_BUCKETS
"""Below ``FAR`` the bucket is looked up ten octaves further down: an octave has as many buckets as any other."""


class Histogram:
    """Counts of durations; the hot path is :meth:`record`."""

    __slots__ = ("counts", "sum_micros")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.sum_micros = 0

    @property
    def total(self) -> int:
        """Number of observations."""
        return sum(self.counts)

    def record(self, seconds: float) -> None:
        micros = int(seconds * 1e6)
        if 0 <= micros < KNOWN:
            self.counts[INDEX[micros]] += 1
        elif 0 < micros < FAR:
            self.counts[INDEX[micros >> 10] + FAR_BUCKETS] += 1
        else:
            self.counts[bucket_index(micros)] += 1
        self.sum_micros += micros

    def record_all(self, durations: Iterable[float]) -> None:
        """Records each of the durations, in seconds and not negative, at half the cost of :meth:`record`."""
        counts, micros_sum = self.counts, 0
        for seconds in durations:
            micros = int(seconds * 1e6)
            if micros < KNOWN:
                counts[INDEX[micros]] += 1
            elif micros < FAR:
                counts[INDEX[micros >> 10] + FAR_BUCKETS] += 1
            else:
                counts[bucket_index(micros)] += 1
            micros_sum += micros
        self.sum_micros += micros_sum

    def record_whole(self, steps: int) -> None:
        """Records a whole number (bytes, inferences) as if it were that many microseconds, exactly."""
        self.counts[INDEX[steps] if 0 <= steps < KNOWN else bucket_index(steps)] += 1
        self.sum_micros += steps

    def add(self, sparse: Iterable[tuple[int, int]]) -> None:
        """Adds the buckets of another histogram; the sum grows by bucket upper bounds."""
        for index, count in sparse:
            self.counts[index] += count
            self.sum_micros += count * bucket_upper_micros(index)

    def sparse(self) -> tuple[tuple[int, int], ...]:
        """Returns the buckets with observations, as (index, count)."""
        counts = self.counts
        return tuple([(index, counts[index]) for index in compress(range(len(counts)), counts)])

    def quantile(self, q: float) -> float | None:
        """Returns the q-quantile in seconds (0 <= q <= 1), the upper bound of its bucket. Returns None without
        observations."""
        return quantile(self.sparse(), q)

    def __repr__(self) -> str:
        return f"<Histogram {self.total} observations, p50 {self.quantile(0.5)} s, p98 {self.quantile(0.98)} s>"


def quantile(sparse: Iterable[tuple[int, int]], q: float) -> float | None:
    """Returns the q-quantile of sparse buckets in seconds. Returns None if they are empty."""
    buckets = sorted(sparse)
    total = sum(count for _, count in buckets)
    if total == 0:
        return None
    rank, running = q * total, 0
    for index, count in buckets:
        running += count
        if running >= rank:
            return bucket_upper_micros(index) / 1e6
    return bucket_upper_micros(buckets[-1][0]) / 1e6


def fine_buckets(durations: Iterable[float]) -> tuple[tuple[int, int], ...]:
    """Returns durations in seconds as sparse fine buckets."""
    counts: dict[int, int] = {}
    for seconds in durations:
        index = fine_index(int(seconds * 1e6))
        counts[index] = counts.get(index, 0) + 1
    return tuple(sorted(counts.items()))


def interpolated(sparse: Iterable[tuple[int, int]], q: float) -> float | None:
    """Returns the q-quantile of sparse buckets in seconds, for people: on the line between the bounds of its bucket, as
    ``histogram_quantile`` of Prometheus. Decisions take :func:`quantile`, which is never below the real one. Returns
    None if they are empty."""
    return all_interpolated(sparse, (q,))[0]


def all_interpolated(
    sparse: Iterable[tuple[int, int]], quantiles: Iterable[float], bits: int = SUB_BITS
) -> list[float | None]:
    """Returns the same for each of ``quantiles``, of buckets with ``2**bits`` per power of two."""
    buckets = sorted(sparse)
    total = sum(count for _, count in buckets)
    return [_interpolated(buckets, q * total, bits) for q in quantiles]


def _interpolated(buckets: Iterable[tuple[int, int]], rank: float, bits: int) -> float | None:
    running = 0
    for index, count in buckets:
        if count and running + count >= rank:
            low = bucket_upper_micros(index - 1, bits) if index else 0
            return (low + (bucket_upper_micros(index, bits) - low) * (rank - running) / count) / 1e6
        running += count
    return None
