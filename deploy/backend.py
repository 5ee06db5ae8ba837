"""What runs replicas: the protocol that the control round speaks to, whatever carries it out.

A backend owns replicas. It is told *what* (create, remove, revive, resize) and does the rest by itself: it starts the
processes, follows them, drains before it stops, sees crashes at once. It never decides how many there should be, and
it never starts a replica again by its own decision: a replica that broke stays in :meth:`Backend.replicas` as
``failed`` until it is removed, and :meth:`Backend.failure` says from when on another one may be tried
(``tidegate.deploy.plan`` obeys it).

Implementations: ``tidegate.deploy.local`` (process pairs on this machine) and ``tidegate.deploy.fake`` (virtual time).
One suite, ``tests/deploy/test_backend_conformance.py``, holds for all of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tidegate.deploy.placement.ledger import WHOLE, Accelerator, Room
from tidegate.errors import TidegateError
from tidegate.function import Revision
from tidegate.records.replica_state import ColdStartPhases, ReplicaState


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatus:
    """One replica as its backend knows it now."""

    id: str
    function: str
    revision: str
    accelerator: str
    state: ReplicaState
    address: str
    """``unix:/path`` or ``host:port`` of its queue_proxy, where requests go. Connectable from creation on."""
    admin: str
    """``unix:/path`` or ``host:port`` of the queue_proxy's admin endpoint (``/sample``, ``/metrics``)."""
    created_at: float
    """``Clock.now()`` of the backend's clock."""
    ready_at: float | None = None
    """When it became ready; None: not yet."""
    limit: int | None = None
    """Slots in the function's concurrency unit, as the queue_proxy says; 0: no limit; None: not known yet."""
    phases: ColdStartPhases = field(default_factory=ColdStartPhases)
    reason: str | None = None
    """Why it is in this state, for people: how it failed, with the last lines of the server's own output."""
    pids: tuple[int, ...] = ()
    """Processes of the replica: queue_proxy, then model server; empty where there are none."""
    cores: tuple[int, ...] = ()
    """Host cores that the model server may use; empty: not pinned."""
    unit: int = 0
    """Which unit of the accelerator it holds."""
    share: int = WHOLE
    """Percent of that unit."""
    threads: int | None = None
    """Threads that the model server was told to start, or cores it was resized to; None: its own choice."""
    emulated: bool = False
    adopted: bool = False
    """True when an earlier control process started it."""

    @property
    def is_wanted(self) -> bool:
        """True while it serves or is on its way to: starting or ready."""
        return self.state in (ReplicaState.STARTING, ReplicaState.READY)

    @property
    def is_leaving(self) -> bool:
        return self.state in (ReplicaState.DRAINING, ReplicaState.DRAINED)


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionFailure:
    """The last failure of any replica of one revision, and the back-off that follows from it."""

    reason: str
    at: float
    """``Clock.now()`` of the backend's clock."""
    failures: int
    """In a row: since the last time that a replica stayed ready for a minute."""
    not_before: float
    """No replica should be created before this time."""
    was_ready: bool
    """False: it failed before it was ever ready, so the server itself is suspect (503 ``start_failed``)."""
    was_killed: bool = False
    """A signal ended one of its processes, which says little about the server."""

    @property
    def is_excused(self) -> bool:
        """The first start in a row was killed: it is repeated at once, and nobody is refused for it."""
        return self.was_killed and not self.was_ready and self.failures == 1


class BackendError(TidegateError):
    """The backend cannot do what it was told; the message says why."""


class UnknownReplicaError(BackendError):
    """No replica of that name."""


class ResizeRefusedError(BackendError):
    """The replica cannot be resized in place (the caller scales out instead)."""


Listener = Callable[[ReplicaStatus], None]


class Backend(Protocol):
    """All coroutines return soon: none waits for a server to load or a drain to end, :meth:`watch` tells of those."""

    async def apply(self, revision: Revision) -> None:
        """Makes a revision known and checks what can be checked before its first start (a model file that is not
        there, an interpreter that cannot be run). Raises BackendError with a message for the developer."""
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

        ``phases.decide_s`` and the part of ``phases.schedule_s`` that has already passed are the caller's; the backend
        adds its own. A server that cannot be started is a ``failed`` replica, not an exception. Raises NoRoomError
        (``tidegate.deploy.placement.ledger``) where the accelerator is full and BackendError for an id that exists.
        """
        ...

    async def remove(self, replica_id: str) -> None:
        """Orders a drain and returns; when the last work has ended (at most the function's timeout) the replica is
        stopped. A starting replica is stopped at once, a failed one forgotten. Raises UnknownReplicaError."""
        ...

    async def revive(self, replica_id: str) -> bool:
        """Takes a drain back. False once the stop is recorded, or for a replica that does not drain."""
        ...

    async def resize(self, replica_id: str, *, threads: int | None = None, share: int | None = None) -> ReplicaStatus:
        """Gives the model server ``threads`` cores of its unit, or another share of its device, without a restart.
        Raises ResizeRefusedError where that is impossible here, UnknownReplicaError for no such replica."""
        ...

    def watch(self, listener: Listener) -> Callable[[], None]:
        """Calls ``listener`` with the new status at every change of a replica, in order, from the backend's own loop,
        as soon as it is known; a replica's last status is ``stopped``. The listener must not raise or block. Returns
        the function that ends it. (A callback, not a stream: no task stands between *ready* and the route table, and
        the fake stays free of asyncio.)"""
        ...

    def replicas(self) -> tuple[ReplicaStatus, ...]:
        """Every replica that exists or failed, in order of creation; one whose stop is recorded is gone, even while
        its processes still end (until then it keeps its room)."""
        ...

    def devices(self) -> tuple[Accelerator, ...]:
        """The accelerators of this backend."""
        ...

    def room(self, revision: Revision, share: int = WHOLE) -> Mapping[str, Room]:
        """For each accelerator that the revision may use, cheapest first: how many of its replicas fit."""
        ...

    def failure(self, revision_id: str) -> RevisionFailure | None:
        """What went wrong last, None if nothing did since a replica was last healthy for a minute."""
        ...

    async def close(self, stop_replicas: bool, grace_s: float = 30.0) -> None:
        """Ends the backend: nothing is created or revived from now on.

        ``stop_replicas``: drains and stops every replica first, kills what has not ended after ``grace_s`` seconds, and
        returns when nothing is left; otherwise they go on and the next backend adopts them.
        """
        ...
