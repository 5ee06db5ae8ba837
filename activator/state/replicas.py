"""Replicas and groups of replicas, as one gateway worker knows them.

A :class:`Replica` holds the worker's end of one slot channel: its state, the idle credits, and the want that the
queue_proxy was sent last. Everything here changes only through :class:`tidegate.activator.room.WaitingRoom`.
"""

import zlib
from collections.abc import Iterable
from math import ceil
from typing import TYPE_CHECKING, Final

from tidegate.activator.choice import expected_s, place_of
from tidegate.activator.commands import Send
from tidegate.activator.state.bind import Bind
from tidegate.activator.state.lanes import Lane
from tidegate.flow.messages import Grant, Limit, ProxyMessage, Short, State, Void, Welcome
from tidegate.flow.wants import Want, want_class
from tidegate.records.replica_state import ReplicaState

if TYPE_CHECKING:
    from tidegate.activator.state.revisions import RevisionRoom

UNLIMITED_FREE: Final = 1 << 30
"""``free`` of a replica without a limit and without work. Each running request takes one off, so that the replica with
the fewest is the freest."""
LINKS_ALL: Final = 64
"""A worker links to every replica of a revision with up to this many replicas."""

KEPT, GOES, WENT = 0, 1, 2
"""Notes on a busy credit. KEPT: the head of its answer said keep, so it goes back as soon as it is recalled. GOES: it
was recalled and goes when its request has ended. WENT: it went back before that."""
RECALLED_SPARE: Final = 64
"""Recalled credits are remembered for as many requests as are in flight, plus this many."""
_UNSENT: Final = -1


class Replica:
    """One replica as this worker sees it."""

    __slots__ = (
        "address",
        "answered_at",
        "asleep",
        "ejected_until",
        "epoch",
        "failures",
        "free",
        "gone",
        "group",
        "id",
        "idle",
        "in_flight",
        "incarnation",
        "index",
        "limit",
        "linked",
        "noted",
        "open",
        "place",
        "ready",
        "reserved",
        "rests_until",
        "sent_class",
        "sent_kind",
        "sequence",
        "short",
        "short_at",
        "state",
    )

    def __init__(self, id: str, address: str, group: "Group") -> None:  # noqa: A002 - the record's field
        self.id = id
        self.address = address
        self.group = group
        self.place = place_of(id)
        """Its place among the keys of ``Spread.HASH``."""
        self.index = 0
        """Its index in the group."""
        self.linked = False
        """The host keeps a channel to it."""
        self.open = False
        """The channel is open and was welcomed."""
        self.gone = False
        """The route table no longer lists it."""
        self.asleep = False
        """The route table says that it sleeps."""
        self.epoch = 0
        """Grows with each channel that opens or breaks: credits of another epoch are void."""
        self.incarnation = ""
        """Names the process that last welcomed this worker."""
        self.state: ReplicaState | None = None
        """The state that it reported last; None before its first report."""
        self.limit = 0
        self.idle: list[tuple[int, int]] = []
        """Credits without a request: (number, units)."""
        self.free = 0
        """Units that may be used now."""
        self.ready = False
        """The value of ``usable`` that its group has counted."""
        self.in_flight = 0
        self.noted: dict[int, int] = {}
        """Notes on credits that need more than usual when their request ends, or before; the oldest first."""
        self.sequence = 0
        self.sent_class = _UNSENT
        """Class of the want that the queue_proxy knows."""
        self.sent_kind = (0, 0, False)
        self.short: int | None = None
        """Free units that it reported because the head does not fit; None if it has not reported them."""
        self.short_at = 0.0
        self.reserved: Bind | None = None
        """The request that holds this replica until it fits."""
        self.rests_until = 0.0
        """It could not be reached and gets no work before this time; 0 if it does not back off."""
        self.ejected_until = 0.0
        """It was ejected as an outlier and gets no work before this time; 0 if it is not ejected."""
        self.failures = 0
        self.answered_at = 0.0
        """When a replica without a limit last answered a request completely."""

    def __repr__(self) -> str:
        state = "unheard" if self.state is None else self.state.value
        return f"<Replica {self.id} {state}, {self.in_flight} in flight, {len(self.idle)} idle credits>"

    @property
    def usable(self) -> bool:
        """Returns whether new work may go there."""
        return self.open and self.state is ReplicaState.READY and not self.rests_until and not self.ejected_until

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

    def receive(self, message: ProxyMessage, now: float) -> None:
        """Takes over a message of its queue_proxy. A :class:`Recall` needs an answer and goes to :meth:`recall`."""
        if isinstance(message, Grant):
            self.idle.extend(message.credits)
        elif isinstance(message, Void):
            self.void(set(message.credits))
        elif isinstance(message, State):
            self.state = message.state
        elif isinstance(message, Limit):
            self.limit = message.limit
            if message.limit == 0:
                self.idle.clear()
        elif isinstance(message, Short):
            self.short = message.free
            self.short_at = now
        elif isinstance(message, Welcome):
            self.reset()
            if message.incarnation != self.incarnation:
                self.incarnation = message.incarnation
                self.group.revision.prefixes.forget(self.id)
            self.open = True
            self.limit = message.limit
            self.sent_class = 0
            self.rests_until = 0.0
        self.refresh()

    def comes_back(self, now: float) -> bool:
        """Ends a back-off or an ejection after its time. Returns True if there was one."""
        rested = 0.0 < self.rests_until <= now
        if rested:
            self.rests_until = 0.0
        ejected = 0.0 < self.ejected_until <= now
        if ejected:
            self.ejected_until = 0.0
        self.refresh()
        return rested or ejected

    def fits(self, inferences: int) -> bool:
        """Returns whether an idle credit (or none, without a limit) carries one request of this many inferences."""
        if not self.group.revision.counts_inferences or self.limit == 0:
            return True
        return self.reserved is None and self.carries(inferences)

    def carries(self, inferences: int) -> bool:
        """Returns whether one idle credit has this many units (or the limit, above which a request runs alone).

        Without a limit no credit is needed: it may have been lifted since the replica holds back for a request.
        """
        if self.limit == 0:
            return True
        units = min(inferences, self.limit)
        return any(held >= units for _, held in self.idle)

    def take(self, inferences: int) -> tuple[int, int]:
        """Takes a credit for one request off the idle ones. Returns (number, units that the request needs of it)."""
        if not self.group.revision.counts_inferences:
            self.free -= 1
            return self.idle.pop()
        units = min(inferences, self.limit)
        best = min((credit for credit in self.idle if credit[1] >= units), key=lambda credit: credit[1])
        self.idle.remove(best)
        self.free -= best[1]
        return (best[0], units)

    def reset(self) -> None:
        """The channel opened or broke: voids everything that was said on the last one."""
        self.epoch += 1
        self.open = False
        self.state = None
        self.idle.clear()
        self.noted.clear()
        self.sequence = 0
        self.sent_class = _UNSENT
        self.short = None
        self.refresh()

    def level(self) -> tuple[int, Bind | None]:
        """Returns how many requests of the best waiting class this queue_proxy should know of, and the first of them.

        Returns (0, None) if none may go there, now or when it becomes ready. Lower classes are sent when they are the
        best: a want has one class, so that free slots go to the best key of all workers.
        """
        group, head = self.group, self.reserved
        if not (group.revision.waiting and group.share > 0) or self.rests_until or self.ejected_until or self.gone:
            return (0, None)
        lanes = group.lanes
        if head is None:
            if len(lanes) == 1:  # The lane of all.
                queue = lanes[0].queue
                first = queue.head()
                return (0, None) if first is None else (queue.count(first.key[0]), first)
            for lane in lanes:
                first = None if lane.avoid == self.id else lane.queue.head()
                if first is not None and (head is None or first.key < head.key):
                    head = first
            if head is None:
                return (0, None)
        priority = head.key[0]
        amount = sum([lane.queue.count(priority) for lane in lanes if lane.avoid != self.id])
        return (amount + (head is self.reserved), head)

    def changed_want(self, now: float) -> Want | None:
        """Returns the want if it has to be sent: its class changed, or its head became another kind of request."""
        amount, head = self.level()
        if head is None:
            return None if self.sent_class == 0 else self.want(0, None, now)
        if want_class(amount) == self.sent_class and self._kind(head) == self.sent_kind:
            return None
        return self.want(amount, head, now)

    def want_with_request(self, now: float) -> Want | None:
        """Returns the want that remains after a request, for its header; None if it is zero and known to be zero."""
        known = self.sent_class
        if known == 0 and not self.group.revision.waiting:
            return None
        amount, head = self.level()
        if head is None and known == 0:
            return None
        want = self.want(amount, head, now)
        if self.sent_class != known and self.group.has_one:
            self.group.revision.note_sent(want.amount, want.priority)
        return want

    def forget_sent(self) -> None:
        """The last want may not have arrived, or was dropped: it has to be sent again."""
        self.sent_class = _UNSENT

    def _kind(self, head: Bind) -> tuple[int, int, bool]:
        """Returns the facts of a head that must be sent when they change: class, units, whether this replica holds back
        for it."""
        key = head.key
        if not self.group.revision.counts_inferences:
            return (key[0], 1, False)
        return (key[0], head.inferences, head is self.reserved or head.lane.is_single(self))

    def want(self, amount: int, head: Bind | None, now: float) -> Want:
        """Returns the level as a want, which counts as sent."""
        self.sequence = sequence = self.sequence + 1
        self.sent_class = want_class(amount)
        self.short = None
        if head is None:
            return Want(sequence, 0)
        priority, since, _ = head.key
        if self.group.revision.counts_inferences:
            self.sent_kind = kind = self._kind(head)
        else:
            self.sent_kind = kind = (priority, 1, False)
        tail = since
        for lane in self.group.lanes:
            if lane.tail > tail and (lane is head.lane or lane.queue):
                tail = lane.tail
        age_ms = round((now - since) * 1000) if since < now else 0
        tail_ms = round((now - tail) * 1000) if tail < now else 0
        cost = 0 if head.claim is None else head.lane.step(head)
        return Want(sequence, amount, priority, cost, age_ms, tail_ms, kind[1], kind[2])

    def want_like(self, other: Want, its_class: int, kind: tuple[int, int, bool]) -> Want:
        """Returns the want of another replica of its group, which counts as sent here as well."""
        self.sequence = sequence = self.sequence + 1
        self.sent_class = its_class
        self.short = None
        if its_class:
            self.sent_kind = kind
        return Want(
            sequence, other.amount, other.priority, other.cost, other.age_ms, other.tail_ms, other.units, other.reserves
        )

    # --- credits ---

    def recall(self, numbers: Iterable[int]) -> tuple[int, ...]:
        """Handles recalled credits. Returns those that go back now; busy ones go when their request has ended.

        A request may be on its way with a credit that is idle at the queue_proxy, and would be refused. Once the head
        of its answer has said keep, it has arrived, and it may have ended there long before a slow client has read it
        all: such a credit goes back now.
        """
        wanted = set(numbers)
        back = [credit[0] for credit in self.idle if credit[0] in wanted]
        if back:
            self.idle = [credit for credit in self.idle if credit[0] not in wanted]
            self.refresh()
        if self.in_flight:
            noted = self.noted
            kept = [number for number in wanted if noted.get(number) == KEPT]
            self.goes_back(wanted.difference(back, kept))
            noted.update(dict.fromkeys(kept, WENT))
            back += kept
        else:
            self.noted.clear()
            back = list(wanted)
        return tuple(back)

    def void(self, numbers: set[int]) -> None:
        """Drops credits that are void.

        The message may overtake the answer that says keep: a credit that is busy here goes when that has ended.
        """
        held = [credit for credit in self.idle if credit[0] in numbers]
        for credit in held:
            self.idle.remove(credit)
        if self.in_flight:
            self.goes_back(numbers.difference(number for number, _ in held))
        self.refresh()
        self.forget_sent()

    def goes_back(self, numbers: Iterable[int]) -> None:
        """Notes recalled credits that are not idle: some are busy, others went back before the message came.

        Credits beyond those that may be busy are forgotten, the oldest first: a replica that is never idle would keep
        them for ever. A busy one that is forgotten stays here when its request ends, as both sides then have it. If it
        is void, its next request is refused and returns to its place.
        """
        noted = self.noted
        noted.update(dict.fromkeys(numbers, GOES))
        surplus = len(noted) - self.in_flight - RECALLED_SPARE
        if surplus > 0:
            for number in [number for number, note in noted.items() if note == GOES][:surplus]:
                del noted[number]

    def surrender(self) -> tuple[int, ...]:
        """Removes and returns all idle credits, which are to be given back."""
        numbers = tuple(number for number, _ in self.idle)
        self.idle.clear()
        self.refresh()
        return numbers


class Group:
    """All replicas of one revision on one kind of accelerator."""

    __slots__ = (
        "accelerator",
        "deficit",
        "each_s",
        "lanes",
        "largest",
        "mu_ips",
        "next_index",
        "ready",
        "replicas",
        "revision",
        "share",
        "smallest",
        "weight",
    )

    def __init__(self, accelerator: str, revision: "RevisionRoom") -> None:
        self.accelerator = accelerator
        self.revision = revision
        self.weight = 0.0
        self.share = 0.0
        """The weight, or 1 if no group of the revision has a weight in the route table."""
        self.mu_ips: float | None = None
        self.each_s = 0.0
        """``expected_s`` of one inference, if it is one of several groups that serve."""
        self.deficit = 0.0
        self.next_index = 0
        self.replicas: list[Replica] = []
        self.ready = 0
        """The number of replicas that serve now."""
        self.smallest = 1
        self.largest: int | None = None
        """Smallest and largest number of inferences of a request that it may serve; None if there is no upper bound."""
        self.lanes: list[Lane] = []
        """Lanes that it may serve."""

    def serves(self, inferences: int) -> bool:
        """Returns whether a request of this many inferences may run here."""
        return self.smallest <= inferences and (self.largest is None or inferences <= self.largest)

    @property
    def has_one(self) -> bool:
        """Returns whether its replica is the only one of the revision."""
        return len(self.replicas) == 1 and len(self.revision.groups) == 1

    def expected_s(self, inferences: int) -> float:
        """Returns how long a request takes here; 0 while no rate is known, so that an unmeasured group is tried."""
        if not self.mu_ips:
            return 0.0
        limit = next((replica.limit for replica in self.replicas if replica.usable), 1)
        return expected_s(inferences, limit, self.revision.counts_inferences, self.mu_ips / max(1, self.ready))

    def changed_wants(self, now: float) -> list[Send]:
        """Returns the wants that have to be sent to its replicas."""
        if self.share > 0 and len(self.lanes) == 1 and not self.revision.counts_inferences:
            return self._wants_of_one_lane(self.lanes[0], now)
        return [
            Send(replica.id, want)
            for replica in self.replicas
            if replica.open and (want := replica.changed_want(now)) is not None
        ]

    def _wants_of_one_lane(self, lane: "Lane", now: float) -> list[Send]:
        """Does the same as :meth:`changed_wants` where all that waits may go to any replica: they get one want, in
        the numbers of each."""
        head = lane.queue.head() if self.revision.waiting else None
        amount, kind = 0, (0, 1, False)
        if head is not None:
            amount, kind = lane.queue.count(head.key[0]), (head.key[0], 1, False)
        known = want_class(amount)
        made: Want | None = None
        sends = []
        for replica in self.replicas:
            is_known = replica.sent_class == known and (not known or replica.sent_kind == kind)
            if (is_known and replica.ready) or not replica.open:
                continue
            want: Want | None
            if replica.rests_until or replica.ejected_until or replica.gone:
                want = replica.changed_want(now)
            elif is_known:
                want = None
            elif made is None:
                want = made = replica.want(amount, head, now)
            else:
                want = replica.want_like(made, known, kind)
            if want is not None:
                sends.append(Send(replica.id, want))
        return sends

    def __repr__(self) -> str:
        figures = f"weight {self.weight:g}, deficit {self.deficit:.1f}, {len(self.replicas)} replicas"
        return f"<Group {self.accelerator} {figures}>"


def links_to(replica: str, replicas: int, worker_index: int | None, workers: int) -> bool:
    """Returns whether this worker keeps a channel to the replica: to all of up to 64, else to a stable share of them.

    Each replica is linked by ``ceil(64 * workers / replicas)`` workers, those after the one that its name hashes to. So
    a worker has about 64 links and no replica has none. A worker without a number keeps channels to all.
    ``replicas``: how many the revision has; for one that is awake, how many of them are awake.
    """
    if replicas <= LINKS_ALL or workers <= 1 or worker_index is None:
        return True
    copies = min(workers, ceil(LINKS_ALL * workers / replicas))
    return (worker_index - zlib.crc32(replica.encode())) % workers < copies
