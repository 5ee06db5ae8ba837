"""Workers of closed loops and their send times, in seconds after the beginning of the run."""

from collections.abc import Sequence

from tidegate.loadgen.arrivals.pace import LoadPhase, Ticker


class Caller:
    """Sends as soon as it is free, for ``seconds`` seconds: first at ``first_s``, and never sooner than ``every_s``
    after its last request."""

    def __init__(self, seconds: float, *, first_s: float = 0.0, every_s: float = 0.0) -> None:
        self._seconds = seconds
        self._every_s = every_s
        self._due_s = first_s

    def next(self, free_s: float) -> float | None:
        at_s = max(free_s, self._due_s)
        self._due_s = at_s + self._every_s
        return at_s if at_s < self._seconds - 1e-6 else None


def callers(count: int, seconds: float, *, every_s: float = 0.0) -> list[Caller]:
    """Returns ``count`` callers whose first requests are spread evenly over ``every_s``."""
    return [Caller(seconds, first_s=every_s * number / count, every_s=every_s) for number in range(count)]


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


def paced(phases: Sequence[LoadPhase]) -> list[PacedWorker]:
    """Returns the workers of all phases. A remainder that does not divide evenly goes to the first workers of its
    phase."""
    found = []
    for phase in phases:
        each, more = divmod(phase.requests, phase.workers)
        found += [PacedWorker(phase.start_s, each + (index < more), phase.rate) for index in range(phase.workers)]
    return found
