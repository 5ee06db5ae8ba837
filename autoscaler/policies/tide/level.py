"""The level of a load now: a mean over the longest window that no shorter one contradicts (Lepski's rule).

A short window follows changes and jitters; a long one is steady and late. The level is the mean over the longest window
that agrees with every shorter one, within ``SIGMAS`` standard errors. The error comes from the arrivals themselves: the
size-biased mean work of a request, times the index of dispersion of the work that arrives, measured from differences of
neighbouring seconds, which a trend leaves alone.

Worked example: 60 requests/s of 0.1 s are 6 slots, with a standard error of 0.77 over one second and 0.03 over 512. A
jump to 12 slots is 6 / 0.9 = 6.7 standard errors in its first second, so the window of one second counts at once.
"""

import math
from collections import deque
from functools import lru_cache
from itertools import pairwise
from typing import Final

SIGMAS: Final = 5.0
"""Standard errors within which two windows agree. With 3, chance alone contradicts every few minutes, with 4.5 sixteen
times a day, with 5 three times."""
TREND_SIGMAS: Final = 2.5
"""Standard errors beyond which the halves of the longest window differ by more than chance, and up to which both halves
go on alike."""
WORK_S: Final = 600
"""Seconds behind the work of a request."""
DISPERSION_S: Final = 3600.0
"""Memory of the index of dispersion in seconds."""
MOST_DISPERSION: Final = 9.0
"""A difference counts at most this much: a jump is no dispersion."""
LEAST_DISPERSION: Final = 0.5
LONGEST_S: Final = 512
"""Longest window; 16 times the shortest one where that is longer."""
DOUBLINGS: Final = 4
SILENCE: Final = 8.0
"""Arrivals that would have come meanwhile, from which on silence means that there is no load: chance leaves out so many
once in 3,000 times."""
IDLE: Final = 0.3
"""A level up to this part of one request's work is idle: less is not known apart from none."""


class Level:
    """The level, updated once a second with the work that arrived."""

    __slots__ = ("_ages", "_before", "_silent_s", "_sums", "_total", "ca2", "level", "squares", "window_s", "work")

    def __init__(self) -> None:
        self.level = 0.0
        """Slots."""
        self.window_s = 1.0
        """The window that ``level`` is the mean of."""
        self.ca2 = 1.0
        """Index of dispersion of the arriving work; 1: Poisson."""
        self.work = 0.0
        """Sum of the work of the last ``WORK_S`` seconds."""
        self.squares = 0.0
        """Sum of the squared work."""
        self._ages: deque[tuple[float, float]] = deque()
        """(work, squared work) of each of those seconds."""
        self._sums: deque[float] = deque([0.0], maxlen=1)
        """Work that had arrived up to each of the last seconds, newest last."""
        self._total = 0.0
        self._before: float | None = None
        self._silent_s = 0
        """Seconds since the last arrival."""

    @property
    def unit(self) -> float:
        """Size-biased mean work of a request, in seconds; 0 before the first one."""
        return self.squares / self.work if self.work > 0.0 else 0.0

    @property
    def dispersion(self) -> float:
        """Variance of the work that arrives in a second over its mean, in seconds."""
        unit, ca2 = self.unit, self.ca2
        return unit * ca2 if ca2 > 1.0 else unit

    @property
    def is_idle(self) -> bool:
        return self.level <= IDLE * self.unit

    @property
    def is_steady(self) -> bool:
        """Whether there is a load, and no window contradicts the longest one."""
        return 2.0 * self.window_s >= (self._sums.maxlen or 0) and not self.is_idle

    def error(self, level: float, window_s: float) -> float:
        """Returns the standard error of a mean of ``level`` over ``window_s``."""
        return math.sqrt(self.dispersion * max(level, 0.0) / window_s)

    def trend(self) -> float:
        """Returns the slots by which the load rises in a second; less than 0 where it falls, 0 where chance explains
        it. Both halves of the longest window go on alike, or it is a jump. Beyond what chance explains it counts in
        part (a positive-part shrinkage), so that a load next to that bound does not come and go."""
        sums = self._sums
        quarter_s = (sums.maxlen or 1) // 4
        if self.window_s < 2 * quarter_s or self.is_idle or len(sums) <= 4 * quarter_s:
            return 0.0
        until = [sums[-1 - quarter_s * place] for place in range(5)]
        last, third, second, first = [(new - old) / quarter_s for new, old in pairwise(until)]
        rise, error = 0.5 * (last + third - second - first), self.error(self.level, quarter_s)
        chance, jump = TREND_SIGMAS * error, TREND_SIGMAS * math.sqrt(2.0) * error
        if abs(rise) <= chance or abs(last - third - 0.5 * rise) > jump or abs(second - first - 0.5 * rise) > jump:
            return 0.0
        return rise / (2 * quarter_s) * (1.0 - (chance / rise) ** 2)

    def update(self, work: float, squares: float, shortest_s: int) -> None:
        """Adds a second. ``work``: sum of the work of its arrivals in seconds; ``squares``: sum of its squares;
        ``shortest_s``: the shortest window that help can come within."""
        self._remember(work, squares)
        self._disperse(work)
        longest_s = _longest_s(shortest_s)
        sums = self._sums
        if sums.maxlen != longest_s + 1:
            sums = self._sums = deque(sums, maxlen=longest_s + 1)
        self._total += work
        sums.append(self._total)
        was_none = self.level <= 0.0
        self._choose(shortest_s)
        self._silent_s = 0 if work > 0.0 else self._silent_s + 1
        if self._silent_s and (was_none or self._silent_s * self.level > SILENCE * self.unit):
            self.level, self.window_s = 0.0, float(self._silent_s)

    def _choose(self, shortest_s: int) -> None:
        dispersion, total, sums = self.dispersion, self._total, self._sums
        least, known_s = IDLE * dispersion, len(sums) - 1
        window_s = min(shortest_s, known_s)
        shorter = [(total - sums[-1 - window_s]) / window_s]
        self.level, self.window_s = shorter[0], float(window_s)
        for errors in _errors(shortest_s):
            window_s *= 2
            if window_s > known_s:
                return
            mean = (total - sums[-1 - window_s]) / window_s
            scale = SIGMAS * math.sqrt(dispersion * max(mean, least))
            for other, error in zip(shorter, errors, strict=True):
                if abs(other - mean) > scale * error:
                    return
            shorter.append(mean)
            self.level, self.window_s = max(0.0, mean), float(window_s)

    def _remember(self, work: float, squares: float) -> None:
        self._ages.append((work, squares))
        self.work += work
        self.squares += squares
        if len(self._ages) > WORK_S:
            old_work, old_squares = self._ages.popleft()
            if old_work > 0.0 and self.work > old_work:
                kept = self.work - old_work, self.squares - old_squares
                # A difference of nearly equal sums is rounding: what is left is then summed again.
                is_rounding = kept[0] < 1e-9 * old_work or kept[1] <= 0.0
                self.work, self.squares = self._summed() if is_rounding else kept

    def _summed(self) -> tuple[float, float]:
        return math.fsum(each for each, _ in self._ages), math.fsum(each for _, each in self._ages)

    def _disperse(self, work: float) -> None:
        before, self._before = self._before, work
        unit = self.unit
        if before is None or work + before <= 0.0 or unit <= 0.0:
            return
        seen = (work - before) ** 2 / ((work + before) * unit)
        seen = min(MOST_DISPERSION, seen)
        self.ca2 = max(LEAST_DISPERSION, self.ca2 + (seen - self.ca2) / DISPERSION_S)

    def __repr__(self) -> str:
        return f"<Level {self.level:.3g} over {self.window_s:g} s, ca2 {self.ca2:.3g}>"


def _longest_s(shortest_s: int) -> int:
    return max(LONGEST_S, shortest_s << DOUBLINGS)


@lru_cache(maxsize=1024)
def _errors(shortest_s: int) -> tuple[tuple[float, ...], ...]:
    """Returns, for each window beyond the shortest one, the standard errors of its differences from the shorter ones,
    of means whose variance over a second is 1."""
    windows_s = [shortest_s]
    while windows_s[-1] * 2 <= _longest_s(shortest_s):
        windows_s.append(windows_s[-1] * 2)
    return tuple(
        tuple(math.sqrt(1.0 / other_s - 1.0 / window_s) for other_s in windows_s[:place])
        for place, window_s in enumerate(windows_s)
        if place
    )
