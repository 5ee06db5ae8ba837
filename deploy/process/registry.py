"""The replicas of a backend: those that exist, those that are ending, and who listens to their statuses."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Generic, TypeVar

from tidegate.deploy.backend import Listener, UnknownReplicaError
from tidegate.deploy.process.replica import FollowedReplica
from tidegate.records.replica_state import ReplicaState

R = TypeVar("R", bound=FollowedReplica)


class FollowedRegistry(Generic[R]):
    """All replicas by id, and the listeners of their statuses."""

    __slots__ = ("_listeners", "ending", "present")

    def __init__(self) -> None:
        self.present: dict[str, R] = {}
        """Replicas that exist or failed, in order of creation."""
        self.ending: dict[str, R] = {}
        """Replicas with a recorded stop of which something still runs."""
        self._listeners: list[Listener] = []

    def all(self) -> tuple[R, ...]:
        """Returns the present and the ending replicas."""
        return (*self.present.values(), *self.ending.values())

    def get(self, replica_id: str) -> R | None:
        """Returns the present or ending replica of this id."""
        return self.present.get(replica_id) or self.ending.get(replica_id)

    def find(self, replica_id: str) -> R:
        """Returns the present replica of this id. Raises UnknownReplicaError if there is none."""
        replica = self.present.get(replica_id)
        if replica is None:
            raise UnknownReplicaError(f"no replica {replica_id}")
        return replica

    def watch(self, listener: Listener) -> Callable[[], None]:
        """Calls ``listener`` with every new status. Returns the function that ends this."""
        self._listeners.append(listener)
        return partial(self._listeners.remove, listener)

    def enter(self, replica: R) -> None:
        """Adds a replica and notifies the listeners."""
        self.present[replica.id] = replica
        self._notify(replica)

    def update(self, replica: R, **changes: object) -> None:
        """Changes fields of a replica's status and notifies the listeners if anything differs."""
        status = replace(replica.status, **changes)  # type: ignore[arg-type]  # field names of ReplicaStatus
        if status != replica.status:
            replica.status = status
            self._notify(replica)

    def withdraw(self, replica: R) -> None:
        """Takes a replica out of the present ones. Something of it may still run."""
        if self.present.pop(replica.id, None) is None:
            return
        if not replica.ended.is_set():
            self.ending[replica.id] = replica
        self.update(replica, state=ReplicaState.STOPPED)

    def ended(self, replica: R) -> None:
        """Records that nothing of it runs any more."""
        replica.ended.set()
        self.ending.pop(replica.id, None)

    def _notify(self, replica: R) -> None:
        for listener in tuple(self._listeners):
            listener(replica.status)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self.present)} present, {len(self.ending)} ending>"
