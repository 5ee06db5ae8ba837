"""Fleet: all functions, revisions, groups and replicas that one gateway worker knows, as the route table lists them.

A new table changes the present objects in place: the deficit of a group, the credits of a replica and the waiting
requests survive it. Channels are opened to the replicas of revisions in use and closed when they fall out of use.
"""

from tidegate.activator.commands import Link, Unlink
from tidegate.activator.prefixes import blocks_per_replica
from tidegate.activator.state.bind import Bind
from tidegate.activator.state.replicas import Group, Replica, links_to
from tidegate.activator.state.reservations import unreserve
from tidegate.activator.state.revisions import FunctionState, RevisionRoom
from tidegate.flow.rooms.figures import Board
from tidegate.records.route_table import FunctionRoute, GroupRoute, RevisionRoute, RouteTable


class Fleet:
    """The objects of the route table by id, and the links that must be opened or closed."""

    __slots__ = ("board", "functions", "out", "replicas", "revisions", "unserved", "worker_index", "workers")

    def __init__(self, worker_index: int | None) -> None:
        self.worker_index = worker_index
        self.board: Board | None = None
        """The figures of the other workers on this machine."""
        self.workers = 1
        self.functions: dict[str, FunctionState] = {}
        self.revisions: dict[str, RevisionRoom] = {}
        self.replicas: dict[str, Replica] = {}
        self.out: list[Link | Unlink] = []
        self.unserved: list[Bind] = []
        """Waiting requests of a size that no group serves any more; the caller of ``apply`` takes them."""

    def __repr__(self) -> str:
        return (
            f"<Fleet {len(self.functions)} functions, {len(self.revisions)} revisions, {len(self.replicas)} replicas>"
        )

    def apply(self, table: RouteTable, now: float) -> list[RevisionRoom]:
        """Takes over a route table. Returns the revisions that are gone, with the requests that wait in them."""
        self.workers = table.workers
        gone: list[RevisionRoom] = []
        listed = {route.name for route in table.functions}
        for name in [name for name in self.functions if name not in listed]:
            gone.extend(self.functions.pop(name).revisions)
        for route in table.functions:
            gone.extend(self._apply_function(route, now))
        for room in gone:
            self._remove_revision(room)
        return gone

    def link(self, room: RevisionRoom) -> bool:
        """Opens the channels that a revision in use lacks. Returns True if there were any."""
        opened = False
        room.active = True
        count, awake = room.replica_count, room.awake_count
        for group in room.groups:
            for replica in group.replicas:
                # Were those that sleep counted, one replica that is awake among many would serve some workers alone.
                among = count if replica.asleep else awake
                links = links_to(replica.id, among, self.worker_index, self.workers)
                if links and not replica.linked:
                    replica.linked = opened = True
                    self.out.append(Link(replica.id, replica.address))
                elif replica.linked and not links and not replica.in_flight:
                    self._unlink(replica)
        return opened

    def unlink(self, room: RevisionRoom) -> None:
        """Closes the channels of a revision that is not in use."""
        room.active = False
        for group in room.groups:
            for replica in group.replicas:
                if replica.linked:
                    self._unlink(replica)

    def _unlink(self, replica: Replica) -> None:
        replica.linked = False
        replica.reset()
        unreserve(replica.group.revision, replica)
        self.out.append(Unlink(replica.id))

    def _apply_function(self, route: FunctionRoute, now: float) -> list[RevisionRoom]:
        function = self.functions.get(route.name)
        if function is None:
            function = self.functions[route.name] = FunctionState(route.name, self.board)
        function.apply(route, self.workers)
        listed = {revision.id for revision in route.revisions}
        gone = [room for room in function.revisions if room.id not in listed]
        # The largest first: it inherits what waited for revisions that are gone.
        function.revisions = [
            self._apply_revision(revision, function, now)
            for revision in sorted(route.revisions, key=lambda revision: -revision.percent)
        ]
        return gone

    def _apply_revision(self, route: RevisionRoute, function: FunctionState, now: float) -> RevisionRoom:
        room = self.revisions.get(route.id)
        if room is None:
            room = self.revisions[route.id] = RevisionRoom(route.id, function, now)
        room.counts_inferences = route.unit_inferences
        room.percent = route.percent
        room.is_tagged = bool(route.tags)
        room.failure = route.failure
        room.failure_kind = route.failure_kind
        room.prefixes.blocks = blocks_per_replica(function.hash_on)
        present = {group.accelerator: group for group in room.groups}
        room.groups = []
        for listed in route.groups:
            group = present.pop(listed.accelerator, None)
            if group is None:
                group = Group(listed.accelerator, room)
            self._apply_group(listed, group)
            room.groups.append(group)
        for group in present.values():
            for replica in group.replicas:
                self._remove_replica(replica)
        weighted = any(group.weight > 0 for group in room.groups)
        for group in room.groups:
            group.share = group.weight if weighted else 1.0
            if not group.share:  # No wants go there any more: it would hold back for ever.
                for replica in group.replicas:
                    unreserve(room, replica)
        self.unserved.extend(room.rebuild())
        return room

    def _apply_group(self, route: GroupRoute, group: Group) -> None:
        group.weight = route.weight
        group.mu_ips = route.mu_ips
        group.smallest = route.smallest
        group.largest = route.largest
        present = {replica.id: replica for replica in group.replicas}
        group.replicas = []
        for listed in route.replicas:
            replica = present.get(listed.id)
            if replica is not None and replica.address == listed.address:
                del present[listed.id]
            else:
                replica = Replica(listed.id, listed.address, group)
            replica.index = len(group.replicas)
            group.replicas.append(replica)
        for old in present.values():
            self._remove_replica(old)
        asleep = frozenset(route.asleep)
        for replica in group.replicas:
            replica.asleep = replica.id in asleep
            self.replicas[replica.id] = replica

    def _remove_revision(self, room: RevisionRoom) -> None:
        room.gone = True
        for group in room.groups:
            for replica in group.replicas:
                self._remove_replica(replica)
        if self.revisions.get(room.id) is room:
            del self.revisions[room.id]

    def _remove_replica(self, replica: Replica) -> None:
        """Removes a replica. Its credits vanish; the requests that run there go on."""
        replica.gone = True
        replica.group.revision.prefixes.forget(replica.id)
        if replica.linked:
            self._unlink(replica)
        if self.replicas.get(replica.id) is replica:
            del self.replicas[replica.id]
