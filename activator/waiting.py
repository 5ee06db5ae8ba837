"""WaitingRequests: which requests may wait, in whose place, for which revision, and when they have to leave.

A request waits if the function's bounds leave room for it, or if a tenant that fills more of the room gives way. It
moves to another revision if its own is gone or is being retired. It leaves with a refusal if its revision failed, its
time is over, or no group serves its size.
"""

import random

from tidegate.activator.binding import Binder
from tidegate.activator.commands import Refuse
from tidegate.activator.refusals import failed, full, too_late, unserved
from tidegate.activator.state.bind import Bind
from tidegate.activator.state.fleet import Fleet
from tidegate.activator.state.lanes import Lane
from tidegate.activator.state.revisions import FunctionState, RevisionRoom
from tidegate.activator.state.room_state import RoomState
from tidegate.errors import NOT_SERVABLE


class WaitingRequests:
    """The requests of one gateway worker that have no slot."""

    __slots__ = ("_binder", "_fleet", "_out", "_rng", "_state")

    def __init__(self, state: RoomState, binder: Binder, rng: random.Random) -> None:
        self._state = state
        self._fleet: Fleet = state.fleet
        self._out = state.out
        self._binder = binder
        self._rng = rng

    def __repr__(self) -> str:
        return f"<WaitingRequests {len(self._state.requests)}>"

    def wait(self, bind: Bind, lane: Lane, now: float) -> Refuse | None:
        """Lets a request that has arrived wait in this lane. Returns its refusal if it may not."""
        room = bind.revision
        function = room.function
        if room.failure is not None and not room.has_ready:
            room.tidy(lane)
            room.refused += 1
            return failed(bind, self._rng)
        if function.shared is not None and function.tenants.usages:
            self.give_way(function, now)
        if function.is_full(bind.size) and not self._make_place(bind, now):
            room.tidy(lane)
            room.refused += 1
            return full(bind, self._rng)
        if lane.avoid is not None:
            lane = room.lane_of(bind) or lane  # Who gave way may have been the last in it.
        self._state.enqueue(bind, lane, now)
        if not room.active:
            self._state.link(room, now)
        if room.declined_until:
            self._state.recheck_declined(room)
        if room.reserved or len(room.lanes) > 1:
            self._binder.serve(room, now)  # The others may wait for other replicas: this one may run now.
        if room.signal.raised or not room.main.serving:
            self._state.signal(room, now)
        return None

    def put_back(self, bind: Bind, now: float) -> None:
        """Lets a request that was bound, or that lost its revision, wait again in its old place."""
        if bind.claim is not None:
            bind.lane.settle(bind.claim, 0.0)
        room = bind.revision
        if room.gone:
            if bind.is_pinned:
                self._out.append(Refuse(bind.request, NOT_SERVABLE, f"revision {room.id} is not deployed any more"))
                return
            function = self._fleet.functions.get(room.function.name)
            if function is None or not function.revisions:
                self._out.append(Refuse(bind.request, NOT_SERVABLE, "the function was deleted"))
                return
            room = function.revisions[0]
            self._move(bind, room)
        if bind.deadline <= now or bind.arrived + room.function.longest_s <= now:
            room.expired += 1
            self._out.append(too_late(bind, now, self._rng))
            return
        self._stand(bind, now)
        if not room.active:
            self._state.link(room, now)
        self.review(room, now)

    def regroup(self, gone: list[RevisionRoom], now: float) -> None:
        """Follows a new route table; ``gone``: the revisions that it does not list any more.

        Requests move to another revision where theirs is gone or is being retired, and are refused where there is none.
        """
        orphans = [bind for room in gone for bind in room.items()]
        for bind in orphans:
            self._state.remove(bind, now)
        excluded, self._fleet.unserved = self._fleet.unserved, []
        for bind in excluded:
            self._state.remove(bind, now)
            bind.revision.refused += 1
            self._out.append(unserved(bind))
        self._move_on(now)
        for room in self._fleet.revisions.values():
            if room.active:
                self._state.link(room, now)
        self._state.take_links()
        for bind in orphans:
            self.put_back(bind, now)
        for room in self._fleet.revisions.values():
            self._state.mark_changed(room)
            self.review(room, now)

    def _move_on(self, now: float) -> None:
        """Moves the requests of a revision that is being retired: it may never be ready, or hang, so they might wait
        for ever."""
        for function in self._fleet.functions.values():
            for room in function.revisions[1:]:
                if room.may_keep_waiting or not room.waiting or not function.revisions[0].percent:
                    continue
                successor = function.revisions[0]
                for bind in tuple(room.items()):
                    if bind.is_pinned:
                        continue
                    self._state.remove(bind, now)
                    self._move(bind, successor)
                    self._stand(bind, now)
                if not successor.active:
                    self._state.link(successor, now)

    def review(self, room: RevisionRoom, now: float) -> None:
        """Re-evaluates the waiting requests of a revision after a change.

        Binds those that fit a free slot, refuses them if the revision failed, and requests activation otherwise.
        """
        if not room.waiting:
            return
        self._binder.serve(room, now)
        if room.failure is not None and not room.has_ready:
            for bind in tuple(room.items()):
                self._state.remove(bind, now)
                room.refused += 1
                self._out.append(failed(bind, self._rng))
        self._state.signal(room, now)

    def give_way(self, function: FunctionState, now: float) -> None:
        """Refuses waiting requests of the tenant that fills most of a room beyond its bound: another worker has let
        others wait for that."""
        while (other := function.surplus()) is not None:
            self._displace(other, now)

    def cut_back(self, function: FunctionState, now: float) -> None:
        """Refuses the youngest waiting requests, of the tenant that fills most of the room first, until the room is
        within its bounds: they have waited on approval (:mod:`tidegate.flow.rooms.leases`)."""
        if not function.is_beyond:
            return
        self.give_way(function, now)
        found = [bind for bind in self._state.requests.values() if bind.revision.function is function]
        found.sort(key=lambda bind: (bind.arrived, bind.number))
        while found and function.is_beyond:
            self._displace(found.pop(), now)

    def _make_place(self, bind: Bind, now: float) -> bool:
        """Refuses waiting requests of tenants that fill more of the room. Returns False if there are none: the room
        stays full."""
        function = bind.revision.function
        while function.is_full(bind.size):
            if function.gives_way_elsewhere(bind):
                return True
            other = function.tenants.victim_for(bind)
            if other is None:
                return False
            self._displace(other, now)
        return True

    def _displace(self, other: Bind, now: float) -> None:
        self._state.remove(other, now)
        other.revision.refused += 1
        self._out.append(full(other, self._rng))

    def _stand(self, bind: Bind, now: float) -> None:
        """Puts a request that has waited before into the queue again, in its old place."""
        lane = bind.revision.lane_of(bind)
        if lane is None:
            bind.revision.refused += 1
            self._out.append(unserved(bind))
            return
        self._state.enqueue(bind, lane, now)

    def _move(self, bind: Bind, room: RevisionRoom) -> None:
        """Moves a request to another revision."""
        bind.revision = room
        bind.lane = room.main
        bind.group = None
