"""The waiting room: a gateway worker's requests wait here for slots, and each is bound to a replica here.

A request that finds an idle credit is bound at once. Any other waits in its revision's queue (priority class, fair
turn, arrival) and is bound the moment a credit comes in: late binding, so that nothing is sent to a replica that could
not run it. Replicas learn of waiting requests by wants. If no replica is ready, activation is requested.

Pure: ``now`` (seconds, one clock for all calls) is an argument. A host uses it like this:

- after each call carry out the commands in ``out``, in order (copy the list, clear it; a ``Bind`` there is a request
  that waited);
- at the end of a loop turn in which anything was called, while ``unsettled``: ``settle(now)`` and ``out`` again. One
  want per replica and turn is sent there;
- ``on_wakeup(now)`` when ``next_wakeup()`` is due. Calls of other methods only ever bring that time nearer.

The room has a :class:`~tidegate.activator.state.room_state.RoomState`, an object graph that only the room and its
two parts change: ``binding.py`` gives slots to requests, ``waiting.py`` lets those wait that have none.
"""

import random
from collections.abc import Hashable
from math import inf

from tidegate.activator.binding import Binder
from tidegate.activator.commands import Refuse, Send
from tidegate.activator.refusals import unserved
from tidegate.activator.state.bind import Affinity, Bind
from tidegate.activator.state.replicas import GOES, KEPT, Replica
from tidegate.activator.state.reservations import SHORT_S, reserve, unreserve
from tidegate.activator.state.revisions import RevisionRoom
from tidegate.activator.state.revisions import RoomCounts as RoomCounts
from tidegate.activator.state.room_state import HANDSHAKE_S, UNUSED_S, RoomState
from tidegate.activator.waiting import WaitingRequests
from tidegate.errors import DEADLINE, NOT_SERVABLE
from tidegate.flow.fair_queue import TenantCharge
from tidegate.flow.messages import Limit, ProxyMessage, Recall, Return, Short, State, Welcome
from tidegate.flow.rooms.figures import Board
from tidegate.flow.wants import DEFAULT_PRIORITY
from tidegate.records.route_table import RouteTable


class WaitingRoom:
    """The waiting requests of one gateway worker, of all revisions."""

    def __init__(self, *, rng: random.Random, worker_index: int | None = 0, board: Board | None = None) -> None:
        """``worker_index``: the number of this worker, by which it links to its share of many replicas; None: to all.
        ``board``: where workers publish what waits at them, so that the bounds of a room hold over all; None: each
        keeps to its part of them."""
        self.state = state = RoomState(worker_index)
        """Only the room and its parts change it. Hosts on a hot path read ``out`` and ``unsettled`` there."""
        self.out = state.out
        """Commands to carry out, in order. The host copies the list and clears it."""
        self._fleet = state.fleet
        self._fleet.board = board
        self._waiting = state.requests
        self._timers = state.timers
        self._rng = rng
        self._binder = Binder(state, rng)
        self._queue = WaitingRequests(state, self._binder, rng)
        self._version: tuple[int, int] = (-1, -1)
        self._arrival = 0

    def __repr__(self) -> str:
        return f"<WaitingRoom {len(self._waiting)} waiting, {len(self._fleet.revisions)} revisions>"

    # --- for the host -----------------------------------------------------------------------------------------------

    @property
    def unsettled(self) -> bool:
        """Returns whether wants have to be sent: call ``settle`` at the end of this loop turn."""
        return self.state.unsettled

    @unsettled.setter
    def unsettled(self, is_unsettled: bool) -> None:
        self.state.unsettled = is_unsettled

    @property
    def has_work(self) -> bool:
        """Returns whether there are commands to carry out, or wants to send."""
        return bool(self.out) or self.state.unsettled

    @property
    def waiting(self) -> int:
        """The number of waiting requests, of all revisions."""
        return len(self._waiting)

    # --- requests ---------------------------------------------------------------------------------------------------

    def arrive(
        self,
        request: Hashable,
        revision: str,
        inferences: int,
        deadline: float,
        now: float,
        size: int = 0,
        priority: int = DEFAULT_PRIORITY,
        key: Affinity | None = None,
        pinned: bool = False,
        avoid: str | None = None,
        claim: TenantCharge | None = None,
        since: float | None = None,
    ) -> Bind | Refuse | None:
        """Binds, refuses or enqueues a request of ``inferences`` >= 1 that holds ``size`` bytes of memory while it
        waits.

        Returns a ``Bind`` to forward now, a ``Refuse`` to answer now, or None if it waits; then a ``Bind`` or
        ``Refuse`` for it follows in ``out``. ``priority``: 0 goes first, 9 last. ``key``: requests with equal keys
        prefer one replica (``Spread.HASH``). ``pinned``: it is for this revision and never moves to another. ``avoid``:
        the replica of this id must not take it. ``claim``: its tenant, which takes fair turns with others
        (:mod:`tidegate.flow.fair_queue`) and has its part of the room (:mod:`tidegate.activator.state.tenants`).
        ``since``: when the whole request arrived, of which this is a stage; its place and its age count from there.
        """
        room = self._fleet.revisions.get(revision)
        if room is None:
            return Refuse(request, NOT_SERVABLE, f"revision {revision} is not deployed")
        room.arrivals += 1
        room.arrivals_inferences += inferences
        room.used_at = now
        if deadline <= now:
            room.expired += 1
            return Refuse(request, DEADLINE, "the deadline had passed on arrival")
        self._arrival = number = self._arrival + 1
        arrived = now if since is None else since
        bind = Bind(request, room, inferences, size, deadline, arrived, priority, number, claim, pinned)
        function = room.function
        if key is not None and function.hashes:
            bind.affinity = key
        lane = room.main
        if avoid is not None or not room.is_plain:
            bind.avoid = avoid
            found = room.lane_of(bind)
            if found is None:
                room.refused += 1
                return unserved(bind)
            lane = found
        if not room.waiting or (not room.is_one_line and room.is_unclaimed(lane)):
            replica = lane.choose(bind, now, function.pick, self._rng)
            if replica is not None:
                if avoid is not None:
                    room.tidy(lane)
                bind.lane = lane
                if claim is not None:
                    lane.relax()
                self._binder.take(bind, replica, now)
                return bind
        return self._queue.wait(bind, lane, now)

    def take_idle_slot(self, request: Hashable, revision: str, inferences: int, now: float) -> Bind | None:
        """Returns a free slot for work that must not wait, overtake a request or start a replica; None if there is no
        such slot.

        It does not count as an arrival. Its credit goes home afterwards: the queue_proxy grants it to the next worker.
        """
        room = self._fleet.revisions.get(revision)
        if room is None:
            return None
        room.used_at = now
        if not room.active:
            self.state.link(room, now)
        self._arrival = number = self._arrival + 1
        bind = Bind(request, room, inferences, 0, inf, -inf, DEFAULT_PRIORITY, number, None, False)
        lane = None if room.waiting else room.lane_of(bind)
        replica = None if lane is None else lane.choose(bind, now, room.function.pick, self._rng)
        if lane is None or replica is None:
            return None
        bind.lane = lane
        self._binder.take(bind, replica, now)
        if bind.credit:
            replica.noted[bind.credit] = GOES
        return bind

    def is_short_of(self, revision: str, inferences: int) -> bool:
        """Returns whether a request of this many inferences would wait for more than a slot that another worker
        holds."""
        room = self._fleet.revisions.get(revision)
        return room is not None and not room.has_slot_for(inferences) and room.is_busy()

    def has_slot(self, revision: str, inferences: int) -> bool:
        """Returns whether a request of this many inferences would take a free slot now."""
        room = self._fleet.revisions.get(revision)
        return room is not None and room.has_slot_for(inferences)

    def open_channels(self, revision: str, now: float) -> float:
        """Opens the channels to a revision's replicas, which report whether it serves. Starts no replica.

        Returns since when they are open or being opened, in seconds of the room's clock; -inf for one that is not
        deployed.
        """
        room = self._fleet.revisions.get(revision)
        if room is None:
            return -inf
        if not room.active:
            room.used_at = now
            self.state.link(room, now)
        return room.opened_at

    def withdraw(self, request: Hashable, now: float, *, expired: bool = False) -> bool:
        """Removes a waiting request (client gone, or the host saw its deadline first). Returns False if it did not
        wait."""
        bind = self._waiting.get(request)
        if bind is None:
            return False
        self.state.remove(bind, now)
        if expired:
            bind.revision.expired += 1
        else:
            bind.revision.cancelled += 1
        return True

    def keep_credit(self, bind: Bind) -> None:
        """The head of its answer said ``tidegate-credit: keep``. Called if the end of the answer may be long in
        coming."""
        replica = bind.replica
        if bind.credit and bind.epoch == replica.epoch:
            replica.noted.setdefault(bind.credit, KEPT)

    def answered(self, bind: Bind, keep: bool, now: float) -> None:
        """The answer of a bound request ended completely; ``keep``: its head said ``tidegate-credit: keep``."""
        replica = bind.replica
        replica.in_flight -= 1
        replica.failures = 0
        room = bind.revision
        room.used_at = now
        if not replica.limit:
            replica.answered_at = now
            replica.noted.clear()
            replica.refresh()
            return
        if not bind.credit:
            return
        if bind.epoch != replica.epoch:
            return
        if replica.noted and (note := replica.noted.pop(bind.credit, KEPT)) != KEPT:
            if keep and note == GOES:
                self.out.append(Send(replica.id, Return((bind.credit,))))
            if not replica.in_flight:
                replica.noted.clear()
        elif keep:
            replica.idle.append((bind.credit, bind.units))
            if replica.ready:
                replica.free += bind.units
                if room.waiting:
                    self._binder.hand_over(room, replica, now)

    def cost(self, bind: Bind, cost: float) -> None:
        """Charges a tenant for the real cost of its bound request. Called before the end of that request."""
        if bind.claim is not None:
            bind.lane.settle(bind.claim, cost)

    def aborted(self, bind: Bind, now: float) -> None:
        """The exchange of a bound request ended otherwise: client gone, replica broke, deadline. The credit is
        returned."""
        bind.revision.used_at = now
        self.state.give_back(bind)

    def refused(self, bind: Bind, now: float) -> None:
        """The queue_proxy answered not-started: the request returns to its old place; a ``Bind`` or ``Refuse`` follows
        in ``out``."""
        replica = bind.replica
        replica.in_flight -= 1
        replica.refresh()
        if not bind.credit:
            self.state.rest(replica, now)  # No credit can have been stale: it drains or is full, we do not insist.
        elif bind.epoch == replica.epoch:
            replica.noted.pop(bind.credit, None)
            self.state.resend_want(replica)
        self._queue.put_back(bind, now)

    def unsent(self, bind: Bind, now: float) -> None:
        """The replica could not be reached and nothing was sent: the request returns to its old place, the replica
        backs off."""
        self.state.give_back(bind)
        if not bind.replica.gone:
            self.state.rest(bind.replica, now)
        self._queue.put_back(bind, now)

    def broke_off(self, bind: Bind, now: float) -> None:
        """The exchange broke after it was sent and may be repeated: the request returns to its old place.

        Another replica takes it, as long as another one serves.
        """
        self.state.give_back(bind)
        if bind.avoid is None:
            bind.avoid = bind.replica.id
            bind.may_return = True
        self._queue.put_back(bind, now)

    def ready_replicas(self, revision: str) -> int:
        """Returns the number of the revision's replicas that serve now, as far as this worker knows."""
        room = self._fleet.revisions.get(revision)
        return 0 if room is None else room.ready

    def counts(self, revision: str, now: float) -> RoomCounts | None:
        """Returns the figures of a revision for the demand record; None if the route table does not list it."""
        room = self._fleet.revisions.get(revision)
        return None if room is None else room.counts(now)

    def last_answer(self, replica: str) -> float | None:
        """Returns when a replica without a limit that runs requests of this worker last answered one; 0.0 if it has not
        yet.

        Returns None if it runs none, or has a limit.
        """
        view = self._fleet.replicas.get(replica)
        return None if view is None or view.limit or not view.in_flight else view.answered_at

    def cut_back(self, function: str, now: float) -> None:
        """Fewer requests of a function may wait here than do: the youngest leave with a refusal in ``out``."""
        found = self._fleet.functions.get(function)
        if found is not None:
            self._queue.cut_back(found, now)

    # --- outliers ---------------------------------------------------------------------------------------------------

    def eject(self, replica: str, now: float, until: float) -> None:
        """Gives a replica no new work before ``until``; the requests that run there go on."""
        view = self._fleet.replicas.get(replica)
        if view is None or until <= now:
            return
        view.ejected_until = until
        self.state.take_out_of_service(view)
        self._timers.at(until, view)
        self._queue.review(view.group.revision, now)

    def readmit(self, replica: str, now: float) -> None:
        """Ends the ejection of a replica."""
        view = self._fleet.replicas.get(replica)
        if view is not None and view.ejected_until:
            view.ejected_until = 0.0
            view.refresh()
            self.state.mark_changed(view.group.revision)
            self._queue.review(view.group.revision, now)

    # --- channels ---------------------------------------------------------------------------------------------------

    def linked(self, replica: str, now: float) -> None:
        """The channel of a ``Link`` is open; messages follow. Nothing is known of the replica before its welcome."""
        view = self._fleet.replicas.get(replica)
        if view is not None:
            view.reset()

    def unlinked(self, replica: str, now: float) -> None:
        """The channel broke: its credits are gone. The host reconnects until ``Unlink``."""
        view = self._fleet.replicas.get(replica)
        if view is None:
            return
        room = view.group.revision
        room.handshake_until = now + HANDSHAKE_S
        self._timers.at(room.handshake_until, room)
        view.reset()
        unreserve(room, view)
        self.state.mark_changed(room)
        self._queue.review(room, now)

    def heard(self, replica: str, message: ProxyMessage, now: float) -> None:
        """A message arrived on the channel of a replica."""
        view = self._fleet.replicas.get(replica)
        if view is None:
            return
        room = view.group.revision
        if isinstance(message, Recall):
            self.state.return_credits(view, view.recall(message.credits))
            return
        view.receive(message, now)
        self.state.mark_changed(room)
        if isinstance(message, Welcome):
            return  # Its state follows at once.
        if isinstance(message, Short):
            self._timers.at(now + SHORT_S, room)
        elif isinstance(message, Limit):
            room.recount()
        elif isinstance(message, State) and not view.usable:
            unreserve(room, view)
        self._queue.review(room, now)

    # --- time -------------------------------------------------------------------------------------------------------

    def settle(self, now: float) -> None:
        """Sends the wants that changed and returns credits that fit no waiting request. Called at the end of a loop
        turn."""
        state = self.state
        state.unsettled = False
        changed, state.changed = state.changed, {}
        for room in changed:
            if room.counts_inferences and room.waiting:
                for lane in room.lanes.values():
                    reserve(room, lane, now)
            for group in room.groups:
                self.out += group.changed_wants(now)
                if room.counts_inferences:
                    for replica in group.replicas:
                        if replica.open and replica.free and replica.level()[0]:
                            self.state.return_credits(replica, replica.surrender())
            room.settled()

    def next_wakeup(self) -> float | None:
        """Returns when ``on_wakeup`` has something to do; None if nothing will happen by time alone."""
        return self._timers.first()

    def on_wakeup(self, now: float) -> None:
        """Handles deadlines, longest waits, repeated activation, the end of back-offs and ejections, and channels
        unused for 60 s."""
        rooms: dict[RevisionRoom, None] = {}
        while (entry := self._timers.due(now)) is not None:
            if type(entry) is Bind:
                self._binder.expire(entry, now)
            elif type(entry) is Replica:
                if entry.comes_back(now):
                    rooms[entry.group.revision] = None
            elif type(entry) is RevisionRoom:
                rooms[entry] = None
        for room in rooms:
            self.state.mark_changed(room)
            self._queue.give_way(room.function, now)
            self._queue.review(room, now)
            if room.active and now >= room.unlink_at:
                self._unlink_unused(room, now)

    # --- route table ------------------------------------------------------------------------------------------------

    def apply(self, table: RouteTable, now: float) -> bool:
        """Works from this route table on. Returns False if it is not newer than the present one.

        Requests stay. Credits of replicas that are gone vanish; the requests that run there go on. Requests wait for
        the function's largest revision if theirs is gone, is being retired, or gets no new requests and has nothing
        ready. If no revision is left they are refused.
        """
        if table.version <= self._version:
            return False
        self._version = table.version
        self._queue.regroup(self._fleet.apply(table, now), now)
        return True

    def _unlink_unused(self, room: RevisionRoom, now: float) -> None:
        if room.waiting or any(replica.in_flight for group in room.groups for replica in group.replicas):
            room.used_at = now
        if now < room.used_at + UNUSED_S:
            self.state.check_use_at(room, room.used_at + UNUSED_S)
        else:
            self._fleet.unlink(room)
            self.state.take_links()
