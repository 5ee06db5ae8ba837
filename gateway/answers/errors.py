"""What the gateway tells a client by itself: failures, each in the client's shape and with the request's id."""

from typing import TYPE_CHECKING

from tidegate.activator.commands import Refuse
from tidegate.errors import DEADLINE, NOT_FOUND, NOT_SERVABLE, TAG_NOT_FOUND, ErrorKind, Executed
from tidegate.gateway.answers.failures import failure_body, no_such_function, no_such_tag
from tidegate.gateway.answers.grpc import GrpcFrontend
from tidegate.gateway.counting.counters import Ending, Report, RevisionCounters
from tidegate.gateway.routing.function import FunctionRouter
from tidegate.gateway.routing.match import Matcher
from tidegate.gateway.routing.openai_paths import missing

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange
    from tidegate.gateway.access.control import Denial
    from tidegate.gateway.routing.request_state import RequestState


class Replies:
    """One per worker. All of them end the exchange."""

    __slots__ = ("_calls", "_report")

    def __init__(self, calls: GrpcFrontend, report: Report) -> None:
        self._calls = calls
        self._report = report

    def fail(
        self,
        ex: "Exchange",
        kind: ErrorKind,
        message: str,
        *,
        executed: Executed = Executed.FALSE,
        extra: bytes = b"",
    ) -> None:
        """Answers a failure; ``extra``: header lines."""
        ticket: RequestState = ex.context
        target = ticket.target
        executed = Executed.UNKNOWN if ticket.is_exposed else executed
        if ex.is_rpc:
            self._calls.fail(ex, ticket, kind, message, executed, extra)
            return
        function = target.front.name if target.front is not None else target.named or None
        request_id = ticket.request_id.decode("latin-1")
        if target.tell is not None:
            body = target.tell(kind, message, function=function, request_id=request_id, executed=executed)
        else:
            body = failure_body(
                kind, message, v2=target.v2, function=function, request_id=request_id, executed=executed
            )
        ex.respond(kind.status, body, extra=b"x-request-id: %b\r\n%b" % (ticket.request_id, extra))

    def not_found(self, ex: "Exchange", matcher: Matcher) -> None:
        """No function is called as the request says."""
        self._report.unmatched += 1
        target = ex.context.target
        named = target.named
        if target.model or target.named_in_body:
            self.fail(ex, *missing(target.model, has_body=ex.bytes_in > 0))
            return
        nearest = matcher.nearest(named)
        if nearest is not None:
            tag = named[: -len(nearest.name) - 1]
            self.fail(ex, TAG_NOT_FOUND, no_such_tag(nearest.name, tag, nearest.tagged))
        elif ex.is_rpc and not named:
            self.fail(ex, NOT_FOUND, self._calls.nobody(ex))
        else:
            self.fail(ex, NOT_FOUND, no_such_function(named))

    def no_tag(self, ex: "Exchange", front: FunctionRouter, tag: bytes) -> None:
        """The function has no tag of this name."""
        self.fail(ex, TAG_NOT_FOUND, no_such_tag(front.name, tag.decode("latin-1"), front.tagged))

    def refused(self, refusal: Refuse) -> None:
        """The waiting room does not let it in, or lets it wait no longer."""
        ex: Exchange = refusal.request  # type: ignore[assignment]  # requests here are exchanges
        ticket: RequestState = ex.context
        ticket.ending = Ending.EXPIRED if refusal.kind is DEADLINE else Ending.REFUSED
        extra = b"" if refusal.retry_after_s is None else b"retry-after: %d\r\n" % refusal.retry_after_s
        self.fail(ex, refusal.kind, refusal.message, extra=extra)

    def denied(self, ex: "Exchange", ticket: "RequestState", denial: "Denial") -> None:
        """Its caller may not call the function, or not now."""
        ticket.ending = Ending.REFUSED
        self.fail(ex, denial.kind, denial.message, extra=denial.extra)

    def expired(
        self, ex: "Exchange", ticket: "RequestState", message: str, executed: Executed = Executed.FALSE
    ) -> None:
        """Its time is over."""
        ticket.ending = Ending.EXPIRED
        self.fail(ex, DEADLINE, message, executed=executed)

    def circuit_open(self, ex: "Exchange", ticket: "RequestState", counters: RevisionCounters) -> None:
        """Its revision fails whatever it gets."""
        counters.circuit_refusals += 1
        ticket.ending = Ending.REFUSED
        message = "every replica fails one request after the other; one request a second is tried"
        self.fail(ex, NOT_SERVABLE, message, extra=b"retry-after: 1\r\n")

    def __repr__(self) -> str:
        return f"<Replies of {self._calls!r}>"
