"""The fleet as decisions see it: the replicas of each revision, counted by accelerator."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from tidegate.autoscaler.measure.observation import AcceleratorRoom, FleetGroup
from tidegate.autoscaler.measure.sampling import ALL_UP_TO, to_sample
from tidegate.records.replica_state import ReplicaState


class ReplicaFacts(Protocol):
    """The facts about a replica that the autoscaler needs; a backend's status has them."""

    @property
    def id(self) -> str: ...
    @property
    def revision(self) -> str: ...
    @property
    def accelerator(self) -> str: ...
    @property
    def state(self) -> ReplicaState: ...
    @property
    def cores(self) -> tuple[int, ...]: ...
    @property
    def threads(self) -> int | None: ...


class CountedFleet:
    """The replicas of all revisions, and the accelerators that they may use."""

    def __init__(self, device_metrics: Callable[[str, str], Mapping[str, float]]) -> None:
        """``device_metrics``: returns the present metrics of the devices of a group, by revision and accelerator."""
        self._device_metrics = device_metrics
        self.by_revision: dict[str, tuple[FleetGroup, ...]] = {}
        self._counted: dict[str, tuple[list[ReplicaFacts], Sequence[AcceleratorRoom]]] = {}
        """Replicas and rooms that the groups were counted from, by revision."""

    def put(self, replicas: Iterable[ReplicaFacts], rooms: Mapping[str, Sequence[AcceleratorRoom]]) -> None:
        """Sets what runs and, for each revision, the accelerators it may use, cheapest first. Replaces all that was set
        before. To be called in each round and when a replica changes state."""
        here: dict[str, list[ReplicaFacts]] = {}
        for replica in replicas:
            here.setdefault(replica.revision, []).append(replica)
        self.by_revision = {
            revision: self._groups(revision, here.get(revision, []), rooms.get(revision, ()))
            for revision in here.keys() | rooms.keys()
        }

    def put_one(self, revision: str, replicas: Iterable[ReplicaFacts], rooms: Sequence[AcceleratorRoom]) -> None:
        """Sets the fleet of one revision as :meth:`put` does; the others stay."""
        self.by_revision[revision] = self._groups(revision, list(replicas), rooms)

    def groups(self, revision: str) -> tuple[FleetGroup, ...]:
        """Returns the fleet of a revision as last set."""
        return self.by_revision.get(revision, ())

    def _groups(
        self, revision: str, here: list[ReplicaFacts], rooms: Sequence[AcceleratorRoom]
    ) -> tuple[FleetGroup, ...]:
        """Returns the identical tuple as before if nothing changed: collectors then repeat no lookup by name."""
        metrics, before = partial(self._device_metrics, revision), self.by_revision.get(revision)
        is_same = before is not None and self._counted.get(revision) == (here, rooms)
        if before is not None and is_same and all(each.metrics == metrics(each.accelerator) for each in before):
            return before
        self._counted[revision] = here, rooms
        counted: dict[str, list[ReplicaFacts]] = {}
        for replica in here:
            counted.setdefault(replica.accelerator, []).append(replica)
        found = fleet_groups(counted, rooms, metrics)
        return before if before == found else found

    def forget(self, revision: str) -> None:
        self.by_revision.pop(revision, None)
        self._counted.pop(revision, None)

    def unsampled(self, tick: int) -> set[str]:
        """Returns the replicas that are not sampled at this tick. A large group is sampled in part, round robin over
        its ready replicas; all other replicas are sampled every time. A replica that does not answer is not retried at
        once: the others of the same sample stand for it, and the next sample is a second away."""
        left_out: set[str] = set()
        for groups in self.by_revision.values():
            for group in groups:
                if len(group.ready) > ALL_UP_TO:
                    left_out |= frozenset(group.ready) - to_sample(group.ready, tick)
        return left_out

    def __repr__(self) -> str:
        return f"<CountedFleet of {len(self.by_revision)} revisions>"


_HERE = (ReplicaState.READY, ReplicaState.STARTING, ReplicaState.DRAINING, ReplicaState.DRAINED)


def cores_of(replica: ReplicaFacts) -> int:
    """Returns the cores that a replica's model server works with; 0 if it is bound to none."""
    cores, threads = len(replica.cores), replica.threads or 0
    return min(cores, threads) if cores and threads else cores or threads


def fleet_groups(
    replicas: Mapping[str, Sequence[ReplicaFacts]],
    rooms: Sequence[AcceleratorRoom],
    metrics: Callable[[str], Mapping[str, float]] = lambda accelerator: {},
) -> tuple[FleetGroup, ...]:
    """Returns groups in the order of ``rooms``. Replicas on an accelerator that is no longer listed form groups at the
    end. ``metrics``: returns the metrics of an accelerator's devices."""
    known = {room.accelerator: room for room in rooms}
    names = [*known, *sorted(replicas.keys() - known.keys())]
    groups = []
    for name in names:
        here = replicas.get(name, ())
        # On an accelerator that it may no longer use every replica is in excess.
        room = known.get(name, AcceleratorRoom(accelerator=name, room=-sum(each.state in _HERE for each in here)))
        groups.append(
            FleetGroup(
                accelerator=name,
                ready=tuple(each.id for each in here if each.state is ReplicaState.READY),
                starting=sum(1 for each in here if each.state is ReplicaState.STARTING),
                draining=sum(1 for each in here if each.state in (ReplicaState.DRAINING, ReplicaState.DRAINED)),
                room=room.room,
                price_per_hour=room.price_per_hour,
                mu_ips=room.mu_ips,
                one_s=room.one_s,
                metrics=metrics(name),
                cores=min((cores_of(each) for each in here if each.state is ReplicaState.READY), default=0),
            )
        )
    return tuple(groups)
