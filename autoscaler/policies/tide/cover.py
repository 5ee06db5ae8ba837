"""The cover: capacity for what may come while a replica starts, bought at a price per late request.

A slot more costs what its replica costs; a request that it saves from being late is worth ``theta``. The best capacity
is the newsvendor's: the last replica saves late requests worth its price. ``theta`` is learnt so that the expected late
share comes out at half of what the SLA allows, or less where late requests come in large clumps: one price at all times
is the Lagrange condition of least cost at a given number of late requests.
"""

import math
from typing import Final

import numpy as np

from tidegate.autoscaler.policies.tide.queueing import LOADS, LateTable, Vector, on_grid

AIM: Final = 0.5
"""Part of the late requests that the SLA allows which is aimed at, at most."""
START: Final = math.log(0.1)
CHEAPEST: Final = -6.0
DEAREST: Final = math.log(20.0)
"""Bounds of the logarithm of the price."""
LOOP_S: Final = 21_600.0
"""Time constant of the price."""
MOST_STEP: Final = 0.01
MEMORY_S: Final = 86_400.0
PART_OF_LIFE: Final = 0.5
"""Late requests seen and expected are compared over this part of a function's life, a day at most: what was late while
nothing was learnt says nothing about the expectation since."""
BIAS: Final = (0.05, 20.0)
"""Bounds of the ratio between late requests seen and expected."""
CLUMPS: Final = 2.0
"""Clumps of late requests that the ratio counts as seen and as expected where fewer were seen: that none of the few
that were expected came may be chance."""
SETTLED_S: Final = 3600
"""Seconds after which late requests are compared with the expected ones."""
JUDGED_S: Final = 86_400.0
"""Time over which the SLA is to hold, for all that chance does."""
JUDGED: Final = 10_000.0
"""Requests over which it is to hold, where a day has fewer."""
LEAST_RATE: Final = JUDGED / JUDGED_S
"""Arrivals per second that a price is made of at least."""
LEAST_PACE: Final = 0.03
"""Arrivals per second that it moves by at least: of fewer, a single late one would decide alone."""
CLUMP_S: Final = 900
"""Seconds within which late requests are counted as one clump: longer than a surge without enough replicas."""


class LatePrice:
    """The price of a late request, in seconds of one replica of the best-value group."""

    __slots__ = ("_clump", "_expected", "_late", "_log", "_mean", "_most", "_seconds", "_squares", "rate")

    def __init__(self, effort: float = DEAREST) -> None:
        """``effort``: upper bound of the logarithm of the price."""
        self._log = min(START, effort)
        self._most = effort
        self.rate = 0.0
        """Mean arrivals per second of the last day."""
        self._late = self._expected = 0.0
        """Decayed sums of late requests, seen and expected."""
        self._clump = self._mean = self._squares = 0.0
        """Late requests of the present clump; decayed means over all clumps, of their numbers and their squares."""
        self._seconds = 0

    def resume(self, before: "LatePrice", *, is_same: bool) -> None:
        """Continues with the rate of ``before``, and with its price if the SLA is the same one."""
        self.rate, self._seconds = before.rate, before._seconds
        if is_same:
            self._log = min(self._most, before._log)
            self._late, self._expected = before._late, before._expected
            self._mean, self._squares = before._mean, before._squares

    @property
    def is_at_limit(self) -> bool:
        return self._log >= self._most

    @property
    def is_seldom(self) -> bool:
        """Whether a day has fewer requests than the SLA is judged over."""
        return self.rate < LEAST_RATE

    def theta(self, allowed: float) -> float:
        """Returns the price. ``allowed``: the late share that is aimed at."""
        return math.exp(self._log) / (allowed * max(self.rate, LEAST_RATE)) if self.rate > 0.0 else 0.0

    def at_a_moment(self, aim: float) -> float:
        """Returns the late share that a single moment may have where the mean is to have ``aim``: what the SLA allows
        once late requests are compared with the expected ones, since the price then keeps the mean."""
        return aim / AIM if self._seconds > SETTLED_S else aim

    def aimed(self, allowed: float) -> float:
        """Returns the late share that is aimed at: ``allowed``, or less where late requests come in large clumps.

        Where clumps come by chance, the variance of the late requests of a day is their number times the size of a
        clump. Two standard deviations above the mean they are as many as the SLA allows where the aim is a part ``f``
        of that with ``f + 2 sqrt(f r) = 1``; ``r`` is the part of a day's allowance that one clump is."""
        size = self._clump_size()
        if size <= 0.0:
            return allowed
        part = size * AIM / (allowed * max(self.rate * JUDGED_S, JUDGED))
        return allowed * min(1.0, (math.sqrt(1.0 + part) - math.sqrt(part)) ** 2 / AIM)

    def update(self, arrivals: float, late: float, expected: float, allowed: float) -> None:
        """Adds a second. ``expected``: late requests per second that the capacity of this second lets expect.

        A part of the late requests counts as it was seen, the rest as it is expected: what was late by chance is then
        made up for, since the price is high for hours after a clump. Such a swing costs in proportion to the price, so
        that the part is the smaller, the higher the price is (a half at one replica). Where a day has fewer requests
        than the SLA is judged over, one late request says nothing of it."""
        self._seconds += 1
        self.rate += (arrivals - self.rate) / min(self._seconds, MEMORY_S)
        if self.rate <= 0.0:
            return
        bias, seen, as_seen = 1.0, 0.0, 0.0
        if self._seconds > SETTLED_S:
            as_seen = 0.0 if self.is_seldom else 1.0 / (1.0 + math.exp(self._log))
            memory_s = min(self._seconds * PART_OF_LIFE, MEMORY_S)
            keep = 1.0 - 1.0 / memory_s
            self._late, self._expected = self._late * keep + late, self._expected * keep + expected
            weight = 3600.0 * allowed * self.rate + 1.0
            if self._late < self._expected:
                weight += CLUMPS * self._clump_size()
            bias = min(BIAS[1], max(BIAS[0], (self._late + weight) / (self._expected + weight)))
            self._clump += late
            if self._seconds % CLUMP_S == 0:
                self._mean += (self._clump - self._mean) * CLUMP_S / memory_s
                self._squares += (self._clump**2 - self._squares) * CLUMP_S / memory_s
                seen, self._clump = self._clump, 0.0
        unit = allowed * max(self.rate, LEAST_PACE) * LOOP_S
        step = ((1.0 - as_seen) * bias * expected - self.aimed(allowed) * arrivals) / unit
        self._log += min(MOST_STEP, max(-MOST_STEP, step)) + min(MOST_STEP * CLUMP_S, as_seen * seen / unit)
        self._log = min(self._most, max(CHEAPEST, self._log))

    def _clump_size(self) -> float:
        """Returns the late requests that come together, beyond what comes evenly: their index of dispersion."""
        return max(0.0, self._squares / self._mean - self._mean) if self._mean > 0.0 else 0.0

    def __repr__(self) -> str:
        return f"<LatePrice {self._log:.3g}, {self.rate:.3g} requests/s>"


class Expectation:
    """The late requests per second to expect on each number of slots, over the levels that may come."""

    __slots__ = ("_by_slots", "best", "surge")

    def __init__(
        self,
        table: LateTable,
        levels: Vector,
        chances: Vector,
        theta: float,
        step: float,
        base: float,
        before: float = 0.0,
        again: float = 0.0,
        seldom: float = 0.0,
    ) -> None:
        """Finds ``best`` as well: the slots, a multiple of ``step``, at which the cost of capacity and of late requests
        together is least. ``step``: slots of one replica of the best-value group, or of a part of one where several
        groups can serve; its seconds are the unit of ``theta``. ``base``: slots that the present load has. ``before``:
        the cover that is held; each step below it costs ``again`` of one, since it may have to be started again. Where
        two sizes cost nearly the same, as with rare large bursts, chance would else start and stop the difference all
        day."""
        self.surge = float(chances[levels > base].sum())
        """Probability of a level above ``base``."""
        weights = on_grid(levels, chances * levels / table.service.mean_s)
        above = np.cumsum(weights[::-1])[::-1]
        # A replica more saves at most what lies above: from where that is worth less than a replica, none pays.
        count = int(np.count_nonzero(theta * above > 1.0 - again))
        pays = float(LOADS[count - 1]) if count else 0.0
        most = math.ceil(pays + 4.0 * math.sqrt(pays) + step) + 8
        by_slots = table.by_slots(most, weights)
        by_slots[0] = max(by_slots[0], seldom)
        counts = np.arange(int(most / step) + 1)
        given_up = np.maximum(before / step - counts, 0.0)
        late = np.interp(counts * step, np.arange(most + 1), by_slots)
        self._by_slots: list[float] = by_slots.tolist()
        self.best = float(np.argmin(counts + theta * late + again * given_up)) * step

    def late(self, slots: float) -> float:
        """Returns the late requests per second on ``slots``."""
        if slots >= len(self._by_slots) - 1:
            return self._by_slots[-1]
        below = int(slots)
        low, high = self._by_slots[below], self._by_slots[below + 1]
        return low + (slots - below) * (high - low)

    def needed(self, late: float) -> float | None:
        """Returns the least whole slots on which at most ``late`` requests per second are late; None if none of those
        that a price could buy are enough."""
        return next((float(slots) for slots, found in enumerate(self._by_slots) if found <= late), None)
