"""The life of a replica as a table of states, the unit of its slots, and the phases of its cold start.

A replica starts, becomes ready, drains and stops. Draining can be revoked until the stop is *recorded* by the backend:
a queue_proxy that has confirmed ``drained`` still obeys a revive before that. In place of a stop, a drained replica may
fall *asleep*: its model server is paused, its place is free, its memory stays; a revive wakes it.

The phases of a cold start travel as a record and, in environment variables and slot channels, as a short text.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from types import MappingProxyType


class ConcurrencyUnit(StrEnum):
    """The unit that one slot counts."""

    REQUESTS = "requests"
    INFERENCES = "inferences"


class ReplicaState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    DRAINED = "drained"
    ASLEEP = "asleep"
    STOPPED = "stopped"
    FAILED = "failed"


class FailureCause(StrEnum):
    """The kind of a replica's failure. The label of the counter of failures."""

    START = "start"
    """It was never ready: no answer in time, no program, an invalid warm-up."""
    EXITED = "exited"
    """A process ended by itself."""
    KILLED = "killed"
    """A signal ended a process."""
    MEMORY = "memory"
    """The model server used more than ``resources.memory``."""
    UNRESPONSIVE = "unresponsive"
    """Calls whose clients were gone went on, and nothing else ended."""
    LIVENESS = "liveness"
    """The liveness probe failed."""
    DEVICE = "device"
    """Its device was lost."""
    GONE = "gone"
    """The model server breaks connections off or refuses them while its process lives."""


class ReplicaEvent(StrEnum):
    MODEL_READY = "model_ready"
    DRAIN_ORDERED = "drain_ordered"
    REVIVE_ORDERED = "revive_ordered"
    LAST_WORK_ENDED = "last_work_ended"
    PAUSED = "paused"
    STOP_RECORDED = "stop_recorded"
    PROCESS_DIED = "process_died"


class IllegalTransitionError(Exception):
    """The event is not allowed in the state; the message names both."""


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
        (_S.DRAINED, _E.PAUSED): _S.ASLEEP,
        (_S.ASLEEP, _E.REVIVE_ORDERED): _S.READY,
        (_S.ASLEEP, _E.STOP_RECORDED): _S.STOPPED,
        (_S.ASLEEP, _E.PROCESS_DIED): _S.STOPPED,
        (_S.FAILED, _E.STOP_RECORDED): _S.STOPPED,
    }
)


def advance(state: ReplicaState, event: ReplicaEvent) -> ReplicaState:
    """Returns the next state; raises IllegalTransitionError for a pair outside the table."""
    following = TRANSITIONS.get((state, event))
    if following is None:
        raise IllegalTransitionError(f"a {state.value} replica cannot take {event.value}")
    return following


# --- cold starts ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStartPhases:
    """Durations of one replica's start in seconds. None if a phase was not reached yet."""

    decide_s: float | None = None
    """From the first waiting request seen by the control process to the decision."""
    schedule_s: float | None = None
    """From the decision to the spawned processes."""
    pull_s: float | None = None
    """Time to fetch the image or model; 0 if everything is local."""
    load_s: float | None = None
    """From the spawned process to the passed readiness probe of the model server."""
    warm_s: float | None = None
    """Duration of the warm-up request."""
    first_response_s: float | None = None
    """From ready to the first response byte, as seen by the gateway."""


def known_phases(phases: ColdStartPhases) -> Iterator[tuple[str, float]]:
    """Yields (name without unit, seconds) of the phases that were reached, in their order."""
    for field in fields(phases):
        seconds = getattr(phases, field.name)
        if seconds is not None:
            yield field.name.removesuffix("_s"), seconds


def write_phases(phases: ColdStartPhases) -> str:
    """Returns ``decide=0.0018,schedule=0.004``, in seconds to the microsecond; empty without any known phase."""
    return ",".join(f"{name}={seconds:.6f}".rstrip("0").rstrip(".") for name, seconds in known_phases(phases))


def read_phases(text: str) -> ColdStartPhases:
    """Returns the phases of such a text; raises ValueError for an unknown name or an invalid number."""
    values: dict[str, float] = {}
    for part in text.split(",") if text else ():
        name, _, seconds = part.partition("=")
        key = f"{name.strip()}_s"
        if key not in ColdStartPhases.__dataclass_fields__:
            raise ValueError(f"no phase is called {name.strip()[:40]!r}")
        value = float(seconds)
        if not 0.0 <= value < float("inf"):
            raise ValueError(f"no duration: {seconds[:40]!r}")
        values[key] = value
    return ColdStartPhases(**values)
