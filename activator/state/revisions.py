"""What one gateway worker knows of functions and revisions: bounds, lanes, counters.

Everything here changes only through :class:`tidegate.activator.room.WaitingRoom`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Final

from tidegate.activator.choice import Pick, largest_deficit, preferred, replica_pick, update_deficits
from tidegate.activator.prefixes import PrefixIndex
from tidegate.activator.state.bind import Affinity, Bind
from tidegate.activator.state.lanes import Lane, LaneKey
from tidegate.activator.state.replicas import Group, Replica
from tidegate.activator.state.tenants import TenantShares
from tidegate.flow.wants import want_range
from tidegate.records.gateway_sample import Activation
from tidegate.records.route_table import Binding, FailureKind, FunctionRoute, QueueOrder, Spread

REPEAT_S: Final = 0.2
"""Interval at which a raised activation signal is repeated."""
SHORT_S: Final = 0.1
"""How long a head that does not fit waits for all replicas to say what they have free. Our choice."""


class ActivationSignal:
    """One revision's signal."""

    __slots__ = ("next_at", "raised")

    def __init__(self) -> None:
        self.raised = False
        self.next_at = 0.0
        """When it has to be told again; meaningful while raised."""

    def __repr__(self) -> str:
        return f"<ActivationSignal {'raised' if self.raised else 'at rest'}>"

    def update(self, is_wanted: bool, now: float) -> bool:
        """Takes the present level; True: tell it now (it rose, or it is time to repeat)."""
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
    """What the revisions of a function share: the bounds of its waiting room on this worker."""

    __slots__ = (
        "bound_bytes",
        "bound_requests",
        "by_deadline",
        "hash_on",
        "hashes",
        "is_early",
        "max_wait_s",
        "name",
        "pick",
        "revisions",
        "tenants",
        "timeout_s",
        "waiting",
        "waiting_bytes",
        "workers",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.workers = 1
        self.bound_requests = 0
        self.bound_bytes = 0
        self.max_wait_s = 0.0
        self.timeout_s = 0.0
        self.pick: Pick[Replica] = replica_pick(Spread.MOST_FREE)
        self.hashes = False
        """Requests with equal keys prefer one replica."""
        self.hash_on = ""
        self.by_deadline = False
        """Who has less time goes first."""
        self.is_early = False
        """A request's group is fixed at its arrival."""
        self.waiting = 0
        self.waiting_bytes = 0
        self.tenants = TenantShares()
        """What each tenant has of the bounds."""
        self.revisions: list[RevisionRoom] = []

    def apply(self, route: FunctionRoute, workers: int) -> None:
        """Takes the table's settings; bounds are split over the workers, rounded up."""
        self.workers = workers
        self.bound_requests = ceil(route.queue_requests / workers)
        self.bound_bytes = ceil(route.queue_bytes / workers)
        self.tenants.resize(max(1, self.bound_requests), max(1, self.bound_bytes))
        self.max_wait_s = route.max_wait_s
        self.timeout_s = route.timeout_s
        self.pick = replica_pick(route.spread)
        self.hashes = route.spread is Spread.HASH
        self.hash_on = route.hash_on
        self.by_deadline = route.queue_order is QueueOrder.DEADLINE
        self.is_early = route.binding is Binding.EARLY

    def is_full(self, size: int) -> bool:
        """Whether no further request of so many bytes may wait."""
        return self.waiting >= self.bound_requests or self.waiting_bytes + size > self.bound_bytes


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
        """Of the function's new requests."""
        self.is_tagged = False
        """Clients may ask for it by name, whatever its percent is."""
        self.declined_until = 0.0
        """When the first that waits takes a slot that it has left alone
        (:meth:`tidegate.activator.state.lanes.Lane.choose`); 0: it did not, or that was seen to."""
        self.failure: str | None = None
        self.failure_kind = FailureKind.START_FAILED
        self.groups: list[Group] = []
        self.prefixes: PrefixIndex[Replica] = PrefixIndex()
        """What its replicas were sent, where requests prefer by that."""
        self.main = Lane(self.groups)
        """The lane of all groups."""
        self.lanes: dict[LaneKey, Lane] = {self.main.key: self.main}
        self.is_one_line = True
        """All who wait stand in one lane and each takes one slot: while anybody waits, none is free for him."""
        self.is_plain = True
        """Every request that avoids no replica belongs into the main lane."""
        self.shape: tuple[object, ...] = ()
        """What the lanes were made from."""
        self.reserved: list[Bind] = []
        """Requests that stand out of the queue because a replica holds back for them."""
        self.signal = ActivationSignal()
        self.active = False
        """Its replicas are linked."""
        self.used_at = now
        self.unlink_at = 0.0
        """When to look whether it still is in use, while its replicas are linked."""
        self.handshake_until = 0.0
        """Until then a replica that has not been heard counts as perhaps ready."""
        self.waiting = 0
        self.waiting_inferences = 0
        self._since = now
        self._request_moments = self._inference_moments = 0.0
        """Times of those who left less times of those who came: ``moments + waiting * now`` is the integral of waiting
        over time, without a step for the time between."""
        self.sent_priority = 0
        self.sent_from, self.sent_to = 1, 0
        """While so many of this priority class wait, nothing has to be told to any replica; no number: not known."""
        self.arrivals = 0
        self.arrivals_inferences = 0
        self.refused = 0
        self.expired = 0
        self.cancelled = 0

    def __repr__(self) -> str:
        return f"<RevisionRoom {self.id} {self.waiting} waiting, {self.replica_count} replicas>"

    @property
    def may_keep_waiting(self) -> bool:
        """Whether those who wait for it may stay: it gets new requests, or has a tag and somebody who serves."""
        return self.percent > 0 or (self.is_tagged and self.has_ready)

    @property
    def replica_count(self) -> int:
        return sum(len(group.replicas) for group in self.groups)

    @property
    def mu_ips(self) -> float:
        """Service rate of all groups together as far as it is known, inferences per second; 0: unknown."""
        return sum(group.mu_ips or 0.0 for group in self.groups if group.share > 0)

    @property
    def has_ready(self) -> bool:
        """Whether some replica serves new work."""
        return bool(self.main.serving)

    @property
    def ready(self) -> int:
        """Replicas that serve new work."""
        return sum(group.ready for group in self.main.serving)

    def recount(self) -> None:
        """Another set of replicas serves now, or shares or rates changed."""
        for lane in self.lanes.values():
            lane.recount()
        if len(self.lanes) > 1:
            self._let_return()

    def is_activating(self, now: float) -> bool:
        """Requests wait and no replica is ready, as far as can be known."""
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
        """The replica of the group, among those with a free slot, that should take a request; None: none has one."""
        if isinstance(by, bytes):
            return preferred(group.replicas, by, inferences)
        return self.prefixes.choose(group.replicas, by, inferences)

    # --- lanes ------------------------------------------------------------------------------------------------------

    def lane_of(self, bind: Bind) -> Lane | None:
        """Where the request belongs; None: no group of the revision serves requests of its size.

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
        return self.lanes.get((accelerators, bind.avoid)) or self._open(Lane(groups, bind.avoid))

    def _fixed(self, bind: Bind, groups: list[Group]) -> list[Group]:
        """The one group that the request waits for; all, while none of them has a share."""
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
        self.is_one_line = len(self.lanes) == 1 and not self.counts_inferences
        return lane

    def _let_return(self) -> None:
        """Requests that would rather have gone elsewhere stand in line for all, where nobody else serves."""
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
        """Whether nobody waits for a slot that is free for this lane.

        In requests whoever may take a free slot has it already; in inferences somebody may wait whom it does not fit.
        """
        if lane.queue or not self.counts_inferences:
            return not lane.queue
        groups = lane.groups
        return not any(other.queue and any(group in groups for group in other.groups) for other in self.lanes.values())

    def tidy(self, lane: Lane) -> None:
        """Takes away a lane that was made for requests that avoid a replica, once it is empty."""
        if lane.avoid is not None and not lane.queue and self.lanes.get(lane.key) is lane:
            del self.lanes[lane.key]
            for group in lane.groups:
                group.lanes.remove(lane)
            self.is_one_line = len(self.lanes) == 1 and not self.counts_inferences

    def rebuild(self) -> list[Bind]:
        """After a table: where the groups are others, or what they serve, the lanes are made anew.

        Who waits stands in line again. Returns the requests that no group serves any more; they stand in no lane.
        """
        self.main.groups = self.groups
        shape: tuple[object, ...] = (self.function.is_early, self.counts_inferences)
        for group in self.groups:
            shape += (group.accelerator, group.smallest, group.largest, group.share > 0)
        if shape == self.shape:
            self.recount()
            return []
        self.shape = shape
        waiting = list(self.items())
        for bind in tuple(self.reserved):
            self.drop_reservation(bind)
        self.main = Lane(self.groups)
        self.lanes = {}
        for group in self.groups:
            group.lanes = []
        self._open(self.main)
        sized = any(group.smallest > 1 or group.largest is not None for group in self.groups)
        self.is_plain = not sized and not self.function.is_early
        unserved = []
        for bind in waiting:
            bind.entry = 0
            lane = self.lane_of(bind)
            if lane is None:
                unserved.append(bind)
            else:
                lane.push(bind)
        return unserved

    # --- who waits --------------------------------------------------------------------------------------------------

    def join(self, bind: Bind, lane: Lane, now: float) -> None:
        """The request waits in this lane from now on, in the place of its arrival."""
        function = self.function
        # By deadline: as if it had arrived earlier by as much as its time is shorter than the longest.
        since = bind.deadline - function.timeout_s if function.by_deadline else bind.arrived
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

    def part(self, bind: Bind, now: float) -> None:
        """The request waits no more, wherever it stands."""
        lane, function = bind.lane, self.function
        if bind.reserved is not None:
            self.drop_reservation(bind)
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
        if not self.waiting and self.signal.raised:
            self.signal.update(False, now)

    def note_sent(self, amount: int, priority: int) -> None:
        """Each replica knows now what there is to know: so many of this priority class wait."""
        if amount:
            self.sent_priority = priority
        self.sent_from, self.sent_to = want_range(amount) if self.is_one_line else (1, 0)

    def settled(self) -> None:
        """What there was to tell has been told."""
        queue = self.main.queue
        head = queue.head() if self.waiting else None
        if head is None:
            self.note_sent(0, 0)
        else:
            self.note_sent(queue.count(head.key[0]), head.key[0])

    def is_want_sent(self, priority: int) -> bool:
        """After one of this priority class came or left: whether there still is nothing to tell."""
        return (
            self.is_one_line
            and priority == self.sent_priority
            and self.sent_from <= self.main.queue.count(priority) <= self.sent_to
        )

    def activation(self, now: float) -> Activation:
        """What is pushed while nobody serves those who wait."""
        oldest = self.oldest()
        return Activation(
            function=self.function.name,
            revision=self.id,
            waiting=self.waiting,
            waiting_inferences=self.waiting_inferences,
            oldest_waiting_s=0.0 if oldest is None else now - oldest,
        )

    def items(self) -> Iterator[Bind]:
        """Everybody who waits, lane by lane in order."""
        yield from tuple(self.reserved)
        for lane in tuple(self.lanes.values()):
            yield from lane.queue.items()

    def oldest(self) -> float | None:
        """Arrival of the one who has waited longest; None: nobody waits."""
        arrivals = [bind.arrived for bind in self.reserved]
        for lane in self.lanes.values():
            arrivals.extend([bind.arrived for bind in lane.queue])
        return min(arrivals, default=None)

    # --- reservations -----------------------------------------------------------------------------------------------

    def reserve(self, lane: Lane, now: float) -> None:
        """The head fits nowhere: one replica, the one with most free units, holds back for it; the others go on.

        Decided when every replica has said what it has free, or ``SHORT_S`` after the first did. (With one replica the
        want itself asks it to hold back.)
        """
        head = lane.queue.head()
        candidates = [replica for replica in lane.candidates() if replica.limit and replica.reserved is None]
        heard = [replica for replica in candidates if replica.short is not None and replica.level()[1] is head]
        if head is None or len(candidates) < 2 or not heard:
            return
        if len(heard) < len(candidates) and now < min(replica.short_at for replica in heard) + SHORT_S:
            return
        chosen = max(heard, key=lambda replica: replica.short or 0)
        lane.queue.remove(head)
        self.reserved.append(head)
        head.reserved = chosen
        chosen.reserved = head
        for replica in candidates:
            replica.short = None

    def unreserve(self, replica: Replica) -> None:
        """The replica cannot hold back any more: the request stands in the queue again, in its old place."""
        bind = replica.reserved
        if bind is not None:
            self.drop_reservation(bind)
            lane = self.lane_of(bind)
            (bind.lane if lane is None else lane).push(bind)

    def drop_reservation(self, bind: Bind) -> None:
        """The request leaves the replica that held back for it."""
        if bind.reserved is not None:
            bind.reserved.reserved = None
            bind.reserved = None
            self.reserved.remove(bind)

    def counts(self, now: float) -> RoomCounts:
        """What the demand record needs. By rounding a sum of nearly nothing may come out below zero."""
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
    """Replicas of the groups that have a share."""
    return (replica for group in groups if group.share > 0 for replica in group.replicas)
