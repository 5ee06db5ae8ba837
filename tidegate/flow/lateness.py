"""When a request is late, so that a second copy of it may be sent (hedging).

A hedge is worth its work for the few requests that are slow for reasons of their replica, not of their own. So it is
sent when the first copy has had no answer for longer than most of the function's recent requests took, to another
replica that has a free slot at this moment, inside the function's retry budget. The first head of an answer wins; the
other copy's connection is aborted.

The percentile is taken over the last one to two thousand *first* copies, per function and worker. A first copy that
lost counts with the time it had when it lost: leaving it out would make the percentile fall with every hedge.

Pure: ``now`` in seconds of one clock.
"""

from collections import deque
from typing import Final, Generic, TypeVar

from tidegate.histogram import BUCKETS, bucket_index, bucket_upper_micros
from tidegate.records.route_table import Hedging

MIN_OBSERVATIONS: Final = 100
"""Observations before a percentile means anything."""
MAX_OBSERVATIONS: Final = 2048
"""Number of counts at which all are halved: old ones fade."""
REFRESH: Final = 32
"""Observations between two computations of the percentile."""

R = TypeVar("R")


class Lateness(Generic[R]):
    """One function's recent times to the head of an answer, and its requests without one."""

    __slots__ = ("_counts", "_delay_s", "_queue", "_rule", "_since", "_total")

    def __init__(self) -> None:
        self._rule = Hedging()
        self._counts = [0] * BUCKETS
        self._total = self._since = 0
        self._delay_s: float | None = None
        self._queue: deque[tuple[float, R]] = deque()

    def follow(self, rule: Hedging) -> None:
        """Sets the rule from now on; observations stay."""
        if rule != self._rule:
            self._rule = rule
            self._delay_s = self._percentile() if self._total >= MIN_OBSERVATIONS else None

    @property
    def delay_s(self) -> float | None:
        """Time without an answer after which a request is late; None if unknown."""
        return self._delay_s if self._rule.percentile is not None else self._rule.after_s

    def observed(self, seconds: float) -> None:
        """Notes that a first copy had its answer after this time, or had none when its second copy won."""
        self._counts[bucket_index(int(seconds * 1e6))] += 1
        self._total += 1
        self._since += 1
        if self._total >= MAX_OBSERVATIONS:
            self._counts = [count >> 1 for count in self._counts]
            self._total = sum(self._counts)
        if self._since >= REFRESH and self._total >= MIN_OBSERVATIONS:
            self._since = 0
            self._delay_s = self._percentile()

    def sent(self, request: R, now: float) -> float | None:
        """Notes that the request went to a replica; returns when it is late, or None if never."""
        delay_s = self.delay_s
        if delay_s is None:
            return None
        due = now + delay_s
        self._queue.append((due, request))
        return due

    def late(self, now: float) -> list[tuple[float, R]]:
        """Returns requests that were due by now, with their due times. The caller knows whether they have an answer by
        now."""
        queue = self._queue
        found = []
        while queue and queue[0][0] <= now:
            found.append(queue.popleft())
        return found

    def next_due(self) -> float | None:
        """Returns when the first of them is late. (The delay is one for all, so they stand in order, nearly.)"""
        return self._queue[0][0] if self._queue else None

    def _percentile(self) -> float:
        """Returns the upper bound of the bucket in which the rule's percentile lies."""
        rank, running = (self._rule.percentile or 0.0) / 100.0 * self._total, 0
        for index, count in enumerate(self._counts):
            running += count
            if running >= rank and count:
                return bucket_upper_micros(index) / 1e6
        return bucket_upper_micros(BUCKETS - 1) / 1e6

    def __repr__(self) -> str:
        return f"<Lateness after {self.delay_s} s, {len(self._queue)} on the way>"
