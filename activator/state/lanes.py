"""Lane: the waiting requests of a revision that the same replicas may serve, in their order.

Most revisions have one lane, of all groups. They have more lanes

- if groups serve only some sizes of requests: a large head then never blocks small requests (head-of-line blocking);
- if a request's group is fixed at arrival (``binding: early``);
- while a request waits that one replica must not take (a hedge).

A free slot takes the best head of the lanes that its replica serves.
"""

import random
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from tidegate.activator.choice import DEFICIT_LIMIT, Pick, distance, earliest_finish, largest_deficit, place_of
from tidegate.activator.state.urgency_queue import UrgencyClock, UrgencyQueue
from tidegate.flow.fair_queue import FairQueue, TenantCharge
from tidegate.flow.ordered_queue import OrderedQueue

if TYPE_CHECKING:
    from tidegate.activator.state.bind import Affinity, Bind
    from tidegate.activator.state.replicas import Group, Replica

DECAY: Final = 0.99
"""The remembered size of the largest recent request is multiplied by this with each further request."""

MAX_SLOW_GROUP_WAIT_S: Final = 0.001
"""A request declines a slot on a slower group for at most this long. Our choice, as ``SLOW_GROUP_WAIT``: some round
trips between workers and queue_proxies, and nothing against the work."""
SLOW_GROUP_WAIT: Final = 0.05
"""A request declines a slot on a slower group for at most this fraction of the time that it would take there."""

AFFINITY_SLACK: Final = 2.0
"""The group that a request prefers takes it although another group's deficit is larger, by up to this many times the
largest of the recent requests. Our choice, of 2 to 16: more slack finds little more (adr/0052)."""

LaneKey = tuple[tuple[str, ...], str | None]
"""(accelerators of the groups, id of the replica that is left out)."""


class Lane:
    """A queue, and the groups that may serve it."""

    __slots__ = ("_recent_max", "avoid", "groups", "queue", "serving", "slowest_s", "tail", "total_share")

    def __init__(self, groups: "list[Group]", avoid: str | None = None, urgency: UrgencyClock | None = None) -> None:
        """``urgency``: its requests wait by urgency, as of the time of this clock."""
        self.groups = groups
        self.avoid = avoid
        """A replica that must not serve it."""
        self.queue: OrderedQueue[Bind] | FairQueue[Bind] = OrderedQueue() if urgency is None else UrgencyQueue(urgency)
        """A fair queue as soon as a request with a claim has waited here: then the tenants take turns."""
        self.tail = 0.0
        """Age key of the youngest request that waits, or of one that waited after it."""
        self.serving: list[Group] = []
        """Groups with a share and a ready replica."""
        self.total_share = 0.0
        """Sum of the shares of ``serving``."""
        self.slowest_s = 0.0
        """No request takes longer than this for each of its inferences, on any of the serving groups."""
        self._recent_max = 0.0
        self.recount()

    def __repr__(self) -> str:
        return f"<Lane of {self.key}, {len(self.queue)} waiting>"

    @property
    def key(self) -> LaneKey:
        return (tuple(group.accelerator for group in self.groups), self.avoid)

    def recount(self) -> None:
        """Recomputes the serving groups after another set of groups serves, or their shares changed."""
        self.serving = [group for group in self.groups if group.share > 0 and group.ready]
        self.total_share = sum(group.share for group in self.serving)
        if len(self.serving) > 1:
            for group in self.serving:
                group.each_s = group.expected_s(1)
            self.slowest_s = max(group.each_s for group in self.serving)

    def deficit_limit(self, inferences: int) -> float:
        """Returns the largest deficit of a group, in inferences, when a request of this many has been bound."""
        recent_max = self._recent_max * DECAY
        self._recent_max = recent_max = inferences if inferences > recent_max else recent_max
        return DEFICIT_LIMIT * recent_max

    def push(self, bind: "Bind") -> None:
        """Enqueues the request, in the place of its key."""
        since = bind.key[1]
        queue = self.queue
        if since > self.tail or not queue.length:
            self.tail = since
        if type(queue) is FairQueue:
            if bind.claim is None:
                bind.claim = _nobodys(bind)
            queue.push(bind)
        elif bind.claim is None:
            queue.push(bind)
        else:
            self.queue = _shared(queue)
            self.queue.push(bind)
        bind.lane = self

    def served(self, bind: "Bind") -> None:
        """A request that waited here gets a slot: charges its tenant."""
        if type(self.queue) is FairQueue:
            self.queue.charge(bind)

    def step(self, bind: "Bind") -> int:
        """Returns the cost of a slot for its head to this worker, against others with tenants' requests; 0 without
        tenants."""
        if bind.claim is None or type(self.queue) is not FairQueue:
            return 0  # Without a claim: a replica has held back for it since no request here had one.
        return self.queue.step(bind)

    def settle(self, claim: TenantCharge, cost: float) -> None:
        """Settles the real cost of a request that got a slot (:meth:`tidegate.flow.fair_queue.FairQueue.settle`)."""
        if type(self.queue) is FairQueue:
            self.queue.settle(claim, cost)

    def relax(self) -> None:
        """A request found a free slot at once: clears the deficits between tenants."""
        if type(self.queue) is FairQueue:
            self.queue.relax()

    def candidates(self) -> "list[Replica]":
        """Returns the replicas that may serve it now, with or without a free slot."""
        return [
            replica
            for group in self.serving
            for replica in group.replicas
            if replica.ready and replica.id != self.avoid
        ]

    def is_single(self, replica: "Replica") -> bool:
        """Returns whether no other replica may serve it now."""
        return all(other is replica for other in self.candidates())

    def choose(self, bind: "Bind", now: float, pick: "Pick[Replica]", rng: random.Random) -> "Replica | None":
        """Chooses group, then replica, for a request that would run now. Returns None if no slot that it may use is
        free."""
        if self.avoid is not None:
            return self._choose_without(self.avoid, bind, now, pick, rng)
        groups = self.serving
        if len(groups) == 1:
            group = groups[0]
            if bind.affinity is not None:
                return bind.revision.choose_by_affinity(group, bind.affinity, bind.inferences)
            return pick(group.replicas, group.next_index, bind.inferences, rng)
        able: list[Group] = []
        picked: list[Replica] = []
        for group in groups:
            if bind.affinity is None:
                replica = pick(group.replicas, group.next_index, bind.inferences, rng)
            else:
                replica = bind.revision.choose_by_affinity(group, bind.affinity, bind.inferences)
            if replica is not None:
                able.append(group)
                picked.append(replica)
        if not able:
            return None
        chosen = 0 if len(able) == 1 else self._best(able, picked, bind, now)
        if len(able) < len(groups) and self._awaits_quicker(able, able[chosen], bind, now):
            return None
        if len(able) > 1 and bind.affinity is not None:
            chosen = self._preferred(able, picked, chosen, bind, bind.affinity, now)
        return picked[chosen]

    def _best(self, able: "list[Group]", picked: "list[Replica]", bind: "Bind", now: float) -> int:
        """Returns the index of the best of these groups, each of which could run the request on the replica beside
        it."""
        if picked[0].limit == 0:
            return self._earliest_finish(able, picked, bind)
        quick = able
        remaining_s = bind.deadline - now
        if self.slowest_s * bind.inferences > remaining_s:
            quick = in_time(able, bind.inferences, remaining_s)
        return able.index(largest_deficit(quick, self.total_share, bind.inferences))

    def _preferred(
        self, groups: "list[Group]", picked: "list[Replica]", best: int, bind: "Bind", by: "Affinity", now: float
    ) -> int:
        """Returns the index of the group that the request's affinity prefers, among those with about the deficit of
        ``best``.

        For a key that is the group of the key; for a prompt the one whose replica remembers most of it. If time is
        short or the replicas have no limit it is ``best``.
        """
        if picked[best].limit == 0 or self.slowest_s * bind.inferences > bind.deadline - now:
            return best
        floor = groups[best].deficit - AFFINITY_SLACK * self._recent_max
        near = [at for at, group in enumerate(groups) if group.deficit >= floor]
        if isinstance(by, bytes):
            point = zlib.crc32(by)
            return min(near, key=lambda at: distance(point, place_of(groups[at].accelerator), groups[at].share))
        prefixes = bind.revision.prefixes
        known = prefixes.match(picked[best], by)
        for at in near:
            found = prefixes.match(picked[at], by)
            if found > known:
                best, known = at, found
        return best

    def _awaits_quicker(self, able: "list[Group]", group: "Group", bind: "Bind", now: float) -> bool:
        """Returns whether the request does not take the slot of ``group`` yet.

        The group is ahead of its share, and a quicker group, of which this worker holds no slot, is behind. Another
        worker may hold a slot there that is idle, which comes here by a recall in a fraction of a millisecond. Without
        that moment slow groups would get more than their share where several workers have little to do: a request would
        take whichever slot came first.
        """
        room = bind.revision
        if room.function.workers == 1 or room.counts_inferences or group.deficit >= -bind.inferences:
            return False
        until = bind.arrived + min(MAX_SLOW_GROUP_WAIT_S, SLOW_GROUP_WAIT * group.each_s * bind.inferences)
        if now >= until:
            return False
        for other in self.serving:
            if other.deficit > 0.0 and 0.0 < other.each_s < group.each_s and other not in able:
                room.declined_until = until
                return True
        return False

    def _earliest_finish(self, groups: "list[Group]", picked: "list[Replica]", bind: "Bind") -> int:
        """Chooses by the requests queued at the replicas; other workers are taken to have queued as many as this
        one."""
        room = bind.revision
        each = room.function.workers * room.arrivals_inferences / max(1, room.arrivals)
        return earliest_finish(groups, picked, each, bind.inferences)

    def _choose_without(
        self, avoid: str, bind: "Bind", now: float, pick: "Pick[Replica]", rng: random.Random
    ) -> "Replica | None":
        """Does the same as :meth:`choose`, while the replica to avoid shows no free slot."""
        hidden = [replica for group in self.serving for replica in group.replicas if replica.id == avoid]
        free = [replica.free for replica in hidden]
        self.avoid = None
        for replica in hidden:
            replica.free = 0
        chosen = self.choose(bind, now, pick, rng)
        self.avoid = avoid
        for replica, slots in zip(hidden, free, strict=True):
            replica.free = slots
        return chosen


def _nobodys(bind: "Bind") -> TenantCharge:
    """Returns the claim of a request without a tenant among those of tenants: together they are one tenant, of weight
    1."""
    return TenantCharge("", 1.0, bind.inferences)


def _shared(queue: "OrderedQueue[Bind]") -> "FairQueue[Bind]":
    """Returns a fair queue in place of one without tenants; the waiting requests keep their places, and their order
    within a tenant."""
    shared: FairQueue[Bind] = FairQueue(queue.like)
    for bind in queue.items():
        queue.remove(bind)
        bind.claim = bind.claim or _nobodys(bind)
        shared.push(bind)
    return shared


def in_time(groups: "list[Group]", inferences: int, remaining_s: float) -> "list[Group]":
    """Returns the groups that can finish within the deadline; if none can, the one that would finish first."""
    finish = [group.expected_s(inferences) for group in groups]
    able = [group for group, seconds in zip(groups, finish, strict=True) if seconds <= remaining_s]
    return able or [groups[finish.index(min(finish))]]


def first_served(
    lanes: "Iterable[Lane]", now: float, pick: "Pick[Replica]", rng: random.Random
) -> "tuple[Bind, Replica] | None":
    """Returns the first head of several lanes of a revision, in the order of their heads, that a slot is free for.

    In inferences a head that does not fit holds the replicas of its lane back from those behind it.
    """
    heads = [(head.key, head) for lane in lanes if (head := lane.queue.head()) is not None]
    heads.sort()
    held: dict[Replica, int] = {}
    found: tuple[Bind, Replica] | None = None
    for _, head in heads:
        chosen = head.lane.choose(head, now, pick, rng)
        if chosen is not None:
            found = (head, chosen)
            break
        if head.revision.counts_inferences:
            for replica in head.lane.candidates():
                held.setdefault(replica, replica.free)
                replica.free = 0
    for replica, free in held.items():
        replica.free = free
    return found
