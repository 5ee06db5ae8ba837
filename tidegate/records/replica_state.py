"""The life of a replica, and what its slots count: one table (guides: slots, section 5).

A replica starts, becomes ready, drains and stops. Draining can be taken back until the stop is *recorded* by the
backend: a queue_proxy that has confirmed ``drained`` still obeys a revive before that.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class ConcurrencyUnit(StrEnum):
    """What one slot counts."""

    REQUESTS = "requests"
    INFERENCES = "inferences"


class ReplicaState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    DRAINED = "drained"
    STOPPED = "stopped"
    FAILED = "failed"


class ReplicaEvent(StrEnum):
    MODEL_READY = "model_ready"
    DRAIN_ORDERED = "drain_ordered"
    REVIVE_ORDERED = "revive_ordered"
    LAST_WORK_ENDED = "last_work_ended"
    STOP_RECORDED = "stop_recorded"
    PROCESS_DIED = "process_died"


class IllegalTransitionError(Exception):
    """The event does not belong to the state; both are named."""


_S, _E = ReplicaState, ReplicaEvent

TRANSITIONS: Mapping[tuple[ReplicaState, ReplicaEvent], ReplicaState] = MappingProxyType(
    {
        (_S.STARTING, _E.MODEL_READY): _S.READY,
        (_S.STARTING, _E.DRAIN_ORDERED): _S.DRAINED,
        (_S.STARTING, _E.PROCESS_DIED): _S.FAILED,
        (_S.READY, _E.DRAIN_ORDERED): _S.DRAINING,
        (_S.READY, _E.PROCESS_DIED): _S.FAILED,
        (_S.DRAINING, _E.REVIVE_ORDERED): _S.READY,
        (_S.DRAINING, _E.LAST_WORK_ENDED): _S.DRAINED,
        (_S.DRAINING, _E.PROCESS_DIED): _S.FAILED,
        (_S.DRAINED, _E.REVIVE_ORDERED): _S.READY,
        (_S.DRAINED, _E.STOP_RECORDED): _S.STOPPED,
        (_S.DRAINED, _E.PROCESS_DIED): _S.STOPPED,
        (_S.FAILED, _E.STOP_RECORDED): _S.STOPPED,
    }
)


def advance(state: ReplicaState, event: ReplicaEvent) -> ReplicaState:
    """The next state; raises IllegalTransitionError for a pair outside the table."""
    following = TRANSITIONS.get((state, event))
    if following is None:
        raise IllegalTransitionError(f"a {state.value} replica cannot take {event.value}")
    return following
