"""The replicas of the local backend: those that exist, those that are ending, and the ports and sockets that they use.

The registry holds state and reports changes. The transitions are in ``lifecycle.py``.
"""

from tidegate.deploy.local import sockets
from tidegate.deploy.local.processes import SpawnError
from tidegate.deploy.local.records import ReplicaDetails
from tidegate.deploy.local.replica import LocalReplica
from tidegate.deploy.process.registry import FollowedRegistry


class ReplicaRegistry(FollowedRegistry[LocalReplica]):
    """All replicas by id, their ports and sockets, and the listeners of their statuses."""

    __slots__ = ()

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
