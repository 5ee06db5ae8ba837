"""Shares of the groups of each revision: measured service rates, published weights and size cuts.

The control process and the simulator both use this; everything but rates, weights and cuts is an argument.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from tidegate.function import Function
from tidegate.records.replica_sample import ReplicaSample
from tidegate.traffic.size_cuts import SizeClass
from tidegate.traffic.size_routes import SizeRoutes
from tidegate.traffic.weights import ServiceRates, Weights, capacities

LearntRate = Callable[[str, str], float | None]
"""(revision, accelerator) -> inferences per second."""


class Shares(NamedTuple):
    """The shares of one revision's groups, by accelerator."""

    weights: Mapping[str, float]
    """Fractions of the inferences; empty if no replica is ready."""
    sizes: Mapping[str, SizeClass]
    """Request sizes that a group serves; empty: all groups serve all."""
    mu_ips: Mapping[str, float]
    """Rates of one replica, as far as they are known."""


class GroupShares:
    """Service rates and published weights of the groups of all revisions.

    ``learnt``: the autoscaler's rate of a replica at its limit. While it is not known, the rate of a busy replica
    counts. ``sizes``: the request sizes that a group serves; None: all. ``weights``: the weights in force.
    """

    def __init__(
        self,
        learnt: LearntRate = lambda revision, accelerator: None,
        sizes: SizeRoutes | None = None,
        weights: Weights | None = None,
    ) -> None:
        self._learnt = learnt
        self._sizes = sizes
        self._rates = ServiceRates()
        self._weights = Weights() if weights is None else weights

    def measured(self, before: ReplicaSample, after: ReplicaSample, accelerator: str) -> None:
        """Takes two samples of one incarnation of a replica: its rate while it was busy."""
        self._rates.measured(before, after, accelerator)

    def mu_ips(self, revision: str, accelerator: str) -> float | None:
        """Returns the inferences per second of one replica; None before the first measurement. A rate measured here is
        a lower bound if a replica has more than one slot."""
        learnt = self._learnt(revision, accelerator)
        return self._rates.mu_ips(revision, accelerator) if learnt is None else learnt

    def weights(self, revision: str) -> Mapping[str, float]:
        """Returns the fractions of a revision's inferences in force, by accelerator; empty if no replica is ready."""
        return self._weights.published(revision)

    def of(self, revision: str, function: Function, ready: Mapping[str, int], now: float) -> Shares:
        """Returns the shares at ``now``. ``ready``: ready replicas of each group that has replicas."""
        mu = {name: self.mu_ips(revision, name) for name in sorted(ready)}
        choice = None if self._sizes is None else self._sizes.of(revision, function, ready, mu, now)
        mixed = mu if choice is None else {**mu, **choice.mu_ips}
        occupancies = {name: self._rates.occupancy(revision, name) for name in ready}
        groups = capacities(function.routing.group_weights, mixed, ready, occupancies)
        weights = self._weights.update(revision, groups, now)
        known = {name: rate for name, rate in mu.items() if rate is not None}
        return Shares(weights, {} if choice is None else choice.sizes, known)

    def forget(self, revision: str) -> None:
        self._rates.forget(revision)
        self._weights.forget(revision)
        if self._sizes is not None:
            self._sizes.forget(revision)

    def __repr__(self) -> str:
        return f"<GroupShares {self._rates!r}>"
