"""The work of requests and the capacity of replicas, in slots of one reference group.

One slot is one replica of the reference group at its concurrency limit; the work of a request is its time there. How
many requests a server really runs at a time is an estimate that moves, and must not move the unit. The reference is the
group of best value when the first service rate was known; it stays, so that loads keep their unit. A replica of another
group has as many slots as it serves requests faster.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from tidegate.autoscaler.decisions.reasons import figure
from tidegate.autoscaler.measure.observation import UNLOADED, ArrivalCounts, GroupObservation, Observation
from tidegate.autoscaler.policies.tide.pace import UNPACED, Paced
from tidegate.autoscaler.policies.tide.queueing import Service

MEMORY_REQUESTS: Final = 5000.0
"""Arrivals that the shares of batch sizes are a mean of."""
LEAST_SHARE: Final = 1e-4
"""A batch size with a smaller share of the arrivals is forgotten."""
FIXED: Final = 0.3
"""Part of a request's time that is taken not to depend on its batch size, while one size alone is known."""
UNPRICED: Final = 1.0
"""Price of a group without one: then the number of replicas counts."""
ASSUMED_CV: Final = 0.15
TAIL_SIGMAS: Final = 2.33
"""Standard deviations between the mean and the tail of execution times, taken as normal."""
QUICKEST_S: Final = 1e-7
SLOWEST_S: Final = 1e6
LARGEST: Final = 1e6
"""Bounds of service times in seconds and of inferences of a request; others are no figures."""
LEAST_SLOTS: Final = 1e-4
"""A replica with less than this of a slot is of no use beside the reference group."""
SPARE: Final = 2.0
"""Slots beside the load, in roots of it (square-root staffing)."""
CLEARLY: Final = 1.1
"""Ratio of prices from which on another group is the best one."""
OTHER: Final = 1.5
"""Factor by which another load than that of the choice is another question: a small fleet is best made of small
replicas."""
CLEARLY_WIDER: Final = 0.75
"""Difference from which on a replica runs another number of requests at a time."""
ONE_STREAM: Final = 0.75
"""Streams at a time from which on a replica keeps the time per output token: measurements of one stream jitter."""
CHANGED: Final = 0.05
"""Relative change of a service time from which on late shares are computed again."""

ENOUGH: Final = 30.0
"""Answers of a group that had no replica, until its service times count: of requests that begin together the short
ones end first."""
SPEED_REQUESTS: Final = 500.0
"""Answers that the speed of a group beside another is a mean of: with fewer, chance decides which requests it had."""
MOST_MOVED: Final = 4.0
"""Factor by which requests are believed to have become heavier or lighter for a group that does not serve."""

Curve = tuple[tuple[float, float], ...]
"""(inferences of a request, seconds of a whole replica for it), in rising order."""


class GroupCapacity(msgspec.Struct, frozen=True, gc=False):
    """A group, as far as it can serve."""

    seen: GroupObservation
    slots: float
    """Slots of one replica; 0: its rate is unknown, or its service alone is longer than the target."""
    price: float
    """Of a replica and an hour."""

    @property
    def is_unknown(self) -> bool:
        """Whether nothing is known of its service times."""
        return not _curve(self.seen)


class Capacity(msgspec.Struct, frozen=True, gc=False):
    """What the groups can serve."""

    groups: tuple[GroupCapacity, ...]
    curve: Curve
    """Of the reference group, in seconds of a whole replica."""
    mean_s: float
    """Mean work of a request."""
    best: GroupCapacity
    """The group that carries the present load for the least price: the one that a fleet is mostly made of."""
    service: Service
    """Its service times: waiting is computed for its slots."""
    unit: float
    """Slots of the reference group that one slot of the best group is worth."""
    paced: tuple[str, ...] = ()
    """Groups whose replicas run fewer streams at a time than they could, in words: the time per output token asks for
    it."""
    is_infeasible: bool = False
    """No group serves within the target; the quickest counts nevertheless."""

    def work(self, size: float) -> float:
        """Returns the work of a request of ``size`` inferences, in seconds."""
        return at(self.curve, size)


class Arrivals:
    """The arrivals by batch size, and their shares over the last thousands."""

    __slots__ = ("_before", "_late", "shares")

    def __init__(self) -> None:
        self._before: dict[float, float] = {}
        self._late = 0.0
        self.shares: dict[float, float] = {}
        """Share of each batch size."""

    def new(self, counts: ArrivalCounts) -> tuple[dict[float, float], float] | None:
        """Returns (arrivals by batch size, late answers) since the last call, from counts that only grow. None where
        one fell: counting began again, and nothing new is known."""
        late = counts.late
        before, self._before = self._before, dict(counts.sizes)
        late_before, self._late = self._late, late
        new = {}
        for size, count in counts.sizes:
            known = before.get(size, 0.0)
            if count > known:
                new[size] = count - known
            elif count < known:
                return None
        if late < late_before:
            return None
        total = math.fsum(new.values())
        if total > 0.0:
            weight = min(1.0, total / MEMORY_REQUESTS) if self.shares else 1.0
            sizes = sorted(self.shares.keys() | new.keys())
            shares = {
                size: (1.0 - weight) * self.shares.get(size, 0.0) + weight * new.get(size, 0.0) / total
                for size in sizes
            }
            self.shares = {size: share for size, share in shares.items() if share >= LEAST_SHARE}
        return new, late - late_before

    def __repr__(self) -> str:
        return f"<Arrivals {self.shares}>"


_Facts = tuple[bool, list[tuple[object, ...]]]
"""Whether the concurrency limit counts inferences, and the price of each group and what was measured of it."""
_Asked = tuple[Mapping[float, float], Mapping[str, float]]
"""The shares of the batch sizes, and the seconds to the first output by group."""


_Candidate = tuple[int, str, float, float, float]
"""A group that can serve: (index, name, price, requests that a replica runs at a time, slots of a replica)."""


class _Served(NamedTuple):
    """What the groups serve, and what it was computed from."""

    facts: _Facts
    asked: _Asked
    measured: dict[str, Curve]
    """Curves by group."""
    curves: dict[str, Curve]
    """Those of the requests that come now; the same object where they need what was measured."""
    curve: Curve
    """Of the reference group."""
    mean_s: float
    """Mean work of a request there."""
    slots: tuple[float, ...]
    """Of one replica, for each group."""
    prices: tuple[float, ...]
    candidates: tuple[_Candidate, ...]
    slowed: tuple[str, ...]
    """As :attr:`Capacity.paced`."""
    is_infeasible: bool


class Reference:
    """The reference group, and the service times that late shares are computed from."""

    __slots__ = (
        "_answers", "_best", "_best_load", "_carried", "_factors", "_latency_s", "_measured", "_name", "_served",
        "_service", "_slots",
    )  # fmt: skip
    UNRECORDED: Final = ("_served",)

    def __init__(self, latency_s: float) -> None:
        self._latency_s = latency_s
        self._name: str | None = None
        self._best: str | None = None
        self._best_load = 0.0
        """The load that it was chosen for."""
        self._answers: dict[str, float] = {}
        """Answers of each group since it last had no replica."""
        self._measured: dict[str, Curve] = {}
        """Curves of the last reading."""
        self._factors: dict[str, float] = {}
        """Times that a group is taken to need over the measured ones, before ``MOST_MOVED``: what the leading group
        measured wrongly and takes back leaves nothing behind."""
        self._slots: dict[str, float] = {}
        """Requests that a replica of a group runs at a time."""
        self._carried: dict[str, float] = {}
        """Slots of one replica by group."""
        self._service: Service | None = None
        self._served: _Served | None = None
        """As last computed, without a pace."""

    @property
    def name(self) -> str | None:
        """The reference group, once one is known."""
        return self._name

    def retarget(self, latency_s: float) -> None:
        """Goes on with another latency target."""
        self._latency_s = latency_s
        self._service = self._served = None

    def resume(self, name: str | None) -> None:
        """Continues with the reference group of before."""
        self._name, self._served = name, None

    def read(
        self,
        observation: Observation,
        shares: Mapping[float, float],
        is_in_inferences: bool,
        load: float = 0.0,
        *,
        per_token_s: float | None = None,
    ) -> Capacity | None:
        """Returns what the groups can serve; None while no service rate is known. ``shares``: of the batch sizes;
        ``is_in_inferences``: the concurrency limit counts inferences; ``load``: the level in slots; ``per_token_s``:
        the SLA's time per output token."""
        seen, shares = observation.groups, shares or {1.0: 1.0}
        first_s = _first_s(observation)
        facts, asked = (is_in_inferences, _facts(seen)), (shares, first_s)
        paced = UNPACED if per_token_s is None else Paced(observation.tokens, per_token_s)
        served = None if paced.is_known or self._served is None or self._served.facts != facts else self._served
        if served is not None and served.curves is served.measured and served.asked == asked:
            # The same would be found again.
            if len(served.curves) > 1 or self._factors:
                self._count(seen)
        else:
            served = self._serve(seen, facts, asked, paced, served)
            if served is None:
                return None
        if not served.candidates:
            return None
        groups = tuple(map(GroupCapacity, seen, served.slots, served.prices))
        index, name, _, width, _ = self._best_of(served.candidates, load)
        best = groups[index]
        curve = tuple([(size, seconds * width) for size, seconds in served.curves[name]])
        return Capacity(
            groups,
            served.curve,
            served.mean_s,
            best,
            self._steady(curve, shares, _cv(best.seen), first_s.get(name)),
            best.slots / width,
            served.slowed,
            served.is_infeasible,
        )

    def _serve(
        self, seen: Sequence[GroupObservation], facts: _Facts, asked: _Asked, paced: Paced, before: _Served | None
    ) -> _Served | None:
        """Returns what the groups serve; None while no service rate is known. ``before``: as last computed, if of the
        same facts."""
        (is_in_inferences, _), (shares, first_s) = facts, asked
        self._served, slots = None, self._slots
        if before is None:
            curves = {each.accelerator: curve for each in seen if (curve := _curve(each))}
            if not curves:
                return None
            self._widths(seen, curves, is_in_inferences, paced)
        else:
            curves = before.measured
        if self._name not in curves:
            self._name = min(
                (each for each in seen if each.accelerator in curves),
                key=lambda each: (each.price_per_hour or UNPRICED) * at(curves[each.accelerator], 1.0),
            ).accelerator
        slowed = _slow_down(seen, curves, slots, paced, shares) if paced.is_known else ()
        measured = curves
        if len(curves) > 1 or self._factors:
            curves = self._of_these_requests(seen, curves, shares)
        times = dict(zip(curves, _times(tuple(curves.values()), tuple(shares.items())), strict=True))
        latency_s = self._latency_s
        alone_s = {name: largest_s * slots[name] for name, (_, largest_s) in times.items()}
        if first_s:
            alone_s = {name: first_s.get(name, seconds) for name, seconds in alone_s.items()}
        usable = {name for name, seconds in alone_s.items() if seconds <= latency_s}
        if paced.is_known:
            usable = {name for name in usable if (most := paced.most(name)) is None or most >= ONE_STREAM}
        chosen = usable or {min(alone_s, key=lambda name: (alone_s[name], name))}
        mean_s = times[self._name][0]
        carried = self._carry(seen, chosen, mean_s, times)
        prices = tuple([each.price_per_hour or UNPRICED for each in seen])
        candidates = tuple(
            [
                (index, each.accelerator, prices[index], slots[each.accelerator], carried[index])
                for index, each in enumerate(seen)
                if carried[index]
            ]
        )
        found = _Served(
            facts, asked, measured, curves, curves[self._name], mean_s, carried, prices, candidates, slowed, not usable
        )
        if not paced.is_known:
            self._served = found
        return found

    def _of_these_requests(
        self, groups: Sequence[GroupObservation], curves: dict[str, Curve], shares: Mapping[float, float]
    ) -> dict[str, Curve]:
        """Returns the curves, in which requests that have become heavier are so for every group.

        The group with the most answers leads: what it needs moves the times of all. A group's own measurements move
        only its speed beside that, by the number of its answers: it may have served other requests, or before these."""
        factors, measured = self._factors, self._measured
        lead = self._leading(groups, curves)
        if curves == measured and set(factors.values()) == {1.0}:
            return curves  # Nothing has changed.
        key, moved = tuple(shares.items()), 1.0
        if lead is not None and lead.accelerator in factors:
            name = lead.accelerator
            before = factors[name]
            factors[name] = before + (1.0 - before) * min(1.0, lead.rps / self._answers[name])
            moved = _believed(factors[name]) / _believed(before) * _change(measured[name], curves[name], key)
        for name in factors.keys() - curves.keys():  # Not among the groups now.
            factors[name] = _bounded(factors[name] * moved)
        for each in groups:
            name = each.accelerator
            curve = curves.get(name)
            if curve is None:
                continue
            known = measured.get(name)
            measured[name] = curve
            if known is None:
                factors[name] = 1.0
            elif lead is None or name != lead.accelerator:
                is_given = not (each.ready or each.is_mu_learnt)
                factor = factors[name] * moved / (1.0 if is_given else _change(known, curve, key))
                if each.ready and self._answers[name] >= ENOUGH:
                    factor += (1.0 - factor) * min(1.0, each.rps / SPEED_REQUESTS)
                factors[name] = _bounded(factor)
        found = {}
        for name, curve in curves.items():
            factor = _believed(factors[name])
            found[name] = curve if factor == 1.0 else tuple([(size, seconds * factor) for size, seconds in curve])
        return found

    def _leading(self, groups: Sequence[GroupObservation], curves: Mapping[str, Curve]) -> GroupObservation | None:
        """Counts the answers of each group, and returns the one with the most since it had no replica."""
        lead, most = None, ENOUGH
        self._count(groups)
        for each in groups:
            count = self._answers[each.accelerator]
            if count >= most and each.execution_s and each.accelerator in curves:
                lead, most = each, count
        return lead

    def _count(self, groups: Sequence[GroupObservation]) -> None:
        """Counts the answers of each group."""
        before = self._answers
        self._answers = {
            each.accelerator: before.get(each.accelerator, 0.0) + each.rps if each.ready else 0.0 for each in groups
        }

    def _widths(
        self, groups: Sequence[GroupObservation], curves: Mapping[str, Curve], is_in_inferences: bool, paced: Paced
    ) -> None:
        """Reads the requests that a replica of each group runs at a time: as before unless clearly another number."""
        slots, is_paced = self._slots, paced.is_known
        for each in groups:
            name, found = each.accelerator, float(each.limit or 1)
            if is_in_inferences or found > 1.0:
                found = _slots(each, curves.get(name), found, is_in_inferences)
            if is_paced and name in curves and (most := paced.most(name)) is not None:
                found = min(found, max(1.0, most))
            known = slots.get(name)
            if known is None or abs(found - known) > CLEARLY_WIDER:
                slots[name] = float(max(1, round(found)))

    def _carry(
        self,
        groups: Sequence[GroupObservation],
        usable: Collection[str],
        mean_s: float,
        times: Mapping[str, tuple[float, float]],
    ) -> tuple[float, ...]:
        """Returns the slots of one replica of each group: those of before unless they have changed, because a size
        that is held must not jitter with them. ``mean_s``: of a request on a replica of the reference."""
        carried, found = self._carried, []
        for each in groups:
            name, slots = each.accelerator, 0.0
            if name in usable:
                slots = mean_s / times[name][0]
                known = carried.get(name)
                if known is None or abs(slots / known - 1.0) > CHANGED:
                    carried[name] = slots
                else:
                    slots = known
            found.append(slots if slots >= LEAST_SLOTS else 0.0)
        return tuple(found)

    def _best_of(self, candidates: Sequence[_Candidate], load: float) -> _Candidate:
        """Returns the group that alone would carry ``load`` for the least price, by the square-root rule: the one of
        before unless another one is clearly cheaper."""
        found, least, before, its, best = candidates[0], math.inf, None, math.inf, self._best
        for each in candidates:
            _, name, price, width, slots = each
            offered = load * width / slots
            replicas = (offered + SPARE * math.sqrt(offered)) / width
            if replicas > 1.0:
                price *= replicas
            if price < least:
                found, least = each, price
            if name == best:
                before, its = each, price
        if before is None or its > CLEARLY * least or not load / OTHER <= self._best_load <= OTHER * load:
            before, self._best_load = found, load
            self._best = found[1]
        return before

    def _steady(self, curve: Curve, shares: Mapping[float, float], cv: float, first_s: float | None) -> Service:
        """Returns the service times, those of before unless they have changed: late shares are computed from them."""
        known = self._service
        sizes = tuple([(share, at(curve, size)) for size, share in sorted(shares.items())])
        if known is None or len(known.sizes) != len(sizes) or _differ(known, sizes, cv, first_s):
            total = math.fsum(share for share, _ in sizes)
            known = Service(tuple((share / total, seconds) for share, seconds in sizes), cv, self._latency_s, first_s)
            self._service = known
        return known

    def __repr__(self) -> str:
        return f"<Reference {self._name} {self._service}>"


def at(curve: Curve, size: float) -> float:
    """Returns the seconds for a request of ``size`` inferences: on the line through the two known sizes around it, or
    nearest to it; with one known size, ``FIXED`` of its time does not depend on the size."""
    if len(curve) == 1:
        known, seconds = curve[0]
        return seconds * (FIXED + (1.0 - FIXED) * size / known)
    above = next((index for index, (known, _) in enumerate(curve) if known >= size), len(curve) - 1)
    (low, low_s), (high, high_s) = curve[max(above, 1) - 1], curve[max(above, 1)]
    line = low_s + (high_s - low_s) * (size - low) / (high - low)
    return max(line, 0.1 * low_s)


@lru_cache(maxsize=4096)
def _times(curves: tuple[Curve, ...], shares: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    """Returns (mean seconds of a request, seconds of the largest) of each curve. ``shares``: (size, share). Kept: of a
    function with one size the shares stay."""
    sizes, parts = zip(*shares, strict=True)
    largest, whole = sizes.index(max(sizes)), math.fsum(parts)
    return tuple(
        [
            (math.fsum([part * each for part, each in zip(parts, seconds, strict=True)]) / whole, seconds[largest])
            for seconds in _by_size(curves, sizes)
        ]
    )


@lru_cache(maxsize=4096)
def _by_size(curves: tuple[Curve, ...], sizes: tuple[float, ...]) -> tuple[tuple[float, ...], ...]:
    """Returns the seconds of each size, for each curve. Kept: curves change every few seconds, sizes seldom."""
    return tuple(tuple(at(curve, size) for size in sizes) for curve in curves)


def _believed(factor: float) -> float:
    """Returns a factor of a group's times within what is believed."""
    return min(MOST_MOVED, max(1.0 / MOST_MOVED, factor))


def _bounded(factor: float) -> float:
    """Returns a factor of a group's times as it is kept: a product of many that stays a number."""
    return min(LARGEST, max(1.0 / LARGEST, factor))


def _change(before: Curve, after: Curve, shares: tuple[tuple[float, float], ...]) -> float:
    """Returns by which factor a request takes longer than before. 1 where other sizes are known: this is no change."""
    if before == after or len(before) != len(after):
        return 1.0
    (before_s, _), (after_s, _) = _times((before, after), shares)
    return after_s / before_s


def _mean(curve: Curve, shares: Collection[tuple[float, float]]) -> float:
    return math.fsum(share * at(curve, size) for size, share in shares) / math.fsum(share for _, share in shares)


def _curve(group: GroupObservation) -> Curve:
    """Returns the seconds of a replica by size, without figures that no server has."""
    known = group.services or (((1.0, 1.0 / group.mu_ips),) if group.mu_ips else ())
    for size, seconds in known:
        if not (size <= LARGEST and QUICKEST_S <= seconds <= SLOWEST_S):
            return tuple([each for each in known if each[0] <= LARGEST and QUICKEST_S <= each[1] <= SLOWEST_S])
    return known


def _facts(groups: Sequence[GroupObservation]) -> list[tuple[object, ...]]:
    """Returns the price of each group, and what its curve and the requests that its replica runs at a time are computed
    from. The present occupancy counts where that of the least execution time is unknown."""
    return [
        (
            each.accelerator,
            each.price_per_hour,
            each.services,
            each.mu_ips,
            each.limit,
            each.mean_batch,
            each.min_execution_s,
            each.one_s,
            each.min_execution_occupancy,
            each.unloaded_s if each.min_execution_occupancy is None else None,
        )
        for each in groups
    ]


def _slots(group: GroupObservation, curve: Curve | None, limit: float, is_in_inferences: bool) -> float:
    """Returns the requests that a replica really runs at a time: as many as pass in the time of one alone, at most its
    concurrency limit. A server that does one thing at a time behind many slots has one."""
    size = group.mean_batch or 1.0
    size = size if size > 1.0 else 1.0
    slots = max(1.0, limit / size) if is_in_inferences else limit
    if curve and slots > 1.0 and (unloaded_s := group.unloaded_s):
        whole_s = at(curve, size) if len(curve) > 1 or curve[0][0] != size else curve[0][1]
        alone = unloaded_s / whole_s
        if alone < slots:
            alone = max(unloaded_s, _alone_s(group, whole_s * slots, slots)) / whole_s
        if alone < slots:
            slots = alone if alone > 1.0 else 1.0
    return slots


def _alone_s(group: GroupObservation, full_s: float, slots: float) -> float:
    """Returns the time of a request alone in a replica, on the line through its time in a full one and at the lowest
    occupancy seen: requests that do not slow each other there do not do so with fewer. 0 if this is not known."""
    least_s, occupancy = group.min_execution_s, group.min_execution_occupancy
    if least_s is None or occupancy is None or not UNLOADED < occupancy < slots:
        return 0.0
    return least_s - max(0.0, full_s - least_s) * (occupancy - 1.0) / (slots - occupancy)


def _slow_down(
    groups: Sequence[GroupObservation],
    curves: dict[str, Curve],
    slots: Mapping[str, float],
    paced: Paced,
    shares: Mapping[float, float],
) -> tuple[str, ...]:
    """Gives ``curves`` the time that streams take where so few run at a time that their tokens come in time. Returns
    the groups that run fewer than they could, in words."""
    slowed = []
    for each in groups:
        name = each.accelerator
        curve, most = curves.get(name), paced.most(name)
        if curve is None or most is None:
            continue
        # Streams that share the replica pass as if one at a time, and yet there are several.
        streams = max(slots[name], math.floor(min(most, each.limit or 1)))
        taken_s = paced.seconds(name, streams) / _mean(curve, shares.items())
        curves[name] = tuple([(size, seconds * max(1.0, taken_s)) for size, seconds in curve])
        if streams < (each.limit or 0):
            slowed.append(f"{name} {figure(streams)} of {each.limit} streams")
    return tuple(slowed)


def _cv(group: GroupObservation) -> float:
    if group.tail_s and group.execution_s and (group.mean_batch or 1.0) <= 1.0:
        return round(min(1.0, max(0.05, (group.tail_s / group.execution_s - 1.0) / TAIL_SIGMAS)), 1)
    return ASSUMED_CV


def _first_s(observation: Observation) -> dict[str, float]:
    """Returns the seconds to the first output of a stream by accelerator, where tokens are counted and there were
    streams."""
    known = {} if observation.tokens is None else observation.tokens.groups
    return {name: each.first_s for name, each in known.items() if each.first_s}


def _differ(known: Service, sizes: tuple[tuple[float, float], ...], cv: float, first_s: float | None) -> bool:
    if (known.first_s is None) != (first_s is None) or abs((known.first_s or 1.0) / (first_s or 1.0) - 1.0) > CHANGED:
        return True
    return abs(known.cv - cv) > 0.1 or any(
        abs(share - other) > CHANGED or abs(seconds / other_s - 1.0) > CHANGED
        for (share, seconds), (other, other_s) in zip(sizes, known.sizes, strict=True)
    )
