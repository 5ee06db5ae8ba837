"""Cuts by size, or weights alone? Decided by figures, for one revision at a time, and kept while they change little.

Where several groups serve requests of several sizes there are two ways to share the work. By *weights* every group gets
its part of all sizes. By *cuts* (``tidegate.traffic.size_cuts``) larger requests go to stronger groups: small ones no
longer stand behind large ones, and a group does only what it does well; but a cut cannot be placed anywhere, so one
group may be fuller. Both are foreseen from the present arrivals: how full each group is, and how long a request is
there. Of n replicas that are busy for ``rho`` of the time with requests of mean time ``s`` and squared variation
``c2`` one waits

    w = s (1 + c2) / 2 * rho ^ (sqrt(2 (n + 1)) - 1) / (n (1 - rho))                  (Sakasegawa, 1977)

Where a group would be busy for more than ``FULL`` of its time, the way counts whose fullest group is less full; else
the shorter mean time. The way in force is left only for one that is better by ``GAIN``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidegate.traffic.size_cuts import BatchClass, CutGroup, SizeClass, route_cuts

FULL: Final = 0.85
GAIN: Final = 0.1
"""A way must be better by this part; our choice, so that noise moves nothing."""
LOOK_S: Final = 10.0
"""The figures are looked at this often; at once when other groups have replicas that are ready."""
DOMINANT: Final = 0.95
"""One size that makes up this part of all work leaves nothing to cut."""
ENOUGH: Final = 50
"""Requests in the window before its sizes mean anything."""


@dataclass(frozen=True, slots=True)
class SizedGroup:
    """One group with ready replicas. ``seconds``: what one request takes of a replica, by its size."""

    id: str
    replicas: int
    seconds: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What a way of sharing the work leads to."""

    fullest: float
    """Part of the time that the fullest group is busy; 1 or more: it cannot keep up."""
    mean_s: float
    """That a request is in a group, waiting included."""

    def is_better(self, other: "Foreseen", gain: float) -> bool:
        if max(self.fullest, other.fullest) > FULL:
            return self.fullest < (1.0 - gain) * other.fullest
        return self.mean_s < (1.0 - gain) * other.mean_s


@dataclass(frozen=True, slots=True)
class Choice:
    """Which sizes each group serves, and why. ``sizes`` empty: every group serves all, by weights."""

    sizes: Mapping[str, SizeClass]
    why: str
    mu_ips: Mapping[str, float] = field(default_factory=dict)
    """Rate of one replica of each group for the present mix of sizes, where there are several: what a group is given
    now says nothing about it."""


BY_WEIGHTS: Final = Choice({}, "by weights: nothing is known of the sizes yet")


BY_HAND: Final = Choice({}, "by weights: that is what the function asks for")


def mixed(groups: Sequence[SizedGroup], classes: Sequence[BatchClass]) -> dict[str, float]:
    """Rate of one replica of each group for the present mix."""
    items = math.fsum(each.work_ips for each in classes)
    return {
        group.id: items / math.fsum(each.rate_rps * group.seconds[each.batch] for each in classes) for group in groups
    }


def foreseen(
    groups: Sequence[SizedGroup],
    classes: Sequence[BatchClass],
    weights: Mapping[str, float],
    sizes: Mapping[str, SizeClass],
) -> Foreseen:
    """``sizes``: which requests each group serves; groups that are not named serve all. Where several serve a size
    they share its inferences by ``weights``."""
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
    return Foreseen(fullest, spent / rate if rate > 0 else 0.0)


def _serves(size: SizeClass | None, batch: int) -> bool:
    return size is None or (size[0] <= batch and (size[1] is None or batch <= size[1]))


def _busy(load: Sequence[tuple[float, float]], replicas: int) -> tuple[float, float]:
    """(part of its time that a group is busy, time that the requests of one second spend there)."""
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
    """The best cuts; a group that they leave without work shares that of the next stronger one that has some, or of the
    next weaker one. Empty: there are none."""
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
class _Held:
    choice: Choice
    groups: frozenset[str]
    looked_at: float


class Sizing:
    """The choice in force for each revision."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}

    def in_force(self, revision: str) -> Choice:
        held = self._held.get(revision)
        return BY_WEIGHTS if held is None else held.choice

    def is_due(self, revision: str, groups: frozenset[str], now: float) -> bool:
        """Whether to look at the figures: from time to time, and when other groups have ready replicas."""
        held = self._held.get(revision)
        return held is None or held.groups != groups or now - held.looked_at >= LOOK_S

    def look(
        self,
        revision: str,
        groups: Sequence[SizedGroup],
        classes: Sequence[BatchClass],
        requests: int,
        now: float,
    ) -> Choice:
        """The choice from now on. ``classes``: the arrivals of the window, of ``requests`` requests."""
        ids = frozenset(group.id for group in groups)
        held = self._held.get(revision)
        before = held.choice if held is not None and held.groups == ids else BY_WEIGHTS
        choice = _chosen(groups, classes, requests, before)
        self._held[revision] = _Held(choice, ids, now)
        return choice

    def settle(self, revision: str, choice: Choice) -> None:
        """It is so, whatever the figures say."""
        self._held[revision] = _Held(choice, frozenset(), -math.inf)

    def forget(self, revision: str) -> None:
        self._held.pop(revision, None)

    def __repr__(self) -> str:
        return f"<Sizing {sum(bool(held.choice.sizes) for held in self._held.values())} of {len(self._held)} cut>"


def _chosen(groups: Sequence[SizedGroup], classes: Sequence[BatchClass], requests: int, before: Choice) -> Choice:
    if len(groups) < 2:
        return Choice({}, "by weights: one group serves")
    if requests < ENOUGH:
        return before if before.sizes else Choice({}, "by weights: too few requests to know their sizes")
    works = [math.fsum(each.rate_rps * group.seconds[each.batch] for group in groups) for each in classes]
    if max(works) >= DOMINANT * math.fsum(works):
        return Choice({}, f"by weights: nearly all work is of size {classes[works.index(max(works))].batch}")
    mu_ips = mixed(groups, classes)
    weights = {group.id: mu_ips[group.id] * group.replicas for group in groups}
    sizes = cut(groups, classes)
    by_cuts, by_weights = (foreseen(groups, classes, weights, each) for each in (sizes, {}))
    present = foreseen(groups, classes, weights, before.sizes) if before.sizes else by_weights
    if not before.sizes and not by_cuts.is_better(by_weights, GAIN):
        return Choice({}, _words("", by_weights, by_cuts), mu_ips)
    if before.sizes and by_weights.is_better(present, 0.0) and not by_cuts.is_better(by_weights, GAIN):
        return Choice({}, _words("", by_weights, present), mu_ips)
    if by_cuts.is_better(present, GAIN):
        return Choice(sizes, _words("cut", by_cuts, by_weights), mu_ips)
    return Choice(before.sizes, _words("cut", present, by_weights), mu_ips)


def _words(way: str, taken: Foreseen, other: Foreseen) -> str:
    name, against = ("cut by size", "weights") if way else ("by weights", "cuts")
    return f"{name}: {_figures(taken)}; with {against} {_figures(other)}"


def _figures(one: Foreseen) -> str:
    mean = "ever longer waits" if math.isinf(one.mean_s) else f"mean {one.mean_s * 1e3:.3g} ms"
    return f"the fullest group busy for {one.fullest:.0%}, {mean}"
