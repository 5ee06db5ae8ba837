"""Assigns sizes of requests to groups: larger batches to stronger accelerators (SMIF, request-aware routing).

Groups are ordered by their service rate, weakest first. Every batch size goes to exactly one group, and a larger batch
never to a weaker group than a smaller one. Of all such cuts the one is taken with the least busy busiest group; of
several, the one with the least busy other groups. The paper states the goal, the exact rule is ours. With one size
there is nothing to cut: the caller uses the weights of ``tidegate.traffic.weights`` instead.

Rates are in requests or inferences per second as named; work is in inferences per second.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

SizeClass = tuple[int, int | None]
"""Fewest and most inferences of a request. None is no upper bound."""

TIE = 1e-12
"""Utilisations with a smaller relative difference are equal."""


@dataclass(frozen=True, slots=True)
class CutGroup:
    id: str
    mu_ips: float
    """Service rate of one replica."""
    replicas: int
    seconds: Mapping[int, float] | None = None
    """Time of a replica for one request by its batch, if it is known. None is its work over ``mu_ips``."""

    @property
    def capacity(self) -> float:
        return self.mu_ips * self.replicas

    def use(self, each: "BatchClass") -> float:
        """Returns the part of the group's time that a class takes."""
        if self.seconds is None:
            return each.work_ips / self.capacity
        return each.rate_rps * self.seconds[each.batch] / self.replicas


@dataclass(frozen=True, slots=True)
class BatchClass:
    """Requests of one size."""

    batch: int
    rate_rps: float
    work: float | None = None
    """Work of one request in the unit of the groups' rates. None is its batch."""

    @property
    def work_ips(self) -> float:
        return self.rate_rps * (self.batch if self.work is None else self.work)


@dataclass(frozen=True, slots=True)
class Cuts:
    """The best cuts."""

    objective: float
    """Utilisation of the busiest group."""
    assignment: Mapping[int, str]
    """Group id by batch size."""
    sizes: Mapping[str, SizeClass]
    """Range of sizes that each group serves, sizes never seen before included. Groups that serve none are left out."""


_Score = tuple[float, float]
"""Utilisation of the busiest group, then the sum of squares: lower is better."""
_NONE: _Score = (math.inf, math.inf)


def route_cuts(groups: Sequence[CutGroup], classes: Sequence[BatchClass]) -> Cuts | None:
    """Returns the best cuts of ``classes`` over ``groups``. Returns None without any capacity.

    Groups without capacity get nothing. A dynamic programme over (group, number of classes placed): groups x classes^2
    steps, exact for any number of both.
    """
    ordered = sorted((group for group in groups if group.capacity > 0), key=lambda group: (group.mu_ips, group.id))
    sizes = sorted(classes, key=lambda each: each.batch)
    if not ordered:
        return None
    if not sizes:
        return Cuts(0.0, {}, {})
    best: list[_Score] = [(0.0, 0.0)] + [_NONE] * len(sizes)
    starts: list[list[int]] = []
    for group in ordered:
        best, taken_from = _with_group(best, [0.0, *itertools.accumulate(group.use(each) for each in sizes)])
        starts.append(taken_from)
    bounds = [len(sizes)]
    for taken_from in reversed(starts):
        bounds.append(taken_from[bounds[-1]])
    bounds.reverse()
    spans = zip(ordered, itertools.pairwise(bounds), strict=True)
    parts = {group.id: sizes[low:high] for group, (low, high) in spans if low < high}
    return Cuts(
        objective=best[-1][0],
        assignment={each.batch: id_ for id_, part in parts.items() for each in part},
        sizes=_ranges(parts),
    )


def _with_group(best: Sequence[_Score], sums: Sequence[float]) -> tuple[list[_Score], list[int]]:
    """Returns, for every j, the best score of the first j classes on the groups so far, and where this group's part
    begins. ``sums`` is the use of this group by the first j classes."""
    scores, starts = list(best), list(range(len(best)))
    for end in range(1, len(best)):
        for start in range(end):
            largest, squares = best[start]
            use = sums[end] - sums[start]
            score = (max(largest, use), squares + use * use)
            if _is_better(score, scores[end]):
                scores[end], starts[end] = score, start
    return scores, starts


def _is_better(one: _Score, other: _Score) -> bool:
    if other[0] < math.inf and abs(one[0] - other[0]) <= TIE * other[0]:
        return one[1] < other[1]
    return one[0] < other[0]


def _ranges(parts: Mapping[str, Sequence[BatchClass]]) -> dict[str, SizeClass]:
    """Returns ranges without gaps: a cut between two known sizes lies right below the larger one, the last has no
    end."""
    ids = list(parts)
    firsts = [1] + [parts[id_][0].batch for id_ in ids[1:]]
    lasts: list[int | None] = [*(first - 1 for first in firsts[1:]), None]
    return {id_: (first, last) for id_, first, last in zip(ids, firsts, lasts, strict=True)}


class Mode(StrEnum):
    """A way in which load arrives."""

    CLOSED_SATURATED = "closed_saturated"
    """Many clients that send their next request after each answer, alternated over the groups by fraction."""
    OPEN = "open"
    """At a given rate, independent of the answers."""


def split_throughput(
    mode: Mode, mu_ips: Sequence[float], fractions: Sequence[float], lambda_ips: float = math.inf
) -> float:
    """Returns the inferences per second of groups with these rates under a split. In the closed loop the group that is
    fullest for its share holds up all others."""
    pairs = [(mu, fraction) for mu, fraction in zip(mu_ips, fractions, strict=True) if fraction > 0]
    if mode is Mode.CLOSED_SATURATED:
        return min((mu / fraction for mu, fraction in pairs), default=0.0)
    return math.fsum(min(mu, fraction * lambda_ips) for mu, fraction in pairs)
