"""The reasons for which the waiting room refuses a request, with the text that its client reads and when it may
retry."""

import random

from tidegate.activator.commands import Refuse
from tidegate.activator.state.bind import Bind
from tidegate.activator.state.revisions import RevisionRoom
from tidegate.errors import BATCH_TOO_LARGE, DEADLINE, DROPPED, NOT_SERVABLE, QUEUE_FULL, START_FAILED, WAITED_TOO_LONG
from tidegate.flow.dropping import TIE
from tidegate.records.route_table import FailureKind


def full(bind: Bind, rng: random.Random) -> Refuse:
    """Returns the refusal by a room that is full, by count or by bytes."""
    seconds = retry_after_s(bind.revision, rng)
    return Refuse(bind.request, QUEUE_FULL, "too many requests wait for this function", seconds)


def too_late(bind: Bind, now: float, rng: random.Random) -> Refuse:
    """Returns the refusal of a request that has waited until its deadline, as long as the function allows, or until it
    is dropped."""
    age_s = now - bind.arrived
    waited = f"waited {age_s:.1f} s for a slot"
    if bind.deadline <= now:
        return Refuse(bind.request, DEADLINE, f"the deadline passed; {waited}")
    limit_s = bind.revision.function.drop_after_s
    if age_s >= limit_s - TIE:
        message = f"waited {age_s:.3g} s for a slot; the function drops requests after {limit_s:.3g} s (drop-after)"
        return Refuse(bind.request, DROPPED, message, retry_after_s(bind.revision, rng))
    return Refuse(bind.request, WAITED_TOO_LONG, waited)


def unserved(bind: Bind) -> Refuse:
    """Returns the refusal of a request of a size that no group serves: sent again unchanged it would be refused
    again."""
    message = f"no group of replicas of {bind.revision.id} serves requests of {bind.inferences} inferences"
    return Refuse(bind.request, BATCH_TOO_LARGE, message)


def failed(bind: Bind, rng: random.Random) -> Refuse:
    """Returns the refusal for a revision that cannot be served now, as the route table says."""
    room = bind.revision
    text = room.failure or ""
    match room.failure_kind:
        case FailureKind.START_FAILED:
            return Refuse(bind.request, START_FAILED, text)
        case FailureKind.NOT_SERVABLE:
            return Refuse(bind.request, NOT_SERVABLE, text, retry_after_s(room, rng))


def retry_after_s(room: RevisionRoom, rng: random.Random) -> int:
    """Returns whole seconds: the inferences that wait on all workers over mu, at least 1 s, spread by up to a half
    upward."""
    mu_ips = room.mu_ips
    function = room.function
    each = room.waiting_inferences / room.waiting if room.waiting else 1.0
    waiting = room.waiting_inferences + each * function.waiting_elsewhere
    seconds = max(1.0, waiting / mu_ips) if mu_ips > 0 else 1.0
    # Rounded up or down at random, so that the jitter survives whole seconds.
    return max(1, int(seconds * (1 + 0.5 * rng.random()) + rng.random()))
