"""The gate before the waiting room: a request takes a slot when its body is there, not when it has begun.

A client that sends its body slowly would else hold a slot, count as demand and start replicas, for as long as the
function's ``timeout``. So a request waits here, outside of the room, until its body is whole or as large as is kept of
a waiting one (256 KB); a gRPC call until its first message is whole or fills its window (64 KB). A function with
``request-buffering: false`` gets its requests with their first bytes, and its gRPC calls at once.

A request that waits here counts nowhere: no arrival, no demand, no quota, no revision. ``Expect: 100-continue`` is
answered, so that the body comes. How long it may take is the connection's to decide (``limits.body-min-rate``).
Bodies that wait here count towards the budget of all waiting bodies; beyond it the oldest large one makes room, which
is the slowest, and its request is refused.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tidegate.aio.proxy.exchange import ALWAYS_READ_BYTES, KEPT_BYTES
from tidegate.gateway.jobs.jobs import Jobs
from tidegate.gateway.pipelines.pipelines import Pipelines
from tidegate.gateway.routing.function import FunctionRouter
from tidegate.gateway.routing.request_state import RequestState
from tidegate.wire.grpc.first_message import first_message_end
from tidegate.wire.http2.limits import STREAM_WINDOW

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange

_READ_BYTES: Final = KEPT_BYTES + 1
"""Read ahead while a body waits here: more than usual, so that the gate heeds the budget and not the exchange."""


class BodyGate:
    """The requests of one worker whose bodies are awaited."""

    __slots__ = ("_go_on", "_jobs", "_pipelines", "_refuse", "_waiting", "crowded")

    def __init__(
        self,
        jobs: Jobs,
        pipelines: Pipelines,
        go_on: "Callable[[Exchange], None]",
        refuse: "Callable[[Exchange], None]",
    ) -> None:
        """``go_on``: called with a request once enough of its body may have come; it asks :meth:`holds` again, unless
        all of it has, and :meth:`releases` it then. ``refuse`` answers a request for want of memory."""
        self._jobs = jobs
        self._pipelines = pipelines
        self._go_on = go_on
        self._refuse = refuse
        self._waiting: dict[Exchange, int] = {}
        """Bytes that are awaited of each, 0 if not known yet; the oldest request first."""
        self.crowded = 0
        """Requests that were refused because all bodies together took too much memory."""

    @property
    def waiting(self) -> int:
        """Requests whose bodies are awaited."""
        return sum(1 for ex in self._waiting if not ex.is_ended)

    def holds(self, ex: "Exchange", state: RequestState, router: FunctionRouter) -> bool:
        """Returns whether a request with an incomplete body must wait for more of it; a job, and the request of a
        pipeline, for all of it."""
        if not ex.is_rpc and not ex.head.plain and self._jobs.holds(ex, state, router, self._go_on):
            return True
        if router.pipelines is not None:
            return self._pipelines.holds(ex, router, self._go_on)
        return self._awaits(ex, router)

    def _awaits(self, ex: "Exchange", router: FunctionRouter) -> bool:
        if ex.is_rpc and not router.buffers_requests:
            return False
        needed = _needed(ex, router)
        is_new = ex not in self._waiting
        if 0 < needed <= ex.bytes_in:
            if not is_new:
                self.releases(ex)
            return False
        self._waiting[ex] = needed
        if is_new:
            if ex.head.expect_continue:
                ex.proceed()
            ex.read_ahead(_READ_BYTES)
        ex.on_body = self._more
        return True

    def _more(self, ex: "Exchange") -> None:
        """More of a body has come. It may come in very many pieces: little is done for each."""
        if ex.is_over_budget and not ex.body_complete and ex.bytes_in >= ALWAYS_READ_BYTES:
            self._make_room()
            if ex.is_ended:
                return
        needed = self._waiting.get(ex, 0)
        if ex.bytes_in < needed and not ex.body_complete:
            ex.on_body = self._more
        else:
            self._go_on(ex)

    def releases(self, ex: "Exchange") -> None:
        """The body of a request is awaited no more."""
        if self._waiting.pop(ex, None) is not None:
            ex.read_ahead()

    def sweep(self) -> None:
        """Forgets requests that have ended."""
        for ex in tuple(self._waiting):
            if ex.is_ended:
                del self._waiting[ex]

    def _make_room(self) -> None:
        """Refuses the oldest request that has more than a few KB."""
        for ex in self._waiting:
            if not ex.is_ended and ex.bytes_in >= ALWAYS_READ_BYTES:
                self.crowded += 1
                self._refuse(ex)
                return

    def __repr__(self) -> str:
        return f"<BodyGate {self.waiting} bodies awaited>"


def _needed(ex: "Exchange", router: FunctionRouter) -> int:
    """Returns how many bytes must have come of the request's body before it goes on; 0 if that is not known yet."""
    if ex.is_rpc:
        return min(first_message_end(ex.body), STREAM_WINDOW)
    if router.buffers_requests:
        return KEPT_BYTES
    return 0 if router.tells_size_in_body(ex.head, ex.body) else 1
