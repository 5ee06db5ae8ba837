"""Reservations: one replica holds back for a request that fits nowhere, until it fits; the others go on.

Only where concurrency is counted in inferences: a head may then be larger than what any replica has free. Such a
request stands outside the queue, in ``RevisionRoom.reserved``.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tidegate.activator.state.bind import Bind
    from tidegate.activator.state.lanes import Lane
    from tidegate.activator.state.replicas import Replica
    from tidegate.activator.state.revisions import RevisionRoom

SHORT_S: Final = 0.1
"""Time for which a head that does not fit waits for all replicas to report their free units. Our choice."""


def reserve(room: "RevisionRoom", lane: "Lane", now: float) -> None:
    """Reserves a replica for the head of a lane: the one with most free units holds back for it.

    Decided when every replica has reported its free units, or ``SHORT_S`` after the first did. (With one replica the
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
    room.reserved.append(head)
    head.reserved = chosen
    chosen.reserved = head
    for replica in candidates:
        replica.short = None


def unreserve(room: "RevisionRoom", replica: "Replica") -> None:
    """The replica cannot hold back any more: its request stands in the queue again, in its old place."""
    bind = replica.reserved
    if bind is not None:
        release(room, bind)
        lane = room.lane_of(bind)
        (bind.lane if lane is None else lane).push(bind)


def release(room: "RevisionRoom", bind: "Bind") -> None:
    """Releases the replica that holds back for the request, if one does."""
    if bind.reserved is not None:
        bind.reserved.reserved = None
        bind.reserved = None
        room.reserved.remove(bind)
