"""The protocol between the control round and whatever runs replicas.

A backend owns replicas. It gets orders (create, remove, revive, resize) and does the rest by itself: it starts the
processes, follows them, drains before it stops, and detects crashes at once. It never decides how many replicas there
should be. It never restarts a replica by its own decision: a broken replica stays in :meth:`Backend.replicas` as
``failed`` until it is removed, and :meth:`Backend.failure` gives the time from which another one may be tried
(``tidegate.deploy.plan`` obeys it).

Implementations: ``tidegate.deploy.local`` (process pairs on this machine), ``tidegate.deploy.kubernetes`` (Pods) and
``tidegate.deploy.fake`` (virtual time).
One suite, ``tests/deploy/test_backend_conformance.py``, holds for all of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tidegate.deploy.placement.ledger import WHOLE, Accelerator, Room
from tidegate.errors import TidegateError
from tidegate.function import Batching, Revision
from tidegate.records.replica_state import ColdStartPhases, FailureCause, ReplicaState


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatus:
    """The present state of one replica, as its backend knows it."""

    id: str
    function: str
    revision: str
    accelerator: str
    state: ReplicaState
    address: str
    """``unix:/path`` or ``host:port`` of its queue_proxy, which takes the requests. Empty while it has none yet: a Pod
    that no node runs."""
    admin: str
    """``unix:/path`` or ``host:port`` of the queue_proxy's admin endpoint (``/sample``, ``/metrics``). Empty with
    ``address``."""
    created_at: float
    """``Clock.now()`` of the backend's clock."""
    ready_at: float | None = None
    """Time at which it became ready. None before."""
    limit: int | None = None
    """Slots in the function's concurrency unit, as the queue_proxy reports. 0 is no limit; None is not known yet."""
    phases: ColdStartPhases = field(default_factory=ColdStartPhases)
    reason: str | None = None
    """Reason of this state, for people: how it failed, with the last lines of the server's own output."""
    cause: FailureCause | None = None
    """The kind of its failure. None if it has not failed."""
    pids: tuple[int, ...] = ()
    """Processes of the replica: queue_proxy, then model server. Empty if there are none."""
    cores: tuple[int, ...] = ()
    """Host cores that the model server may use. Empty if it is not pinned."""
    unit: int = 0
    """Index of its unit of the accelerator."""
    more_units: tuple[int, ...] = ()
    """Further units that it holds (``gpu-count``)."""
    devices: tuple[str, ...] = ()
    """UUIDs of its units' devices, which a reload does not change. Empty if they have none."""
    share: int = WHOLE
    """Percent of the unit."""
    threads: int | None = None
    """Threads that the model server was configured with, or cores that it was resized to. None if the server
    chooses."""
    borrowed: int = 0
    """Cores beyond its own that it has for a while."""
    batching: Batching | None = None
    """Batches that its model server was last ordered to form. None if it forms those of its function."""
    asleep_at: float | None = None
    """Time at which it fell asleep. None if it is awake."""
    held_bytes: int = 0
    """Memory that its model server kept when it last fell asleep. 0 if it never did, or the system does not say."""
    wake_s: float | None = None
    """Duration of its last wake. None before the first."""
    emulated: bool = False
    adopted: bool = False
    """True if an earlier control process started it."""
    is_ending: bool = False
    """True if others end it, as by the deletion of its Pod: it drains, and cannot be revived."""

    @property
    def units(self) -> tuple[int, ...]:
        """All units that it holds."""
        return (self.unit, *self.more_units)

    @property
    def is_wanted(self) -> bool:
        """True if it serves or will: starting or ready."""
        return self.state in (ReplicaState.STARTING, ReplicaState.READY)

    @property
    def is_lost(self) -> bool:
        """True if it broke after it had been ready, and nothing has taken its place yet."""
        return self.state is ReplicaState.FAILED and self.ready_at is not None

    @property
    def is_leaving(self) -> bool:
        return self.state in (ReplicaState.DRAINING, ReplicaState.DRAINED)


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionFailure:
    """The last failure of any replica of one revision, and the back-off after it."""

    reason: str
    at: float
    """``Clock.now()`` of the backend's clock."""
    failures: int
    """Failures in a row, since a replica last stayed ready for a minute."""
    not_before: float
    """Time before which no replica should be created."""
    was_ready: bool
    """False if it failed before it was ever ready, so that the server itself is suspect (503 ``start_failed``)."""
    was_killed: bool = False
    """True if a signal ended one of its processes, which says little about the server."""

    @property
    def is_excused(self) -> bool:
        """True if a signal killed the first start in a row. It is repeated at once, and no request is refused for
        it."""
        return self.was_killed and not self.was_ready and self.failures == 1


class BackendError(TidegateError):
    """The backend cannot carry out an order. The message gives the reason."""


class UnknownReplicaError(BackendError):
    """There is no replica of this id."""


class SleepRefusedError(BackendError):
    """The replica cannot fall asleep. The caller removes it instead."""


class ResizeRefusedError(BackendError):
    """The replica cannot be resized in place. The caller scales out instead."""


Listener = Callable[[ReplicaStatus], None]


class Backend(Protocol):
    """All coroutines return soon: none waits for a server to load or a drain to end. :meth:`watch` reports those."""

    @property
    def runs_images(self) -> bool:
        """True if a model server can be a container image."""
        ...

    async def apply(self, revision: Revision) -> None:
        """Makes a revision known and checks it before its first start (a missing model file, an interpreter that cannot
        be run). Raises BackendError with a message for the developer."""
        ...

    async def create(
        self,
        replica_id: str,
        revision: Revision,
        accelerator: str,
        phases: ColdStartPhases,
        *,
        share: int = WHOLE,
    ) -> ReplicaStatus:
        """Starts a replica and returns its status (``starting``) as soon as its processes are spawned.

        The caller measures ``phases.decide_s`` and the part of ``phases.schedule_s`` that has passed; the backend adds
        its own part. A server that cannot be started is a ``failed`` replica, not an exception. Raises NoRoomError
        (``tidegate.deploy.placement.ledger``) if the accelerator is full, and BackendError for an id that exists.
        """
        ...

    async def remove(self, replica_id: str) -> None:
        """Orders a drain and returns. The replica is stopped when its last work has ended, at the latest after the
        function's timeout. A starting replica is stopped at once, a failed one is forgotten. Raises
        UnknownReplicaError."""
        ...

    async def sleep(self, replica_id: str) -> None:
        """Orders a ready replica to drain and then to fall asleep, and returns: its model server is paused and keeps
        its memory, its unit is free for others. :meth:`revive` wakes it, :meth:`remove` ends it. Where the machine runs
        short of memory, the backend ends it by itself.

        Raises SleepRefusedError if it is not ready or this backend has no such state for it, and
        UnknownReplicaError."""
        ...

    def sleep_refusal(self, accelerator: Accelerator) -> str | None:
        """Returns why no replica on this accelerator can fall asleep, for people. None if one can; :meth:`sleep` may
        still refuse one."""
        ...

    async def revive(self, replica_id: str) -> bool:
        """Revokes a drain, or wakes a sleeping replica on a free unit. Returns False if the stop is recorded already,
        the replica neither drains nor sleeps, or no unit is free."""
        ...

    async def resize(self, replica_id: str, *, threads: int | None = None, share: int | None = None) -> ReplicaStatus:
        """Gives the model server ``threads`` cores of its unit, or another share of its device, without a restart.

        More than its unit has are borrowed: cores of the machine that no replica holds, in multiples of the unit's, for
        a model server that can use them. It works with as many times its limit. They are taken back as soon as another
        revision's replica gets one of them, or one of its own is ready there.

        Raises ResizeRefusedError if that is impossible here, and UnknownReplicaError."""
        ...

    async def configure(self, replica_id: str, batching: Batching) -> ReplicaStatus:
        """Lets a ready model server form other batches from now on, without a restart; what runs is not touched.

        Raises ResizeRefusedError if it cannot: it is no shipped server, is not ready, or takes no such batches; and
        UnknownReplicaError."""
        ...

    def watch(self, listener: Listener) -> Callable[[], None]:
        """Calls ``listener`` with the new status at every change of a replica, in order, from the backend's own loop,
        as soon as it is known. A replica's last status is ``stopped``. The listener must not raise or block. Returns
        the function that ends this. (It is a callback and not a stream: no task stands between *ready* and the route
        table, and the fake stays free of asyncio.)"""
        ...

    def replicas(self) -> tuple[ReplicaStatus, ...]:
        """Returns every replica that exists or failed, in order of creation. A replica with a recorded stop is left
        out, even while its processes end; until then it keeps its unit."""
        ...

    def devices(self) -> tuple[Accelerator, ...]:
        """Returns the accelerators of this backend."""
        ...

    def room(self, revision: Revision, share: int = WHOLE) -> Mapping[str, Room]:
        """Returns how many replicas of the revision fit on each accelerator that it may use, cheapest first."""
        ...

    def failure(self, revision_id: str) -> RevisionFailure | None:
        """Returns the last failure. Returns None if there was none since a replica was last healthy for a minute."""
        ...

    async def close(self, stop_replicas: bool, grace_s: float = 30.0) -> None:
        """Ends the backend. Nothing is created or revived from now on.

        With ``stop_replicas``, drains and stops every replica first, kills those left after ``grace_s`` seconds, and
        returns when none is left. Otherwise they go on running and the next backend adopts them.
        """
        ...
