"""Chooses between cuts by size and weights alone, for one revision at a time, from forecasts. Small changes are
ignored.

Groups that serve requests of several sizes can share the work in two ways. By *weights* every group gets its part of
all sizes. By *cuts* (``tidegate.traffic.size_cuts``) larger requests go to stronger groups. Small requests then no
longer wait behind large ones, and each group serves the sizes that it is best at. But a cut lies between two sizes, so
one group may be fuller. Both ways are forecast from the present arrivals: the utilisation of each group, and the time
of a request there. The wait at n replicas that are busy for ``rho`` of the time with requests of mean time ``s`` and
squared variation ``c2`` is

    w = s (1 + c2) / 2 * rho ^ (sqrt(2 (n + 1)) - 1) / (n (1 - rho))                  (Sakasegawa, 1977)

If a group would be busy for more than ``FULL`` of its time, the way with the less full fullest group wins; else the one
with the shorter mean time. The way in force changes only to one that is better by ``GAIN``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidegate.traffic.size_cuts import BatchClass, CutGroup, SizeClass, route_cuts

FULL: Final = 0.85
GAIN: Final = 0.1
"""Part by which a way must be better. Our choice, so that noise moves nothing."""
REVIEW_S: Final = 10.0
"""Interval of reviews. A change of the groups with ready replicas causes a review at once."""
DOMINANT: Final = 0.95
"""Part of all work at which a single size leaves nothing to cut."""
MIN_REQUESTS: Final = 50
"""Requests in the window from which its sizes are meaningful."""


@dataclass(frozen=True, slots=True)
class SizedGroup:
    """One group with ready replicas. ``seconds`` is the time of a replica for one request, by its size."""

    id: str
    replicas: int
    seconds: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast for one way of sharing the work."""

    fullest: float
    """Part of the time that the fullest group is busy. At 1 or more it cannot keep up."""
    mean_s: float
    """Mean time of a request in a group, waiting included."""

    def is_better(self, other: "Forecast", gain: float) -> bool:
        if max(self.fullest, other.fullest) > FULL:
            return self.fullest < (1.0 - gain) * other.fullest
        return self.mean_s < (1.0 - gain) * other.mean_s


@dataclass(frozen=True, slots=True)
class SizeChoice:
    """The sizes that each group serves, and the reason. With empty ``sizes`` every group serves all, by weights."""

    sizes: Mapping[str, SizeClass]
    why: str
    mu_ips: Mapping[str, float] = field(default_factory=dict)
    """Rate of one replica of each group for the present mix of sizes, if there are several. The sizes that a group gets
    now do not show it."""


BY_WEIGHTS: Final = SizeChoice({}, "by weights: nothing is known of the sizes yet")


BY_HAND: Final = SizeChoice({}, "by weights: that is what the function asks for")


def mixed(groups: Sequence[SizedGroup], classes: Sequence[BatchClass]) -> dict[str, float]:
    """Returns the rate of one replica of each group for the present mix."""
    items = math.fsum(each.work_ips for each in classes)
    return {
        group.id: items / math.fsum(each.rate_rps * group.seconds[each.batch] for each in classes) for group in groups
    }


def forecast(
    groups: Sequence[SizedGroup],
    classes: Sequence[BatchClass],
    weights: Mapping[str, float],
    sizes: Mapping[str, SizeClass],
) -> Forecast:
    """Returns the forecast for ``sizes``, the range that each group serves. Groups without a range serve all. Groups
    that serve the same size share its inferences by ``weights``."""
    loads: dict[str, list[tuple[float, float]]] = {group.id: [] for group in groups}
    for each in classes:
        able = [group for group in groups if _serves(sizes.get(group.id), each.batch)]
        total = math.fsum(weights.get(group.id, 0.0) for group in able)
        for group in able:
            part = weights.get(group.id, 0.0) / total if total > 0 else 1.0 / len(able)
            loads[group.id].append((each.rate_rps * part, group.seconds[each.batch]))
    fullest = spent = 0.0
    for group in groups:
        rho, time = _busy(loads[group.id], group.replicas)
        fullest, spent = max(fullest, rho), spent + time
    rate = math.fsum(each.rate_rps for each in classes)
    return Forecast(fullest, spent / rate if rate > 0 else 0.0)


def _serves(size: SizeClass | None, batch: int) -> bool:
    return size is None or (size[0] <= batch and (size[1] is None or batch <= size[1]))


def _busy(load: Sequence[tuple[float, float]], replicas: int) -> tuple[float, float]:
    """Returns (part of its time that a group is busy, time that the requests of one second spend there)."""
    rate = math.fsum(each for each, _ in load)
    if rate <= 0:
        return 0.0, 0.0
    mean = math.fsum(each * seconds for each, seconds in load) / rate
    square = math.fsum(each * seconds * seconds for each, seconds in load) / rate
    rho = rate * mean / replicas
    if rho >= 1.0:
        return rho, math.inf
    spread = square / (mean * mean) - 1.0
    wait = mean * (1.0 + spread) / 2.0 * rho ** (math.sqrt(2.0 * (replicas + 1)) - 1.0) / (replicas * (1.0 - rho))
    return rho, rate * (mean + wait)


def cut(groups: Sequence[SizedGroup], classes: Sequence[BatchClass]) -> dict[str, SizeClass]:
    """Returns the best cuts, or nothing if there are none. A group left without work shares that of the next stronger
    group that has some, or of the next weaker one."""
    largest = max(each.batch for each in classes)
    able = [CutGroup(group.id, largest / group.seconds[largest], group.replicas, group.seconds) for group in groups]
    found = route_cuts(able, classes)
    if found is None:
        return {}
    order = [group.id for group in sorted(able, key=lambda group: (group.mu_ips, group.id))]
    sizes = dict(found.sizes)
    for index, id_ in enumerate(order):
        if id_ not in sizes:
            stronger = (each for each in order[index:] if each in found.sizes)
            weaker = (each for each in reversed(order[:index]) if each in found.sizes)
            sizes[id_] = found.sizes[next(stronger, None) or next(weaker)]
    return sizes


@dataclass(slots=True)
class _InForce:
    choice: SizeChoice
    groups: frozenset[str]
    reviewed_at: float


class Sizing:
    """The choice in force for each revision."""

    __slots__ = ("_choices",)

    def __init__(self) -> None:
        self._choices: dict[str, _InForce] = {}

    def in_force(self, revision: str) -> SizeChoice:
        held = self._choices.get(revision)
        return BY_WEIGHTS if held is None else held.choice

    def is_due(self, revision: str, groups: frozenset[str], now: float) -> bool:
        """Returns True if a review is due: at intervals, and after a change of the groups with ready replicas."""
        held = self._choices.get(revision)
        return held is None or held.groups != groups or now - held.reviewed_at >= REVIEW_S

    def review(
        self,
        revision: str,
        groups: Sequence[SizedGroup],
        classes: Sequence[BatchClass],
        requests: int,
        now: float,
    ) -> SizeChoice:
        """Returns the choice from now on. ``classes`` are the arrivals of the window, of ``requests`` requests."""
        ids = frozenset(group.id for group in groups)
        held = self._choices.get(revision)
        before = held.choice if held is not None and held.groups == ids else BY_WEIGHTS
        choice = _chosen(groups, classes, requests, before)
        self._choices[revision] = _InForce(choice, ids, now)
        return choice

    def fix(self, revision: str, choice: SizeChoice) -> None:
        """Puts ``choice`` in force, whatever the forecasts are."""
        self._choices[revision] = _InForce(choice, frozenset(), -math.inf)

    def forget(self, revision: str) -> None:
        self._choices.pop(revision, None)

    def __repr__(self) -> str:
        return f"<Sizing {sum(bool(held.choice.sizes) for held in self._choices.values())} of {len(self._choices)} cut>"


def _chosen(
    groups: Sequence[SizedGroup], classes: Sequence[BatchClass], requests: int, before: SizeChoice
) -> SizeChoice:
    if len(groups) < 2:
        return SizeChoice({}, "by weights: one group serves")
    if requests < MIN_REQUESTS:
        return before if before.sizes else SizeChoice({}, "by weights: too few requests to know their sizes")
    works = [math.fsum(each.rate_rps * group.seconds[each.batch] for group in groups) for each in classes]
    if max(works) >= DOMINANT * math.fsum(works):
        return SizeChoice({}, f"by weights: nearly all work is of size {classes[works.index(max(works))].batch}")
    mu_ips = mixed(groups, classes)
    weights = {group.id: mu_ips[group.id] * group.replicas for group in groups}
    sizes = cut(groups, classes)
    by_cuts, by_weights = (forecast(groups, classes, weights, each) for each in (sizes, {}))
    present = forecast(groups, classes, weights, before.sizes) if before.sizes else by_weights
    if not before.sizes and not by_cuts.is_better(by_weights, GAIN):
        return SizeChoice({}, _words("", by_weights, by_cuts), mu_ips)
    if before.sizes and by_weights.is_better(present, 0.0) and not by_cuts.is_better(by_weights, GAIN):
        return SizeChoice({}, _words("", by_weights, present), mu_ips)
    if by_cuts.is_better(present, GAIN):
        return SizeChoice(sizes, _words("cut", by_cuts, by_weights), mu_ips)
    return SizeChoice(before.sizes, _words("cut", present, by_weights), mu_ips)


def _words(way: str, taken: Forecast, other: Forecast) -> str:
    name, against = ("cut by size", "weights") if way else ("by weights", "cuts")
    return f"{name}: {_figures(taken)}; with {against} {_figures(other)}"


def _figures(one: Forecast) -> str:
    mean = "ever longer waits" if math.isinf(one.mean_s) else f"mean {one.mean_s * 1e3:.3g} ms"
    return f"the fullest group busy for {one.fullest:.0%}, {mean}"
