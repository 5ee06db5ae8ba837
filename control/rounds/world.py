"""The state that a round works on: deployed functions, tracked revisions, replicas and their last samples. No IO.

Each revision that is deployed, or has replicas left, is *tracked* in a role (``tidegate.control.rounds.roles``). Its
roles follow the registry when :meth:`World.sync` is called. A listener is called for each revision that comes or goes.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from tidegate.control.rounds.handover import PlaceHandovers, less_held
from tidegate.control.rounds.roles import traffic_split
from tidegate.control.rounds.tracked import TrackedRevision
from tidegate.control.state.registry import Registry
from tidegate.deploy.backend import ReplicaStatus, RevisionFailure
from tidegate.deploy.placement.ledger import Accelerator, Room
from tidegate.deploy.revocation import Revocations
from tidegate.function import Function, Revision
from tidegate.records.replica_sample import ReplicaSample
from tidegate.records.replica_state import ReplicaState
from tidegate.records.roles import Role

_SAMPLED = (ReplicaState.READY, ReplicaState.DRAINING)


class BackendState(Protocol):
    """The part of a backend that answers from memory and reports changes."""

    def replicas(self) -> tuple[ReplicaStatus, ...]: ...

    def devices(self) -> tuple[Accelerator, ...]: ...

    def room(self, revision: Revision) -> Mapping[str, Room]: ...

    def failure(self, revision_id: str) -> RevisionFailure | None: ...

    def sleep_refusal(self, accelerator: Accelerator) -> str | None: ...

    def watch(self, listener: Callable[[ReplicaStatus], None]) -> Callable[[], None]: ...


class RevisionListener(Protocol):
    """A component that keeps something for each tracked revision."""

    def deployed(self, functions: Iterable[Function]) -> None:
        """These functions are deployed now; their new revisions are tracked next."""
        ...

    def tracked(self, tracked: TrackedRevision, *, fresh: bool, ready: int) -> None:
        """A revision is tracked from now on. ``fresh``: it was just deployed; False: an earlier process knew it.
        ``ready``: its ready replicas."""
        ...

    def forgotten(self, revision: str) -> None:
        """Neither a replica nor a role of the revision is left."""
        ...

    def deleted(self, function: str) -> None:
        """The function was deleted, and none of its revisions is tracked. May be called again."""
        ...


class ReplicaIndex:
    """The backend's replicas by revision: :meth:`count` reads all of them, :meth:`note` takes a change.

    Each plan, start and view needs a few replicas out of thousands. The backend reports each change as it happens
    (``Backend.watch``), so the index always equals ``Backend.replicas()``.
    """

    __slots__ = ("_found", "_revisions")

    def __init__(self) -> None:
        self._revisions: dict[str, dict[str, ReplicaStatus]] = {}
        self._found: dict[str, tuple[ReplicaStatus, ...]] = {}
        """Results of :meth:`of`, each until the revision changes."""

    def count(self, replicas: Iterable[ReplicaStatus]) -> None:
        self._revisions, self._found = {}, {}
        for status in replicas:
            self._revisions.setdefault(status.revision, {})[status.id] = status

    def state(self, status: ReplicaStatus) -> ReplicaState | None:
        """Returns the last noted state of a replica; None if it was never noted."""
        known = self._revisions.get(status.revision, {}).get(status.id)
        return None if known is None else known.state

    def note(self, status: ReplicaStatus) -> None:
        """Takes a change of a replica; ``stopped`` is the last status of each."""
        self._found.pop(status.revision, None)
        if status.state is not ReplicaState.STOPPED:
            self._revisions.setdefault(status.revision, {})[status.id] = status
        elif (here := self._revisions.get(status.revision)) is not None:
            here.pop(status.id, None)

    def of(self, revision: str) -> Sequence[ReplicaStatus]:
        """Returns a revision's replicas in order of creation."""
        found = self._found.get(revision)
        if found is None:
            found = self._found[revision] = tuple(self._revisions.get(revision, {}).values())
        return found

    def ready(self, revision: str) -> int:
        return sum(each.state is ReplicaState.READY for each in self.of(revision))

    def __repr__(self) -> str:
        return f"<ReplicaIndex {len(self._revisions)} revisions>"


class World:
    """Deployed functions, replicas, and the role of each revision."""

    def __init__(self, registry: Registry, backend: BackendState) -> None:
        self.registry = registry
        self.backend = backend
        self.handovers = PlaceHandovers()
        self.revocations = Revocations()
        self.samples: dict[str, ReplicaSample] = {}
        """The last sample of each replica."""
        self.sampled: dict[str, ReplicaStatus] = {}
        """The sampled replicas, as they were when this second's samples were requested."""
        self._index = ReplicaIndex()
        self._tracked: dict[str, TrackedRevision] = {}
        self._of_function: dict[str, dict[str, TrackedRevision]] = {}
        self._listeners: list[RevisionListener] = []

    def listen(self, listener: RevisionListener) -> None:
        """Calls ``listener`` for revisions that come and go from now on."""
        self._listeners.append(listener)

    # --- replicas ---

    def adopt(self) -> None:
        """Takes up what is deployed and the replicas that an earlier process left."""
        replicas = self.backend.replicas()
        self._index.count(replicas)
        for status in replicas:
            if (record := self.registry.revision(status.revision)) is not None and status.revision not in self._tracked:
                self._track(TrackedRevision(record=record, role=Role.RETIRED), fresh=False)
        self.sync(restart=True)

    def refresh(self) -> None:
        """Reads all replicas from the backend."""
        self._index.count(self.backend.replicas())

    def note(self, status: ReplicaStatus) -> bool:
        """Takes a change of one replica. Returns whether its state is another."""
        before = self._index.state(status)
        self._index.note(status)
        return before is not status.state

    def drop_samples(self, replica: str) -> None:
        self.samples.pop(replica, None)
        self.sampled.pop(replica, None)

    def sample_replicas(self) -> Mapping[str, ReplicaStatus]:
        """Selects the replicas that are sampled in this second, and returns them."""
        self.sampled = {each.id: each for each in self.to_sample()}
        return self.sampled

    def to_sample(self) -> Sequence[ReplicaStatus]:
        """Returns the replicas whose queue_proxy can be asked now."""
        return [each for each in self.backend.replicas() if each.state in _SAMPLED]

    def replicas_of(self, revision: str) -> Sequence[ReplicaStatus]:
        """Returns a revision's replicas in order of creation."""
        return self._index.of(revision)

    def is_ready(self, revision: str) -> bool:
        """Returns whether a replica of the revision is ready."""
        return self._index.ready(revision) > 0

    def lost(self, revision: str) -> int:
        """Returns the revision's replicas that broke after they had been ready and have not been replaced."""
        return sum(each.is_lost for each in self._index.of(revision))

    def has_place(self, revision: str) -> bool:
        """Returns whether a replica of the revision is starting or ready."""
        return any(each.is_wanted for each in self._index.of(revision))

    # --- places ---

    def free_places(self, tracked: TrackedRevision, now: float) -> Mapping[str, Room]:
        """Returns the free places for a revision by accelerator, without those that are held for other functions."""
        there, holds = self.backend.room(tracked.record.revision), self.handovers.holds(now)
        if not holds:
            return there
        found = dict(there)
        for name, hold in holds.items():
            if name == tracked.function or not hold.accelerators & found.keys():
                continue
            for holder in self.tracked(name)[:1]:
                theirs = self.backend.room(holder.record.revision)
                for accelerator in hold.accelerators & found.keys() & theirs.keys():
                    found[accelerator] = less_held(found[accelerator], theirs[accelerator].free)
        return found

    def places(self, tracked: TrackedRevision, now: float) -> Mapping[str, Room]:
        """Returns the places in which the revision may start now: :meth:`free_places` without the barred kinds."""
        here = self._index.of(tracked.id)
        return self.revocations.without_barred(tracked.id, here, self.free_places(tracked, now), now)

    # --- revisions ---

    def sync(self, *, restart: bool = False, only: str | None = None) -> None:
        """Brings the roles in line with the registry. ``restart``: the revisions were known before this process.
        ``only``: those of one function."""
        wanted = set()
        changed = None if only is None else self.registry.get(only)
        if only is None or (changed is not None and changed.current.function.is_pipeline):
            functions = [deployed.current.function for deployed in self.registry.all()]
            for listener in self._listeners:
                listener.deployed(functions)
        for deployed in self.registry.all() if only is None else filter(None, (self.registry.get(only),)):
            for role in traffic_split(deployed, self.handovers.promoted_early(deployed.name), self.is_ready):
                id_ = role.record.revision.id
                tracked = self._tracked.get(id_)
                if tracked is None:
                    tracked = TrackedRevision(record=role.record, role=role.role)
                    tracked.assume(role)
                    proven = deployed.proven and role.role is Role.SERVING
                    sleeps = role.role is Role.SERVING and not role.percent
                    self._track(tracked, fresh=not (sleeps or (restart and proven)))
                tracked.assume(role)
                wanted.add(id_)
        for tracked in (self._tracked if only is None else self._of_function.get(only, {})).values():
            if tracked.id not in wanted:
                tracked.retire()

    @property
    def revisions(self) -> Collection[TrackedRevision]:
        """All tracked revisions."""
        return self._tracked.values()

    def tracked(self, function: str) -> tuple[TrackedRevision, ...]:
        """Returns the tracked revisions of a function, newest first."""
        found = self._of_function.get(function, {}).values()
        return tuple(sorted(found, key=lambda each: -each.record.number))

    def find(self, revision: str) -> TrackedRevision | None:
        """Returns a tracked revision by id; None if it is not tracked."""
        return self._tracked.get(revision)

    def forget(self, tracked: TrackedRevision) -> None:
        """Ends the tracking of a revision that has no replicas left."""
        del self._tracked[tracked.id], self._of_function[tracked.function][tracked.id]
        if not self._of_function[tracked.function]:
            del self._of_function[tracked.function]
        self.handovers.forget(tracked.id)
        self.revocations.forget(tracked.id)
        for listener in self._listeners:
            listener.forgotten(tracked.id)

    def deleted(self) -> list[str]:
        """Returns the deleted functions of which no revision is tracked any more, and reports them to the listeners."""
        gone = [name for name in self.registry.deleted() if name not in self._of_function]
        for name in gone:
            for listener in self._listeners:
                listener.deleted(name)
        return gone

    def _track(self, tracked: TrackedRevision, *, fresh: bool) -> None:
        for listener in self._listeners:
            listener.tracked(tracked, fresh=fresh, ready=self._index.ready(tracked.id))
        self._tracked[tracked.id] = self._of_function.setdefault(tracked.function, {})[tracked.id] = tracked

    def protected(self) -> frozenset[str]:
        """Returns the functions that only authenticated callers may call: messages to clients do not name them."""
        return frozenset(each.name for each in self.registry.all() if each.current.function.access is not None)

    # --- what a decision depends on ---

    def is_carried_out(self, revision: str) -> bool:
        """Returns whether decisions for the revision are carried out; those for a retired one are not."""
        tracked = self._tracked.get(revision)
        return tracked is None or tracked.role is not Role.RETIRED

    def is_rolled_out(self, revision: str) -> bool:
        """Returns whether a candidate needs a replica without requests of its own: for its percent of the traffic, for
        copies, or to return."""
        tracked = self._tracked.get(revision)
        if tracked is None or tracked.role is not Role.CANDIDATE:
            return False
        deployed = self.registry.get(tracked.function)
        return deployed is not None and (deployed.rolling is not None or deployed.is_returning)

    def is_promoted_early(self, revision: str) -> bool:
        """Returns whether the revision takes its function's traffic before it has been ready."""
        tracked = self._tracked.get(revision)
        return tracked is not None and self.handovers.promoted_early(tracked.function) == tracked.record.number

    def is_awaited(self, tracked: TrackedRevision) -> bool:
        """Returns whether the revision is promoted as soon as one of its replicas is ready."""
        deployed, number = self.registry.get(tracked.function), tracked.record.number
        if deployed is None:
            return False
        if deployed.current.number == number:
            return not deployed.proven
        return deployed.is_direct and deployed.candidate is not None and deployed.candidate.number == number

    def __repr__(self) -> str:
        return f"<World {len(self._tracked)} revisions>"
