"""Start-up times, learnt from what was seen: a replica that starts, and later one more that is ready. One that was
ordered and is ready at the next look was not seen starting: it took at most the time between the two."""

from collections import deque
from collections.abc import Collection
from statistics import median
from typing import Final

REMEMBERED: Final = 20
"""Starts that a median is taken of."""
ASSUMED_S: Final = 10.0
"""Start-up time before the first start of any group was seen."""


class Starts:
    """The starts of one group. The replica that has been starting longest is the next one to be ready."""

    __slots__ = ("_begun", "_draining", "_looked_at", "_ordered", "_ready", "_took_s", "median_s")

    def __init__(self) -> None:
        self._begun: deque[float] = deque()
        self._took_s: deque[float] = deque(maxlen=REMEMBERED)
        self._ready = self._draining = self._ordered = 0
        self._looked_at: float | None = None
        self.median_s = ASSUMED_S
        """Median of the last starts; before the first one, what is assumed."""

    @property
    def took_s(self) -> tuple[float, ...]:
        """The last start-up times."""
        return tuple(self._took_s)

    def resume(self, took_s: tuple[float, ...]) -> None:
        """Continues with the start-up times that were seen before."""
        self._took_s = deque(took_s, maxlen=REMEMBERED)
        self._read()

    def _read(self) -> None:
        self.median_s = median(self._took_s) if self._took_s else ASSUMED_S

    def order(self, count: int) -> None:
        """Notes that ``count`` replicas are to be started, beside all that exist or drain."""
        self._ordered = count

    def assume(self, seconds: float) -> None:
        """Sets the start-up time until the first start is seen."""
        if not self._took_s:
            self.median_s = seconds

    def update(self, ready: int, starting: int, draining: int, now: float) -> bool:
        """Adds what is seen at ``now``. Returns whether a replica was seen to have started."""
        looked_at, self._looked_at = self._looked_at, now
        drained, self._draining = self._draining, draining
        if ready == self._ready and starting == len(self._begun):
            return False
        rise = max(0, ready - self._ready)
        became = min(rise, len(self._begun))
        took_s = [max(0.0, now - self._begun.popleft()) for _ in range(became)]
        if looked_at is not None and rise > became:
            # The first request at zero starts one without an order of the policy.
            is_first = not (self._ready or became or drained)
            took_s += [now - looked_at] * min(rise - became, max(self._ordered, is_first))
        self._ordered = 0
        if took_s:
            self._took_s.extend(took_s)
            self._read()
        while len(self._begun) > starting:
            self._begun.pop()  # Given up: the youngest go first.
        while len(self._begun) < starting:
            self._begun.append(now)
        self._ready = ready
        return bool(took_s)

    def eta_s(self, now: float) -> float | None:
        """Returns the mean time until the starting replicas are ready; None if none starts."""
        if not self._begun:
            return None
        left = [max(0.0, self.median_s - (now - begun)) for begun in self._begun]
        return sum(left) / len(left)

    def __repr__(self) -> str:
        return f"<Starts {self.median_s:.3g} s, {len(self._begun)} under way>"


def assume_slowest(groups: Collection[Starts]) -> None:
    """Lets replicas of groups whose starts were never seen take as long as those of the slowest other group."""
    seen_s = [each.median_s for each in groups if each.took_s]
    for each in groups:
        each.assume(max(seen_s, default=ASSUMED_S))
