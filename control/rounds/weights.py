"""The round's input to the route table: the revisions of each function, the shares of their groups, and refusals."""

from collections.abc import Callable, Iterable

from tidegate.control.rounds.tracked import TrackedRevision, serving_first
from tidegate.control.state.registry import Deployed
from tidegate.deploy.backend import ReplicaStatus, RevisionFailure
from tidegate.records.replica_state import ReplicaState
from tidegate.records.route_table import FailureKind
from tidegate.traffic.shares import GroupShares
from tidegate.traffic.table import RevisionShare, ServedFunction

FailureOf = Callable[[str], RevisionFailure | None]


class GroupWeights(GroupShares):
    """The shares of the groups of all tracked revisions."""

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
        shares = self.of(tracked.id, tracked.record.function, ready, now)
        refusal = tracked.refusal(here, failure, now)
        return RevisionShare(
            revision=tracked.record.revision,
            percent=tracked.percent,
            tags=tracked.tags,
            shadow_percent=tracked.shadow_percent,
            weights=shares.weights,
            sizes=shares.sizes,
            mu_ips=shares.mu_ips,
            failure=None if refusal is None else refusal.text,
            failure_kind=FailureKind.START_FAILED if refusal is None else refusal.kind,
        )
