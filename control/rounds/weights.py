"""What the round tells the traffic manager: which revisions serve, with which weights, and what is refused.

Keeps the learnt service rates and the published weights; everything else is an argument.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from tidegate.control.rounds.sizes import SizeRoutes
from tidegate.control.rounds.tracked import TrackedRevision
from tidegate.control.state.registry import Deployed
from tidegate.control.views.views import Role
from tidegate.records.replica_sample import ReplicaSample
from tidegate.records.replica_state import ReplicaState
from tidegate.records.route_table import FailureKind

if TYPE_CHECKING:
    from tidegate.deploy.backend import ReplicaStatus, RevisionFailure
    from tidegate.traffic.table import RevisionShare, ServedFunction

LearntRate = Callable[[str, str], float | None]
"""(revision, accelerator) -> inferences per second."""
FailureOf = Callable[[str], "RevisionFailure | None"]


class Shares:
    """Learnt rates and published weights of all revisions. ``learnt``: the rate of a revision's replica on an
    accelerator at its limit, by the autoscaler; while it is not known, what a busy replica has done counts.
    ``sizes``: which sizes of requests a group serves; None: all."""

    def __init__(
        self, learnt: LearntRate = lambda revision, accelerator: None, sizes: SizeRoutes | None = None
    ) -> None:
        from tidegate.traffic.weights import ServiceRates, Weights

        self._learnt = learnt
        self._sizes = sizes
        self._rates = ServiceRates()
        self._weights = Weights()

    def measured(self, before: ReplicaSample, after: ReplicaSample, accelerator: str) -> None:
        """Two samples of one life of a replica: what it did while it was busy."""
        self._rates.measured(before, after, accelerator)

    def mu_ips(self, revision: str, accelerator: str) -> float | None:
        """Inferences per second of one replica; None before the first measurement. Our own figure is a lower bound
        where a replica has more than one slot."""
        learnt = self._learnt(revision, accelerator)
        return self._rates.mu_ips(revision, accelerator) if learnt is None else learnt

    def weights(self, revision: str) -> Mapping[str, float]:
        """The fractions of a revision's inferences in force, by accelerator; empty: none is ready."""
        return self._weights.published(revision)

    def forget(self, revision: str) -> None:
        self._rates.forget(revision)
        self._weights.forget(revision)
        if self._sizes is not None:
            self._sizes.forget(revision)

    def served(
        self,
        deployed: Iterable[Deployed],
        tracked: Iterable[TrackedRevision],
        replicas: "Iterable[ReplicaStatus]",
        failure_of: FailureOf,
        now: float,
    ) -> "list[ServedFunction]":
        """Every deployed function with the revisions that something is left of, the serving one first."""
        from tidegate.traffic.table import ServedFunction

        by_revision: dict[str, list[ReplicaStatus]] = {}
        for status in replicas:
            by_revision.setdefault(status.revision, []).append(status)
        by_function: dict[str, list[TrackedRevision]] = {}
        for each in tracked:
            by_function.setdefault(each.function, []).append(each)
        served = []
        for function in deployed:
            revisions = sorted(by_function.get(function.name, ()), key=_serving_first)
            serving = next((each.record for each in revisions if each.percent > 0), function.current)
            shares = [self._share(each, by_revision.get(each.id, []), failure_of(each.id), now) for each in revisions]
            served.append(ServedFunction(function=serving.function, revisions=tuple(shares)))
        return served

    def _share(
        self, tracked: TrackedRevision, here: "list[ReplicaStatus]", failure: "RevisionFailure | None", now: float
    ) -> "RevisionShare":
        from tidegate.traffic.table import RevisionShare
        from tidegate.traffic.weights import capacities

        ready: dict[str, int] = {}
        for each in here:
            ready[each.accelerator] = ready.get(each.accelerator, 0) + (each.state is ReplicaState.READY)
        mu = {name: self.mu_ips(tracked.id, name) for name in sorted(ready)}
        function = tracked.record.function
        choice = None if self._sizes is None else self._sizes.of(tracked.id, function, ready, mu, now)
        mixed = mu if choice is None else {**mu, **choice.mu_ips}
        occupancies = {name: self._rates.occupancy(tracked.id, name) for name in ready}
        groups = capacities(function.routing.group_weights, mixed, ready, occupancies)
        weights = self._weights.update(tracked.id, groups, now)
        refusal = tracked.refusal(here, failure, now)
        return RevisionShare(
            revision=tracked.record.revision,
            percent=tracked.percent,
            tags=tracked.tags,
            shadow_percent=tracked.shadow_percent,
            weights=weights,
            sizes={} if choice is None else choice.sizes,
            mu_ips={name: rate for name, rate in mu.items() if rate is not None},
            failure=None if refusal is None else refusal.text,
            failure_kind=FailureKind.START_FAILED if refusal is None else refusal.kind,
        )

    def __repr__(self) -> str:
        return f"<Shares {self._rates!r}>"


def _serving_first(tracked: TrackedRevision) -> tuple[bool, float, int]:
    """The one with most traffic speaks for the function; a candidate does not before it serves."""
    return (tracked.role is not Role.SERVING, -tracked.percent, -tracked.record.number)
