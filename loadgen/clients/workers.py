"""Workers of closed loops: when each sends its next request. Times are seconds after the beginning of the run."""

from collections.abc import Sequence

from loadgen.pace import Phase, Ticker


class Caller:
    """Sends as soon as it is free, for so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def next(self, free_s: float) -> float | None:
        return free_s if free_s < self._seconds else None


class PacedWorker:
    """Sends ``count`` requests from ``start_s`` on, paced by a ticker as the load tool ``hey`` does it (thesis, A8)."""

    def __init__(self, start_s: float, count: int, rate: float) -> None:
        self._start_s = start_s
        self._left = count
        self._ticker = Ticker(rate)

    def next(self, free_s: float) -> float | None:
        if not self._left:
            return None
        self._left -= 1
        return self._start_s + self._ticker.next(max(0.0, free_s - self._start_s))


def paced(phases: Sequence[Phase]) -> list[PacedWorker]:
    """The workers of all phases. What does not divide evenly goes to the first ones of its phase."""
    found = []
    for phase in phases:
        each, more = divmod(phase.requests, phase.workers)
        found += [PacedWorker(phase.start_s, each + (index < more), phase.rate) for index in range(phase.workers)]
    return found
