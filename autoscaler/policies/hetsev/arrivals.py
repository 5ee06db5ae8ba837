"""Arrival rates as HetSev reads them: every few seconds the mean of a window of minutes (section 6.1).

Counted from what arrived in all, so the rate is exact over its window. After a sleep, or at the start, the window
covers only the time since then.
"""

import math
from collections import deque
from typing import Final

from msgspec import UNSET

from tidegate.autoscaler.measure.observation import Observation

LONGEST_GAP_S: Final = 30.0
"""After a longer time without an observation the window begins again."""


class ArrivalRates:
    """The arrivals of one revision."""

    __slots__ = ("_before", "_inferences", "_requests", "_seen", "window_s")

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self._before: dict[float, float] | None = None
        """Requests by size, as last reported."""
        self._seen: deque[tuple[float, float, float]] = deque()
        """(time, requests, inferences) in all, over the window."""
        self._requests = self._inferences = 0.0

    def update(self, observation: Observation, now: float) -> None:
        """Adds what has arrived since the last call."""
        if self._seen and not 0.0 <= now - self._seen[-1][0] <= LONGEST_GAP_S:
            self.forget()
        passed = now - self._seen[-1][0] if self._seen else 0.0
        if observation.counts is UNSET:
            # A trace of figures has the rates alone.
            self._requests += observation.rps * passed
            self._inferences += observation.lambda_ips * passed
        else:
            counts = dict(observation.counts.sizes)
            before = counts if self._before is None else self._before
            new = {size: count - before.get(size, 0.0) for size, count in counts.items()}
            self._before = counts
            if min(new.values(), default=0.0) >= 0.0:  # else counting began again
                self._requests += math.fsum(new.values())
                self._inferences += math.fsum(size * count for size, count in new.items())
        self._seen.append((now, self._requests, self._inferences))
        while len(self._seen) > 1 and self._seen[1][0] <= now - self.window_s:
            self._seen.popleft()

    def forget(self) -> None:
        """Begins the window again."""
        self._seen.clear()

    @property
    def covered_s(self) -> float:
        """Time that the window covers by now."""
        return self._seen[-1][0] - self._seen[0][0] if self._seen else 0.0

    def rate(self) -> tuple[float, float]:
        """Returns (requests per second, inferences of a request); (0, 1) without any."""
        if self.covered_s <= 0.0:
            return 0.0, 1.0
        (_, requests, inferences), (_, requests_then, inferences_then) = self._seen[-1], self._seen[0]
        arrived = requests - requests_then
        if arrived <= 0.0:
            return 0.0, 1.0
        return arrived / self.covered_s, (inferences - inferences_then) / arrived

    def __repr__(self) -> str:
        return f"<ArrivalRates over {self.covered_s:.0f} s>"
