"""RoomState: the state of a waiting room, and the steps that change it.

It holds the waiting requests, the revisions whose wants may have changed, the timers, and the commands for the host.
The steps decide nothing: the decisions are made by :class:`tidegate.activator.room.WaitingRoom` and its parts.
"""

from collections.abc import Hashable
from dataclasses import replace
from typing import Final

from tidegate.activator.commands import Activate, Crowd, Send
from tidegate.activator.state.bind import Bind, Command
from tidegate.activator.state.fleet import Fleet
from tidegate.activator.state.lanes import Lane
from tidegate.activator.state.replicas import Replica
from tidegate.activator.state.reservations import unreserve
from tidegate.activator.state.revisions import BACKLOG, CROWD_EVERY_S, CROWD_LOOK_S, RevisionRoom
from tidegate.activator.timers import Timers
from tidegate.flow.messages import Return

UNUSED_S: Final = 60.0
"""Channels to a revision's replicas close after this long without a request."""
HANDSHAKE_S: Final = 0.2
"""Time for which a replica counts as perhaps ready while its channel is being opened. Our choice."""
REST_S: Final = 0.1
REST_LIMIT_S: Final = 5.0
"""Back-off of a replica that could not be reached: ``REST_S``, doubled with each failure up to this limit."""


class RoomState:
    """The state of one gateway worker's waiting room."""

    __slots__ = ("changed", "fleet", "out", "requests", "timers", "unsettled")

    def __init__(self, worker_index: int | None) -> None:
        self.out: list[Command] = []
        """Commands for the host; always this list."""
        self.unsettled = False
        """Wants have to be sent: ``settle`` is to be called at the end of this loop turn."""
        self.fleet = Fleet(worker_index)
        self.requests: dict[Hashable, Bind] = {}
        self.changed: dict[RevisionRoom, None] = {}
        """Revisions whose wants may have changed, in the order in which they changed."""
        self.timers: Timers[Bind | Replica | RevisionRoom] = Timers(_matters)
        """Entries that have to be looked at again, by time."""

    # --- links --------------------------------------------------------------------------------------------------------

    def link(self, room: RevisionRoom, now: float) -> None:
        """Opens channels to the replicas of a revision that is in use."""
        if not room.active:
            room.opened_at = now
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

    # --- waiting requests ---------------------------------------------------------------------------------------------

    def enqueue(self, bind: Bind, lane: Lane, now: float) -> None:
        room = bind.revision
        room.join(bind, lane, now)
        self.requests[bind.request] = bind
        latest, deadline = bind.arrived + room.function.longest_s, bind.deadline
        self.timers.append(latest if latest < deadline else deadline, bind)
        if not room.is_want_sent(bind.priority):
            self.mark_changed(room)
        if room.waiting >= BACKLOG and now >= room.signal.crowd_at:
            self._look_for_crowd(room, now)

    def remove(self, bind: Bind, now: float) -> None:
        """Removes a request from the room, wherever it stands."""
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

    def _look_for_crowd(self, room: RevisionRoom, now: float) -> None:
        is_crowd = room.is_crowded()
        room.signal.crowd_at = now + (CROWD_EVERY_S if is_crowd else CROWD_LOOK_S)
        if is_crowd:
            self.out.append(Crowd(replace(room.activation(now), is_crowd=True)))

    def recheck_declined(self, room: RevisionRoom) -> None:
        """Schedules a look when the head takes the free slot that it has declined."""
        self.timers.at(room.declined_until, room)
        room.declined_until = 0.0
        self.mark_changed(room)

    # --- credits ------------------------------------------------------------------------------------------------------

    def return_credits(self, replica: Replica, numbers: tuple[int, ...]) -> None:
        if numbers:
            self.out.append(Send(replica.id, Return(numbers)))

    def give_back(self, bind: Bind) -> None:
        """Returns the credit of an exchange that did not end as it should to the queue_proxy."""
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
        """Gives a replica no work for a while, longer with each failure in a row; those that fail together count
        once."""
        if replica.rests_until:
            return
        replica.rests_until = now + min(REST_LIMIT_S, REST_S * 2**replica.failures)
        replica.failures = min(replica.failures + 1, 10)
        self.take_out_of_service(replica)
        self.timers.at(replica.rests_until, replica)

    def take_out_of_service(self, replica: Replica) -> None:
        """Stops work to a replica: its idle credits and reservations are given up, and it gets a want of zero."""
        self.return_credits(replica, replica.surrender())
        unreserve(replica.group.revision, replica)
        self.mark_changed(replica.group.revision)

    # --- small things -------------------------------------------------------------------------------------------------

    def mark_changed(self, room: RevisionRoom) -> None:
        if not room.gone:
            self.changed[room] = None
            self.unsettled = True


def _matters(entry: Bind | Replica | RevisionRoom) -> bool:
    """Returns whether the time of this entry still means something."""
    if type(entry) is Bind:
        return entry.entry > 0 or entry.reserved is not None  # ``waits``, one call less
    return not entry.gone  # type: ignore[union-attr]  # `type() is` narrows nothing
