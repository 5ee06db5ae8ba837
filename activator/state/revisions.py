"""Functions and revisions, as one gateway worker knows them: bounds, lanes, counters, activation.

Activation is a level-triggered signal: it is sent at once when requests wait and no replica is ready, then every
``REPEAT_S`` until that changes. It is not acknowledged. A second signal changes nothing at the receiver, and a control
process that was away gets it within one interval.

Everything here changes only through :class:`tidegate.activator.room.WaitingRoom` and its parts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, inf
from typing import Final

from tidegate.activator.choice import Pick, largest_deficit, preferred, replica_pick, update_deficits
from tidegate.activator.prefixes import PrefixIndex
from tidegate.activator.state.bind import Affinity, Bind
from tidegate.activator.state.lanes import Lane, LaneKey
from tidegate.activator.state.replicas import Group, Replica
from tidegate.activator.state.reservations import release
from tidegate.activator.state.tenants import TenantShares
from tidegate.activator.state.urgency_queue import UrgencyClock
from tidegate.flow.rooms.figures import Board, FunctionBoard, Others
from tidegate.flow.wants import want_range
from tidegate.records.gateway_sample import Activation
from tidegate.records.route_table import Binding, FailureKind, FunctionRoute, QueueOrder, Spread

REPEAT_S: Final = 0.2
"""Interval at which a raised activation signal is repeated."""
BACKLOG: Final = 4
"""So many times as many requests as there are slots are a crowd."""
CROWD_EVERY_S, CROWD_LOOK_S = 1.0, 0.1
"""Shortest time between two reports of a crowd, and between two counts of slots that show none."""


class ActivationSignal:
    """The activation signal of one revision."""

    __slots__ = ("crowd_at", "next_at", "raised")

    def __init__(self) -> None:
        self.crowd_at = 0.0
        """When a crowd is looked for again."""
        self.raised = False
        self.next_at = 0.0
        """When it has to be sent again; meaningful while raised."""

    def __repr__(self) -> str:
        return f"<ActivationSignal {'raised' if self.raised else 'at rest'}>"

    def update(self, is_wanted: bool, now: float) -> bool:
        """Takes the present level. Returns True if it has to be sent now: it rose, or it is time to repeat it."""
        if not is_wanted:
            self.raised = False
            return False
        if self.raised and now < self.next_at:
            return False
        self.raised = True
        self.next_at = now + REPEAT_S
        return True


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


class FunctionState:
    """The state that the revisions of a function share: the bounds of its waiting room on this worker."""

    __slots__ = (
        "board",
        "bound_bytes",
        "bound_requests",
        "by_deadline",
        "drop_after_s",
        "due_s",
        "hash_on",
        "hashes",
        "is_early",
        "longest_s",
        "name",
        "part_bytes",
        "part_requests",
        "pick",
        "revisions",
        "shared",
        "tenants",
        "timeout_s",
        "urgency",
        "waiting",
        "waiting_bytes",
        "workers",
    )

    def __init__(self, name: str, board: Board | None = None) -> None:
        """``board``: where workers publish what waits at them; None: each keeps to its part of the bounds."""
        self.name = name
        self.workers = 1
        self.board = board
        self.shared: FunctionBoard | None = None
        """The function's figures on the board, once a request has waited."""
        self.bound_requests = 0
        self.bound_bytes = 0
        self.part_requests = 0
        self.part_bytes = 0
        self.longest_s = 0.0
        """Longest time that a request waits: the function's own limit, or the age at which it is dropped."""
        self.drop_after_s = inf
        """Age from which on a waiting request is dropped (``drop-after``)."""
        self.timeout_s = 0.0
        self.pick: Pick[Replica] = replica_pick(Spread.MOST_FREE)
        self.hashes = False
        """Requests with equal keys prefer one replica."""
        self.hash_on = ""
        self.by_deadline = False
        """The place of a request follows from the time when it is due."""
        self.due_s = inf
        """A request is due this long after its arrival, or at its deadline if that is earlier."""
        self.urgency: UrgencyClock | None = None
        """Set if requests wait by urgency."""
        self.is_early = False
        """A request's group is fixed at its arrival."""
        self.waiting = 0
        self.waiting_bytes = 0
        self.tenants = TenantShares()
        """The part of the bounds that each tenant has."""
        self.revisions: list[RevisionRoom] = []

    def apply(self, route: FunctionRoute, workers: int) -> None:
        """Takes over the settings of the route table. The bounds hold over all workers; one without the others' figures
        keeps to its part of them, rounded up."""
        self.workers = workers
        self.bound_requests, self.bound_bytes = route.queue_requests, route.queue_bytes
        self.part_requests = ceil(route.queue_requests / workers)
        self.part_bytes = ceil(route.queue_bytes / workers)
        self.tenants.resize(max(1, self.bound_requests), max(1, self.bound_bytes))
        self.drop_after_s = inf if route.drop_after_s is None else route.drop_after_s
        self.longest_s = min(route.max_wait_s, self.drop_after_s)
        if self.shared is not None:
            self.shared.resize(self.bound_requests, self.bound_bytes, self.longest_s)
        self.timeout_s = route.timeout_s
        self.pick = replica_pick(route.spread)
        self.hashes = route.spread is Spread.HASH
        self.hash_on = route.hash_on
        self.by_deadline = route.queue_order is not QueueOrder.ARRIVAL
        if route.queue_order is QueueOrder.URGENCY:
            self.due_s = inf if route.task_deadline_s is None else route.task_deadline_s
            self.urgency = self.urgency or UrgencyClock()
            self.urgency.horizon_s = route.timeout_s
        else:
            self.due_s, self.urgency = inf, None
        self.is_early = route.binding is Binding.EARLY

    def counts_from(self, bind: Bind) -> float:
        """Returns the time from which a request counts as waiting: its arrival; if its place follows from when it is
        due, as if it had arrived earlier by as much as its time is shorter than the longest."""
        if not self.by_deadline:
            return bind.arrived
        due = bind.arrived + self.due_s
        return (due if due < bind.deadline else bind.deadline) - self.timeout_s

    def is_full(self, size: int) -> bool:
        """Returns whether no further request of this many bytes may wait."""
        if self.board is not None:
            self.shared, self.board = self.board.of(self.name), None
            if self.shared is not None:
                self.shared.resize(self.bound_requests, self.bound_bytes, self.longest_s)
            self.publish()
        shared = self.shared
        if shared is None:  # As ``_is_within_part`` says, without its call: this is asked for each request.
            return self.waiting >= self.part_requests or self.waiting_bytes + size > self.part_bytes
        if not self._is_beyond(shared.others(), 1, size):
            return False
        return not shared.drop_ended() or self._is_beyond(shared.others(), 1, size)

    def publish(self) -> None:
        """Publishes what waits here; called whenever that has changed."""
        shared, tenants = self.shared, self.tenants
        if shared is not None:
            shared.publish(self.waiting, self.waiting_bytes, tenants.top_load() if tenants.usages else 0.0)

    @property
    def waiting_elsewhere(self) -> int:
        """Requests that wait at the other workers; taken to be as many at each as here if that is not known."""
        return self.waiting * (self.workers - 1) if self.shared is None else self.shared.others().requests

    def gives_way_elsewhere(self, bind: Bind) -> bool:
        """Returns whether another worker makes place in the full room for a request: a tenant there fills more of it
        than the request's tenant and every other one do here. A worker gets no more than its part in this way."""
        shared = self.shared
        if shared is None or bind.claim is None or not self._is_within_part(bind.size):
            return False
        load = shared.others().load
        return load >= self.tenants.top_load() and load > self.tenants.load_with(bind)

    def surplus(self) -> Bind | None:
        """Returns a request that has to leave, because the room is beyond its bound and a tenant here fills most of it;
        None if there is none."""
        shared = self.shared
        if shared is None or (load := self.tenants.top_load()) <= 0.0:
            return None
        others = shared.others()
        return self.tenants.youngest() if load >= others.load and self._is_beyond(others, 0, 0) else None

    @property
    def is_beyond(self) -> bool:
        """Whether more waits here than the others leave of the bounds."""
        return self.shared is not None and self._is_beyond(self.shared.others(), 0, 0)

    def _is_within_part(self, size: int) -> bool:
        return self.waiting < self.part_requests and self.waiting_bytes + size <= self.part_bytes

    def _is_beyond(self, others: Others, requests: int, size: int) -> bool:
        """Returns whether the room would be beyond its bound with so much more."""
        others_requests, others_size, _ = others
        return (
            self.waiting + others_requests + requests > self.bound_requests
            or self.waiting_bytes + others_size + size > self.bound_bytes
        )


class RevisionRoom:
    """One revision's waiting requests on this worker, its groups, and its counters."""

    __slots__ = (
        "_inference_moments",
        "_request_moments",
        "_since",
        "active",
        "arrivals",
        "arrivals_inferences",
        "cancelled",
        "counts_inferences",
        "declined_until",
        "expired",
        "failure",
        "failure_kind",
        "function",
        "gone",
        "groups",
        "handshake_until",
        "id",
        "is_one_line",
        "is_plain",
        "is_tagged",
        "lanes",
        "main",
        "opened_at",
        "percent",
        "prefixes",
        "refused",
        "reserved",
        "sent_from",
        "sent_priority",
        "sent_to",
        "shape",
        "signal",
        "unlink_at",
        "used_at",
        "waiting",
        "waiting_inferences",
    )

    def __init__(self, id: str, function: FunctionState, now: float) -> None:  # noqa: A002 - the record's field
        self.id = id
        self.function = function
        self.gone = False
        self.counts_inferences = False
        self.percent = 0.0
        """Percent of the function's new requests that it gets."""
        self.is_tagged = False
        """Clients may ask for it by name, whatever its percent is."""
        self.declined_until = 0.0
        """When the first waiting request takes a slot that it has declined
        (:meth:`tidegate.activator.state.lanes.Lane.choose`); 0 if it has declined none, or if a look at that time is
        scheduled."""
        self.failure: str | None = None
        self.failure_kind = FailureKind.START_FAILED
        self.groups: list[Group] = []
        self.prefixes: PrefixIndex[Replica] = PrefixIndex()
        """The prompts that its replicas were sent, if requests have an affinity to prompts."""
        self.main = Lane(self.groups)
        """The lane of all groups."""
        self.lanes: dict[LaneKey, Lane] = {self.main.key: self.main}
        self.is_one_line = True
        """All waiting requests stand in one lane, in a fixed order, and each takes one slot: while any waits, no slot
        is free for it."""
        self.is_plain = True
        """Every request that avoids no replica belongs into the main lane."""
        self.shape: tuple[object, ...] = ()
        """The settings that the lanes were made from."""
        self.reserved: list[Bind] = []
        """Requests that stand outside the queue because a replica holds back for them."""
        self.signal = ActivationSignal()
        self.active = False
        """Its replicas are linked."""
        self.opened_at = -inf
        """When it last became active."""
        self.used_at = now
        self.unlink_at = 0.0
        """When to check whether it still is in use, while its replicas are linked."""
        self.handshake_until = 0.0
        """Until then a replica that has not reported its state counts as perhaps ready."""
        self.waiting = 0
        self.waiting_inferences = 0
        self._since = now
        self._request_moments = self._inference_moments = 0.0
        """Times of the requests that left less times of those that came: ``moments + waiting * now`` is the integral of
        waiting over time, without a step for the time between."""
        self.sent_priority = 0
        self.sent_from, self.sent_to = 1, 0
        """While this many requests of ``sent_priority`` wait, no want has to be sent; an empty range if that is not
        known."""
        self.arrivals = 0
        self.arrivals_inferences = 0
        self.refused = 0
        self.expired = 0
        self.cancelled = 0

    def __repr__(self) -> str:
        return f"<RevisionRoom {self.id} {self.waiting} waiting, {self.replica_count} replicas>"

    @property
    def may_keep_waiting(self) -> bool:
        """Returns whether its requests may keep waiting: it gets new ones, or has a tag and a replica that serves."""
        return self.percent > 0 or (self.is_tagged and self.has_ready)

    @property
    def replica_count(self) -> int:
        return sum(len(group.replicas) for group in self.groups)

    @property
    def awake_count(self) -> int:
        """Number of its replicas that do not sleep, as far as the route table says."""
        return sum(not replica.asleep for group in self.groups for replica in group.replicas)

    @property
    def mu_ips(self) -> float:
        """Service rate of all groups together as far as it is known, in inferences per second; 0 if it is unknown."""
        return sum(group.mu_ips or 0.0 for group in self.groups if group.share > 0)

    @property
    def has_ready(self) -> bool:
        """Returns whether some replica serves new work."""
        return bool(self.main.serving)

    def is_crowded(self) -> bool:
        """Returns whether far more requests wait than the replicas that serve have slots."""
        ready = [replica for group in self.main.serving for replica in group.replicas if replica.ready]
        return bool(ready) and self.waiting >= BACKLOG * sum(replica.limit or inf for replica in ready)

    @property
    def ready(self) -> int:
        """The number of replicas that serve new work."""
        return sum(group.ready for group in self.main.serving)

    def has_slot_for(self, inferences: int) -> bool:
        """Returns whether a request of this many inferences would take a free slot now, instead of waiting."""
        return not self.waiting and any(
            replica.free and replica.fits(inferences)
            for group in self.main.serving
            if group.serves(inferences)
            for replica in group.replicas
            if replica.ready
        )

    def is_busy(self) -> bool:
        """Returns whether requests of this worker wait or run, or nothing is ready. If not, another worker may have the
        free slots, and gives them up within a moment."""
        return (
            bool(self.waiting)
            or not self.has_ready
            or any(replica.in_flight for group in self.groups for replica in group.replicas)
        )

    def recount(self) -> None:
        """Recomputes the lanes after another set of replicas serves, or shares or rates changed."""
        for lane in self.lanes.values():
            lane.recount()
        if len(self.lanes) > 1:
            self._let_return()

    def is_activating(self, now: float) -> bool:
        """Returns whether requests wait and no replica is ready, as far as can be known."""
        if not self.waiting or self.has_ready:
            return False
        if now >= self.handshake_until:
            return True
        return not any(
            replica.linked and replica.state is None
            for group in self.groups
            if group.share > 0
            for replica in group.replicas
        )

    # --- affinity ---------------------------------------------------------------------------------------------------

    def choose_by_affinity(self, group: Group, by: Affinity, inferences: int) -> Replica | None:
        """Returns the replica of the group, among those with a free slot, that a request prefers; None if none has
        one."""
        if isinstance(by, bytes):
            return preferred(group.replicas, by, inferences)
        return self.prefixes.choose(group.replicas, by, inferences)

    # --- lanes ------------------------------------------------------------------------------------------------------

    def lane_of(self, bind: Bind) -> Lane | None:
        """Returns the lane of a request; None if no group of the revision serves requests of its size.

        With early binding its group is fixed here, by the weights, unless the one that it has may still serve it.
        """
        if self.is_plain and bind.avoid is None:
            return self.main
        groups = [group for group in self.groups if group.serves(bind.inferences)]
        if not groups and self.groups:
            return None
        if self.function.is_early:
            groups = self._fixed(bind, groups)
        if bind.may_return and not any(replica.ready and replica.id != bind.avoid for replica in _serving(groups)):
            bind.avoid = None
        accelerators = tuple([group.accelerator for group in groups])
        return self.lanes.get((accelerators, bind.avoid)) or self._open(Lane(groups, bind.avoid, self.function.urgency))

    def _fixed(self, bind: Bind, groups: list[Group]) -> list[Group]:
        """Returns the one group that the request waits for; all groups while none of them has a share."""
        able = [group for group in groups if group.share > 0]
        if not able:
            return groups
        if bind.group is None or bind.group not in able:
            total = sum(group.share for group in able)
            bind.group = largest_deficit(able, total, bind.inferences)
            update_deficits(able, bind.group, total, bind.inferences, self.main.deficit_limit(bind.inferences))
        return [bind.group]

    def _open(self, lane: Lane) -> Lane:
        self.lanes[lane.key] = lane
        for group in lane.groups:
            group.lanes.append(lane)
        self._count_lines()
        return lane

    def _count_lines(self) -> None:
        one = len(self.lanes) == 1 and not self.counts_inferences
        self.is_one_line = one and self.function.urgency is None

    def _let_return(self) -> None:
        """Lets requests that avoid a replica stand in line for all replicas if no other replica serves."""
        for lane in tuple(self.lanes.values()):
            if lane.avoid is None or lane.candidates():
                continue
            for bind in lane.queue.items():
                if bind.may_return:
                    lane.queue.remove(bind)
                    bind.avoid = None
                    (self.lane_of(bind) or self.main).push(bind)
            self.tidy(lane)

    def is_unclaimed(self, lane: Lane) -> bool:
        """Returns whether no waiting request may use a slot that is free for this lane.

        Counted in requests, a request that may take a free slot has it already. Counted in inferences, one may wait
        because it does not fit.
        """
        if lane.queue or not self.counts_inferences:
            return not lane.queue
        groups = lane.groups
        return not any(other.queue and any(group in groups for group in other.groups) for other in self.lanes.values())

    def tidy(self, lane: Lane) -> None:
        """Removes a lane that was made for requests that avoid a replica, once it is empty."""
        if lane.avoid is not None and not lane.queue and self.lanes.get(lane.key) is lane:
            del self.lanes[lane.key]
            for group in lane.groups:
                group.lanes.remove(lane)
            self._count_lines()

    def rebuild(self) -> list[Bind]:
        """Rebuilds the lanes after a new table if the groups changed, or the sizes that they serve.

        Waiting requests stand in line again. Returns the requests that no group serves any more; they stand in no lane.
        """
        self.main.groups = self.groups
        shape: tuple[object, ...] = (self.function.is_early, self.counts_inferences, self.function.urgency)
        if self.function.by_deadline:  # Places count from these times.
            shape += (self.function.timeout_s, self.function.due_s)
        for group in self.groups:
            shape += (group.accelerator, group.smallest, group.largest, group.share > 0)
        if shape == self.shape:
            self.recount()
            return []
        self.shape = shape
        waiting = list(self.items())
        for bind in tuple(self.reserved):
            release(self, bind)
        self.main = Lane(self.groups, urgency=self.function.urgency)
        self.lanes = {}
        for group in self.groups:
            group.lanes = []
        self._open(self.main)
        sized = any(group.smallest > 1 or group.largest is not None for group in self.groups)
        self.is_plain = not sized and not self.function.is_early
        unserved = []
        for bind in waiting:
            bind.entry = 0
            bind.key = (bind.key[0], self.function.counts_from(bind), bind.number)
            lane = self.lane_of(bind)
            if lane is None:
                unserved.append(bind)
            else:
                lane.push(bind)
        return unserved

    # --- waiting requests -------------------------------------------------------------------------------------------

    def join(self, bind: Bind, lane: Lane, now: float) -> None:
        """Lets the request wait in this lane, in the place of its arrival."""
        function = self.function
        since = bind.arrived
        if function.by_deadline:
            since = function.counts_from(bind)
            if function.urgency is not None:
                function.urgency.now = now
        bind.key = (bind.priority, since, bind.number)
        lane.push(bind)
        self.waiting += 1
        self.waiting_inferences += bind.inferences
        moment = now - self._since
        self._request_moments -= moment
        self._inference_moments -= moment * bind.inferences
        function.waiting += 1
        function.waiting_bytes += bind.size
        if bind.claim is not None:
            function.tenants.add(bind)
        if function.shared is not None:
            function.publish()

    def part(self, bind: Bind, now: float) -> None:
        """Ends the waiting of a request, wherever it stands."""
        lane, function = bind.lane, self.function
        if bind.reserved is not None:
            release(self, bind)
        else:
            lane.queue.remove(bind)
        if lane.avoid is not None:
            self.tidy(lane)
        self.waiting -= 1
        self.waiting_inferences -= bind.inferences
        moment = now - self._since
        self._request_moments += moment
        self._inference_moments += moment * bind.inferences
        function.waiting -= 1
        function.waiting_bytes -= bind.size
        if bind.claim is not None:
            function.tenants.discard(bind)
        if function.shared is not None:
            function.publish()
        if not self.waiting and self.signal.raised:
            self.signal.update(False, now)

    def note_sent(self, amount: int, priority: int) -> None:
        """Every replica knows that this many requests of this priority class wait."""
        if amount:
            self.sent_priority = priority
        self.sent_from, self.sent_to = want_range(amount) if self.is_one_line else (1, 0)

    def settled(self) -> None:
        """All wants have been sent."""
        queue = self.main.queue
        head = queue.head() if self.waiting else None
        if head is None:
            self.note_sent(0, 0)
        else:
            self.note_sent(queue.count(head.key[0]), head.key[0])

    def is_want_sent(self, priority: int) -> bool:
        """Returns whether there still is nothing to send after a request of this priority class came or left."""
        return (
            self.is_one_line
            and priority == self.sent_priority
            and self.sent_from <= self.main.queue.count(priority) <= self.sent_to
        )

    def activation(self, now: float) -> Activation:
        """Returns the activation that is sent while no replica serves the waiting requests."""
        oldest = self.oldest()
        return Activation(
            function=self.function.name,
            revision=self.id,
            waiting=self.waiting,
            waiting_inferences=self.waiting_inferences,
            oldest_waiting_s=0.0 if oldest is None else now - oldest,
        )

    def items(self) -> Iterator[Bind]:
        """Yields all waiting requests, lane by lane in order."""
        yield from tuple(self.reserved)
        for lane in tuple(self.lanes.values()):
            yield from lane.queue.items()

    def oldest(self) -> float | None:
        """Returns the arrival of the request that has waited longest; None if none waits."""
        arrivals = [bind.arrived for bind in self.reserved]
        for lane in self.lanes.values():
            arrivals.extend([bind.arrived for bind in lane.queue])
        return min(arrivals, default=None)

    # --- figures ----------------------------------------------------------------------------------------------------

    def counts(self, now: float) -> RoomCounts:
        """Returns the figures for the demand record. By rounding, a sum of nearly nothing may come out below zero."""
        oldest = self.oldest()
        moment = now - self._since
        return RoomCounts(
            arrivals=self.arrivals,
            arrivals_inferences=self.arrivals_inferences,
            refused=self.refused,
            expired=self.expired,
            cancelled=self.cancelled,
            waiting=self.waiting,
            waiting_inferences=self.waiting_inferences,
            oldest_waiting_s=0.0 if oldest is None else now - oldest,
            waiting_request_s=max(0.0, self._request_moments + moment * self.waiting),
            waiting_inference_s=max(0.0, self._inference_moments + moment * self.waiting_inferences),
        )


def _serving(groups: list[Group]) -> Iterator[Replica]:
    """Yields the replicas of the groups that have a share."""
    return (replica for group in groups if group.share > 0 for replica in group.replicas)
