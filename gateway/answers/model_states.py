"""Questions about models that wait until this worker knows the states of their replicas.

A worker has channels to the replicas of functions that it has had requests for within the last minute. After its start
it has none. A question about models opens those that it lacks, and is answered when each replica has said its state, or
after :data:`LIMIT_S`: a replica that says nothing by then is starting.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidegate.activator.room import WaitingRoom
from tidegate.gateway.answers.cold_starts import ColdStarts
from tidegate.records.replica_state import ReplicaState
from tidegate.records.route_table import FunctionRoute

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange

LIMIT_S: Final = 0.5
"""Longest wait of a question. A channel says its state within milliseconds of its opening."""
WORST_FIRST: Final = ("failed", "starting", "asleep", "ready")


@dataclass(slots=True, eq=False)
class _Question:
    """A question that waits."""

    ex: "Exchange"
    until: float
    pending: dict[str, str]
    """Functions of the replicas that have not said their state."""


class ModelStates:
    """Statuses of models, and the questions that wait for them. Time is an argument."""

    __slots__ = ("_cold", "_on_known", "_room", "_waiting")

    def __init__(self, cold: ColdStarts, room: WaitingRoom) -> None:
        self._cold = cold
        self._room = room
        self._waiting: list[_Question] = []
        self._on_known: Callable[[Exchange], None] = lambda ex: None

    def serve(self, on_known: "Callable[[Exchange], None]") -> None:
        """Calls ``on_known`` with each question that has waited, and has a client still."""
        self._on_known = on_known

    def waits(self, ex: "Exchange", routes: Iterable[FunctionRoute], now: float) -> bool:
        """Returns whether a question about these functions waits. It has opened channels then: flush the room."""
        pending: dict[str, str] = {}
        for route in routes:
            for revision, replica in self._cold.silent(route):
                self._room.open_channels(revision, now)
                pending[replica] = route.name
        if pending:
            self._waiting.append(_Question(ex, now + LIMIT_S, pending))
        return bool(pending)

    def heard(self, replica: str, state: ReplicaState) -> None:
        """A replica has said its state."""
        for each in tuple(self._waiting):
            function = each.pending.pop(replica, None)
            if function is not None and state is ReplicaState.READY:  # Then nothing depends on its others.
                each.pending = {silent: name for silent, name in each.pending.items() if name != function}
            if not each.pending:
                self._end(each)

    def sweep(self, now: float) -> None:
        """Ends the waits that are over."""
        for each in tuple(self._waiting):
            if now >= each.until or each.ex.is_ended:
                self._end(each)

    def _end(self, question: _Question) -> None:
        self._waiting.remove(question)
        if not question.ex.is_ended:
            self._on_known(question.ex)

    def status_of(self, routes: Iterable[FunctionRoute]) -> Callable[[FunctionRoute], str]:
        """Returns what says the status of one of these functions: ``ready``, ``starting``, ``asleep`` or ``failed``. A
        pipeline has the worst of its stages."""
        known = tuple(routes)

        def status(route: FunctionRoute) -> str:
            stages = stages_of(route, known)
            if stages is None:
                return self._cold.status(route)
            found = {self._cold.status(each) for each in stages}
            return next((each for each in WORST_FIRST if each in found), "failed")

        return status

    def __repr__(self) -> str:
        return f"<ModelStates {len(self._waiting)} questions wait>"


def stages_of(route: FunctionRoute, routes: Iterable[FunctionRoute]) -> list[FunctionRoute] | None:
    """Returns the functions of a pipeline's stages. None for a function."""
    names = {stage.function for each in route.revisions if each.pipeline for stage in each.pipeline.stages}
    return [each for each in routes if each.name in names] if names else None
