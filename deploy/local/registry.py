"""The replicas of the local backend: those that exist, those that are ending, and the ports and sockets that they use.

The registry holds state and reports changes. The transitions are in ``lifecycle.py``.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tidegate.deploy.backend import Listener, UnknownReplicaError
from tidegate.deploy.local import sockets
from tidegate.deploy.local.processes import SpawnError
from tidegate.deploy.local.records import ReplicaDetails
from tidegate.deploy.local.replica import LocalReplica
from tidegate.records.replica_state import ReplicaState


class ReplicaRegistry:
    """All replicas by id, their ports and sockets, and the listeners of their statuses."""

    __slots__ = ("_listeners", "ending", "present")

    def __init__(self) -> None:
        self.present: dict[str, LocalReplica] = {}
        """Replicas that exist or failed, in order of creation."""
        self.ending: set[LocalReplica] = set()
        """Replicas with a recorded stop and processes that have not ended."""
        self._listeners: list[Listener] = []

    def all(self) -> tuple[LocalReplica, ...]:
        """Returns the present and the ending replicas."""
        return (*self.present.values(), *self.ending)

    def find(self, replica_id: str) -> LocalReplica:
        """Returns the present replica of this id. Raises UnknownReplicaError if there is none."""
        replica = self.present.get(replica_id)
        if replica is None:
            raise UnknownReplicaError(f"no replica {replica_id}")
        return replica

    def is_taken(self, replica_id: str) -> bool:
        """Returns True if a present or an ending replica has this id."""
        return replica_id in self.present or any(each.id == replica_id for each in self.ending)

    # --- statuses ---

    def watch(self, listener: Listener) -> Callable[[], None]:
        """Calls ``listener`` with every new status. Returns the function that ends this."""
        self._listeners.append(listener)
        return partial(self._listeners.remove, listener)

    def update(self, replica: LocalReplica, **changes: object) -> None:
        """Changes fields of a replica's status and notifies the listeners if anything differs."""
        status = replace(replica.status, **changes)  # type: ignore[arg-type]  # field names of ReplicaStatus
        if status == replica.status:
            return
        replica.status = status
        for listener in tuple(self._listeners):
            listener(status)

    def withdraw(self, replica: LocalReplica) -> None:
        """Takes a replica out of the present ones. Its processes may still be ending."""
        if self.present.pop(replica.id, None) is None:
            return
        if not replica.ended.is_set():
            self.ending.add(replica)
        self.update(replica, state=ReplicaState.STOPPED)

    # --- ports and sockets ---

    def ports(self) -> set[int]:
        """Returns every port that a model server was given."""
        return {port for each in self.all() for port in each.details.ports}

    def port_holder(self, port: int | None) -> str | None:
        """Returns the id of the replica that this port was given to. Returns None if it is free."""
        return next((each.id for each in self.all() if port is not None and each.details.port == port), None)

    def check_socket(self, replica: LocalReplica) -> None:
        """Raises SpawnError if another replica uses the same unix socket.

        A socket that the function names serves one replica, unless its path contains ``{replica}``.
        """
        for each in self.all():
            if each is not replica and each.details.upstream == replica.details.upstream:
                raise SpawnError(
                    f"{replica.details.upstream} is the socket of {each.id}; for more than one replica on a machine "
                    "write {replica} in the function's `socket`"
                )

    def unlink_sockets(self, details: ReplicaDetails) -> None:
        """Removes the sockets of an ended replica, except a model server's socket that another replica uses."""
        others = {each.details.upstream for each in self.all() if each.id != details.id}
        for address in {*details.addresses} - others:
            sockets.unlink(address)

    def __repr__(self) -> str:
        return f"<ReplicaRegistry {len(self.present)} replicas, {len(self.ending)} ending>"
