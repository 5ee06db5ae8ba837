"""Shares of the simulated traffic manager: the product's own, over the samples of each second."""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping

from tidegate.deploy.backend import ReplicaStatus, RevisionFailure
from tidegate.loadgen.simulator.scenario import Deployed
from tidegate.records.gateway_sample import GatewaySample
from tidegate.records.replica_sample import ReplicaSample
from tidegate.records.replica_state import ReplicaState
from tidegate.traffic.shares import GroupShares
from tidegate.traffic.size_routes import WINDOW_S
from tidegate.traffic.table import RevisionShare, ServedFunction


class RecentSizes:
    """Arrivals by size of the last seconds (:class:`tidegate.traffic.size_routes.Arrivals`)."""

    __slots__ = ("_last", "_slices")

    def __init__(self) -> None:
        self._last: dict[str, dict[int, int]] = {}
        self._slices: dict[str, deque[tuple[float, dict[int, int]]]] = {}

    def record(self, sample: GatewaySample, now: float) -> None:
        """Takes the gateway's sample of this second."""
        for demand in sample.demands:
            counts, before = dict(demand.sizes), self._last.get(demand.revision, {})
            self._last[demand.revision] = counts
            gained = {index: count - before.get(index, 0) for index, count in counts.items()}
            kept = self._slices.setdefault(demand.revision, deque())
            kept.append((now, {index: count for index, count in gained.items() if count > 0}))
            while kept[0][0] <= now - WINDOW_S:
                kept.popleft()

    def sizes(self, revision: str, since: float) -> Mapping[int, int]:
        found: dict[int, int] = {}
        for at, counts in self._slices.get(revision, ()):
            if at > since:
                for index, count in counts.items():
                    found[index] = found.get(index, 0) + count
        return found


class SimulatedShares:
    """The shares of all functions, each with its one revision."""

    def __init__(self, shares: GroupShares) -> None:
        self._shares = shares
        self._last: dict[str, ReplicaSample] = {}

    def measured(self, samples: Iterable[ReplicaSample], there: Collection[str]) -> None:
        """Takes the samples of this second; ``there``: the replicas that exist, sampled or not."""
        for gone in [name for name in self._last if name not in there]:
            del self._last[gone]
        for after in samples:
            before = self._last.get(after.replica)
            if before is not None:
                self._shares.measured(before, after, after.group)
            self._last[after.replica] = after

    def in_flight(self) -> Mapping[str, int]:
        """Returns requests in flight by replica, at the last samples."""
        return {name: sample.in_flight for name, sample in self._last.items()}

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
        shares = self._shares.of(revision.id, revision.function, ready, now)
        return RevisionShare(
            revision=revision,
            weights=shares.weights,
            sizes=shares.sizes,
            mu_ips=shares.mu_ips,
            failure=refusal,
        )
