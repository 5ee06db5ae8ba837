"""Questions about models that wait until this worker knows the states of their replicas.

A worker has channels to the replicas of functions that it has had requests for within the last minute. After its start
it has none. A question about models opens those that it lacks, and is answered when each replica has said its state, or
:data:`LIMIT_S` after they were opened: a replica that has said nothing by then is starting, also for later questions.
Equal questions wait together.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tidegate.activator.room import WaitingRoom
from tidegate.gateway.answers.cold_starts import ColdStarts
from tidegate.records.replica_state import ReplicaState
from tidegate.records.route_table import FunctionRoute

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange

LIMIT_S: Final = 0.5
"""Longest wait of a question. A channel says its state within milliseconds of its opening."""
AT_ONCE: Final = 256
"""Replicas that are asked at once for a question, whole functions each; the next are when these have answered. Other
requests wait while channels are opened. Our choice."""
WORST_FIRST: Final = ("failed", "starting", "asleep", "ready")


@dataclass(slots=True)
class _Wait:
    """Equal questions that wait."""

    until: float
    unasked: Iterator[FunctionRoute]
    silent: dict[str, set[str]] = field(default_factory=dict)
    """Replicas that have not said their state, by function."""
    questions: list["Exchange"] = field(default_factory=list)


class ModelStates:
    """Statuses of models, and the questions that wait for them. Time is an argument."""

    __slots__ = ("_cold", "_on_known", "_room", "_waits")

    def __init__(self, cold: ColdStarts, room: WaitingRoom) -> None:
        self._cold = cold
        self._room = room
        self._waits: dict[tuple[str, ...], _Wait] = {}
        """By the functions that they are about."""
        self._on_known: Callable[[Exchange], None] = lambda ex: None

    def serve(self, on_known: "Callable[[Exchange], None]") -> None:
        """Calls ``on_known`` with each question that has waited, and has a client still."""
        self._on_known = on_known

    def waits(self, ex: "Exchange", routes: Sequence[FunctionRoute], now: float) -> bool:
        """Returns whether a question about these functions waits. It may have opened channels: flush the room."""
        names = tuple(route.name for route in routes)
        found = self._waits.get(names)
        if found is None:
            found = _Wait(now, iter(routes))
            found.until = max(self._ask_next(found, now), default=now)
        if not found.silent:
            return False
        self._waits[names] = found
        found.questions.append(ex)
        return True

    def _ask_next(self, wait: _Wait, now: float) -> list[float]:
        """Asks the next replicas that say nothing, and returns until when they may be waited for. Those that have been
        asked for long are not."""
        limits: list[float] = []
        for route in wait.unasked:
            for revision, replica in self._cold.silent(route):
                until = self._room.open_channels(revision, now) + LIMIT_S
                if now < until:
                    limits.append(until)
                    wait.silent.setdefault(route.name, set()).add(replica)
            if len(limits) >= AT_ONCE:
                break
        return limits

    def heard(self, replica: str, state: ReplicaState, now: float) -> None:
        """A replica has said its state. This may open channels: flush the room."""
        function = self._cold.function_of(replica)
        if function is None:
            return
        for names, each in tuple(self._waits.items()):
            silent = each.silent.get(function)
            if silent is None:
                continue
            silent.discard(replica)
            if not silent or state is ReplicaState.READY:  # Then nothing depends on its others.
                del each.silent[function]
            if not each.silent and not self._ask_next(each, now):
                self._end(names)

    def sweep(self, now: float) -> None:
        """Ends the waits that are over, and forgets the questions of clients that have left."""
        for names, each in tuple(self._waits.items()):
            each.questions = [ex for ex in each.questions if not ex.is_ended]
            if now >= each.until or not each.questions:
                self._end(names)

    def _end(self, names: tuple[str, ...]) -> None:
        for ex in self._waits.pop(names).questions:
            if not ex.is_ended:
                self._on_known(ex)

    def status_of(self, routes: Sequence[FunctionRoute]) -> Callable[[FunctionRoute], str]:
        """Returns what says the status of one of these functions: ``ready``, ``starting``, ``asleep`` or ``failed``. A
        pipeline has the worst of its stages."""

        def status(route: FunctionRoute) -> str:
            stages = stages_of(route, routes)
            if stages is None:
                return self._cold.status(route)
            found = {self._cold.status(each) for each in stages}
            return next((each for each in WORST_FIRST if each in found), "failed")

        return status

    def __repr__(self) -> str:
        return f"<ModelStates {sum(len(each.questions) for each in self._waits.values())} questions wait>"


def stages_of(route: FunctionRoute, routes: Sequence[FunctionRoute]) -> list[FunctionRoute] | None:
    """Returns the functions of a pipeline's stages. None for a function."""
    pipelines = (each.pipeline for each in route.revisions if each.percent > 0.0 and each.pipeline is not None)
    names = {stage.function for pipeline in pipelines for stage in pipeline.stages}
    return [each for each in routes if each.name in names] if names else None
