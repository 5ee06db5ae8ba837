"""A steady estimate of the load, with its error: noise must not move replicas.

Arrivals per second jitter even when nothing changes (Poisson: the square root of the count, more with batches). The
estimate is a mean over a memory that grows from the rate window to ``MEMORY_S`` while the rate stays within its noise,
and restarts at the newest window when it does not. Between :attr:`Load.low` and :attr:`Load.high` any figure explains
what was seen.

A window of ten seconds is five seconds late on a ramp, and late replicas mean waiting requests. So the last ``BURST_S``
are looked at as well: where they are clearly *more* than the estimate, it restarts with them, and the window grows from
there. It then has little data, which its bounds show. A load that falls can wait for the whole window.

A test made every second for days sees everything that chance can do: three standard deviations come every few minutes,
and the tail of a Poisson count is longer than that of a normal one. A replica is therefore started for a load that is
:attr:`Load.sure`: by ``SURE_SIGMAS`` standard deviations of the square root of a count (whose spread is 1/2 whatever
the rate), in any of the last ``SPANS_S`` or over the memory. A constant load is expected to exceed that by a seventh
less than once in some weeks.

Worked example: 28 requests/s over a window of 10 s are 280 +- 17, so 28 +- 1.7 a second. After 30 s without a change it
is 28 +- 1.0; a window of 34 is more than 3 x 1.7 away and a change, and so are three seconds of more than 28 + 3 x 3.1
= 37. Three seconds of 45 make it 45 +- 3.9: at least 33 with certainty.
"""

import math

import msgspec

WINDOW_S = 10.0
"""Length of the window that the measured rate is a mean of (``tidegate.autoscaler.measure.collector.RATE_SLOTS``)."""
BURST_S = 3
"""Seconds that are enough to see a burst."""
MEMORY_S = 30.0
STEADY_S = 300.0
"""Memory of the mean that a replica is taken away by. Scale-in is checked every few seconds for hours: with a jittering
figure the one lucky moment would be found."""
CHANGED = 3.0
"""Standard deviations between a window and the estimate from which on it is a change."""
CERTAIN = 3.0
"""Standard deviations between the estimate and its bounds."""
BATCH_SPREAD = 1.5
"""Mean square of a batch over the square of its mean, assumed for batches above one: between equal ones (1) and
exponential ones (2)."""
SURE_SIGMAS = 4.5
"""Standard deviations of the root of a count between the seen load and the load that a replica is started for."""
SPANS_S = (3, 5, 10)
"""Newest seconds that are looked at for it: few for a jump, more for a small rise."""
SERVICE_NOISE = 0.03
"""Relative error that is allowed for in the service rates."""


class Load(msgspec.Struct, frozen=True, gc=False):
    """A load in inferences per second, with bounds."""

    mid: float
    low: float
    high: float
    sure: float = 0.0
    """Lower bound of the load, sure enough to start a replica for it; 0 while little is known."""
    steady: float = 0.0
    """Mean over the long memory, which restarts only when the load has surely changed."""


NO_LOAD = Load(0.0, 0.0, 0.0)


class LoadEstimate:
    """The estimate, fed once a second with the mean of the last window and the rate of the last second."""

    __slots__ = ("_at", "_memory_s", "_mid", "_seconds", "_steady", "_steady_s", "_window_s")

    def __init__(self) -> None:
        self._at: float | None = None
        self._begin()

    def _begin(self) -> None:
        self._mid = 0.0
        self._memory_s = WINDOW_S
        self._steady, self._steady_s = 0.0, WINDOW_S
        self._window_s = WINDOW_S
        """Window behind the rate: less than ``WINDOW_S`` after a burst."""
        self._seconds: tuple[float, ...] = ()
        """Rates of the newest seconds, at most a window of them."""

    def update(self, now: float, recent: float, newest: float, mean_batch: float) -> Load:
        """Returns the estimate at ``now``. ``recent``: inferences per second over the window, ``newest``: over the last
        second; ``mean_batch``: inferences per request."""
        elapsed_s = 1.0 if self._at is None else min(max(0.0, now - self._at), MEMORY_S)
        self._at = now
        if not (math.isfinite(recent) and recent > 0.0):
            self._begin()
            return NO_LOAD
        self._seconds = (*self._seconds, newest if math.isfinite(newest) else recent)[-int(WINDOW_S) :]
        per_event = mean_batch * BATCH_SPREAD if mean_batch > 1.0 else 1.0
        mid, window_s = self._mid, min(WINDOW_S, self._window_s + elapsed_s)
        seen = recent if window_s >= WINDOW_S else self._mean(round(window_s))
        burst = self._mean(BURST_S) if len(self._seconds) >= BURST_S else 0.0
        if burst - mid > CHANGED * _error(mid, per_event, BURST_S):
            mid = burst
            self._memory_s = window_s = float(BURST_S)
        elif window_s < WINDOW_S or abs(seen - mid) > CHANGED * _error(mid, per_event, window_s):
            mid, self._memory_s = seen, window_s
        else:
            self._memory_s = min(self._memory_s + elapsed_s, MEMORY_S)
            mid += (seen - mid) * min(1.0, elapsed_s / self._memory_s)
        self._mid, self._window_s = mid, window_s
        error = CERTAIN * math.hypot(math.sqrt(mid * per_event / self._memory_s), SERVICE_NOISE * mid)
        self._follow(recent, per_event, elapsed_s)
        sure = self._sure(burst, per_event)
        return Load(mid, mid - error if mid > error else 0.0, mid + error, sure, self._steady)

    def _follow(self, recent: float, per_event: float, elapsed_s: float) -> None:
        off = recent - self._steady
        if abs(off) > SURE_SIGMAS * _error(self._steady, per_event, WINDOW_S):
            self._steady, self._steady_s = recent, WINDOW_S
        else:
            self._steady_s = min(self._steady_s + elapsed_s, STEADY_S)
            self._steady += off * min(1.0, elapsed_s / self._steady_s)

    def at_least(self, mean_batch: float, sigmas: float) -> float:
        """Returns a lower bound of the load at the last update, by ``sigmas`` standard deviations of the root of a
        count. Bursts do not count: only the memory, and the whole window."""
        per_event = mean_batch * BATCH_SPREAD if mean_batch > 1.0 else 1.0
        least, known = _at_least(self._mid, self._memory_s, per_event, sigmas), len(self._seconds)
        return max(least, _at_least(self._mean(known), known, per_event, sigmas)) if known else least

    def _sure(self, burst: float, per_event: float) -> float:
        known, sure = len(self._seconds), _at_least(self._mid, self._memory_s, per_event, SURE_SIGMAS)
        for span_s in SPANS_S:
            if known >= span_s:
                found = _at_least(burst if span_s == BURST_S else self._mean(span_s), span_s, per_event, SURE_SIGMAS)
                sure = found if found > sure else sure
        return sure

    def _mean(self, seconds: int) -> float:
        newest = self._seconds[-seconds:]
        return sum(newest) / len(newest)

    def forget(self) -> None:
        """Restarts the estimate."""
        self._at = None
        self._begin()

    def __repr__(self) -> str:
        return f"<LoadEstimate {self._mid:.3g}/s over {self._memory_s:g} s>"


def _error(rate: float, per_event: float, span_s: float) -> float:
    """Returns the standard deviation of a mean over ``span_s`` if nothing changes."""
    return math.sqrt(max(rate, 1.0 / WINDOW_S) * per_event / span_s)


def _at_least(rate: float, span_s: float, per_event: float, sigmas: float) -> float:
    """Returns the lower bound of a load that was seen as ``rate`` over ``span_s``."""
    root = math.sqrt(rate * span_s / per_event) - sigmas / 2.0
    return root**2 * per_event / span_s if root > 0.0 else 0.0
