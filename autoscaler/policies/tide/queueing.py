"""The late share of a steady load: which part of the requests is later than the SLA allows on ``c`` slots.

Requests wait in one room and take the next free slot. The probability to wait is Erlang's C; the waiting time has an
exponential tail whose rate follows Kingman's approximation, as Allen and Cunneen extended it to many servers. A request
is late when its waiting time exceeds what its own service leaves of the latency target.

Loads and capacities are in *slots*: seconds of work per second, as the reference group would need for it.

Worked example, service 0.1 s with a coefficient of variation of 0.15, target 0.3 s: a load of 6 slots on 7 is late for
1.3 % of the requests, on 8 for 0.02 %.
"""

import math
from functools import cached_property, lru_cache
from math import exp, fsum
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

NODES: Final = ((0.0, 8.0 / 15.0), (1.3556, 0.222076), (-1.3556, 0.222076), (2.857, 0.011257), (-2.857, 0.011257))
"""Five-point Gauss-Hermite rule for a standard normal: (node, weight)."""
SHORTEST: Final = 0.2
"""No service takes less than this part of its mean."""
STEP: Final = 0.03
"""Logarithmic step of the loads that a late share is tabulated at."""
LOADS: Final[Vector] = np.exp(np.arange(math.log(5e-3), math.log(1e4), STEP))
NEGLIGIBLE: Final = 1e-3
"""Requests per second below which there is no load."""
POOLED: Final = 256
"""Slots beyond which chance hardly matters: a load below them is in time, one above them late."""
MOST_SLOTS: Final = 10_000
"""Slots beyond which no fleet is looked for."""


def on_grid(loads: Vector, weights: Vector) -> Vector:
    """Returns ``weights`` of ``loads`` over ``LOADS``, each spread over its two neighbours. Smaller loads weigh
    nothing, since nothing of them is late; larger ones count as the largest."""
    place = np.log(np.maximum(loads, 1e-12) / LOADS[0]) / STEP
    place = np.minimum(place, len(LOADS) - 1.001)
    is_there = place >= 0.0
    below = place[is_there].astype(np.intp)
    share, weight = place[is_there] - below, weights[is_there]
    found = np.zeros_like(LOADS)
    found += np.bincount(below, weight * (1.0 - share), len(LOADS))
    found += np.bincount(below + 1, weight * share, len(LOADS))
    return found


class Service(msgspec.Struct, frozen=True, dict=True):
    """The service times of a function on the reference group. What follows from them is computed once."""

    sizes: tuple[tuple[float, float], ...]
    """(share of the requests, mean seconds), one for each batch size."""
    cv: float
    """Coefficient of variation of the service time at one batch size."""
    latency_s: float
    """The latency target."""
    first_s: float | None = None
    """For streams: seconds until the first output, which the target is for; None: it is for the whole answer."""

    @cached_property
    def mean_s(self) -> float:
        return math.fsum(share * seconds for share, seconds in self.sizes)

    @cached_property
    def answer_s(self) -> float:
        """Mean seconds of a request alone until what the target is for."""
        return self.mean_s if self.first_s is None else self.first_s

    @cached_property
    def cs2(self) -> float:
        """Squared coefficient of variation of the service time over all requests."""
        square = math.fsum(share * seconds**2 for share, seconds in self.sizes) * (1.0 + self.cv**2)
        return max(0.0, square / self.mean_s**2 - 1.0)

    @cached_property
    def late_alone(self) -> float:
        """Share of the requests whose own service is longer than the target, by the normal distribution itself."""
        return math.fsum(
            0.5 * share * math.erfc((self.latency_s / (self.first_s or seconds) - 1.0) / (self.cv * math.sqrt(2.0)))
            for share, seconds in self.sizes
        )

    @cached_property
    def points(self) -> tuple[tuple[float, float], ...]:
        """(weight, time left for waiting) of every size and node; no time left: the request is late in any case."""
        return tuple(
            (share * weight, self.latency_s - (self.first_s or seconds) * max(SHORTEST, 1.0 + self.cv * node))
            for share, seconds in self.sizes
            for node, weight in NODES
        )


class LateTable:
    """Late shares for one distribution of service times and one variability of arrivals.

    ``ca2``: squared coefficient of variation of the arrivals (1: Poisson).
    """

    __slots__ = ("_columns", "_left_s", "_lost", "_points", "_tail", "_timely", "ca2", "hopeless", "service")

    def __init__(self, service: Service, ca2: float) -> None:
        self.service = service
        self.ca2 = ca2
        self._points = service.points
        self._timely = [each for each in self._points if each[1] > 0.0]
        self._lost = [weight for weight, left_s in self._points if left_s <= 0.0]
        """Points with time left for waiting; weights of the others."""
        self._tail = 2.0 / (service.mean_s * (ca2 + service.cs2))
        self.hopeless = math.fsum(weight for weight, left_s in self._points if left_s <= 0.0)
        """Share of the requests whose own service is longer than the target allows, on any number of slots."""
        hopeful = math.fsum(weight for weight, left_s in self._points if left_s > 0.0)
        left_s = math.fsum(weight * left_s for weight, left_s in self._points if left_s > 0.0)
        self._left_s = hopeful, left_s / hopeful if hopeful > 0.0 else 0.0
        """Share of the other requests, and the mean time that they have left for waiting."""
        self._columns = np.ones((1, len(LOADS)), np.float32)
        """Late shares of ``LOADS`` by slots, as far as they were needed."""

    def late(self, slots: float, load: float) -> float:
        """Returns the late share of ``load`` on ``slots``. Between whole slots the probability to wait is a line in its
        logarithm."""
        if load <= 0.0:
            return self.hopeless
        below = int(slots)
        blocked = _blocked(below, load)
        waits = _waits(below, load, blocked)
        if slots > below:
            waits = _between(
                waits, _waits(below + 1, load, load * blocked / (below + 1 + load * blocked)), slots - below
            )
        return self._late_of(slots, load, waits)

    def by_slots(self, most: int, loads: Vector) -> Vector:
        """Returns, for 0..``most`` slots, the sum over ``LOADS`` of late share times weight. ``loads``: the weights.
        Beyond ``POOLED`` slots a load is late as a whole where it exceeds them, and not at all below."""
        least = min(most, POOLED)
        if least >= len(self._columns):
            more = range(len(self._columns), min(POOLED, max(least, 2 * len(self._columns))) + 1)
            self._columns = np.vstack([self._columns, *(self._column(slots) for slots in more)])
        found: Vector = (self._columns[: least + 1] @ loads.astype(np.float32)).astype(np.float64)
        if most > least:
            above = np.cumsum(loads[::-1])[::-1]
            found = np.concatenate([found, np.interp(np.arange(least + 1, most + 1), LOADS, above)])
        return found

    def base(self, load: float, allowed: float, step: float) -> float:
        """Returns the least multiple of ``step`` slots that keeps the late share of ``load`` within ``allowed``. What
        no number of slots can keep in time does not count. 0 without load; at most ``MOST_SLOTS``."""
        if load < NEGLIGIBLE * self.service.mean_s:
            return 0.0
        if load >= MOST_SLOTS:
            return step * math.ceil(MOST_SLOTS / step)
        allowed = self.hopeless + max(allowed - self.hopeless, 0.2 * allowed)
        blocked, before, waits, slots = 1.0, 1.0, 1.0, 0
        (hopeful, left_s), tail, late = self._left_s, -self._tail, 1.0
        if late > allowed:
            # On no more slots than the load every request is late.
            for slots in range(1, int(load) + 1):
                offered = load * blocked
                blocked = offered / (slots + offered)
        while late > allowed and slots < MOST_SLOTS:
            slots += 1
            offered = load * blocked
            blocked = offered / (slots + offered)
            before, waits = waits, blocked / (1.0 - load / slots * (1.0 - blocked))
            # At least as many are late as if all had the mean time left (Jensen): one power instead of many.
            late = self.hopeless + hopeful * waits * exp(tail * (slots - load) * left_s)
            if late <= allowed:
                late = self._late_of(slots, load, waits)
        count = int((slots - 1) / step + 1e-9) + 1
        while (size := step * count) < slots - 1e-9:
            if self._late_of(size, load, _between(before, waits, size - slots + 1)) <= allowed:
                return size
            count += 1
        return step * count

    def _late_of(self, slots: float, load: float, waits: float) -> float:
        if load >= slots:
            return 1.0
        tail = -self._tail * (slots - load)
        return fsum([*self._lost, *[weight * (waits * exp(tail * left_s)) for weight, left_s in self._timely]])

    def _column(self, slots: int) -> npt.NDArray[np.float32]:
        """Returns the late shares of ``LOADS`` on ``slots``."""
        blocked, spare = erlang_b(slots), np.maximum(slots - LOADS, 0.0)
        waits = blocked / np.maximum(1.0 - LOADS / max(slots, 1) * (1.0 - blocked), 1e-300)
        column = np.zeros_like(LOADS)
        for weight, left_s in self._points:
            column += weight * (1.0 if left_s <= 0.0 else waits * np.exp(-self._tail * spare * left_s))
        return np.where(spare > 0.0, np.minimum(column, 1.0), 1.0).astype(np.float32)

    def __repr__(self) -> str:
        return f"<LateTable {self.service} ca2 {self.ca2:.3g}>"


@lru_cache(maxsize=1024)
def table(service: Service, ca2: float) -> LateTable:
    """Returns the table of these service times; the last ones are kept."""
    return LateTable(service, ca2)


def erlang_c(slots: int, load: float) -> float:
    """Returns the probability that a request waits, for ``load`` on ``slots`` (Erlang's C)."""
    return _waits(slots, load, _blocked(slots, load))


def _waits(slots: int, load: float, blocked: float) -> float:
    return 1.0 if load >= slots else blocked / (1.0 - load / slots * (1.0 - blocked))


def _blocked(slots: int, load: float) -> float:
    """Returns the probability that all of ``slots`` are taken (Erlang's B)."""
    blocked = 1.0
    for count in range(1, slots + 1):
        blocked = load * blocked / (count + load * blocked)
    return blocked


def _between(low: float, high: float, share: float) -> float:
    """Returns what is ``share`` of the way from ``low`` to ``high``, on a line in their logarithms. 0 if ``low`` is: a
    small load waits less often than a number can say."""
    return low * math.pow(high / low, share) if low > 0.0 else 0.0


_BLOCKED: list[Vector] = [np.ones_like(LOADS)]


def erlang_b(slots: int) -> Vector:
    """Returns the probability that all of ``slots`` are taken, for each of ``LOADS`` (Erlang's B). Kept: it depends on
    nothing else."""
    while len(_BLOCKED) <= slots:
        offered = LOADS * _BLOCKED[-1]
        _BLOCKED.append(offered / (len(_BLOCKED) + offered))
    return _BLOCKED[slots]
