"""Send times of a closed-loop worker that is paced by a ticker with a buffer of one tick, as in the load tool ``hey``.

A worker whose answer arrives before the next tick waits for that tick. If ticks passed meanwhile it sends at once, and
all of them but one are lost. Source: the thesis on in-flight and utilisation autoscaling, A8.
"""

import math
from typing import NamedTuple


class LoadPhase(NamedTuple):
    """A phase of the thesis' experiments (A9): a set of workers that starts at ``start_s``."""

    start_s: float
    requests: int
    workers: int
    rate: float
    """Requests per second of each worker."""


class Ticker:
    """The ticker of one worker: ticks every ``1 / rate`` seconds after its start. Times are seconds since then."""

    __slots__ = ("_period_s", "_sent_s")

    def __init__(self, rate: float) -> None:
        """``rate`` in requests per second; raises ValueError unless it is positive."""
        if not rate > 0.0:
            raise ValueError(f"a rate of {rate} requests/s; it must be positive")
        self._period_s = 1.0 / rate
        self._sent_s = 0.0

    def next(self, free_s: float) -> float:
        """Returns the next send time of a worker that has been free since ``free_s`` (0.0: from the start)."""
        ticks = math.floor(self._sent_s / self._period_s + 1e-9) + 1
        self._sent_s = max(free_s, ticks * self._period_s)
        return self._sent_s

    def __repr__(self) -> str:
        return f"<Ticker every {self._period_s:.6f} s, last sent at {self._sent_s:.6f} s>"
