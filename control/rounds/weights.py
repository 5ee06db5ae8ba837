"""The round's input to the route table: the revisions of each function, the weights of their groups, and refusals.

Keeps the measured service rates and the published weights; everything else is an argument.
"""

from collections.abc import Callable, Iterable, Mapping

from tidegate.control.rounds.sizes import SizeRoutes
from tidegate.control.rounds.tracked import TrackedRevision, serving_first
from tidegate.control.state.registry import Deployed
from tidegate.deploy.backend import ReplicaStatus, RevisionFailure
from tidegate.records.replica_sample import ReplicaSample
from tidegate.records.replica_state import ReplicaState
from tidegate.records.route_table import FailureKind
from tidegate.traffic.table import RevisionShare, ServedFunction
from tidegate.traffic.weights import ServiceRates, Weights, capacities

LearntRate = Callable[[str, str], float | None]
"""(revision, accelerator) -> inferences per second."""
FailureOf = Callable[[str], RevisionFailure | None]


class GroupWeights:
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

    def forget(self, revision: str) -> None:
        self._rates.forget(revision)
        self._weights.forget(revision)
        if self._sizes is not None:
            self._sizes.forget(revision)

    def served(
        self,
        deployed: Iterable[Deployed],
        tracked: Iterable[TrackedRevision],
        replicas: Iterable[ReplicaStatus],
        failure_of: FailureOf,
        now: float,
    ) -> list[ServedFunction]:
        """Returns each deployed function with its tracked revisions, the serving one first."""
        by_revision: dict[str, list[ReplicaStatus]] = {}
        for status in replicas:
            by_revision.setdefault(status.revision, []).append(status)
        by_function: dict[str, list[TrackedRevision]] = {}
        for each in tracked:
            by_function.setdefault(each.function, []).append(each)
        served = []
        for function in deployed:
            revisions = serving_first(by_function.get(function.name, ()))
            serving = next((each.record for each in revisions if each.percent > 0), function.current)
            shares = [self._share(each, by_revision.get(each.id, []), failure_of(each.id), now) for each in revisions]
            served.append(ServedFunction(function=serving.function, revisions=tuple(shares)))
        return served

    def _share(
        self, tracked: TrackedRevision, here: list[ReplicaStatus], failure: RevisionFailure | None, now: float
    ) -> RevisionShare:
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
        return f"<GroupWeights {self._rates!r}>"
