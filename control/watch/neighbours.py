"""The work of replicas that share a device, second by second, for what is learnt of their interference."""

from collections.abc import Iterable, Mapping

from tidegate.autoscaler.profiles.interference import InterferenceLearner, SharedWork, shared_work
from tidegate.deploy.backend import ReplicaStatus
from tidegate.deploy.placement.ledger import WHOLE, model_of
from tidegate.function import Revision
from tidegate.records.replica_sample import ReplicaSample
from tidegate.records.replica_state import ReplicaState

MAX_AGE_S = 3.0
"""Of a neighbour that is not sampled each second, its last work counts for this long."""
_GONE = (ReplicaState.ASLEEP, ReplicaState.STOPPED, ReplicaState.FAILED)


class Neighbours:
    """Gathers the samples of a second, and gives the learner each replica's work with that of its neighbours."""

    __slots__ = ("_fresh", "_works", "learner")

    def __init__(self, learner: InterferenceLearner) -> None:
        self.learner = learner
        self._fresh: dict[str, tuple[ReplicaSample, ReplicaSample]] = {}
        """Samples of this second and those before them, by replica."""
        self._works: dict[str, tuple[float, SharedWork]] = {}
        """Last work by replica, and when it was seen."""

    def measured(self, before: ReplicaSample, after: ReplicaSample) -> None:
        """Takes a sample of a replica that may share its device, and the one before."""
        self._fresh[after.replica] = before, after

    def review(self, replicas: Iterable[ReplicaStatus], revisions: Mapping[str, Revision], now: float) -> None:
        """Learns from the samples since the last call."""
        fresh, self._fresh = self._fresh, {}
        if not fresh:
            return
        sharing = [each for each in replicas if each.share < WHOLE and each.state not in _GONE]
        on_unit: dict[str | tuple[str, int], list[str]] = {}
        for status in sharing:
            for unit in status.devices or [(status.accelerator, unit) for unit in status.units]:
                on_unit.setdefault(unit, []).append(status.id)
            revision = revisions.get(status.revision)
            if status.id in fresh and revision is not None:
                model = model_of(revision.function)
                work = shared_work(*fresh[status.id], status.accelerator, model, status.share)
                if work is not None:
                    self._works[status.id] = now, work
        there = {each.id for each in sharing}
        self._works = {name: kept for name, kept in self._works.items() if name in there and now - kept[0] <= MAX_AGE_S}
        neighbours = {
            name: [each for each in names if each != name]
            for names in on_unit.values()
            for name in names
            if name in fresh
        }
        self.learner.learn({name: work for name, (_, work) in self._works.items()}, neighbours)
