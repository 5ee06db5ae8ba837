"""How a revision's inferences are split over its groups: in proportion to what each group can do (SMIF, equation 1).

The paper's equilibrium ``mu_1 / lambda_1 = ... = mu_N / lambda_N`` means equal utilisation, so a group's share is its
capacity (service rate of a replica times ready replicas) over the capacity of all. Rates are in inferences per second.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tidegate.records.replica_sample import ReplicaSample

TIE = 1e-9
"""Remainders closer than this are equal."""
ALPHA = 0.3
"""Smoothing of measured service rates: share of the newest measurement."""
MIN_BUSY_S = 0.02
"""A replica that was busy for less than this in an interval says nothing about its rate."""
LITTLE = 4.0
"""A group whose replicas have so many times fewer requests than those of another one waits for that one,"""
LIFT = 0.03
"""and unless it is full its rate is a bound from below, and counts for so much more."""
FULL = 0.9
"""From this share of its limit on a replica is full."""
STEP = 0.02
"""A weight that is off by this much is published at once,"""
FLICKER = 5.0
"""if that is so many times as much as weights move from one look to the next anyway,"""
MOVES = 4.0
MOVE_S = 20.0
"""and so often in a row, and once more for every so many seconds."""
FINE_STEP = 0.005
SETTLE_S = 10.0
"""Otherwise weights follow the mean of so many seconds, to within the smaller step."""


class Company(NamedTuple):
    """What a busy replica has at a time."""

    occupancy: float
    """Mean number of requests."""
    limit: int
    """Its slots; 0: no limit."""

    @property
    def is_full(self) -> bool:
        return 0 < FULL * self.limit <= self.occupancy


@dataclass(frozen=True, slots=True)
class GroupCapacity:
    """What a split needs of one group."""

    id: str
    mu_ips: float | None
    """Service rate of ONE replica; None: neither measured nor in a profile."""
    replicas: int
    """Ready replicas."""
    company: Company | None = None
    """None: not known, or of no concern."""


@dataclass(frozen=True, slots=True)
class Split:
    """Shares in the order of the groups."""

    fractions: tuple[float, ...]
    lambdas: tuple[float, ...]
    weights_pct: tuple[int, ...]
    """Whole percentages that sum to 100."""


def split(groups: Sequence[GroupCapacity], lambda_ips: float) -> Split | None:
    """The equilibrium split of ``lambda_ips``; None without capacity (the waiting room holds the requests)."""
    capacities = [(group.mu_ips or 0.0) * group.replicas for group in groups]
    total = math.fsum(capacities)
    if total <= 0.0:
        return None
    fractions = tuple(capacity / total for capacity in capacities)
    return Split(fractions, tuple(fraction * lambda_ips for fraction in fractions), _percentages(fractions, capacities))


def _percentages(fractions: Sequence[float], capacities: Sequence[float]) -> tuple[int, ...]:
    """Largest remainder; ties go to the larger capacity, then to the earlier group."""
    exact = [100.0 * fraction for fraction in fractions]
    whole = [math.floor(value + TIE) for value in exact]
    left = 100 - sum(whole)
    remainders = [max(0.0, value - floor) for value, floor in zip(exact, whole, strict=True)]
    open_to = [index for index, capacity in enumerate(capacities) if capacity > 0.0]
    while left > 0 and open_to:
        best = open_to[0]
        for index in open_to[1:]:
            ahead = remainders[index] - remainders[best]
            if ahead > TIE or (abs(ahead) <= TIE and capacities[index] > capacities[best] + TIE):
                best = index
        whole[best] += 1
        open_to.remove(best)
        left -= 1
    return tuple(whole)


class ServiceRates:
    """Measured service rates: one exponentially weighted mean per group, of inferences over busy seconds; and one of
    the requests that a replica had meanwhile.

    Below the concurrency limit this is a lower bound of what a replica could do.
    """

    __slots__ = ("_alpha", "_companies", "_rates")

    def __init__(self, alpha: float = ALPHA) -> None:
        self._alpha = alpha
        self._rates: dict[tuple[str, str], float] = {}
        self._companies: dict[tuple[str, str], Company] = {}

    def measured(self, before: ReplicaSample, after: ReplicaSample, accelerator: str) -> None:
        """Two samples of one life of a replica: what it did while it was busy."""
        inferences, busy_s = after.inferences - before.inferences, after.busy_s - before.busy_s
        if not (math.isfinite(inferences) and math.isfinite(busy_s)) or inferences <= 0 or busy_s < MIN_BUSY_S:
            return
        key, rate = (after.revision, accelerator), inferences / busy_s
        known = self._rates.get(key)
        self._rates[key] = rate if known is None else known + self._alpha * (rate - known)
        occupancy = (after.in_flight_request_s - before.in_flight_request_s) / busy_s
        if math.isfinite(occupancy):
            was = self._companies.get(key)
            mean = occupancy if was is None else was.occupancy + self._alpha * (occupancy - was.occupancy)
            self._companies[key] = Company(mean, after.limit)

    def mu_ips(self, revision: str, accelerator: str) -> float | None:
        """Inferences per second of one busy replica; None before the first measurement."""
        return self._rates.get((revision, accelerator))

    def company(self, revision: str, accelerator: str) -> Company | None:
        """What a busy replica has at a time; None before the first measurement."""
        return self._companies.get((revision, accelerator))

    def forget(self, revision: str) -> None:
        self._rates = {key: rate for key, rate in self._rates.items() if key[0] != revision}
        self._companies = {key: each for key, each in self._companies.items() if key[0] != revision}

    def __repr__(self) -> str:
        return f"<ServiceRates {self._rates}>"


def capacities(
    by_hand: Mapping[str, float] | None,
    mu_ips: Mapping[str, float | None],
    ready: Mapping[str, int],
    companies: Mapping[str, Company | None],
) -> list[GroupCapacity]:
    """What each group can do, or, given by hand, is to do: then it counts as able to do just that. While none of the
    groups that were named is ready, it is what they can do."""
    given = by_hand if by_hand != {} else dict.fromkeys(ready, 1.0)
    parts = {name: 0.0 if given is None else given.get(name, 0.0) for name in ready}
    if not any(parts[name] > 0 and count > 0 for name, count in ready.items()):
        return [GroupCapacity(name, rate, ready[name], companies.get(name)) for name, rate in mu_ips.items()]
    return [
        GroupCapacity(name, parts[name] / max(1, count), count if parts[name] > 0 else 0)
        for name, count in sorted(ready.items())
    ]


def filled(groups: Sequence[GroupCapacity]) -> list[GroupCapacity]:
    """Groups without a rate get the mean of the known ones, or all the same rate when none is known."""
    known = [group.mu_ips for group in groups if group.mu_ips is not None and group.mu_ips > 0]
    mean = math.fsum(known) / len(known) if known else 1.0
    return [group if group.mu_ips is not None and group.mu_ips > 0 else replace(group, mu_ips=mean) for group in groups]


def lifted(groups: Sequence[GroupCapacity]) -> list[GroupCapacity]:
    """Groups that wait for another one count for a little more.

    With a request or two at a time a replica yields less than it can: the way there and back of each is part of its
    time. Weights by that yield keep the callers where they are, at the other group, and the yield with them. With a
    little more the company grows, until the yield is what the replica can do.
    """
    companies = [group.company for group in groups if group.company is not None and group.replicas > 0]
    most = max((company.occupancy for company in companies), default=0.0)
    return [
        replace(group, mu_ips=group.mu_ips * (1.0 + LIFT))
        if group.mu_ips is not None
        and group.company is not None
        and group.company.occupancy * LITTLE < most
        and not group.company.is_full
        else group
        for group in groups
    ]


class Weights:
    """The published fractions per revision. They change at once with the groups and by a step, and by less when a mean
    over ``SETTLE_S`` says so: a table for every flicker helps nobody, but an error that stays holds up all callers
    where weights alone decide."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[str, _Published] = {}

    def update(self, revision: str, groups: Sequence[GroupCapacity], now: float) -> Mapping[str, float]:
        """Fractions by group id, from ready replicas; empty when none is ready."""
        shares = split(filled(lifted(groups)), 1.0)
        if shares is None:
            self._of.pop(revision, None)
            return {}
        fresh = {group.id: fraction for group, fraction in zip(groups, shares.fractions, strict=True)}
        known = self._of.get(revision)
        if known is None:
            known = self._of[revision] = _Published(fresh, now)
        else:
            known.look(fresh, now)
        return known.fractions

    def published(self, revision: str) -> Mapping[str, float]:
        """The fractions in force; empty when none is ready."""
        known = self._of.get(revision)
        return {} if known is None else known.fractions

    def forget(self, revision: str) -> None:
        self._of.pop(revision, None)

    def __repr__(self) -> str:
        return f"<Weights { {revision: dict(known.fractions) for revision, known in self._of.items()} }>"


class _Published:
    """The fractions of one revision, and what the looks since then would have them be."""

    __slots__ = ("_flicker", "_latest", "_looked_at", "_looks", "_moves", "_since", "_sums", "fractions")

    def __init__(self, fractions: Mapping[str, float], now: float) -> None:
        self._latest = fractions
        self._looked_at = now
        self._flicker = 0.0
        """How much a weight moves from one look to the next: the mean of some ten, in which a move of a step and one of
        more are the same."""
        self._moves = MOVES
        self._publish(fractions, now)

    def _publish(self, fractions: Mapping[str, float], now: float) -> None:
        self.fractions = fractions
        self._since = now
        self._sums = dict.fromkeys(fractions, 0.0)
        self._looks = 0

    def look(self, fresh: Mapping[str, float], now: float) -> None:
        latest, self._latest = self._latest, fresh
        self._moves = min(MOVES, self._moves + (now - self._looked_at) / MOVE_S)
        self._looked_at = now
        if _are_other_groups(fresh, self.fractions):
            self._publish(fresh, now)
            return
        self._flicker += 0.1 * (min(STEP, _apart(fresh, latest)) - self._flicker)
        if self._moves >= 1.0 and _apart(fresh, self.fractions) >= max(STEP, FLICKER * self._flicker) - TIE:
            self._moves -= 1.0
            self._publish(fresh, now)
            return
        for name, fraction in fresh.items():
            self._sums[name] += fraction
        self._looks += 1
        if now - self._since >= SETTLE_S:
            mean = {name: total / self._looks for name, total in self._sums.items()}
            is_off = _apart(mean, self.fractions) >= FINE_STEP - TIE
            self._publish(mean if is_off else self.fractions, now)


def _are_other_groups(fresh: Mapping[str, float], known: Mapping[str, float]) -> bool:
    """Whether a group has appeared, gone, died or woken."""
    return fresh.keys() != known.keys() or any((fresh[name] > 0.0) != (share > 0.0) for name, share in known.items())


def _apart(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    return max(abs(one[name] - share) for name, share in other.items())
