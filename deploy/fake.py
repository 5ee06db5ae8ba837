"""A backend without processes, on a clock that is moved by hand: for the simulator and for tests.

Replicas become ready ``start_up_s`` after their creation, drain at once or when the work put on them
(:meth:`FakeBackend.begin_work`) has ended, and break on request. The ledger, the back-off and the conformance suite are
those of the real backend. Nothing happens by itself: the owner of the clock calls :meth:`FakeBackend.on_wakeup` at (or
after) :meth:`FakeBackend.next_wakeup`.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tidegate.clock import Clock
from tidegate.deploy.backend import (
    BackendError,
    Listener,
    ReplicaStatus,
    ResizeRefusedError,
    RevisionFailure,
    SleepRefusedError,
    UnknownReplicaError,
)
from tidegate.deploy.backoff import BackOff
from tidegate.deploy.environment import batching_refusal, threads_of
from tidegate.deploy.placement.interference import Interference
from tidegate.deploy.placement.ledger import (
    WHOLE,
    Accelerator,
    AcceleratorKind,
    Ledger,
    NoRoomError,
    Room,
    candidates,
    demand_of,
)
from tidegate.deploy.placement.strategies import BEST_FIT, StrategyRow
from tidegate.function import Batching, Function, Revision
from tidegate.records.replica_state import ColdStartPhases, FailureCause, ReplicaState

UNSET_LIMIT = 4
"""Slots if the function says ``auto``."""


@dataclass(slots=True)
class _FakeReplica:
    status: ReplicaStatus
    function: Function
    ready_due: float | None
    drain_until: float | None = None
    work: int = 0
    falls_asleep: bool = False
    """It is to fall asleep when it has drained."""


class FakeBackend:
    """Implements ``tidegate.deploy.backend.Backend``."""

    def __init__(
        self,
        accelerators: Iterable[Accelerator],
        clock: Clock,
        rng: random.Random,
        *,
        start_up_s: float = 1.0,
        host_cores: Sequence[int] = (),
        strategy: StrategyRow = BEST_FIT,
        interference: Interference | None = None,
    ) -> None:
        self.start_up_s = start_up_s
        """Time from creation to ready, in addition to the ``start_up_s`` of an emulated accelerator."""
        self._clock = clock
        self._ledger = Ledger.of(accelerators, host_cores, strategy, interference)
        self._back_off = BackOff(rng)
        self._replicas: dict[str, _FakeReplica] = {}
        self._listeners: list[Listener] = []
        self._broken: dict[str, tuple[str, int]] = {}
        self._closing = False
        self.stalled: set[str] = set()
        """Accelerators on which no start ever becomes ready."""

    # --- what the world does to it ---

    def break_starts(self, revision_id: str, reason: str, times: int) -> None:
        """Makes the next ``times`` starts of the revision fail at the moment when they would become ready."""
        self._broken[revision_id] = (reason, times)

    def crash(self, replica_id: str, reason: str = "the model server was killed by SIGKILL") -> None:
        """Makes a process of the replica die."""
        self._fail(self._find(replica_id), reason, FailureCause.KILLED)

    def begin_work(self, replica_id: str) -> None:
        """Puts a request on the replica, which delays its drain."""
        self._find(replica_id).work += 1

    def end_work(self, replica_id: str) -> None:
        fake = self._find(replica_id)
        fake.work -= 1
        self._stop_if_drained(fake)

    def next_wakeup(self) -> float | None:
        """Returns the time of the next event. Returns None if there is none."""
        times = [fake.ready_due for fake in self._replicas.values() if fake.ready_due is not None]
        times += [fake.drain_until for fake in self._replicas.values() if fake.drain_until is not None]
        return min(times, default=None)

    def on_wakeup(self, now: float) -> None:
        """Handles all events that are due at ``now``."""
        for fake in tuple(self._replicas.values()):
            if fake.ready_due is not None and fake.ready_due <= now:
                self._finish_start(fake, now)
            elif fake.drain_until is not None and fake.drain_until <= now:
                self._stop(fake)

    # --- Backend ---

    @property
    def runs_images(self) -> bool:
        """See the protocol."""
        return False

    async def apply(self, revision: Revision) -> None:
        """See the protocol."""
        if not candidates(self.devices(), revision.function):
            raise BackendError(f"{revision.id} cannot be started: none of its accelerators is here")

    async def create(
        self,
        replica_id: str,
        revision: Revision,
        accelerator: str,
        phases: ColdStartPhases,
        *,
        share: int = WHOLE,
    ) -> ReplicaStatus:
        """See the protocol."""
        if self._closing:
            raise BackendError(f"{replica_id} is not started: the backend is closing")
        if replica_id in self._replicas:
            raise BackendError(f"{replica_id} exists")
        function, kind = revision.function, self._ledger.kind(accelerator)
        assignment = self._ledger.assign(replica_id, accelerator, demand_of(function, kind, share))
        now = self._clock.now()
        status = ReplicaStatus(
            id=replica_id,
            function=function.name,
            revision=revision.id,
            accelerator=accelerator,
            state=ReplicaState.STARTING,
            address=f"unix:/fake/{replica_id}",
            admin=f"unix:/fake/{replica_id}.admin",
            created_at=now,
            phases=replace(phases, schedule_s=phases.schedule_s or 0.0, pull_s=0.0),
            cores=assignment.cores,
            unit=assignment.unit,
            more_units=assignment.more,
            devices=assignment.devices,
            share=assignment.share,
            threads=threads_of(function, kind),
            emulated=kind.is_emulated,
        )
        due = None if accelerator in self.stalled else now + self.start_up_s + kind.start_up_s
        fake = _FakeReplica(status, function, ready_due=due)
        self._replicas[replica_id] = fake
        self._notify(status)
        return status

    async def remove(self, replica_id: str) -> None:
        """See the protocol."""
        fake = self._find(replica_id)
        if fake.status.state in (ReplicaState.STARTING, ReplicaState.FAILED):
            self._stop(fake)
        elif fake.status.state is ReplicaState.READY:
            self._drain(fake)
        elif fake.status.state is ReplicaState.ASLEEP:
            self._stop(fake)
        else:
            fake.falls_asleep = False

    def _drain(self, fake: _FakeReplica) -> None:
        fake.drain_until = self._clock.now() + fake.function.timeout_s
        self._set(fake, state=ReplicaState.DRAINING)
        self._stop_if_drained(fake)

    async def sleep(self, replica_id: str) -> None:
        """See the protocol."""
        fake = self._find(replica_id)
        kind = self._ledger.kind(fake.status.accelerator)
        if self._closing or fake.status.state is not ReplicaState.READY or self.sleep_refusal(kind) is not None:
            raise SleepRefusedError(f"{replica_id} is {fake.status.state.value} on {kind.name}")
        fake.falls_asleep = True
        self._drain(fake)

    def sleep_refusal(self, accelerator: Accelerator) -> str | None:
        """See the protocol."""
        return "a device keeps its memory" if accelerator.kind is AcceleratorKind.NVIDIA else None

    async def revive(self, replica_id: str) -> bool:
        """See the protocol."""
        fake = self._replicas.get(replica_id)
        if self._closing or fake is None:
            return False
        if fake.status.state is ReplicaState.ASLEEP:
            kind = self._ledger.kind(fake.status.accelerator)
            try:
                held = self._ledger.assign(replica_id, kind.name, demand_of(fake.function, kind, fake.status.share))
            except NoRoomError:
                return False
            where = {"unit": held.unit, "more_units": held.more, "cores": held.cores}
            self._set(fake, state=ReplicaState.READY, asleep_at=None, wake_s=0.0, **where)
            return True
        if fake.status.state is not ReplicaState.DRAINING:
            return False
        fake.drain_until, fake.falls_asleep = None, False
        self._set(fake, state=ReplicaState.READY)
        return True

    async def resize(self, replica_id: str, *, threads: int | None = None, share: int | None = None) -> ReplicaStatus:
        """See the protocol."""
        fake = self._find(replica_id)
        kind = self._ledger.kind(fake.status.accelerator)
        if share is not None and share != fake.status.share:
            raise ResizeRefusedError(f"{replica_id}: a running process keeps its share of a device")
        is_same = threads == fake.status.threads and len(fake.status.cores) in (0, threads)
        if threads is not None and not is_same:
            if kind.kind is not AcceleratorKind.CPU:
                raise ResizeRefusedError(f"{replica_id} on {kind.name} has no cores to change")
            try:
                assignment = self._ledger.reassign_cores(replica_id, threads)
            except NoRoomError as error:
                raise ResizeRefusedError(str(error)) from error
            self._set(fake, cores=assignment.cores, threads=threads)
        return fake.status

    async def configure(self, replica_id: str, batching: Batching) -> ReplicaStatus:
        """See the protocol."""
        fake = self._find(replica_id)
        why = batching_refusal(fake.function, self._ledger.kind(fake.status.accelerator), batching)
        if why is None and fake.status.state is not ReplicaState.READY:
            why = f"it is {fake.status.state.value}"
        if why is not None:
            raise ResizeRefusedError(f"{replica_id}: {why}")
        if batching != (fake.status.batching or fake.function.batching):
            self._set(fake, batching=batching)
        return fake.status

    def watch(self, listener: Listener) -> Callable[[], None]:
        """See the protocol."""
        self._listeners.append(listener)
        return partial(self._listeners.remove, listener)

    def set_accelerators(self, accelerators: Iterable[Accelerator], host_cores: Sequence[int] = ()) -> None:
        """Replaces the accelerators."""
        self._ledger.set_accelerators(accelerators, host_cores)

    def replicas(self) -> tuple[ReplicaStatus, ...]:
        """See the protocol."""
        return tuple(fake.status for fake in self._replicas.values())

    def devices(self) -> tuple[Accelerator, ...]:
        """See the protocol."""
        return tuple(self._ledger.accelerators.values())

    def room(self, revision: Revision, share: int = WHOLE) -> Mapping[str, Room]:
        """See the protocol."""
        return self._ledger.rooms(revision.function, share)

    def failure(self, revision_id: str) -> RevisionFailure | None:
        """See the protocol."""
        return self._back_off.failure_beside(revision_id, self.replicas, self._clock.now())

    async def close(self, stop_replicas: bool, grace_s: float = 30.0) -> None:
        """See the protocol. The clock does not move meanwhile, so work that has not ended is killed."""
        self._closing = True
        if stop_replicas:
            for replica_id in tuple(self._replicas):
                await self.remove(replica_id)
            for fake in tuple(self._replicas.values()):
                self._stop(fake)

    # --- inside ---

    def _finish_start(self, fake: _FakeReplica, now: float) -> None:
        reason, times = self._broken.get(fake.status.revision, ("", 0))
        if times > 0:
            self._broken[fake.status.revision] = (reason, times - 1)
            self._fail(fake, reason)
            return
        fake.ready_due = None
        limit = UNSET_LIMIT if fake.function.concurrency is None else fake.function.concurrency
        phases = replace(fake.status.phases, load_s=now - fake.status.created_at, warm_s=0.0)
        self._set(fake, state=ReplicaState.READY, ready_at=now, limit=limit, phases=phases)

    def _fail(self, fake: _FakeReplica, reason: str, cause: FailureCause = FailureCause.START) -> None:
        leaving = fake.status.is_leaving
        if not leaving:
            status, now = fake.status, self._clock.now()
            was_killed = cause is FailureCause.KILLED
            self._back_off.failed(status.revision, reason, now, status.ready_at, was_killed=was_killed)
        fake.ready_due = fake.drain_until = None
        self._ledger.release(fake.status.id)
        self._set(fake, state=ReplicaState.FAILED, reason=reason, cause=cause)
        if leaving:
            self._stop(fake)

    def _stop_if_drained(self, fake: _FakeReplica) -> None:
        if fake.status.state is ReplicaState.DRAINING and fake.work <= 0:
            self._set(fake, state=ReplicaState.DRAINED)
            if fake.falls_asleep:
                fake.falls_asleep, fake.drain_until = False, None
                self._ledger.release(fake.status.id)
                held = fake.function.resources.memory_bytes or 0
                self._set(
                    fake, state=ReplicaState.ASLEEP, asleep_at=self._clock.now(), held_bytes=held, cores=(), borrowed=0
                )
            else:
                self._stop(fake)

    def _stop(self, fake: _FakeReplica) -> None:
        self._replicas.pop(fake.status.id, None)
        self._ledger.release(fake.status.id)
        self._set(fake, state=ReplicaState.STOPPED)

    def _set(self, fake: _FakeReplica, **changes: object) -> None:
        fake.status = replace(fake.status, **changes)  # type: ignore[arg-type]  # field names of ReplicaStatus
        self._notify(fake.status)

    def _notify(self, status: ReplicaStatus) -> None:
        for listener in tuple(self._listeners):
            listener(status)

    def _find(self, replica_id: str) -> _FakeReplica:
        fake = self._replicas.get(replica_id)
        if fake is None:
            raise UnknownReplicaError(f"no replica {replica_id}")
        return fake

    def __repr__(self) -> str:
        return f"<FakeBackend {len(self._replicas)} replicas>"
