"""Error responses of the gateway, each in the shape that the client's protocol reads and with the request's id.

V2 clients read ``error`` as a string (tritonclient shows it as the message), and so do those of V1. So on ``/v2`` paths
and at ``/v1/models/NAME:predict`` ``error`` is a string and the other keys of Tidegate's error shape stand beside it.
Paths of OpenAI's and Anthropic's APIs have an error format of their own (``routing/openai_paths.py``). All other
clients get the shape of ``tidegate.errors``.
"""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidegate.activator.commands import Refuse
from tidegate.aio.proxy.exchange import KEPT_BYTES
from tidegate.errors import (
    BAD_REQUEST,
    BATCH_TOO_LARGE,
    CODED_BODY,
    DEADLINE,
    DROPPED,
    NOT_FOUND,
    NOT_GRPC,
    NOT_SERVABLE,
    START_FAILED,
    TAG_NOT_FOUND,
    ErrorKind,
    Executed,
    error_body,
)
from tidegate.gateway.counting.counters import Report, RevisionCounters
from tidegate.gateway.counting.outcomes import Ending
from tidegate.gateway.routing.grpc_methods import UNREAD
from tidegate.gateway.routing.openai_paths import missing
from tidegate.wire.bodies.charged import UNPACKED_BYTES
from tidegate.wire.http2.limits import STREAM_WINDOW

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange
    from tidegate.gateway.access.control import Denial
    from tidegate.gateway.answers.grpc import GrpcFrontend
    from tidegate.gateway.routing.function import FunctionRouter
    from tidegate.gateway.routing.match import Matcher
    from tidegate.gateway.routing.request_state import RequestState


_UNSERVABLE = (START_FAILED, BATCH_TOO_LARGE)
"""Refusals that no number of replicas would change: the model does not start, or no group serves the size."""


class ErrorResponses:
    """Sends error responses. Each method ends the exchange."""

    __slots__ = ("_grpc", "_report")

    def __init__(self, grpc: "GrpcFrontend", report: Report) -> None:
        self._grpc = grpc
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
        """Answers with an error; ``extra``: header lines."""
        state: RequestState = ex.context
        target = state.target
        executed = Executed.UNKNOWN if state.may_have_run else executed
        if state.pipeline is not None and state.pipeline.has_run:
            executed = Executed.TRUE
        if ex.is_rpc:
            self._grpc.fail(ex, state, kind, message, executed, extra)
            return
        function = target.router.name if target.router is not None else target.named or None
        request_id = state.request_id.decode("latin-1")
        if target.error_format is not None:
            body = target.error_format(kind, message, function=function, request_id=request_id, executed=executed)
        else:
            body = failure_body(
                kind, message, v2=target.v2, function=function, request_id=request_id, executed=executed
            )
        ex.respond(kind.status, body, extra=b"x-request-id: %b\r\n%b" % (state.request_id, extra))

    # --- before the waiting room ------------------------------------------------------------------------------------

    def not_found(self, ex: "Exchange", matcher: "Matcher") -> None:
        """No function has the name in the request."""
        self._report.unmatched += 1
        target = ex.context.target
        named = target.named
        if target.model or target.named_in_body:
            kind, message = missing(target.model, has_body=ex.bytes_in > 0)
            self.fail(ex, kind, message + (matcher.suggestions.words(target.model) if target.model else ""))
            return
        nearest = matcher.nearest(named)
        if nearest is not None:
            tag = named[: -len(nearest.name) - 1]
            self.fail(ex, TAG_NOT_FOUND, no_such_tag(nearest.name, tag, nearest.tagged))
        elif ex.is_rpc and not named:
            self.fail(ex, NOT_FOUND, self._grpc.no_function_message(ex))
        else:
            self.fail(ex, NOT_FOUND, no_such_function(named) + (matcher.suggestions.words(named) if named else ""))

    def no_tag(self, ex: "Exchange", router: "FunctionRouter", tag: bytes) -> None:
        """The function has no tag of this name."""
        self.fail(ex, TAG_NOT_FOUND, no_such_tag(router.name, tag.decode("latin-1"), router.tagged))

    def denied(self, ex: "Exchange", state: "RequestState", denial: "Denial") -> None:
        """Access control denied the request."""
        state.ending = Ending.REFUSED
        self.fail(ex, denial.kind, denial.message, extra=denial.extra)

    def not_grpc(self, ex: "Exchange", router: "FunctionRouter") -> None:
        """The function's server speaks gRPC only, and the request is HTTP."""
        self.fail(ex, NOT_GRPC, f"{router.name} speaks gRPC alone")

    def bad_size(self, ex: "Exchange", router: "FunctionRouter", inferences: int) -> None:
        """The request states a larger batch than the function takes (0), or none where it is read (UNREAD)."""
        ex.inferences = 1
        if inferences == UNREAD and not ex.is_rpc:
            message = f"its batch cannot be read: {router.name} counts inferences, and its body is coded"
            allowed = f"send it without content-encoding, or by gzip or deflate: {KEPT_BYTES >> 10} KiB at most"
            self.fail(ex, CODED_BODY, f"{message}; {allowed}, unpacked {UNPACKED_BYTES >> 20} MiB")
            return
        if inferences == UNREAD:
            message = f"its batch cannot be read: {router.name} counts inferences, and its first message has no shape"
            self.fail(
                ex,
                BAD_REQUEST,
                f"{message} in the first {STREAM_WINDOW >> 10} KiB, unpacked by gzip or deflate: write it before the "
                "contents",
            )
            return
        message = f"its batch is larger than {router.max_batch}, {router.name}'s max-batch"
        self.fail(ex, BATCH_TOO_LARGE, message)

    def no_traffic(self, ex: "Exchange", router: "FunctionRouter") -> None:
        """No revision of the function gets a part of the traffic."""
        self.fail(ex, NOT_SERVABLE, f"no revision of {router.name} takes traffic")

    def circuit_open(self, ex: "Exchange", state: "RequestState", counters: RevisionCounters) -> None:
        """The circuit breaker of the revision is open."""
        counters.circuit_refusals += 1
        state.ending = Ending.REFUSED
        state.is_excused = True
        message = "every replica fails one request after the other; one request a second is tried"
        self.fail(ex, NOT_SERVABLE, message, extra=b"retry-after: 1\r\n")

    # --- in the waiting room, or later ------------------------------------------------------------------------------

    def refused(self, refusal: Refuse) -> None:
        """The waiting room does not let the request in, or wait any longer."""
        ex: Exchange = refusal.request  # type: ignore[assignment]  # requests here are exchanges
        state: RequestState = ex.context
        if state.pipeline is not None:
            refusal = state.pipeline.refused(refusal)
        state.ending = Ending.EXPIRED if refusal.kind is DEADLINE else Ending.REFUSED
        state.is_excused |= refusal.kind in _UNSERVABLE
        if refusal.kind is DROPPED and state.counters is not None:
            state.counters.dropped += 1
        extra = b"" if refusal.retry_after_s is None else b"retry-after: %d\r\n" % refusal.retry_after_s
        self.fail(ex, refusal.kind, refusal.message, extra=extra)

    def expired(self, ex: "Exchange", state: "RequestState", message: str, executed: Executed = Executed.FALSE) -> None:
        """The deadline of the request has passed."""
        state.ending = Ending.EXPIRED
        self.fail(ex, DEADLINE, message, executed=executed)

    def __repr__(self) -> str:
        return f"<ErrorResponses of {self._grpc!r}>"


# --- bodies and messages --------------------------------------------------------------------------------------------


def failure_body(
    kind: ErrorKind, message: str, *, v2: bool, function: str | None, request_id: str | None, executed: Executed
) -> bytes:
    """Returns the JSON body of an error."""
    if not v2:
        return error_body(kind, message, function=function, request_id=request_id, executed=executed)
    return json.dumps(
        {
            "error": message,
            "code": kind.code,
            "function": function,
            "request_id": request_id,
            "executed": executed.value,
            "action": kind.action,
        }
    ).encode()


def no_such_function(named: str) -> str:
    """Returns the message for a request that names no existing function, or no function at all."""
    if named:
        return f"no function or model is called {named!r} here"
    return "the request names no function: use the host NAME.<domain>, /functions/NAME/ or a V2 model path"


def no_such_tag(function: str, tag: str, known: Iterable[bytes]) -> str:
    """Returns the message for a tag that the function does not have."""
    tags = ", ".join(sorted(name.decode("latin-1") for name in known)) or "none"
    return f"{function} has no tag {tag!r}; its tags: {tags}"
