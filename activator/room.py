"""WaitingRoom: where a gateway worker's requests wait for slots, and where each is bound to a replica.

A request that finds an idle credit is bound at once. One that does not waits in its revision's queue (priority class,
fair turn, arrival), and is bound the moment a credit comes in: late binding, nothing is sent to a replica that could
not run it. What waits is told to the replicas as wants; where no replica is ready, activation is asked for.

Pure: ``now`` (seconds, one clock for all calls) is an argument. How a host uses it:

- after each call do what is in ``out``, in order (take the list, leave an empty one; a ``Bind`` there is a request that
  waited);
- at the end of a loop turn in which anything was called, while ``unsettled``: ``settle(now)`` and ``out`` again. One
  want per replica and turn leaves there;
- ``on_wakeup(now)`` when ``next_wakeup()`` is due. The time only ever comes nearer through calls of other methods.
"""

import random
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

from activator.choice import expected_s, most_owed, settle_debts
from activator.commands import Activate, Bind, Command, Refuse, Send
from activator.fleet import Fleet
from activator.replicas import REST_LIMIT_S, REST_S, SHORT_S, Group, Replica, RevisionRoom
from tidegate.errors import DEADLINE, NOT_SERVABLE, QUEUE_FULL, START_FAILED, WAITED_TOO_LONG
from tidegate.flow.messages import Grant, Limit, ProxyMessage, Recall, Return, Short, State, Void, Welcome
from tidegate.flow.wants import encode_want
from tidegate.records import Activation, FailureKind, RouteTable

UNUSED_S: Final = 60.0
"""Channels to a revision's replicas close when no request came for so long."""
HEARING_S: Final = 0.2
"""How long a replica whose channel is being opened counts as perhaps ready. Our choice."""


@dataclass(frozen=True, slots=True)
class RoomCounts:
    """Cumulative counters and present levels of one revision (``RevisionDemand`` has the meanings)."""

    arrivals: int
    arrivals_inferences: int
    refused: int
    expired: int
    cancelled: int
    waiting: int
    waiting_inferences: int
    oldest_waiting_s: float
    waiting_request_s: float
    waiting_inference_s: float


class WaitingRoom:
    """A gateway worker's waiting requests, of all revisions."""

    def __init__(self, *, rng: random.Random, worker_index: int = 0) -> None:
        self.out: list[Command] = []
        """What has to be done; the host takes the list and leaves an empty one."""
        self.unsettled = False
        """Wants have to be told: call ``settle`` at the end of this loop turn."""
        self._rng = rng
        self._version: tuple[int, int] = (-1, -1)
        self._fleet = Fleet(worker_index)
        self._waiting: dict[Hashable, Bind] = {}
        self._dirty: dict[RevisionRoom, None] = {}
        """Revisions whose wants may have changed, in the order in which they did."""
        self._arrival = 0
        self._timers: list[tuple[float, int, Bind | Replica | RevisionRoom]] = []
        """When to look at what again; entries that no longer matter are skipped."""
        self._timer_number = 0

    def __repr__(self) -> str:
        return f"<WaitingRoom {len(self._waiting)} waiting, {len(self._fleet.revisions)} revisions>"

    @property
    def waiting(self) -> int:
        """Requests that wait, of all revisions."""
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
        priority: int = 0,
    ) -> Bind | Refuse | None:
        """A request of ``inferences`` >= 1 that holds ``size`` bytes of memory while it waits.

        Bind: forward it now; Refuse: fail it now; None: it waits, and a ``Bind`` or ``Refuse`` for it comes in ``out``.
        Lower ``priority`` goes first.
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
        if not room.waiting:
            replica = self._choose(room, inferences, deadline - now)
            if replica is not None:
                bind = Bind(request, room, inferences, size, deadline, now)
                self._arrival += 1
                bind.key = (priority, 0, self._arrival)
                self._bind(bind, replica, now)
                return bind
        return self._wait(request, room, inferences, deadline, now, size, priority)

    def leave(self, request: Hashable, now: float, *, expired: bool = False) -> bool:
        """A waiting request went away (client gone, or the host saw its deadline first); False: it did not wait."""
        bind = self._waiting.get(request)
        if bind is None:
            return False
        self._remove(bind, now)
        if expired:
            bind.revision.expired += 1
        else:
            bind.revision.cancelled += 1
        return True

    def answered(self, bind: Bind, keep: bool, now: float) -> None:
        """Its answer ended completely; ``keep``: the head said ``tidegate-credit: keep``."""
        replica = bind.replica
        replica.in_flight -= 1
        replica.failures = 0
        room = bind.revision
        room.used_at = now
        if not replica.limit:
            replica.refresh()
            return
        if not bind.credit:
            return
        if bind.epoch != replica.epoch:
            return
        if replica.recalled and bind.credit in replica.recalled:
            replica.recalled.discard(bind.credit)
            if keep:
                self.out.append(Send(replica.id, Return((bind.credit,))))
            if not replica.in_flight:
                replica.recalled.clear()
        elif keep:
            replica.idle.append((bind.credit, bind.units))
            if replica.usable:
                replica.free += bind.units
                if room.waiting:
                    self._serve(room, now)

    def aborted(self, bind: Bind, now: float) -> None:
        """Its exchange ended otherwise: client gone, replica broke, deadline. The credit goes back by message."""
        bind.revision.used_at = now
        self._give_back(bind)

    def refused(self, bind: Bind, now: float) -> None:
        """The queue_proxy answered not-started: back to the old place; a ``Bind`` or ``Refuse`` follows in ``out``."""
        replica = bind.replica
        replica.in_flight -= 1
        replica.refresh()
        if not bind.credit:
            self._rest(replica, now)  # No credit can have been stale: the replica drains or is full, we do not insist.
        elif bind.epoch == replica.epoch:
            replica.recalled.discard(bind.credit)
            self._retell(replica)
        self._put_back(bind, now)

    def unsent(self, bind: Bind, now: float) -> None:
        """The replica could not be reached, nothing was sent: back to the old place, the replica rests for a while."""
        self._give_back(bind)
        if not bind.replica.gone:
            self._rest(bind.replica, now)
        self._put_back(bind, now)

    def counts(self, revision: str, now: float) -> RoomCounts | None:
        """What the demand record needs; None: not in the table."""
        room = self._fleet.revisions.get(revision)
        if room is None:
            return None
        room.count(now)
        oldest = room.oldest()
        return RoomCounts(
            arrivals=room.arrivals,
            arrivals_inferences=room.arrivals_inferences,
            refused=room.refused,
            expired=room.expired,
            cancelled=room.cancelled,
            waiting=room.waiting,
            waiting_inferences=room.waiting_inferences,
            oldest_waiting_s=0.0 if oldest is None else now - oldest,
            waiting_request_s=room.waiting_request_s,
            waiting_inference_s=room.waiting_inference_s,
        )

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
        room.unheard_until = now + HEARING_S
        self._at(room.unheard_until, room)
        view.reset()
        room.unreserve(view)
        self._touch(room)

    def heard(self, replica: str, message: ProxyMessage, now: float) -> None:
        """A message arrived on its channel."""
        view = self._fleet.replicas.get(replica)
        if view is None:
            return
        room = view.group.revision
        if isinstance(message, Grant):
            view.idle.extend(message.credits)
            view.refresh()
        elif isinstance(message, Recall):
            self._recall(view, message.credits)
            return
        elif isinstance(message, Void):
            self._drop_void(view, set(message.credits))
        elif isinstance(message, State):
            view.state = message.state
            view.refresh()
            if not view.usable:
                room.unreserve(view)
        elif isinstance(message, Limit):
            view.limit = message.limit
            if message.limit == 0:
                view.idle.clear()
            view.refresh()
        elif isinstance(message, Short):
            view.short = message.free
            view.short_at = now
            self._at(now + SHORT_S, room)
        elif isinstance(message, Welcome):
            view.reset()
            view.open = True
            view.limit = message.limit
            view.told = 0
            view.rests_until = 0.0
            self._touch(room)
            return  # Its state follows at once.
        self._touch(room)
        self._review(room, now)

    # --- time -------------------------------------------------------------------------------------------------------

    def settle(self, now: float) -> None:
        """End of a loop turn: tells the wants that changed, gives back credits that fit nothing that waits."""
        self.unsettled = False
        dirty, self._dirty = self._dirty, {}
        for room in dirty:
            if room.counts_inferences and room.queue:
                room.reserve(now)
            for group in room.groups:
                for replica in group.replicas:
                    if not replica.open:
                        continue
                    want = replica.tell(now)
                    if want is not None:
                        self.out.append(Send(replica.id, want))
                    if room.counts_inferences and replica.free and replica.want(now).amount:
                        self._return_idle(replica)

    def next_wakeup(self) -> float | None:
        """When ``on_wakeup`` has something to do; None: not by time alone."""
        timers = self._timers
        while timers:
            entry = timers[0][2]
            if type(entry) is Bind and self._waiting.get(entry.request) is not entry:
                heappop(timers)
                continue
            return timers[0][0]
        return None

    def on_wakeup(self, now: float) -> None:
        """Deadlines, longest waits, repeated activation, rests, channels unused for 60 s."""
        timers = self._timers
        rooms: dict[RevisionRoom, None] = {}
        while timers and timers[0][0] <= now:
            entry = heappop(timers)[2]
            if type(entry) is Bind:
                if self._waiting.get(entry.request) is entry:
                    self._expire(entry, now)
            elif type(entry) is Replica:
                if entry.rests_until and entry.rests_until <= now and not entry.gone:
                    entry.rests_until = 0.0
                    entry.refresh()
                    rooms[entry.group.revision] = None
            elif type(entry) is RevisionRoom and not entry.gone:
                rooms[entry] = None
        for room in rooms:
            self._touch(room)
            self._review(room, now)
            if room.active and now >= room.unlink_at:
                self._unlink_unused(room, now)

    # --- route table ------------------------------------------------------------------------------------------------

    def apply(self, table: RouteTable, now: float) -> bool:
        """Works from this table on; False: not newer than the present one, ignored.

        Requests stay. Credits of replicas that are gone vanish; what runs there goes on. Requests of a revision that is
        gone, or that gets no new requests and has nothing ready, wait for the function's largest one; without any they
        are refused.
        """
        if table.version <= self._version:
            return False
        self._version = table.version
        gone = self._fleet.apply(table, now)
        orphans = [bind for room in gone for bind in [*room.reserved, *room.queue.items()]]
        for bind in orphans:
            self._remove(bind, now)
        self._move_on(now)
        for room in self._fleet.revisions.values():
            if room.active:
                self._link(room, now)
        self._take_links()
        for bind in orphans:
            self._put_back(bind, now)
        for room in self._fleet.revisions.values():
            self._touch(room)
            self._review(room, now)
        return True

    def _move_on(self, now: float) -> None:
        """What waits for a revision that was replaced before it was ready would wait for ever: its successor serves."""
        for function in self._fleet.functions.values():
            for room in function.revisions[1:]:
                if room.percent > 0 or room.has_ready or not room.waiting or not function.revisions[0].percent:
                    continue
                for bind in [*room.reserved, *room.queue.items()]:
                    self._remove(bind, now)
                    bind.revision = function.revisions[0]
                    self._enqueue(bind, now)
                if not bind.revision.active:
                    self._link(bind.revision, now)

    def _link(self, room: RevisionRoom, now: float) -> None:
        """Opens channels to the replicas of a revision that is in use."""
        if not room.active:
            self._look_for_use(room, now + UNUSED_S)
        if self._fleet.link(room):
            room.unheard_until = now + HEARING_S
            self._at(room.unheard_until, room)
        self._take_links()

    def _unlink_unused(self, room: RevisionRoom, now: float) -> None:
        if room.waiting or any(replica.in_flight for group in room.groups for replica in group.replicas):
            room.used_at = now
        if now < room.used_at + UNUSED_S:
            self._look_for_use(room, room.used_at + UNUSED_S)
        else:
            self._fleet.unlink(room)
            self._take_links()

    def _look_for_use(self, room: RevisionRoom, when: float) -> None:
        room.unlink_at = when
        self._at(when, room)

    def _take_links(self) -> None:
        self.out.extend(self._fleet.out)
        self._fleet.out.clear()

    # --- waiting ----------------------------------------------------------------------------------------------------

    def _wait(
        self,
        request: Hashable,
        room: RevisionRoom,
        inferences: int,
        deadline: float,
        now: float,
        size: int,
        priority: int,
    ) -> Bind | Refuse | None:
        function = room.function
        if room.failure is not None and not room.has_ready:
            room.refused += 1
            return self._failure(request, room)
        if function.waiting >= function.bound_requests or function.waiting_bytes + size > function.bound_bytes:
            room.refused += 1
            return Refuse(request, QUEUE_FULL, "too many requests wait for this function", self._retry_after(room))
        bind = Bind(request, room, inferences, size, deadline, now)
        self._arrival += 1
        bind.key = (priority, 0, self._arrival)
        self._enqueue(bind, now)
        if not room.active:
            self._link(room, now)
        if room.reserved:
            self._serve(room, now)  # Only those wait that other replicas hold back for: this one may run now.
        self._signal(room, now)
        return None

    def _enqueue(self, bind: Bind, now: float) -> None:
        room = bind.revision
        room.count(now)
        room.queue.push(bind)
        room.tail_at = max(room.tail_at, bind.arrived)
        room.waiting += 1
        room.waiting_inferences += bind.inferences
        room.function.waiting += 1
        room.function.waiting_bytes += bind.size
        self._waiting[bind.request] = bind
        self._at(min(bind.deadline, bind.arrived + room.function.max_wait_s), bind)
        self._touch(room)

    def _remove(self, bind: Bind, now: float) -> None:
        """Takes a request out of the room, wherever it stands."""
        room = bind.revision
        room.count(now)
        if bind.reserved is not None:
            room.drop_reservation(bind)
        else:
            room.queue.remove(bind)
        room.waiting -= 1
        room.waiting_inferences -= bind.inferences
        room.function.waiting -= 1
        room.function.waiting_bytes -= bind.size
        del self._waiting[bind.request]
        if not room.waiting:
            room.signal.update(False, now)
        self._touch(room)

    def _expire(self, bind: Bind, now: float) -> None:
        self._remove(bind, now)
        bind.revision.expired += 1
        waited = f"waited {now - bind.arrived:.1f} s for a slot"
        if bind.deadline <= now:
            self.out.append(Refuse(bind.request, DEADLINE, f"the deadline passed; {waited}"))
        else:
            self.out.append(Refuse(bind.request, WAITED_TOO_LONG, waited))

    def _put_back(self, bind: Bind, now: float) -> None:
        """A request that was bound, or whose revision is gone, waits again in its old place."""
        room = bind.revision
        if room.gone:
            function = self._fleet.functions.get(room.function.name)
            if function is None or not function.revisions:
                self.out.append(Refuse(bind.request, NOT_SERVABLE, "the function was deleted"))
                return
            room = bind.revision = function.revisions[0]
        if bind.deadline <= now or bind.arrived + room.function.max_wait_s <= now:
            self._enqueue(bind, now)
            self._expire(bind, now)
            return
        self._enqueue(bind, now)
        if not room.active:
            self._link(room, now)
        self._review(room, now)

    def _failure(self, request: Hashable, room: RevisionRoom) -> Refuse:
        text = room.failure or ""
        match room.failure_kind:
            case FailureKind.START_FAILED:
                return Refuse(request, START_FAILED, text)
            case FailureKind.NOT_SERVABLE:
                return Refuse(request, NOT_SERVABLE, text, self._retry_after(room))

    def _retry_after(self, room: RevisionRoom) -> int:
        """Whole seconds: what waits on all workers over mu, at least 1 s, spread by up to a half upward."""
        mu_ips = room.mu_ips
        waiting = room.waiting_inferences * self._fleet.workers
        seconds = max(1.0, waiting / mu_ips) if mu_ips > 0 else 1.0
        # Rounded up or down at random, so that the jitter survives whole seconds.
        return max(1, int(seconds * (1 + 0.5 * self._rng.random()) + self._rng.random()))

    def _review(self, room: RevisionRoom, now: float) -> None:
        """Something changed for those who wait: bind whom a slot is free for; else fail them, or ask for a replica."""
        if not room.waiting:
            return
        self._serve(room, now)
        if room.failure is not None and not room.has_ready:
            for bind in [*room.reserved, *room.queue.items()]:
                self._remove(bind, now)
                room.refused += 1
                self.out.append(self._failure(bind.request, room))
        self._signal(room, now)

    def _signal(self, room: RevisionRoom, now: float) -> None:
        if not room.signal.update(room.is_activating(now), now):
            return
        oldest = room.oldest()
        self._at(room.signal.next_at, room)
        self.out.append(
            Activate(
                Activation(
                    function=room.function.name,
                    revision=room.id,
                    waiting=room.waiting,
                    waiting_inferences=room.waiting_inferences,
                    oldest_waiting_s=0.0 if oldest is None else now - oldest,
                )
            )
        )

    # --- binding ----------------------------------------------------------------------------------------------------

    def _choose(self, room: RevisionRoom, inferences: int, remaining_s: float) -> Replica | None:
        """Group, then replica, for a request that would run now; None: no slot that it may use is free."""
        pick = room.function.pick
        groups = room.serving
        if len(groups) == 1:
            group = groups[0]
            return pick(group.replicas, group.turn, inferences, self._rng)
        able: list[Group] = []
        picked: list[Replica] = []
        for group in groups:
            replica = pick(group.replicas, group.turn, inferences, self._rng)
            if replica is not None:
                able.append(group)
                picked.append(replica)
        if len(able) < 2:
            return picked[0] if picked else None
        chosen = most_owed(_in_time(able, room, inferences, remaining_s), room.total_share, inferences)
        return picked[able.index(chosen)]

    def _bind(self, bind: Bind, replica: Replica, now: float) -> None:
        """Takes the slot and makes the header; the request is not in the queue."""
        room = bind.revision
        group = replica.group
        bind.replica = replica
        bind.epoch = replica.epoch
        replica.in_flight += 1
        group.turn = replica.index + 1
        if len(room.serving) > 1:
            settle_debts(room.serving, group, room.total_share, bind.inferences)
        if replica.limit == 0:
            replica.free -= 1
            bind.credit = 0
            bind.header = b""
            return
        bind.credit, bind.units = replica.take(bind.inferences)
        want = replica.tell_with_request(now)
        if want is None:
            bind.header = b"tidegate-credit: %d\r\n" % bind.credit
        else:
            bind.header = b"tidegate-credit: %d\r\ntidegate-want: %b\r\n" % (bind.credit, encode_want(want))

    def _serve(self, room: RevisionRoom, now: float) -> None:
        """Binds waiting requests, best first, while slots are free."""
        for bind in sorted(room.reserved, key=lambda bind: bind.key):
            replica = bind.reserved
            assert replica is not None  # it is in the list of those that hold one
            if not (replica.free and replica.carries(bind.inferences)):
                continue
            self._bind_waiting(bind, replica, now)
        while (head := room.queue.head()) is not None:
            chosen = self._choose(room, head.inferences, head.deadline - now)
            if chosen is None:
                return
            self._bind_waiting(head, chosen, now)

    def _bind_waiting(self, bind: Bind, replica: Replica, now: float) -> None:
        if bind.deadline <= now:
            self._expire(bind, now)
            return
        self._remove(bind, now)
        self._bind(bind, replica, now)
        self.out.append(bind)

    # --- credits ----------------------------------------------------------------------------------------------------

    def _recall(self, replica: Replica, numbers: Iterable[int]) -> None:
        """Idle credits go back now, busy ones when their request has ended."""
        wanted = set(numbers)
        back = [credit[0] for credit in replica.idle if credit[0] in wanted]
        if back:
            replica.idle = [credit for credit in replica.idle if credit[0] not in wanted]
            replica.refresh()
        if replica.in_flight:
            replica.recalled |= wanted.difference(back)
        else:
            replica.recalled.clear()
            back = list(wanted)
        if back:
            self.out.append(Send(replica.id, Return(tuple(back))))

    def _drop_void(self, replica: Replica, numbers: set[int]) -> None:
        """The message may overtake the answer that says keep: a credit that is busy here goes when that has ended."""
        held = [credit for credit in replica.idle if credit[0] in numbers]
        for credit in held:
            replica.idle.remove(credit)
        if replica.in_flight:
            replica.recalled |= numbers.difference(number for number, _ in held)
        replica.refresh()
        replica.forget_told()

    def _return_idle(self, replica: Replica) -> None:
        numbers = tuple(number for number, _ in replica.idle)
        replica.idle.clear()
        replica.refresh()
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
        replica.recalled.discard(bind.credit)
        self.out.append(Send(replica.id, Return((bind.credit,))))
        if b"want" in bind.header:
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
        self._return_idle(replica)
        replica.refresh()
        replica.group.revision.unreserve(replica)
        self._at(replica.rests_until, replica)

    # --- small things -----------------------------------------------------------------------------------------------

    def _touch(self, room: RevisionRoom) -> None:
        if not room.gone:
            self._dirty[room] = None
            self.unsettled = True

    def _at(self, when: float, what: Bind | Replica | RevisionRoom) -> None:
        self._timer_number += 1
        heappush(self._timers, (when, self._timer_number, what))
        if len(self._timers) > 2 * len(self._waiting) + 4 * len(self._fleet.revisions) + 1024:
            self._timers = [
                entry
                for entry in self._timers
                if type(entry[2]) is not Bind or self._waiting.get(entry[2].request) is entry[2]
            ]
            heapify(self._timers)


def _in_time(groups: list[Group], room: RevisionRoom, inferences: int, remaining_s: float) -> list[Group]:
    """Those that can finish within the deadline; if none can, the one that would finish first."""
    finish: list[float] = []
    for group in groups:
        if not group.mu_ips:
            finish.append(0.0)  # Not learnt yet: it gets the benefit of the doubt.
            continue
        limit = next((replica.limit for replica in group.replicas if replica.usable), 1)
        ips = group.mu_ips / max(1, group.ready)
        finish.append(expected_s(inferences, limit, room.counts_inferences, ips))
    able = [group for group, seconds in zip(groups, finish, strict=True) if seconds <= remaining_s]
    return able or [groups[finish.index(min(finish))]]
