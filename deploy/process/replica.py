"""The state of a replica that is followed through its queue_proxy, whatever its processes are."""

import asyncio
from dataclasses import dataclass, field

from tidegate.deploy.backend import ReplicaStatus
from tidegate.function import Revision


@dataclass(slots=True, eq=False, repr=False)
class FollowedReplica:
    """One replica of a backend. A backend adds what it runs it by."""

    status: ReplicaStatus
    revision: Revision
    leaving: bool = False
    """Its removal is ordered and not revoked."""
    stop_recorded: bool = False
    follow_task: "asyncio.Task[None] | None" = None
    drain_task: "asyncio.Task[None] | None" = None
    start_timer: asyncio.TimerHandle | None = None
    """Fails a start that the queue_proxy does not report on."""
    stop_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Makes recording the stop and taking the drain back exclude each other."""
    reported: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the queue_proxy has reported its state."""
    drained: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when nothing of it runs and its unit is released."""

    @property
    def id(self) -> str:
        return self.status.id

    @property
    def is_revivable(self) -> bool:
        """True while its drain can be revoked."""
        return self.leaving and not self.stop_recorded

    def __repr__(self) -> str:
        leaving = ", leaving" if self.leaving else ""
        return f"<{type(self).__name__} {self.id} {self.status.state.value}{leaving}>"
