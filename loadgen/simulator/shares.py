"""Weights of the simulated traffic manager, from the replicas' measured rates, as in the control process."""

from collections.abc import Callable, Collection, Iterable, Mapping

from tidegate.deploy.backend import ReplicaStatus, RevisionFailure
from tidegate.loadgen.simulator.scenario import Deployed
from tidegate.records.replica_sample import ReplicaSample
from tidegate.records.replica_state import ReplicaState
from tidegate.traffic.table import RevisionShare, ServedFunction
from tidegate.traffic.weights import ServiceRates, Weights, capacities


class SimulatedShares:
    """Measured service rates and published weights of all functions, each with its one revision.

    ``learnt`` returns the autoscaler's rate of a revision's replica on an accelerator at its limit. ``weights`` holds
    the weights in force.
    """

    def __init__(self, learnt: Callable[[str, str], float | None], weights: Weights) -> None:
        self._learnt = learnt
        self._rates = ServiceRates()
        self._weights = weights
        self._last: dict[str, ReplicaSample] = {}

    def measured(self, samples: Iterable[ReplicaSample], there: Collection[str]) -> None:
        """Takes the samples of this second; ``there``: the replicas that exist, sampled or not."""
        for gone in [name for name in self._last if name not in there]:
            del self._last[gone]
        for after in samples:
            before = self._last.get(after.replica)
            if before is not None:
                self._rates.measured(before, after, after.group)
            self._last[after.replica] = after

    def in_flight(self) -> Mapping[str, int]:
        """Returns requests in flight by replica, at the last samples."""
        return {name: sample.in_flight for name, sample in self._last.items()}

    def mu_ips(self, revision: str, accelerator: str) -> float | None:
        learnt = self._learnt(revision, accelerator)
        return self._rates.mu_ips(revision, accelerator) if learnt is None else learnt

    def served(
        self,
        functions: Iterable[Deployed],
        replicas: Iterable[ReplicaStatus],
        failure_of: Callable[[str], RevisionFailure | None],
        now: float,
    ) -> list[ServedFunction]:
        """Returns every function with its revision. One that cannot be started is refused until the next attempt is
        due."""
        ready: dict[str, dict[str, int]] = {}
        serving = set()
        for each in replicas:
            counts = ready.setdefault(each.revision, {})
            counts[each.accelerator] = counts.get(each.accelerator, 0) + (each.state is ReplicaState.READY)
            if each.state in (ReplicaState.READY, ReplicaState.DRAINING):
                serving.add(each.revision)

        def refusal(revision: str) -> str | None:
            failure = failure_of(revision)
            if failure is None or failure.was_ready or revision in serving or now >= failure.not_before:
                return None
            return failure.reason

        return [
            ServedFunction(
                function=deployed.revision.function,
                revisions=(
                    self._share(deployed, ready.get(deployed.revision.id, {}), refusal(deployed.revision.id), now),
                ),
            )
            for deployed in functions
        ]

    def _share(self, deployed: Deployed, ready: Mapping[str, int], refusal: str | None, now: float) -> RevisionShare:
        revision = deployed.revision
        mu = {name: self.mu_ips(revision.id, name) for name in sorted(ready)}
        occupancies = {name: self._rates.occupancy(revision.id, name) for name in ready}
        groups = capacities(revision.function.routing.group_weights, mu, ready, occupancies)
        return RevisionShare(
            revision=revision,
            weights=self._weights.update(revision.id, groups, now),
            mu_ips={name: rate for name, rate in mu.items() if rate is not None},
            failure=refusal,
        )
