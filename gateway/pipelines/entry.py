"""StageEntry: the way of a pipeline's stage into the waiting room."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from tidegate.activator.room import WaitingRoom
from tidegate.activator.state.bind import Bind
from tidegate.flow.outliers import Outliers
from tidegate.gateway.answers.errors import ErrorResponses
from tidegate.gateway.counting.counters import Report
from tidegate.gateway.pipelines.live_request import LiveRequest
from tidegate.gateway.routing.function import FunctionRouter
from tidegate.gateway.routing.request_state import RequestState

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange


class Forward(Protocol):
    """Sends a request to the replica that it is bound to."""

    def __call__(self, ex: "Exchange", bind: Bind, now: float) -> None: ...


class StageEntry:
    """Does for a stage what the chain does for the request of a client (``Chain._admit``, ``Chain._enter_room``)."""

    __slots__ = ("_errors", "_flush", "_forward", "_outliers", "_report", "_room")

    def __init__(
        self,
        room: WaitingRoom,
        report: Report,
        outliers: Outliers,
        errors: ErrorResponses,
        *,
        forward: Forward,
        flush: Callable[[], None],
    ) -> None:
        """``flush``: carries out what the waiting room has decided."""
        self._room = room
        self._report = report
        self._outliers = outliers
        self._errors = errors
        self._forward = forward
        self._flush = flush

    def enter(self, ex: "Exchange", state: RequestState, router: FunctionRouter, live: LiveRequest) -> None:
        """Lets the request of a stage into the room, in its place by the age of the whole request."""
        now = ex.received
        counters = router.counters or router.draw_counters(self._report)
        if counters is None:
            self._errors.no_traffic(ex, router)
            return
        inferences = router.inferences(ex.head, ex.body, True)
        if inferences <= 0:
            self._errors.bad_size(ex, router, inferences)
            return
        ex.inferences = inferences
        state.counters = counters
        counters.arrived(inferences, ex.head.method)
        router.budget.requests += 1
        if self._outliers.open_circuits and self._outliers.refuses(counters.revision, now):
            self._errors.circuit_open(ex, state, counters)
            return
        key = None if router.hash_key is None else router.hash_key(ex)
        found = self._room.arrive(
            ex, counters.revision, inferences, live.waits_until, now, len(ex.body), live.priority, key, router.is_tag,
            None, live.charge, live.entered,
        )  # fmt: skip
        if isinstance(found, Bind):
            self._forward(ex, found, now)
        elif found is not None:
            self._errors.refused(found)
        self._flush()

    def __repr__(self) -> str:
        return "<StageEntry>"
