"""The least cost of a trace under an SLA, for a planner that knows the future.

A lower bound that holds for every plan: starts are paid and fleets are whole, but a plan may split a request's work
over time and replicas, and starts and ends may fall anywhere in a slot. docs/inside/bound.md lists the relaxations and
why it stays a bound.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf
from typing import Final

import numpy as np

from tidegate.errors import Fault, InvalidInputError
from tidegate.loadgen.bound.demand import Demand, Floats, Job, demand
from tidegate.loadgen.bound.levels import Supply, levels
from tidegate.loadgen.bound.table import Quanta, least_costs
from tidegate.loadgen.simulator.profiles import Times

MIN_SLOT_S: Final = 0.1
"""Shortest slot. A start must last two slots; slots are not cut shorter for starts that are quicker still."""
QUANTA: Final = (8, 4, 2, 1)
"""Quanta that a level does in a slot: as many as the width allows."""
WIDEST: Final = 96
"""Backlogs that a table distinguishes, where there is a choice."""
SHARES: Final = (0.75, 0.5, 0.25, 0.1, 0.05)
"""Weights of the time that a replica is there against its minimum run time (:func:`_weighted`)."""
NEVER: Final = 1e15
"""Dollars for late work that is not allowed."""
SPREAD: Final = np.geomspace(0.3, 1000.0, 10)
"""Prices of a late request that are tried first, in mean costs of a request."""
NOISE: Final = 1e-6
"""In quanta: far above the rounding error of float sums, far below any real cost."""

TIMES: Final = "a finite, positive number of seconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Replicas of one function on one kind of accelerator."""

    name: str
    times: Times
    """Service seconds by batch, at the concurrency limit."""
    slots: int
    """Requests that a replica runs at once."""
    price_per_hour: float
    start_s: float
    """Seconds from the start call, when paying begins, to ready."""
    max_replicas: int
    """Maximum replicas at once, starting and draining ones included."""
    min_run_s: float = 0.0
    """Seconds from the start call that a replica is paid for at least, however soon it ends."""
    joins: int = 1
    """Inferences of several requests that a replica joins to one execution. Above 1 it has one execution at a time,
    whatever ``slots`` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The bound in dollars; infinite if no fleet keeps the SLA."""

    b0: float
    """Cost with no late request."""
    bq: float
    """Cost with at most a share of 1 - quantile late; ``b0`` where that is none."""


class _Service:
    """What a group needs for a request, by its inferences: slot seconds of work, and seconds to the answer at least.

    In an execution of B inferences that takes t(B), a request of i has i/B of it: at least ``i min t(B)/B``, over the
    batches that it fits in and that keep the latency. While the execution is under way it comes as far as a part of
    that work, at least t(i) long, so a replica does no more than a second of work in a second.
    """

    __slots__ = ("_least_s", "_per_inference_s", "group", "slots")

    def __init__(self, group: Group, latency_s: float) -> None:
        self.group = group
        self.slots = 1 if group.joins > 1 else group.slots
        joined = range(1, group.joins + 1 if group.joins > 1 else 1)
        times_s = [group.times.seconds(batch) for batch in joined]
        each_s = [time_s / batch if time_s <= latency_s else inf for batch, time_s in zip(joined, times_s, strict=True)]
        self._least_s = list(accumulate(reversed(times_s), min))[::-1]
        self._per_inference_s = list(accumulate(reversed(each_s), min))[::-1]

    def work_s(self, batch: int) -> float:
        """Returns the work; of a request that no execution answers in time that of one alone, a unit as good as any."""
        each_s = self._per_inference_s[batch - 1] if batch <= len(self._per_inference_s) else inf
        return self.group.times.seconds(batch) if each_s == inf else batch * each_s

    def least_s(self, batch: int) -> float:
        """Returns the time of the quickest execution that a request of this many inferences may be in."""
        return self._least_s[batch - 1] if batch <= len(self._least_s) else self.group.times.seconds(batch)

    def __repr__(self) -> str:
        return f"<_Service of {self.group.name}, {self.slots} slots>"


def clairvoyant(
    arrivals: Iterable[tuple[float, int]],
    groups: Sequence[Group],
    *,
    latency_s: float,
    quantile: float,
    duration_s: float,
) -> Bound:
    """Returns the bound for ``arrivals`` (at, inferences), read once, in any order; those from ``duration_s`` on are
    ignored.

    Raises InvalidInputError with every fault of groups, arrivals and figures.
    """
    faults = [*_faults(latency_s, quantile, duration_s), *_faults_of(groups)]
    if faults:
        demand(
            arrivals, lambda _: Job(work_s=1.0, least_s=1.0), latency_s=1.0, duration_s=1.0, slot_s=1.0, faults=faults
        )
        raise InvalidInputError("clairvoyant bound", faults)
    slot_s, has_starts = _slot_s(latency_s, groups)
    services = [_Service(group, latency_s) for group in groups]
    reference = min(services, key=lambda each: each.group.price_per_hour * each.work_s(1) / each.slots)
    asked = demand(
        arrivals,
        _job(services, reference, faults),
        latency_s=latency_s,
        duration_s=duration_s,
        slot_s=slot_s,
        faults=faults,
    )
    if faults:
        raise InvalidInputError("clairvoyant bound", faults)
    may_be_late = (1.0 - quantile) * asked.requests + 1e-9 - asked.hopeless
    b0 = bq = 0.0
    if asked.batches and len(asked.required_s) and asked.required_s[-1] > 0.0:
        supplies = _supplies(services, reference, asked.batches, latency_s)
        largest_s = max(reference.work_s(batch) for batch in asked.batches)
        b0, bq = _work_alone(asked, supplies, may_be_late * largest_s)
        if has_starts:
            plans = _Plans(asked, supplies, largest_s)
            best, most = plans, plans.on_time()
            for share in SHARES if any(each.min_run_s > each.start_s for each in groups) else ():
                weighted = _Plans(asked, _weighted(supplies, services, share, latency_s, asked.batches), largest_s)
                cost = weighted.on_time()
                if cost > most:
                    best, most = weighted, cost
            b0 = max(b0, most)
            if quantile < 1.0:
                late = max(0.0, may_be_late)
                bq = max(bq, *(each.mostly_on_time(late, b0) for each in dict.fromkeys((plans, best))))
            else:
                bq = b0
    if may_be_late < 0.0:
        bq = inf
    return Bound(b0=inf if asked.hopeless else max(b0, bq), bq=bq)


class _Plans:
    """The relaxed problem of one trace."""

    def __init__(self, asked: Demand, supplies: Sequence[Supply], largest_s: float) -> None:
        self._asked = asked
        waits = asked.possible_s - asked.required_s
        waited = np.concatenate(([0.0], waits[:-1]))
        comes = np.diff(asked.possible_s, prepend=0.0)
        self._levels = levels(supplies, float((waited + comes).max()) / asked.slot_s, asked.slot_s)
        does_s = self._levels.step * asked.slot_s
        widest = float(waits.max())
        self._per_level = next((each for each in QUANTA if widest * each / does_s <= WIDEST), QUANTA[-1])
        self._quantum_s = does_s / self._per_level
        self._per_request = largest_s / self._quantum_s
        """Largest work, in quanta, that a late request need not have done in time."""

    def on_time(self) -> float:
        """Returns the cost with no late request. Both curves are rounded up: a fleet's work between two slots is a
        whole number of quanta, so the required work may be rounded up as a whole, and the difference of the rounded
        curves is no larger."""
        possible = np.ceil(self._asked.possible_s / self._quantum_s - NOISE)
        required = np.ceil(self._asked.required_s / self._quantum_s - 2.0 * NOISE)
        (cost,) = self._least(possible, required, np.array([NEVER]))
        return inf if cost >= 0.1 * NEVER else float(cost)

    def mostly_on_time(self, late: float, b0: float) -> float:
        """Returns the cost with at most ``late`` late requests.

        For any price of a late request: the least cost with each late one paid for, less the price of those that may be
        late, is a lower bound (weak duality). It is concave in the price: the best of some prices, then of some around
        that one. ``b0`` sets the range of the search.
        """
        possible = np.ceil(self._asked.possible_s / self._quantum_s)
        required = np.maximum(0.0, np.floor(self._asked.required_s / self._quantum_s - NOISE))
        scale = (b0 if 0.0 < b0 < inf else float(self._levels.price_per_s[-1])) / max(1, self._asked.requests)
        prices, best = scale * SPREAD, 0.0
        for _ in range(2):
            bounds = self._least(possible, required, prices / self._per_request) - prices * late
            best = max(best, float(bounds.max()))
            around = float(prices[int(bounds.argmax())])
            ratio = SPREAD[1] / SPREAD[0]
            prices = around * np.geomspace(1.0 / ratio, ratio, len(SPREAD))[1:-1]
        return best

    def _least(self, possible: Floats, required: Floats, prices: Floats) -> Floats:
        quanta = Quanta(
            possible=possible.astype(np.int64), required=required.astype(np.int64), per_level=self._per_level
        )
        return least_costs(quanta, self._levels, self._asked.slot_s, prices)


def _slot_s(latency_s: float, groups: Sequence[Group]) -> tuple[float, bool]:
    """Returns the slot, and whether starts last two of them, so that they can be charged."""
    usual_s = 0.25 if latency_s < 1.0 else 0.5 if latency_s < 3.0 else 1.0
    slot_s = min(usual_s, min(each.start_s for each in groups) / 2.0)
    return (slot_s, True) if slot_s >= MIN_SLOT_S else (usual_s, False)


def _job(services: Sequence[_Service], reference: _Service, faults: list[Fault]) -> Callable[[int], Job]:
    """Returns a function from batch size to the work it needs; an invalid time becomes one of ``faults``."""

    def job(batch: int) -> Job:
        times = {each.group.name: each.least_s(batch) for each in services}
        wrong = {name: time_s for name, time_s in times.items() if not 0.0 < time_s < inf}
        faults.extend(
            Fault(f"groups.{name}.times", f"{time_s} s for batch {batch}", TIMES) for name, time_s in wrong.items()
        )
        least_s = min(times.values())
        return Job(work_s=1.0, least_s=1.0) if wrong else Job(work_s=reference.work_s(batch), least_s=least_s)

    return job


def _supplies(
    services: Sequence[_Service], reference: _Service, batches: Sequence[int], latency_s: float
) -> list[Supply]:
    """Returns the groups that meet the latency with some batch, each at its best batch."""
    found = []
    for each in services:
        gains = [reference.work_s(batch) / each.work_s(batch) for batch in batches if each.least_s(batch) <= latency_s]
        if gains:
            group = each.group
            found.append(
                Supply(
                    capacity=each.slots * max(gains),
                    price_per_s=group.price_per_hour / 3600.0,
                    start_s=group.start_s,
                    max_replicas=group.max_replicas,
                )
            )
    return found


def _weighted(
    supplies: Sequence[Supply], services: Sequence[_Service], share: float, latency_s: float, batches: Sequence[int]
) -> list[Supply]:
    """Returns supplies for a bound that knows minimum run times.

    A replica that is there in m slots is paid for at least ``m d + S - 2d`` and for at least M, so for any weighted
    mean of the two: ``share`` of its price by the slot, and the rest as a dearer start, ``S + M (1 - share) / share``.
    """
    usable = [each.group for each in services if any(each.least_s(batch) <= latency_s for batch in batches)]
    return [
        replace(
            supply,
            price_per_s=supply.price_per_s * share,
            start_s=supply.start_s + max(supply.start_s, group.min_run_s) * (1.0 - share) / share,
        )
        for supply, group in zip(supplies, usable, strict=True)
    ]


def _work_alone(asked: Demand, supplies: Sequence[Supply], late_s: float) -> tuple[float, float]:
    """Returns both bounds for free starts and divisible replicas: the work at its lowest price."""
    price = min(each.price_per_s / each.capacity for each in supplies)
    required_s = float(asked.required_s[-1])
    return price * required_s, price * max(0.0, required_s - max(0.0, late_s))


def _faults(latency_s: float, quantile: float, duration_s: float) -> Iterator[Fault]:
    for name, value in (("latency_s", latency_s), ("duration_s", duration_s)):
        if not 0.0 < value < inf:
            yield Fault(name, f"{value}", "a positive number of seconds")
    if not 0.0 < quantile <= 1.0:
        yield Fault("quantile", f"{quantile}", "more than 0, 1 at most")


def _faults_of(groups: Sequence[Group]) -> Iterator[Fault]:
    if not groups:
        yield Fault("groups", "none", "one group or more")
    names = [each.name for each in groups]
    for name in sorted({each for each in names if names.count(each) > 1}):
        yield Fault(f"groups.{name}", f"{names.count(name)} groups", "one group of each name")
    for group in groups:
        rules = (
            ("slots", group.slots, group.slots >= 1, "1 or more"),
            (
                "price_per_hour",
                group.price_per_hour,
                0.0 <= group.price_per_hour < inf,
                "a finite number, not negative",
            ),
            ("start_s", group.start_s, 0.0 <= group.start_s < inf, "a finite number of seconds, not negative"),
            (
                "min_run_s",
                group.min_run_s,
                0.0 <= group.min_run_s < inf,
                "a finite number of seconds, not negative",
            ),
            ("max_replicas", group.max_replicas, group.max_replicas >= 1, "1 or more"),
            ("joins", group.joins, group.joins >= 1, "1 or more"),
            ("times", f"{group.times.seconds(1)} s for batch 1", 0.0 < group.times.seconds(1) < inf, TIMES),
        )
        for field, value, is_right, allowed in rules:
            if not is_right:
                yield Fault(f"groups.{group.name}.{field}", f"{value}", allowed)
