"""Why a request is refused, in the words that its client reads, and when it may come back."""

import random

from tidegate.activator.commands import Refuse
from tidegate.activator.state.bind import Bind
from tidegate.activator.state.revisions import RevisionRoom
from tidegate.errors import BATCH_TOO_LARGE, DEADLINE, NOT_SERVABLE, QUEUE_FULL, START_FAILED, WAITED_TOO_LONG
from tidegate.records.route_table import FailureKind


def full(bind: Bind, rng: random.Random) -> Refuse:
    """The room is full, by count or bytes."""
    seconds = retry_after_s(bind.revision, rng)
    return Refuse(bind.request, QUEUE_FULL, "too many requests wait for this function", seconds)


def too_late(bind: Bind, now: float) -> Refuse:
    """It has waited until its deadline, or as long as the function lets wait."""
    waited = f"waited {now - bind.arrived:.1f} s for a slot"
    if bind.deadline <= now:
        return Refuse(bind.request, DEADLINE, f"the deadline passed; {waited}")
    return Refuse(bind.request, WAITED_TOO_LONG, waited)


def unserved(bind: Bind) -> Refuse:
    """No group of the revision serves requests of its size: sent again unchanged it would be refused again."""
    told = f"no group of replicas of {bind.revision.id} serves requests of {bind.inferences} inferences"
    return Refuse(bind.request, BATCH_TOO_LARGE, told)


def failed(bind: Bind, rng: random.Random) -> Refuse:
    """The revision cannot be served now, as the route table says."""
    room = bind.revision
    text = room.failure or ""
    match room.failure_kind:
        case FailureKind.START_FAILED:
            return Refuse(bind.request, START_FAILED, text)
        case FailureKind.NOT_SERVABLE:
            return Refuse(bind.request, NOT_SERVABLE, text, retry_after_s(room, rng))


def retry_after_s(room: RevisionRoom, rng: random.Random) -> int:
    """Whole seconds: what waits on all workers over mu, at least 1 s, spread by up to a half upward."""
    mu_ips = room.mu_ips
    waiting = room.waiting_inferences * room.function.workers
    seconds = max(1.0, waiting / mu_ips) if mu_ips > 0 else 1.0
    # Rounded up or down at random, so that the jitter survives whole seconds.
    return max(1, int(seconds * (1 + 0.5 * rng.random()) + rng.random()))
