"""The replicas that are Pods: what is known of each, and who listens."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from tidegate.deploy.backend import Listener, ReplicaStatus, UnknownReplicaError
from tidegate.deploy.kubernetes.pods.template import Object
from tidegate.deploy.local.admin_link import ProxyLink
from tidegate.function import Revision
from tidegate.records.replica_state import ReplicaState


@dataclass(slots=True, eq=False)
class PodReplica:
    """One replica and its Pod."""

    status: ReplicaStatus
    revision: Revision
    uid: str | None = None
    """Of its Pod; None before the API server has answered."""
    version: str | None = None
    """Of its Pod, as it was last seen."""
    pod: Object | None = None
    """Its Pod, as the watch last reported it."""
    is_foreign: bool = False
    """A Pod that was not made for it has its name."""
    link: ProxyLink | None = None
    """To its queue_proxy; None while the Pod has no address."""
    leaving: bool = False
    """Its removal is ordered and not revoked."""
    stop_recorded: bool = False
    bound_at: float | None = None
    follow_task: "asyncio.Task[None] | None" = None
    drain_task: "asyncio.Task[None] | None" = None
    start_timer: asyncio.TimerHandle | None = None
    """Fails a start that the queue_proxy does not report on."""
    stop_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Makes recording the stop and taking the drain back exclude each other."""
    reported: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the watch reports its Pod."""
    drained: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there is no Pod and its unit is released."""

    @property
    def id(self) -> str:
        return self.status.id

    @property
    def is_revivable(self) -> bool:
        """True while its drain can be revoked."""
        return self.leaving and not self.stop_recorded

    def __repr__(self) -> str:
        return f"<PodReplica {self.id} {self.status.state.value}{', leaving' if self.leaving else ''}>"


class PodRegistry:
    """All replicas by id, and the listeners of their statuses."""

    __slots__ = ("_listeners", "ending", "present")

    def __init__(self) -> None:
        self.present: dict[str, PodReplica] = {}
        """Replicas that exist or failed, in order of creation."""
        self.ending: dict[str, PodReplica] = {}
        """Replicas with a recorded stop whose Pods are still there."""
        self._listeners: list[Listener] = []

    def all(self) -> tuple[PodReplica, ...]:
        """Returns the present and the ending replicas."""
        return (*self.present.values(), *self.ending.values())

    def get(self, replica_id: str) -> PodReplica | None:
        """Returns the present or ending replica of this id."""
        return self.present.get(replica_id) or self.ending.get(replica_id)

    def find(self, replica_id: str) -> PodReplica:
        """Returns the present replica of this id. Raises UnknownReplicaError if there is none."""
        replica = self.present.get(replica_id)
        if replica is None:
            raise UnknownReplicaError(f"no replica {replica_id}")
        return replica

    def watch(self, listener: Listener) -> Callable[[], None]:
        """Calls ``listener`` with every new status. Returns the function that ends this."""
        self._listeners.append(listener)
        return partial(self._listeners.remove, listener)

    def enter(self, replica: PodReplica) -> None:
        """Adds a replica and notifies the listeners."""
        self.present[replica.id] = replica
        self._notify(replica.status)

    def update(self, replica: PodReplica, **changes: object) -> None:
        """Changes fields of a replica's status and notifies the listeners if anything differs."""
        status = replace(replica.status, **changes)  # type: ignore[arg-type]  # field names of ReplicaStatus
        if status != replica.status:
            replica.status = status
            self._notify(status)

    def withdraw(self, replica: PodReplica) -> None:
        """Takes a replica out of the present ones. Its Pod may still be there."""
        if self.present.pop(replica.id, None) is None:
            return
        if not replica.ended.is_set():
            self.ending[replica.id] = replica
        self.update(replica, state=ReplicaState.STOPPED)

    def ended(self, replica: PodReplica) -> None:
        """Records that its Pod is gone."""
        replica.ended.set()
        self.ending.pop(replica.id, None)

    def _notify(self, status: ReplicaStatus) -> None:
        for listener in tuple(self._listeners):
            listener(status)

    def __repr__(self) -> str:
        return f"<PodRegistry {len(self.present)} present, {len(self.ending)} ending>"
