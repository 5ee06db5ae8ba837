"""What a waiting room keeps, and the steps that whatever happens there is made of.

Who waits, which revisions have something to tell, when to look at what again, and what the host has to do. The steps
decide nothing: what follows from what is :class:`tidegate.activator.room.WaitingRoom`'s, which is built on this.
"""

import random
from collections.abc import Hashable
from typing import Final

from tidegate.activator.commands import Activate, Bind, Command, Send
from tidegate.activator.state.fleet import Fleet
from tidegate.activator.state.lanes import Lane
from tidegate.activator.state.replicas import Replica
from tidegate.activator.state.revisions import RevisionRoom
from tidegate.activator.timers import Timers
from tidegate.flow.messages import Return

UNUSED_S: Final = 60.0
"""Channels to a revision's replicas close when no request came for so long."""
HEARING_S: Final = 0.2
"""How long a replica whose channel is being opened counts as perhaps ready. Our choice."""
REST_S: Final = 0.1
REST_LIMIT_S: Final = 5.0
"""A replica that could not be reached gets no work for this long, doubled with each failure up to the limit."""


class RoomState:
    """The state of one gateway worker's waiting room."""

    def __init__(self, *, rng: random.Random, worker_index: int = 0) -> None:
        self.out: list[Command] = []
        """What has to be done; the host takes the list and leaves an empty one."""
        self.unsettled = False
        """Wants have to be told: call ``settle`` at the end of this loop turn."""
        self._rng = rng
        self._fleet = Fleet(worker_index)
        self._waiting: dict[Hashable, Bind] = {}
        self._dirty: dict[RevisionRoom, None] = {}
        """Revisions whose wants may have changed, in the order in which they did."""
        self._timers: Timers[Bind | Replica | RevisionRoom] = Timers(_matters)
        """When to look at what again."""

    @property
    def waiting(self) -> int:
        """Requests that wait, of all revisions."""
        return len(self._waiting)

    # --- links --------------------------------------------------------------------------------------------------------

    def _link(self, room: RevisionRoom, now: float) -> None:
        """Opens channels to the replicas of a revision that is in use."""
        if not room.active:
            self._look_for_use(room, now + UNUSED_S)
        if self._fleet.link(room):
            room.unheard_until = now + HEARING_S
            self._timers.at(room.unheard_until, room)
        self._take_links()

    def _look_for_use(self, room: RevisionRoom, when: float) -> None:
        room.unlink_at = when
        self._timers.at(when, room)

    def _take_links(self) -> None:
        self.out.extend(self._fleet.out)
        self._fleet.out.clear()

    # --- who waits ----------------------------------------------------------------------------------------------------

    def _enqueue(self, bind: Bind, lane: Lane, now: float) -> None:
        room = bind.revision
        room.join(bind, lane, now)
        self._waiting[bind.request] = bind
        latest, deadline = bind.arrived + room.function.max_wait_s, bind.deadline
        self._timers.in_turn(latest if latest < deadline else deadline, bind)
        if not room.is_told(bind.priority):
            self._touch(room)

    def _remove(self, bind: Bind, now: float) -> None:
        """Takes a request out of the room, wherever it stands."""
        room = bind.revision
        room.part(bind, now)
        del self._waiting[bind.request]
        if not room.is_told(bind.priority):
            self._touch(room)

    def _signal(self, room: RevisionRoom, now: float) -> None:
        if not room.signal.update(room.is_activating(now), now):
            return
        self._timers.at(room.signal.next_at, room)
        self.out.append(Activate(room.wish(now)))

    def _be_patient(self, room: RevisionRoom) -> None:
        """Looks again when the head that left a free slot alone takes it."""
        self._timers.at(room.patient_until, room)
        room.patient_until = 0.0
        self._touch(room)

    # --- credits ------------------------------------------------------------------------------------------------------

    def _return(self, replica: Replica, numbers: tuple[int, ...]) -> None:
        if numbers:
            self.out.append(Send(replica.id, Return(numbers)))

    def _give_back(self, bind: Bind) -> None:
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
            self._retell(replica)  # The want in its header may not have arrived.

    def _retell(self, replica: Replica) -> None:
        replica.forget_told()
        self._touch(replica.group.revision)

    def _rest(self, replica: Replica, now: float) -> None:
        """No work for a while, longer with each failure in a row; those that fail together count once."""
        if replica.rests_until:
            return
        replica.rests_until = now + min(REST_LIMIT_S, REST_S * 2**replica.failures)
        replica.failures = min(replica.failures + 1, 10)
        self._withdraw(replica)
        self._timers.at(replica.rests_until, replica)

    def _withdraw(self, replica: Replica) -> None:
        """No work goes there: its idle credits go back, nobody waits for it, and it is told so."""
        self._return(replica, replica.surrender())
        replica.group.revision.unreserve(replica)
        self._touch(replica.group.revision)

    # --- small things -------------------------------------------------------------------------------------------------

    def _touch(self, room: RevisionRoom) -> None:
        if not room.gone:
            self._dirty[room] = None
            self.unsettled = True


def _matters(entry: Bind | Replica | RevisionRoom) -> bool:
    """Whether the time of this entry still means something."""
    if type(entry) is Bind:
        return entry.entry > 0 or entry.reserved is not None  # ``waits``, one call less
    return not entry.gone  # type: ignore[union-attr]  # `type() is` narrows nothing
