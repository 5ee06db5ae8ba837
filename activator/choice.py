"""The choice of a group for a request, and of a replica inside the group.

Groups: smooth weighted round robin, counted in inferences, with a deficit per group. Each request that is bound adds to
every serving group its share of the inferences; the group that takes the request pays all of them. Among the groups
with free slots the one with the largest deficit is next. At low load this is the mu/lambda split exactly. At saturation
the group whose slot frees takes the work; the deficits of the others stay bounded, so that an old deficit never becomes
a burst.

Replicas: by the function's :class:`~tidegate.records.route_table.Spread`, in one pass that compares an integer.
"""

import random
import zlib
from collections.abc import Callable, Sequence
from math import log
from typing import Final, Protocol, TypeVar

from tidegate.records.route_table import Spread

SCAN_LIMIT: Final = 16
"""Above this many replicas two random picks replace the full pass (one pass over 8 is 0.4 us)."""
DEFICIT_LIMIT: Final = 16.0
"""The deficit of a group stays between minus and plus this many times the largest of the recent requests. Our
choice."""
DEFICIT_WEIGHT: Final = 0.3
"""The part of a deficit that counts against a later finish. Our choice: of 0.1 to 1 the best in
benchmarks/micro/groups_sim."""
LOAD_BOUND: Final = 1.25
"""A preferred replica may have this many times the mean number of running requests. Our choice; see
:func:`preferred`."""
_64_BITS: Final = (1 << 64) - 1
_ODD: Final = 0x9E3779B97F4A7C15
_OTHER_ODD: Final = 0xD6E8FEB86659FD93
"""Odd multipliers with bits of both kinds over their whole length."""


class Takes(Protocol):
    """A replica, as the choice reads it."""

    free: int
    """Free slots that this worker may use now."""

    def fits(self, inferences: int) -> bool:
        """Returns whether one request of this many inferences can run on what is free."""
        ...


class Preferable(Takes, Protocol):
    """A replica, as the hash reads it."""

    ready: bool
    """It serves now."""
    in_flight: int
    """Requests that run there, as far as this worker knows."""
    place: int
    """Hash of its id (:func:`place_of`)."""


class Shares(Protocol):
    """A group, as the choice reads it."""

    share: float
    """Its weight; above 0 for all groups that are compared."""
    deficit: float
    """Inferences by which it is behind its share; negative if it is ahead."""


class InLine(Protocol):
    """A replica without a concurrency limit."""

    in_flight: int
    """Requests of this worker that it has."""


class Lined(Shares, Protocol):
    """A group of replicas without a concurrency limit."""

    ready: int
    """The number of replicas that serve."""


R = TypeVar("R", bound=Takes)
H = TypeVar("H", bound=Preferable)
G = TypeVar("G", bound=Shares)
L = TypeVar("L", bound=Lined)


def largest_deficit(groups: Sequence[G], total: float, inferences: int) -> G:
    """Returns the group furthest below its share; ``total`` is the sum of all shares, also of groups without free
    slots."""
    best = groups[0]
    best_deficit = float("-inf")
    for group in groups:
        deficit = group.deficit + inferences * group.share / total
        if deficit > best_deficit:
            best, best_deficit = group, deficit
    return best


def earliest_finish(groups: Sequence[L], replicas: "Sequence[InLine]", each: float, inferences: int) -> int:
    """Returns the index of the group that would finish the request first, corrected by its deficit.

    For replicas that queue requests themselves: ``replicas`` has the replica of each group that would be used, and
    each request of this worker there stands for ``each`` inferences in that queue. The expected finish is reduced
    by ``DEFICIT_WEIGHT`` of the deficit in time. So a group that fell behind is chosen although it finishes a little
    later: the shares hold in the long run, and the order within them follows the queues. (Drift plus penalty: Neely,
    Stochastic Network Optimization, 2010, chapter 4, with deficits for virtual queues.) Shares stand for rates; the
    replicas of a group have equal parts of it.
    """
    best, best_score = 0, float("inf")
    for index, group in enumerate(groups):
        in_line = replicas[index].in_flight * each + inferences
        score = (in_line * group.ready - DEFICIT_WEIGHT * group.deficit) / group.share
        if score < best_score:
            best, best_score = index, score
    return best


def update_deficits(groups: Sequence[G], taker: G, total: float, inferences: int, bound: float) -> None:
    """Books that ``taker`` took this many inferences: every group gains its share of them, the taker pays all.

    No deficit leaves the range from ``-bound`` to ``bound``.
    """
    for group in groups:
        deficit = group.deficit + inferences * group.share / total
        if group is taker:
            deficit -= inferences
        group.deficit = -bound if deficit < -bound else bound if deficit > bound else deficit


def expected_s(inferences: int, limit: int, counts_inferences: bool, replica_ips: float) -> float:
    """Returns the seconds that a request takes on a replica at its limit and rate, by Little's law. Our choice.

    A replica with ``limit`` requests in it, each like this one, at ``replica_ips`` inferences per second: 4 requests of
    8 inferences at 64 per second take 4 * 8 / 64 = 0.5 s each. Counted in inferences the limit is the occupancy.
    """
    occupancy = max(limit, inferences) if counts_inferences else max(1, limit) * inferences
    return occupancy / replica_ips


def _most_free(replicas: Sequence[R], start: int, inferences: int, rng: random.Random) -> R | None:
    if len(replicas) == 1:
        only = replicas[0]
        return only if only.free and only.fits(inferences) else None
    if len(replicas) > SCAN_LIMIT:
        picked = _of_two(replicas, start, inferences, rng)
        if picked is not None:
            return picked
    best: R | None = None
    best_free = 0
    for part in (replicas[start:], replicas[:start]):  # Ties rotate: the first after the last taken wins.
        for replica in part:
            if replica.free > best_free:
                best, best_free = replica, replica.free
    if best is None or best.fits(inferences):
        return best
    able = [replica for part in (replicas[start:], replicas[:start]) for replica in part if replica.fits(inferences)]
    return max((replica for replica in able if replica.free), key=lambda replica: replica.free, default=None)


def _first_available(replicas: Sequence[R], start: int, inferences: int, rng: random.Random) -> R | None:
    for replica in replicas:
        if replica.free and replica.fits(inferences):
            return replica
    return None


def _round_robin(replicas: Sequence[R], start: int, inferences: int, rng: random.Random) -> R | None:
    count = len(replicas)
    for step in range(count):
        replica = replicas[(start + step) % count]
        if replica.free and replica.fits(inferences):
            return replica
    return None


def _random(replicas: Sequence[R], start: int, inferences: int, rng: random.Random) -> R | None:
    able = [replica for replica in replicas if replica.free and replica.fits(inferences)]
    return able[int(rng.random() * len(able))] if able else None


def _of_two(replicas: Sequence[R], start: int, inferences: int, rng: random.Random) -> R | None:
    """Returns the freer of two random replicas; None if neither can take the request."""
    count = len(replicas)
    one, other = replicas[int(rng.random() * count)], replicas[int(rng.random() * count)]
    if other.free > one.free:
        one, other = other, one
    for replica in (one, other):
        if replica.free and replica.fits(inferences):
            return replica
    return None


def _power_of_two(replicas: Sequence[R], start: int, inferences: int, rng: random.Random) -> R | None:
    picked = _of_two(replicas, start, inferences, rng)
    return picked if picked is not None else _random(replicas, start, inferences, rng)


def place_of(name: str) -> int:
    """Returns the place of a replica among the keys: the same in every process."""
    return zlib.crc32(name.encode())


def preferred(replicas: Sequence[H], key: bytes, inferences: int) -> H | None:
    """Returns the replica that requests with this key prefer among those with a free slot; None if none has one.

    Consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam, SODA 2018), over rendezvous scores
    instead of a ring: each key ranks all replicas, so that one more of n takes 1/n of the keys and moves no other. The
    first in rank that has at most ``LOAD_BOUND`` times the mean of running requests, this request counted, takes it. If
    no replica with a free slot is below that bound, the first with a free slot takes it: a preference never makes a
    request wait.
    """
    point = zlib.crc32(key)
    running = ready = 0
    for replica in replicas:
        if replica.ready:
            ready += 1
            running += replica.in_flight
    bound = LOAD_BOUND * (running + 1) / ready if ready else 0.0
    best: H | None = None
    spare: H | None = None
    best_score = spare_score = -1
    for replica in replicas:
        if not replica.free:
            continue
        # Multiplied, folded, multiplied: checksums are linear, so without it the scores of two replicas would differ
        # by one constant for all keys.
        bits = (replica.place ^ point) * _ODD & _64_BITS
        score = (bits ^ bits >> 32) * _OTHER_ODD & _64_BITS
        if replica.in_flight < bound:
            if score > best_score and replica.fits(inferences):
                best, best_score = replica, score
        elif score > spare_score and replica.fits(inferences):
            spare, spare_score = replica, score
    return best if best is not None else spare


def distance(point: int, place: int, share: float) -> float:
    """Returns how far a key is from a place; of several places each is nearest to its ``share`` of all keys.

    Weighted rendezvous hashing (Schindler and Schomaker, Weighted distributed hash tables, 2005): another share moves
    only the keys by which it is larger or smaller. Mixed as in :func:`preferred`.
    """
    bits = (place ^ point) * _ODD & _64_BITS
    score = (bits ^ bits >> 32) * _OTHER_ODD & _64_BITS
    return -log((score + 1) / (_64_BITS + 2)) / share


Pick = Callable[[Sequence[R], int, int, random.Random], R | None]
"""(replicas, start, inferences, rng) -> one that can take the request now. ``start``: the index after the last one
taken."""


def replica_pick(spread: Spread) -> Pick[R]:
    """Returns the function that chooses a replica by this rule; with ``HASH`` the one for requests without a key."""
    if spread is Spread.FIRST_AVAILABLE:
        return _first_available
    if spread is Spread.ROUND_ROBIN:
        return _round_robin
    if spread is Spread.RANDOM:
        return _random
    if spread is Spread.POWER_OF_TWO:
        return _power_of_two
    return _most_free
