"""Utilisation of devices and its balance.

Sources: the thesis on in-flight and utilisation autoscaling, A4 (activity); OLTunes, its tables of balance over GPUs.
"""

import math
from collections.abc import Iterable, Sequence


def activity(busy_s: Iterable[tuple[float, float]], duration_s: float) -> float:
    """Returns the percent of ``duration_s`` in which a device executed at least one request.

    ``busy_s``: (start, end) of executions in any order; they may overlap, and are clipped to [0, ``duration_s``].
    Raises ValueError for a duration that is not positive.
    """
    if duration_s <= 0.0:
        raise ValueError(f"a duration of {duration_s} s; it must be positive")
    covered = reached = 0.0
    for start, end in sorted(busy_s):
        start, end = max(start, reached), min(end, duration_s)
        if end > start:
            covered += end - start
            reached = end
    return 100.0 * covered / duration_s


class Occupancy:
    """Time in which a device was held by at least one lease, for leases in order of their ends."""

    __slots__ = ("_open", "_over_s")

    def __init__(self) -> None:
        self._over_s = 0.0
        self._open: list[tuple[float, float]] = []
        """Disjoint rising spans that a lease with an early beginning may still join."""

    def add(self, start_s: float, end_s: float, *, is_alone: bool) -> None:
        """Adds a span. ``is_alone``: the lease held the whole device, so no earlier span continues."""
        if is_alone:
            self._over_s += sum(end - start for start, end in self._open)
            self._open.clear()
        while self._open and self._open[-1][1] >= start_s:
            start_s = min(start_s, self._open.pop()[0])
        self._open.append((start_s, end_s))

    @property
    def seconds(self) -> float:
        return self._over_s + sum(end - start for start, end in self._open)


def variation(values: Sequence[float]) -> float | None:
    """Returns the coefficient of variation over devices: population standard deviation over mean; 0 is even. Returns
    None without values or if all are zero."""
    if not values:
        return None
    mean = math.fsum(values) / len(values)
    if mean == 0.0:
        return None
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values)) / mean
