"""Start-up times, learnt from what was seen: a replica that starts, and later one more that is ready."""

from collections import deque
from statistics import median
from typing import Final

REMEMBERED: Final = 20
"""Starts that a median is taken of."""
ASSUMED_S: Final = 10.0
"""Start-up time before the first start was seen."""


class Starts:
    """The starts of one group. The replica that has been starting longest is the next one to be ready."""

    __slots__ = ("_begun", "_ready", "_took_s", "median_s")

    def __init__(self) -> None:
        self._begun: deque[float] = deque()
        self._took_s: deque[float] = deque()
        self._ready = 0
        self.median_s = ASSUMED_S
        """Median of the last starts."""

    @property
    def took_s(self) -> tuple[float, ...]:
        """The last start-up times."""
        return tuple(self._took_s)

    def resume(self, took_s: tuple[float, ...]) -> None:
        """Continues with the start-up times that were seen before."""
        self._took_s = deque(took_s)
        self._read()

    def _read(self) -> None:
        self.median_s = median(self._took_s) if self._took_s else ASSUMED_S

    def update(self, ready: int, starting: int, now: float) -> None:
        """Adds what is seen at ``now``."""
        if ready == self._ready and starting == len(self._begun):
            return
        became = min(max(0, ready - self._ready), len(self._begun))
        for _ in range(became):
            self._took_s.append(max(0.0, now - self._begun.popleft()))
            if len(self._took_s) > REMEMBERED:
                self._took_s.popleft()
        if became:
            self._read()
        while len(self._begun) > starting:
            self._begun.pop()  # Given up: the youngest go first.
        while len(self._begun) < starting:
            self._begun.append(now)
        self._ready = ready

    def eta_s(self, now: float) -> float | None:
        """Returns the mean time until the starting replicas are ready; None if none starts."""
        if not self._begun:
            return None
        left = [max(0.0, self.median_s - (now - begun)) for begun in self._begun]
        return sum(left) / len(left)

    def __repr__(self) -> str:
        return f"<Starts {self.median_s:.3g} s, {len(self._begun)} under way>"
