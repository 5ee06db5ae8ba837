"""The outlook: how likely each level is one horizon from now.

The horizon is the time that a new replica takes to help. Learnt from what happened: a change is the logarithm of the
level now over the level one horizon ago, 0 while the difference is within chance. Changes are kept by *row*, the state
that they began in: for how long the load had been idle, or its level. A row's forecast leans on its neighbours and on
all rows together until it knows enough of its own. What came at the same time on other days, or in the last half hours,
counts as far as it has been seen, and as far as it has foreseen the rises since better than the rows alone did.
"""

import math
from collections import deque
from heapq import nlargest
from typing import Final

import numpy as np

from tidegate.autoscaler.policies.tide.calendar import STEP_S, Calendar
from tidegate.autoscaler.policies.tide.level import Level
from tidegate.autoscaler.policies.tide.queueing import Vector

BIN: Final = 0.05
"""Width of a bin of changes."""
HALF: Final = 127
"""Bins on either side of no change: larger changes than a factor of e^6.35 count as that."""
CENTRE: Final = HALF + 1
"""Number of the bin of no change; bins are 1..255."""
BIG: Final = 0.5
"""A larger change is kept against the centre of its row, not against the level that it began at."""
CERTAIN: Final = 2.0
"""Standard errors up to which a difference is chance."""
IDLE_ROWS: Final = 8
ROWS_PER_E: Final = 4.0
"""Rows for each factor e of the level."""
FIRST_BUSY_ROW: Final = 16
LOWEST_ROW: Final = -30
"""Logarithmic position of the first busy row: levels from 0.0006 slots on."""
HALF_LIFE_S: Final = 3 * 86_400.0
NEIGHBOUR: Final = 0.3
"""Weight of a neighbouring row."""
PRIOR_S: Final = 60.0
"""Seconds that all rows together count for in one row."""
GLOBAL_S: Final = 600.0
"""Seconds that the assumption before any sample counts for."""
LEARNING_S: Final = 600.0
"""Seconds after the first sample in which nothing is learnt: the level is still being found."""
MOST_CELLS: Final = 8192
"""Changes that are kept apart, over all rows: of more the lightest go. A week of a real load has some thousand."""
BOUNDED_EVERY_S: Final = 3600
CALENDAR_MOMENTS: Final = 2.0
"""Moments of the calendar from which on it counts half."""
MOST_ODDS: Final = 4.0
"""Bound of the logarithm of the odds on the calendar: two or three rises that it foresaw, or did not, turn it."""
LEAST_CHANCE: Final = 1e-6
"""Chance that a forecast gives to either outcome at least, when it is judged."""

_STEPS: Final[Vector] = BIN * np.arange(-CENTRE, HALF + 1, dtype=np.float64)
_FACTORS: Final[Vector] = np.exp(_STEPS)


def _assumed() -> Vector:
    """Returns the weights before any sample, by bin: no change or a small one, seldom a large one."""
    found: Vector = 0.4 * np.exp(-np.abs(_STEPS) / 0.05) + 3e-5 * np.exp(-np.abs(_STEPS) / 0.5)
    found[0] = 0.0
    found *= GLOBAL_S / found.sum()
    return found


_ASSUMED: Final = _assumed()
_IS_BIG: Final = np.abs(_STEPS) > BIG - 1e-9
_FIRST_RISE: Final = CENTRE + round(BIG / BIN)
"""Bin from which on a change is a big rise."""


class Outlook:
    """What is learnt of one function's load."""

    __slots__ = (
        "_busy",
        "_calendar",
        "_foreseen",
        "_horizon_s",
        "_idle",
        "_idle_s",
        "_judged",
        "_odds",
        "_past",
        "_rows",
        "_seconds",
        "_weight",
    )

    def __init__(self) -> None:
        self._rows: dict[int, dict[int, float]] = {}
        """Weights of the changes by row and bin."""
        self._idle: dict[int, float] = {}
        self._busy: dict[int, float] = {}
        """Weights of the changes of all idle rows, and of all others: from idle to any load is a large factor, which
        says nothing about a load that is there."""
        self._weight = 1.0
        """Weight of a sample now: it grows instead of letting all others fall."""
        self._calendar = Calendar()
        self._odds = 0.0
        """Logarithm of the odds that the calendar with the rows foresees better than the rows alone."""
        self._foreseen: deque[tuple[int, float, float]] = deque()
        """(second, chance of a big rise by the rows, and by the calendar with them) of the last forecasts."""
        self._judged = 0
        """Second of the last forecast that was judged."""
        self._past: deque[tuple[float, float, int]] = deque()
        """(level, window, row) of the last seconds, newest last."""
        self._horizon_s = 0
        self._idle_s = 0
        self._seconds = 0

    @property
    def seconds(self) -> int:
        """Seconds seen."""
        return self._seconds

    @property
    def rows(self) -> int:
        """States of the load that changes were seen from."""
        return len(self._rows)

    def update(self, level: Level, horizon_s: float) -> None:
        """Adds a second. ``horizon_s``: time until a replica that is started now helps."""
        steps = max(1, round(horizon_s))
        if steps != self._horizon_s:
            self._rescale(steps)
        self._seconds += 1
        self._idle_s = self._idle_s + 1 if level.is_idle else 0
        row = self.row(level)
        self._past.append((level.level, level.window_s, row))
        if len(self._past) > steps + 1:
            self._past.popleft()
        if len(self._past) <= steps or self._seconds <= LEARNING_S:
            return
        before, window_s, began = self._past[0]
        change = _change(level, before, window_s, began)
        self._judge(self._seconds - steps, change)
        self._weight *= 2.0 ** (1.0 / HALF_LIFE_S)
        counts = self._rows.setdefault(began, {})
        counts[change] = counts.get(change, 0.0) + self._weight
        everywhere = self._everywhere(began)
        everywhere[change] = everywhere.get(change, 0.0) + self._weight
        if self._weight > 1e6:
            self._renormalise()
        if self._seconds % BOUNDED_EVERY_S == 0:
            self._bound()
        if self._seconds % STEP_S == 0:
            # Written under the moment that it began at.
            self._calendar.write((self._seconds - steps) // STEP_S, change, began)

    def skip(self, seconds: int) -> None:
        """Passes over seconds in which nothing was seen."""
        self._seconds += seconds
        self._idle_s += seconds if self._idle_s else 0
        self._past.clear()

    def row(self, level: Level) -> int:
        """Returns the row of the present state."""
        if level.is_idle:
            spell, row = float(max(1, self._horizon_s)), 1
            while self._idle_s > spell and row < IDLE_ROWS:
                spell, row = spell * 4.0, row + 1
            return row
        place = math.floor(ROWS_PER_E * math.log(level.level)) - LOWEST_ROW
        return FIRST_BUSY_ROW + min(max(0, place), 255 - FIRST_BUSY_ROW)

    def forecast(self, level: Level) -> tuple[Vector, Vector]:
        """Returns (levels, their probabilities) one horizon from now."""
        row, unit = self.row(level), _floor_of(level)
        everywhere = _ASSUMED + self._within_seen(_vector(self._everywhere(row)), row, unit) / self._weight
        weights = everywhere * (PRIOR_S / everywhere.sum())
        weights = weights + self._row_weights(row, row, unit) / self._weight
        for neighbour in (row - 1, row + 1):
            if neighbour in self._rows and _is_idle(neighbour) == _is_idle(row):
                weights = weights + NEIGHBOUR * self._row_weights(neighbour, row, unit) / self._weight
        weights /= weights.sum()
        again, moments = self._calendar_at(row)
        if moments > 0.0:
            trust = moments / (moments + CALENDAR_MOMENTS)
            both = (1.0 - trust) * weights + trust * again
            rises = float(weights[_FIRST_RISE:].sum()), float(both[_FIRST_RISE:].sum())
            self._foreseen.append((self._seconds, *rises))
            earned = 1.0 / (1.0 + math.exp(-self._odds))
            weights = (1.0 - earned) * weights + earned * both
        origin = np.where(_IS_BIG, _centre(row), level.level)
        levels = np.maximum((origin + unit) * _FACTORS - unit, 0.0)
        return levels[1:], weights[1:]

    def _judge(self, second: int, change: int) -> None:
        """Compares what was forecast at ``second`` with the change that came. Forecasts within one horizon of each
        other are of the same change, and count as one."""
        foreseen = self._foreseen
        while foreseen and foreseen[0][0] < second:
            foreseen.popleft()
        if not foreseen or foreseen[0][0] > second:
            return
        _, rows, both = foreseen.popleft()
        is_rise = change >= _FIRST_RISE
        rows, both = (max(LEAST_CHANCE, each if is_rise else 1.0 - each) for each in (rows, both))
        share = min(1.0, (second - self._judged) / self._horizon_s)
        self._judged = second
        self._odds = min(MOST_ODDS, max(-MOST_ODDS, self._odds + share * math.log(both / rows)))

    def _within_seen(self, weights: Vector, row: int, unit: float) -> Vector:
        """Returns the weights of all rows as those of ``row``: a change that began lower led no higher than the highest
        row that was ever seen. A burst to twenty times the load does not begin another one in its midst."""
        rise = math.log((_centre(max(self._rows, default=0)) + unit) / (_centre(row) + unit))
        highest = CENTRE + max(0, math.ceil(rise / BIN))
        if highest + 1 < len(weights):
            weights[highest] += weights[highest + 1 :].sum()
            weights[highest + 1 :] = 0.0
        return weights

    def _calendar_at(self, row: int) -> tuple[Vector, float]:
        weights, moments = self._calendar.around(self._seconds // STEP_S, row)
        total = weights.sum()
        return (weights / total, moments) if total > 0.0 else (weights, 0.0)

    def _row_weights(self, row: int, target: int, unit: float) -> Vector:
        weights = _vector(self._rows.get(row, {}))
        shift = round(math.log((_centre(row) + unit) / (_centre(target) + unit)) / BIN)
        if not shift or not weights.any():
            return weights
        big = np.where(_IS_BIG, weights, 0.0)
        moved = np.zeros_like(big)
        if shift > 0:
            moved[1 + shift :] = big[1:-shift]
            moved[-1] += big[-shift:].sum()
        else:
            moved[1:shift] = big[1 - shift :]
            moved[1] += big[1 : 1 - shift].sum()
        return weights - big + moved

    def _everywhere(self, row: int) -> dict[int, float]:
        return self._idle if _is_idle(row) else self._busy

    def _renormalise(self) -> None:
        for counts in (self._idle, self._busy, *self._rows.values()):
            for change in list(counts):
                counts[change] /= self._weight
                if counts[change] < 1e-3:
                    del counts[change]
        self._weight = 1.0

    def _bound(self) -> None:
        """Keeps the heaviest changes, so that no load makes the memory grow."""
        if sum(map(len, self._rows.values())) <= MOST_CELLS:
            return
        cells = [(weight, row, change) for row, counts in self._rows.items() for change, weight in counts.items()]
        self._rows = {}  # A new one: a dictionary does not shrink.
        for weight, row, change in sorted(nlargest(MOST_CELLS, cells), key=lambda cell: cell[1:]):
            self._rows.setdefault(row, {})[change] = weight

    def _rescale(self, steps: int) -> None:
        """Another horizon: changes that were learnt over a very different one do not hold."""
        if self._horizon_s and not 0.5 <= steps / self._horizon_s <= 2.0:
            self._rows, self._idle, self._busy, self._calendar = {}, {}, {}, Calendar()
        self._horizon_s = steps
        while len(self._past) > steps:
            self._past.popleft()

    def __repr__(self) -> str:
        return f"<Outlook of {self._seconds} s, {len(self._rows)} rows, {self._calendar!r}>"


def _change(level: Level, before: float, window_s: float, began: int) -> int:
    """Returns the bin of the change from ``before`` to the present level."""
    now = level.level
    spread = math.sqrt(level.dispersion * max(before, now) * (1.0 / level.window_s + 1.0 / window_s))
    if abs(now - before) <= CERTAIN * spread:
        return CENTRE
    floor, error = _floor_of(level), level.error(now, level.window_s)
    seen = max(now - error, before) if now > before else min(now + error, before)
    change = math.log((seen + floor) / (before + floor))
    if abs(change) > BIG:
        against = math.log((seen + floor) / (_centre(began) + floor))
        # It stays a big one in its direction, wherever in its row it began.
        change = max(BIG, against) if change > 0.0 else min(-BIG, against)
    return CENTRE + max(-HALF, min(HALF, round(change / BIN)))


def _floor_of(level: Level) -> float:
    """Returns the level that is added before logarithms are taken."""
    return max(0.5 * level.unit, 1e-9)


def _is_idle(row: int) -> bool:
    return row <= IDLE_ROWS


def _centre(row: int) -> float:
    return 0.0 if _is_idle(row) else math.exp((row - FIRST_BUSY_ROW + LOWEST_ROW + 0.5) / ROWS_PER_E)


def _vector(counts: dict[int, float]) -> Vector:
    found = np.zeros(2 * HALF + 2)
    for change, weight in counts.items():
        found[change] = weight
    return found
