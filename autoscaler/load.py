"""A steady estimate of the load, with its error: what is noise must not move replicas.

Arrivals per second jitter even when nothing changes (Poisson: the square root of the count, more with batches). The
estimate is a mean over a memory that grows from the rate window to ``MEMORY_S`` while the rate stays within its noise,
and starts anew at the newest window when it does not. Between :attr:`Load.low` and :attr:`Load.high` any figure
explains what was seen.

Worked example: 28 requests/s over a window of 10 s are 280 +- 17, so 28 +- 1.7 a second. After 30 s without a change
it is 28 +- 1.0; a window of 34 is more than 3 x 1.7 away and a change.
"""

import math
from dataclasses import dataclass

WINDOW_S = 10.0
"""Length of the window that the measured rate is a mean of (``autoscaler.collector.RATE_SLOTS``)."""
MEMORY_S = 30.0
CHANGED = 3.0
"""A window so many standard deviations away from the estimate is a change."""
CERTAIN = 3.0
"""So many standard deviations lie between the estimate and its bounds."""
BATCH_SPREAD = 1.5
"""Mean square of a batch over the square of its mean, assumed for batches above one: between equal ones (1) and
exponential ones (2)."""
SERVICE_NOISE = 0.03
"""Relative error that is allowed for in the service rates."""


@dataclass(frozen=True, slots=True)
class Load:
    """Inferences per second."""

    mid: float
    low: float
    high: float


NO_LOAD = Load(0.0, 0.0, 0.0)


class LoadEstimate:
    """Fed once a second with the mean of the last window."""

    __slots__ = ("_at", "_memory_s", "_mid")

    def __init__(self) -> None:
        self._mid = 0.0
        self._memory_s = WINDOW_S
        self._at: float | None = None

    def update(self, now: float, recent: float, mean_batch: float) -> Load:
        """The estimate at ``now``. ``recent``: inferences per second over the window; ``mean_batch``: per request."""
        elapsed_s = 1.0 if self._at is None else min(max(0.0, now - self._at), MEMORY_S)
        self._at = now
        if not (math.isfinite(recent) and recent > 0.0):
            self._mid, self._memory_s = 0.0, WINDOW_S
            return NO_LOAD
        per_event = mean_batch * BATCH_SPREAD if mean_batch > 1.0 else 1.0
        if abs(recent - self._mid) > CHANGED * math.sqrt(max(self._mid, 1.0 / WINDOW_S) * per_event / WINDOW_S):
            self._mid, self._memory_s = recent, WINDOW_S
        else:
            self._memory_s = min(self._memory_s + elapsed_s, MEMORY_S)
            self._mid += (recent - self._mid) * min(1.0, elapsed_s / self._memory_s)
        error = math.hypot(math.sqrt(self._mid * per_event / self._memory_s), SERVICE_NOISE * self._mid)
        return Load(self._mid, max(0.0, self._mid - CERTAIN * error), self._mid + CERTAIN * error)

    def forget(self) -> None:
        """Begins anew."""
        self._mid, self._memory_s, self._at = 0.0, WINDOW_S, None

    def __repr__(self) -> str:
        return f"<LoadEstimate {self._mid:.3g}/s over {self._memory_s:g} s>"
