"""Splits a revision's inferences over its groups in proportion to their capacity (SMIF, equation 1).

The paper's equilibrium ``mu_1 / lambda_1 = ... = mu_N / lambda_N`` means equal utilisation. A group's share is
therefore its capacity (service rate of a replica times ready replicas) over the capacity of all. Rates are in
inferences per second.
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
"""Busy time in an interval below which a replica's rate is not measured."""
OCCUPANCY_RATIO = 4.0
"""A group with an occupancy lower than another group's by this factor is limited by that group, as its callers wait
there."""
LIFT = 0.03
"""Part by which such a group counts for more unless it is full, since its measured rate is only a lower bound."""
FULL_SHARE = 0.9
"""Share of its limit at which a replica counts as full."""
STEP = 0.02
"""Deviation of a weight that is published at once, within the bounds of ``NOISE_FACTOR`` and ``MAX_MOVES``."""
NOISE_FACTOR = 5.0
"""A deviation is published at once only if it exceeds the usual change between two observations by this factor."""
MAX_MOVES = 4.0
MOVE_REFILL_S = 20.0
"""Publications at once are a token bucket: ``MAX_MOVES`` in a row, and one more for every ``MOVE_REFILL_S`` seconds."""
FINE_STEP = 0.005
MEAN_S = 10.0
"""Period of the mean that the weights follow otherwise, to within ``FINE_STEP``."""


class Occupancy(NamedTuple):
    """Requests that a busy replica has at a time."""

    requests: float
    """Mean number of requests."""
    limit: int
    """Its slots. 0 is no limit."""

    @property
    def is_full(self) -> bool:
        return 0 < FULL_SHARE * self.limit <= self.requests


@dataclass(frozen=True, slots=True)
class GroupCapacity:
    """The capacity of one group, for a split."""

    id: str
    mu_ips: float | None
    """Service rate of ONE replica. None if it is neither measured nor in a profile."""
    replicas: int
    """Ready replicas."""
    occupancy: Occupancy | None = None
    """None if it is unknown or irrelevant."""


@dataclass(frozen=True, slots=True)
class Split:
    """Shares in the order of the groups."""

    fractions: tuple[float, ...]
    lambdas: tuple[float, ...]
    weights_pct: tuple[int, ...]
    """Whole percentages that sum to 100."""


def split(groups: Sequence[GroupCapacity], lambda_ips: float) -> Split | None:
    """Returns the equilibrium split of ``lambda_ips``. Returns None without capacity (the waiting room holds the
    requests)."""
    capacities = [(group.mu_ips or 0.0) * group.replicas for group in groups]
    total = math.fsum(capacities)
    if total <= 0.0:
        return None
    fractions = tuple(capacity / total for capacity in capacities)
    return Split(fractions, tuple(fraction * lambda_ips for fraction in fractions), _percentages(fractions, capacities))


def _percentages(fractions: Sequence[float], capacities: Sequence[float]) -> tuple[int, ...]:
    """Rounds to whole percents by largest remainder. Ties go to the larger capacity, then to the earlier group."""
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
    """Measured service rates and occupancies: exponentially weighted means per group.

    A rate is inferences over busy seconds. Below the concurrency limit it is a lower bound of a replica's capacity.
    """

    __slots__ = ("_alpha", "_occupancies", "_rates")

    def __init__(self, alpha: float = ALPHA) -> None:
        self._alpha = alpha
        self._rates: dict[tuple[str, str], float] = {}
        self._occupancies: dict[tuple[str, str], Occupancy] = {}

    def measured(self, before: ReplicaSample, after: ReplicaSample, accelerator: str) -> None:
        """Takes in two samples of one life of a replica."""
        inferences, busy_s = after.inferences - before.inferences, after.busy_s - before.busy_s
        if not (math.isfinite(inferences) and math.isfinite(busy_s)) or inferences <= 0 or busy_s < MIN_BUSY_S:
            return
        key, rate = (after.revision, accelerator), inferences / busy_s
        known = self._rates.get(key)
        self._rates[key] = rate if known is None else known + self._alpha * (rate - known)
        occupancy = (after.in_flight_request_s - before.in_flight_request_s) / busy_s
        if math.isfinite(occupancy):
            was = self._occupancies.get(key)
            mean = occupancy if was is None else was.requests + self._alpha * (occupancy - was.requests)
            self._occupancies[key] = Occupancy(mean, after.limit)

    def mu_ips(self, revision: str, accelerator: str) -> float | None:
        """Returns the inferences per second of one busy replica. Returns None before the first measurement."""
        return self._rates.get((revision, accelerator))

    def occupancy(self, revision: str, accelerator: str) -> Occupancy | None:
        """Returns the occupancy of a busy replica. Returns None before the first measurement."""
        return self._occupancies.get((revision, accelerator))

    def forget(self, revision: str) -> None:
        self._rates = {key: rate for key, rate in self._rates.items() if key[0] != revision}
        self._occupancies = {key: each for key, each in self._occupancies.items() if key[0] != revision}

    def __repr__(self) -> str:
        return f"<ServiceRates {self._rates}>"


def capacities(
    by_hand: Mapping[str, float] | None,
    mu_ips: Mapping[str, float | None],
    ready: Mapping[str, int],
    occupancies: Mapping[str, Occupancy | None],
) -> list[GroupCapacity]:
    """Returns the capacity of each group: as measured, or as given by hand.

    A group with a weight by hand counts as able to do exactly that. While none of the groups named by hand is ready,
    the measured capacities count.
    """
    given = by_hand if by_hand != {} else dict.fromkeys(ready, 1.0)
    parts = {name: 0.0 if given is None else given.get(name, 0.0) for name in ready}
    if not any(parts[name] > 0 and count > 0 for name, count in ready.items()):
        return [GroupCapacity(name, rate, ready[name], occupancies.get(name)) for name, rate in mu_ips.items()]
    return [
        GroupCapacity(name, parts[name] / max(1, count), count if parts[name] > 0 else 0)
        for name, count in sorted(ready.items())
    ]


def with_rates(groups: Sequence[GroupCapacity]) -> list[GroupCapacity]:
    """Gives groups without a rate the mean of the known ones, or all the same rate if none is known."""
    known = [group.mu_ips for group in groups if group.mu_ips is not None and group.mu_ips > 0]
    mean = math.fsum(known) / len(known) if known else 1.0
    return [group if group.mu_ips is not None and group.mu_ips > 0 else replace(group, mu_ips=mean) for group in groups]


def lifted(groups: Sequence[GroupCapacity]) -> list[GroupCapacity]:
    """Lets groups that wait for another one count for a little more.

    With a request or two at a time a replica yields less than it can: the round trip of each is part of its time.
    Weights by that yield keep the callers at the other group, and the yield with them. With a little more weight the
    occupancy grows, until the yield is the replica's capacity.
    """
    occupancies = [group.occupancy for group in groups if group.occupancy is not None and group.replicas > 0]
    most = max((occupancy.requests for occupancy in occupancies), default=0.0)
    return [
        replace(group, mu_ips=group.mu_ips * (1.0 + LIFT))
        if group.mu_ips is not None
        and group.occupancy is not None
        and group.occupancy.requests * OCCUPANCY_RATIO < most
        and not group.occupancy.is_full
        else group
        for group in groups
    ]


class Weights:
    """The published fractions per revision.

    They change at once with the groups and after a large step, and after a smaller one if a mean over ``MEAN_S``
    confirms it. A table for every fluctuation is useless, but a lasting error holds up all callers if weights alone
    decide.
    """

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[str, _Published] = {}

    def update(self, revision: str, groups: Sequence[GroupCapacity], now: float) -> Mapping[str, float]:
        """Returns fractions by group id, from ready replicas. Empty if none is ready."""
        shares = split(with_rates(lifted(groups)), 1.0)
        if shares is None:
            self._of.pop(revision, None)
            return {}
        fresh = {group.id: fraction for group, fraction in zip(groups, shares.fractions, strict=True)}
        known = self._of.get(revision)
        if known is None:
            known = self._of[revision] = _Published(fresh, now)
        else:
            known.observe(fresh, now)
        return known.fractions

    def published(self, revision: str) -> Mapping[str, float]:
        """Returns the fractions in force. Empty if none is ready."""
        known = self._of.get(revision)
        return {} if known is None else known.fractions

    def forget(self, revision: str) -> None:
        self._of.pop(revision, None)

    def __repr__(self) -> str:
        return f"<Weights { {revision: dict(known.fractions) for revision, known in self._of.items()} }>"


class _Published:
    """The fractions of one revision, and the observations since their publication."""

    __slots__ = ("_latest", "_moves", "_noise", "_observations", "_observed_at", "_since", "_sums", "fractions")

    def __init__(self, fractions: Mapping[str, float], now: float) -> None:
        self._latest = fractions
        self._observed_at = now
        self._noise = 0.0
        """Usual change of a weight between two observations: a mean of about ten, with changes capped at ``STEP``."""
        self._moves = MAX_MOVES
        self._publish(fractions, now)

    def _publish(self, fractions: Mapping[str, float], now: float) -> None:
        self.fractions = fractions
        self._since = now
        self._sums = dict.fromkeys(fractions, 0.0)
        self._observations = 0

    def observe(self, fresh: Mapping[str, float], now: float) -> None:
        latest, self._latest = self._latest, fresh
        self._moves = min(MAX_MOVES, self._moves + (now - self._observed_at) / MOVE_REFILL_S)
        self._observed_at = now
        if _has_group_change(fresh, self.fractions):
            self._publish(fresh, now)
            return
        self._noise += 0.1 * (min(STEP, _distance(fresh, latest)) - self._noise)
        if self._moves >= 1.0 and _distance(fresh, self.fractions) >= max(STEP, NOISE_FACTOR * self._noise) - TIE:
            self._moves -= 1.0
            self._publish(fresh, now)
            return
        for name, fraction in fresh.items():
            self._sums[name] += fraction
        self._observations += 1
        if now - self._since >= MEAN_S:
            mean = {name: total / self._observations for name, total in self._sums.items()}
            is_off = _distance(mean, self.fractions) >= FINE_STEP - TIE
            self._publish(mean if is_off else self.fractions, now)


def _has_group_change(fresh: Mapping[str, float], known: Mapping[str, float]) -> bool:
    """Returns True if a group has appeared, gone, died or woken."""
    return fresh.keys() != known.keys() or any((fresh[name] > 0.0) != (share > 0.0) for name, share in known.items())


def _distance(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    return max(abs(one[name] - share) for name, share in other.items())
