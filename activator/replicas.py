"""What one gateway worker knows of functions, revisions, groups and replicas: the state behind the waiting room.

A :class:`Replica` holds the worker's end of one slot channel: its state, the idle credits, and the want that the
queue_proxy has been told. Everything here changes only through :class:`activator.room.WaitingRoom`.
"""

import zlib
from math import ceil
from typing import Final

from activator.activation import ActivationSignal
from activator.choice import Pick, replica_pick
from activator.commands import Bind
from tidegate.flow.fair_queue import FairQueue
from tidegate.flow.wants import Want, want_class
from tidegate.records import FailureKind, FunctionRoute, Spread
from tidegate.replica import ReplicaState

UNLIMITED_FREE: Final = 1 << 30
"""``free`` of a replica without a limit and without work; each running request takes one off, so that the one with
the fewest is the freest."""
LINKS_ALL: Final = 64
"""Up to so many replicas a worker links to every one."""
REST_S: Final = 0.1
REST_LIMIT_S: Final = 5.0
"""A replica that could not be reached gets no work for this long, doubled with each failure up to the limit."""

SHORT_S: Final = 0.1
"""How long a head that does not fit waits for all replicas to say what they have free. Our choice."""

_UNTOLD: Final = -1


class Replica:
    """One replica as this worker sees it."""

    __slots__ = (
        "address",
        "epoch",
        "failures",
        "free",
        "gone",
        "group",
        "id",
        "idle",
        "in_flight",
        "index",
        "limit",
        "linked",
        "open",
        "ready",
        "recalled",
        "reserved",
        "rests_until",
        "sequence",
        "short",
        "short_at",
        "state",
        "told",
        "told_key",
    )

    def __init__(self, id: str, address: str, group: "Group") -> None:  # noqa: A002 - the record's field
        self.id = id
        self.address = address
        self.group = group
        self.index = 0
        """Its place in the group."""
        self.linked = False
        """The host keeps a channel to it."""
        self.open = False
        """The channel stands and was welcomed."""
        self.gone = False
        """The route table no longer lists it."""
        self.epoch = 0
        """Grows with each channel that opens or breaks: credits of another epoch mean nothing."""
        self.state: ReplicaState | None = None
        """None: not heard yet."""
        self.limit = 0
        self.idle: list[tuple[int, int]] = []
        """Credits without a request: (number, units)."""
        self.free = 0
        """Units that may be used now."""
        self.ready = False
        """``usable``, as its group has counted it."""
        self.in_flight = 0
        self.recalled: set[int] = set()
        """Credits to give back when their request has ended."""
        self.sequence = 0
        self.told = _UNTOLD
        """Class of the want that the queue_proxy knows."""
        self.told_key = (0, 0, 0, False)
        self.short: int | None = None
        """Free units it has, since the head does not fit; None: it did not say."""
        self.short_at = 0.0
        self.reserved: Bind | None = None
        """The request that holds this replica until it fits."""
        self.rests_until = 0.0
        self.failures = 0

    def __repr__(self) -> str:
        state = "unheard" if self.state is None else self.state.value
        return f"<Replica {self.id} {state}, {self.in_flight} in flight, {len(self.idle)} idle credits>"

    @property
    def usable(self) -> bool:
        """New work may go there."""
        return self.open and self.state is ReplicaState.READY and not self.rests_until

    def refresh(self) -> None:
        """Recomputes ``free`` after anything but a binding changed."""
        usable = self.usable
        if usable != self.ready:
            self.ready = usable
            self.group.ready += 1 if usable else -1
            self.group.revision.recount()
        if not usable:
            self.free = 0
        elif self.limit == 0:
            self.free = UNLIMITED_FREE - self.in_flight
        else:
            self.free = sum(units for _, units in self.idle)

    def fits(self, inferences: int) -> bool:
        """Whether an idle credit (or none, without a limit) carries one request of so many inferences."""
        if not self.group.revision.counts_inferences or self.limit == 0:
            return True
        return self.reserved is None and self.carries(inferences)

    def carries(self, inferences: int) -> bool:
        """Whether one idle credit has so many units (or the limit, above which a request runs alone).

        Without a limit no credit is needed: it may have been lifted since the replica holds back for a request.
        """
        if self.limit == 0:
            return True
        units = min(inferences, self.limit)
        return any(held >= units for _, held in self.idle)

    def take(self, inferences: int) -> tuple[int, int]:
        """A credit for one request, off the idle ones: (number, units that the request needs of it)."""
        if not self.group.revision.counts_inferences:
            self.free -= 1
            return self.idle.pop()
        units = min(inferences, self.limit)
        best = min((credit for credit in self.idle if credit[1] >= units), key=lambda credit: credit[1])
        self.idle.remove(best)
        self.free -= best[1]
        return (best[0], units)

    def reset(self) -> None:
        """The channel opened or broke: everything that was said on the last one is void."""
        self.epoch += 1
        self.open = False
        self.state = None
        self.idle.clear()
        self.recalled.clear()
        self.sequence = 0
        self.told = _UNTOLD
        self.short = None
        self.refresh()

    def want(self, now: float) -> Want:
        """The level that this queue_proxy should know now."""
        room = self.group.revision
        head = self.reserved
        amount = len(room.queue) + (head is not None)
        if amount == 0 or not self.takes_wants:
            return Want(0, 0)
        reserves = head is not None
        if head is None:
            head = room.queue.head()
            assert head is not None  # the queue is not empty
            reserves = room.counts_inferences and room.is_single(self)
        tail_at = max(head.arrived, room.tail_at)
        return Want(
            0,
            amount,
            head.key[0],
            head.key[1],
            max(0, round((now - head.arrived) * 1000)),
            max(0, round((now - tail_at) * 1000)),
            head.inferences if room.counts_inferences else 1,
            reserves,
        )

    def tell(self, now: float) -> Want | None:
        """The want if it has to be told: its class changed, or its head became another kind of request."""
        want = self.want(now)
        kind = (want.priority, want.turn, want.units, want.reserves)
        level = want_class(want.amount)
        if level == self.told and (level == 0 or kind == self.told_key):
            return None
        self._count(want, level, kind)
        return want

    def tell_with_request(self, now: float) -> Want | None:
        """The want that remains after a request, for its header; None: zero, and known to be zero."""
        room = self.group.revision
        if self.told == 0 and not room.waiting:
            return None
        want = self.want(now)
        self._count(want, want_class(want.amount), (want.priority, want.turn, want.units, want.reserves))
        return want

    def forget_told(self) -> None:
        """What was told may not have arrived, or was dropped: tell it again."""
        self.told = _UNTOLD

    @property
    def takes_wants(self) -> bool:
        """Whether waiting requests may go there, now or when it becomes ready."""
        return not self.gone and not self.rests_until and self.group.share > 0

    def _count(self, want: Want, level: int, kind: tuple[int, int, int, bool]) -> None:
        self.sequence += 1
        want.sequence = self.sequence
        self.told = level
        self.told_key = kind
        self.short = None


class Group:
    """All replicas of one revision on one accelerator kind."""

    __slots__ = ("accelerator", "mu_ips", "owed", "ready", "replicas", "revision", "share", "turn", "weight")

    def __init__(self, accelerator: str, revision: "RevisionRoom") -> None:
        self.accelerator = accelerator
        self.revision = revision
        self.weight = 0.0
        self.share = 0.0
        """The weight, or 1 where the table gives no group of the revision any."""
        self.mu_ips: float | None = None
        self.owed = 0.0
        self.turn = 0
        self.replicas: list[Replica] = []
        self.ready = 0
        """Replicas that serve now."""

    def __repr__(self) -> str:
        return f"<Group {self.accelerator} weight {self.weight:g}, owed {self.owed:.1f}, {len(self.replicas)} replicas>"


class FunctionState:
    """What the revisions of a function share: the bounds of its waiting room on this worker."""

    __slots__ = (
        "bound_bytes",
        "bound_requests",
        "max_wait_s",
        "name",
        "pick",
        "revisions",
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
        self.pick: Pick[Replica] = replica_pick(Spread.MOST_FREE)
        self.waiting = 0
        self.waiting_bytes = 0
        self.revisions: list[RevisionRoom] = []

    def apply(self, route: FunctionRoute, workers: int) -> None:
        """Takes the table's settings; bounds are split over the workers, rounded up."""
        self.workers = workers
        self.bound_requests = ceil(route.queue_requests / workers)
        self.bound_bytes = ceil(route.queue_bytes / workers)
        self.max_wait_s = route.max_wait_s
        self.pick = replica_pick(route.spread)


class RevisionRoom:
    """One revision's queue on this worker, its groups, and its counters."""

    __slots__ = (
        "active",
        "arrivals",
        "arrivals_inferences",
        "cancelled",
        "counted_at",
        "counts_inferences",
        "expired",
        "failure",
        "failure_kind",
        "function",
        "gone",
        "groups",
        "id",
        "percent",
        "queue",
        "refused",
        "reserved",
        "serving",
        "signal",
        "tail_at",
        "total_share",
        "unheard_until",
        "unlink_at",
        "used_at",
        "waiting",
        "waiting_inference_s",
        "waiting_inferences",
        "waiting_request_s",
    )

    def __init__(self, id: str, function: FunctionState, now: float) -> None:  # noqa: A002 - the record's field
        self.id = id
        self.function = function
        self.gone = False
        self.counts_inferences = False
        self.percent = 0.0
        """Of the function's new requests."""
        self.failure: str | None = None
        self.failure_kind = FailureKind.START_FAILED
        self.groups: list[Group] = []
        self.serving: list[Group] = []
        """Groups with a share and a ready replica."""
        self.total_share = 0.0
        """Sum of their shares."""
        self.queue: FairQueue[Bind] = FairQueue()
        self.reserved: list[Bind] = []
        """Requests that stand out of the queue because a replica holds back for them."""
        self.signal = ActivationSignal()
        self.active = False
        """Its replicas are linked."""
        self.used_at = now
        self.unlink_at = 0.0
        """When to look whether it still is in use, while its replicas are linked."""
        self.unheard_until = 0.0
        """Until then a replica that has not been heard counts as perhaps ready."""
        self.tail_at = 0.0
        """Arrival of the youngest that waits, or of one that waited after it."""
        self.waiting = 0
        self.waiting_inferences = 0
        self.waiting_request_s = 0.0
        self.waiting_inference_s = 0.0
        self.counted_at = now
        self.arrivals = 0
        self.arrivals_inferences = 0
        self.refused = 0
        self.expired = 0
        self.cancelled = 0

    def __repr__(self) -> str:
        return f"<RevisionRoom {self.id} {self.waiting} waiting, {self.replica_count} replicas>"

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
        return bool(self.serving)

    def recount(self) -> None:
        """Another set of groups serves now, or their shares changed."""
        self.serving = [group for group in self.groups if group.share > 0 and group.ready]
        self.total_share = sum(group.share for group in self.serving)

    def is_activating(self, now: float) -> bool:
        """Requests wait and no replica is ready, as far as can be known."""
        if not self.waiting or self.has_ready:
            return False
        if now >= self.unheard_until:
            return True
        return not any(
            replica.linked and replica.state is None
            for group in self.groups
            if group.share > 0
            for replica in group.replicas
        )

    def is_single(self, replica: Replica) -> bool:
        """Whether no other replica could take the head."""
        return not any(
            other is not replica and other.usable and group.share > 0
            for group in self.groups
            for other in group.replicas
        )

    def reserve(self, now: float) -> None:
        """The head fits nowhere: one replica, the one with most free units, holds back for it; the others go on.

        Decided when every replica has said what it has free, or ``SHORT_S`` after the first did. (With one replica the
        want itself asks it to hold back.)
        """
        head = self.queue.head()
        candidates = [
            replica
            for group in self.groups
            if group.share > 0
            for replica in group.replicas
            if replica.usable and replica.limit and replica.reserved is None
        ]
        heard = [replica for replica in candidates if replica.short is not None]
        if head is None or len(candidates) < 2 or not heard:
            return
        if len(heard) < len(candidates) and now < min(replica.short_at for replica in heard) + SHORT_S:
            return
        chosen = max(heard, key=lambda replica: replica.short or 0)
        self.queue.remove(head)
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
            self.queue.push(bind)

    def drop_reservation(self, bind: Bind) -> None:
        """The request leaves the replica that held back for it."""
        if bind.reserved is not None:
            bind.reserved.reserved = None
            bind.reserved = None
            self.reserved.remove(bind)

    def oldest(self) -> float | None:
        """Arrival of the head, or of a request that stands out of the queue; None: nobody waits."""
        head = self.queue.head()
        arrivals = [bind.arrived for bind in self.reserved]
        if head is not None:
            arrivals.append(head.arrived)
        return min(arrivals, default=None)

    def count(self, now: float) -> None:
        """Brings the integrals of waiting over time up to now; call it before the level changes."""
        elapsed = now - self.counted_at
        self.counted_at = now
        self.waiting_request_s += elapsed * self.waiting
        self.waiting_inference_s += elapsed * self.waiting_inferences


def links_to(replica: str, replicas: int, worker_index: int, workers: int) -> bool:
    """Whether this worker keeps a channel to the replica: all of up to 64, else a stable share that covers them all.

    Each replica is linked by ``ceil(64 * workers / replicas)`` workers, those after the one its name hashes to, so a
    worker has about 64 links and no replica has none.
    """
    if replicas <= LINKS_ALL or workers <= 1:
        return True
    copies = min(workers, ceil(LINKS_ALL * workers / replicas))
    return (worker_index - zlib.crc32(replica.encode())) % workers < copies
