"""What a waiting room keeps, and the steps that whatever happens there is made of.

Who waits, which revisions have something to tell, when to look at what again, and what the host has to do. The steps
decide nothing: what follows from what is :class:`tidegate.activator.room.WaitingRoom`'s, which is built on this.
"""

from collections.abc import Hashable
from typing import Final

from tidegate.activator.commands import Activate, Send
from tidegate.activator.state.bind import Bind, Command
from tidegate.activator.state.fleet import Fleet
from tidegate.activator.state.lanes import Lane
from tidegate.activator.state.replicas import Replica
from tidegate.activator.state.revisions import RevisionRoom
from tidegate.activator.timers import Timers
from tidegate.flow.messages import Return

UNUSED_S: Final = 60.0
"""Channels to a revision's replicas close when no request came for so long."""
HANDSHAKE_S: Final = 0.2
"""How long a replica whose channel is being opened counts as perhaps ready. Our choice."""
REST_S: Final = 0.1
REST_LIMIT_S: Final = 5.0
"""A replica that could not be reached gets no work for this long, doubled with each failure up to the limit."""


class RoomState:
    """The state of one gateway worker's waiting room."""

    __slots__ = ("changed", "fleet", "out", "requests", "timers", "unsettled")

    def __init__(self, worker_index: int) -> None:
        self.out: list[Command] = []
        """What has to be done; the host takes the list and leaves an empty one."""
        self.unsettled = False
        """Wants have to be told: call ``settle`` at the end of this loop turn."""
        self.fleet = Fleet(worker_index)
        self.requests: dict[Hashable, Bind] = {}
        self.changed: dict[RevisionRoom, None] = {}
        """Revisions whose wants may have changed, in the order in which they did."""
        self.timers: Timers[Bind | Replica | RevisionRoom] = Timers(_matters)
        """When to look at what again."""

    # --- links --------------------------------------------------------------------------------------------------------

    def link(self, room: RevisionRoom, now: float) -> None:
        """Opens channels to the replicas of a revision that is in use."""
        if not room.active:
            self.check_use_at(room, now + UNUSED_S)
        if self.fleet.link(room):
            room.handshake_until = now + HANDSHAKE_S
            self.timers.at(room.handshake_until, room)
        self.take_links()

    def check_use_at(self, room: RevisionRoom, when: float) -> None:
        room.unlink_at = when
        self.timers.at(when, room)

    def take_links(self) -> None:
        self.out.extend(self.fleet.out)
        self.fleet.out.clear()

    # --- who waits ----------------------------------------------------------------------------------------------------

    def enqueue(self, bind: Bind, lane: Lane, now: float) -> None:
        room = bind.revision
        room.join(bind, lane, now)
        self.requests[bind.request] = bind
        latest, deadline = bind.arrived + room.function.max_wait_s, bind.deadline
        self.timers.append(latest if latest < deadline else deadline, bind)
        if not room.is_want_sent(bind.priority):
            self.mark_changed(room)

    def remove(self, bind: Bind, now: float) -> None:
        """Takes a request out of the room, wherever it stands."""
        room = bind.revision
        room.part(bind, now)
        del self.requests[bind.request]
        if not room.is_want_sent(bind.priority):
            self.mark_changed(room)

    def signal(self, room: RevisionRoom, now: float) -> None:
        if not room.signal.update(room.is_activating(now), now):
            return
        self.timers.at(room.signal.next_at, room)
        self.out.append(Activate(room.activation(now)))

    def recheck_declined(self, room: RevisionRoom) -> None:
        """Looks again when the head that left a free slot alone takes it."""
        self.timers.at(room.declined_until, room)
        room.declined_until = 0.0
        self.mark_changed(room)

    # --- credits ------------------------------------------------------------------------------------------------------

    def return_credits(self, replica: Replica, numbers: tuple[int, ...]) -> None:
        if numbers:
            self.out.append(Send(replica.id, Return(numbers)))

    def give_back(self, bind: Bind) -> None:
        """The exchange did not end as it should: the credit belongs to the queue_proxy again."""
        replica = bind.replica
        replica.in_flight -= 1
        replica.refresh()
        if not bind.credit:
            return
        if bind.epoch != replica.epoch:
            return
        replica.noted.pop(bind.credit, None)
        self.out.append(Send(replica.id, Return((bind.credit,))))
        if bind.want is not None:
            self.resend_want(replica)  # The want in its header may not have arrived.

    def resend_want(self, replica: Replica) -> None:
        replica.forget_sent()
        self.mark_changed(replica.group.revision)

    def rest(self, replica: Replica, now: float) -> None:
        """No work for a while, longer with each failure in a row; those that fail together count once."""
        if replica.rests_until:
            return
        replica.rests_until = now + min(REST_LIMIT_S, REST_S * 2**replica.failures)
        replica.failures = min(replica.failures + 1, 10)
        self.take_out_of_service(replica)
        self.timers.at(replica.rests_until, replica)

    def take_out_of_service(self, replica: Replica) -> None:
        """No work goes there: its idle credits go back, nobody waits for it, and it is told so."""
        self.return_credits(replica, replica.surrender())
        replica.group.revision.unreserve(replica)
        self.mark_changed(replica.group.revision)

    # --- small things -------------------------------------------------------------------------------------------------

    def mark_changed(self, room: RevisionRoom) -> None:
        if not room.gone:
            self.changed[room] = None
            self.unsettled = True


def _matters(entry: Bind | Replica | RevisionRoom) -> bool:
    """Whether the time of this entry still means something."""
    if type(entry) is Bind:
        return entry.entry > 0 or entry.reserved is not None  # ``waits``, one call less
    return not entry.gone  # type: ignore[union-attr]  # `type() is` narrows nothing
