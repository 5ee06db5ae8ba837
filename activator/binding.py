"""Binder: gives free slots to requests, those that arrive and those that wait.

A slot is taken for a request at the moment it can run and not before (late binding). Waiting requests are served best
first: those that a replica holds back for, then by priority class, fair turn and arrival
(:mod:`tidegate.activator.state.lanes`).
"""

import random

from tidegate.activator.choice import update_deficits
from tidegate.activator.refusals import too_late
from tidegate.activator.state.bind import Bind
from tidegate.activator.state.lanes import first_served
from tidegate.activator.state.replicas import Replica
from tidegate.activator.state.revisions import RevisionRoom
from tidegate.activator.state.room_state import RoomState


class Binder:
    """Binds the requests of one gateway worker to replicas."""

    __slots__ = ("_out", "_requests", "_rng", "_state")

    def __init__(self, state: RoomState, rng: random.Random) -> None:
        self._state = state
        self._out = state.out
        self._requests = state.requests
        self._rng = rng

    def __repr__(self) -> str:
        return f"<Binder of {len(self._requests)} waiting>"

    def take(self, bind: Bind, replica: Replica, now: float) -> None:
        """Takes the slot for a request that is not in the queue (any more)."""
        lane, group = bind.lane, replica.group
        bind.replica = replica
        bind.epoch = replica.epoch
        replica.in_flight += 1
        group.next_index = replica.index + 1
        if type(bind.affinity) is list:
            bind.revision.prefixes.record(replica, bind.affinity)
        if len(lane.serving) > 1:
            bound = lane.deficit_limit(bind.inferences)
            update_deficits(lane.serving, group, lane.total_share, bind.inferences, bound)
        if replica.limit == 0:
            replica.free -= 1
            bind.credit = 0
            return
        bind.credit, bind.units = replica.take(bind.inferences)
        bind.want = replica.want_with_request(now) if replica.sent_class or bind.revision.waiting else None

    def serve(self, room: RevisionRoom, now: float) -> None:
        """Binds waiting requests, best first, while slots are free."""
        urgency = room.function.urgency
        if urgency is not None:
            urgency.now = now
        for bind in sorted(room.reserved, key=lambda bind: bind.key):
            replica = bind.reserved
            assert replica is not None  # it is in the list of those that hold one
            if not (replica.free and replica.carries(bind.inferences)):
                continue
            self._bind_waiting(bind, replica, now)
        if len(room.lanes) > 1:
            while (bound := first_served(room.lanes.values(), now, room.function.pick, self._rng)) is not None:
                self._bind_waiting(*bound, now)
        else:
            lane, pick = room.main, room.function.pick
            while (head := lane.queue.head()) is not None:
                chosen = lane.choose(head, now, pick, self._rng)
                if chosen is None:
                    break
                self._bind_waiting(head, chosen, now)
        if room.declined_until:
            self._state.recheck_declined(room)

    def hand_over(self, room: RevisionRoom, replica: Replica, now: float) -> None:
        """Uses a slot of the replica that is free again while requests wait.

        If all stand in one line for its group alone there is nothing to choose: no other slot is free.
        """
        if not room.is_one_line or room.main.serving != [replica.group]:
            self.serve(room, now)
            return
        queue = room.main.queue
        while replica.free and (head := queue.head()) is not None:
            self._bind_waiting(head, replica, now)

    def _bind_waiting(self, bind: Bind, replica: Replica, now: float) -> None:
        room = bind.revision
        if bind.deadline <= now or bind.arrived + room.function.drop_after_s <= now:
            self.expire(bind, now)
            return
        room.part(bind, now)
        del self._requests[bind.request]
        if bind.claim is not None:
            bind.lane.served(bind)
        self.take(bind, replica, now)
        if not room.is_want_sent(bind.priority):  # After it was bound: its header has said what remains.
            self._state.mark_changed(room)
        self._out.append(bind)

    def expire(self, bind: Bind, now: float) -> None:
        """Refuses a waiting request whose time is over."""
        self._state.remove(bind, now)
        bind.revision.expired += 1
        self._out.append(too_late(bind, now, self._rng))
