"""Step *count* of a request: open streams and ends, for the counters of its revision and the access log."""

from typing import TYPE_CHECKING, Final

from tidegate.gateway.answers.grpc import GrpcFrontend
from tidegate.gateway.counting.counters import RevisionCounters
from tidegate.gateway.counting.outcomes import Ending, ending_of
from tidegate.gateway.routing.request_state import RequestState
from tidegate.gateway.tracing.trace import Ended
from tidegate.wire.message_heads import AnyResponseHead

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange


_EVENT_STREAM: Final = b"text/event-stream"


def begin_unbounded(ex: "Exchange", state: RequestState, head: AnyResponseHead, grpc: GrpcFrontend) -> None:
    """An answer without a length begins: an event stream, a tunnel, a stream of messages, or chunks. Counts streams."""
    if ex.is_rpc:
        state.is_stream = grpc.streams(ex)
    else:
        state.is_stream = head.status == 101 or (head.get(b"content-type") or b"").startswith(_EVENT_STREAM)
    if state.is_stream and state.counters is not None:
        state.counters.streaming += 1


def at_end(ex: "Exchange", state: RequestState) -> Ended:
    """Returns what the trace of a request shows of its end."""
    router, counters = state.target.router, state.counters
    return Ended(
        state.request_id,
        ending_of(state.ending, ex.status, is_truncated=ex.truncated).value,
        None if router is None else router.name,
        None if counters is None else counters.revision,
    )


def count_end(ex: "Exchange", state: RequestState, counters: RevisionCounters, is_complete: bool) -> None:
    """Counts the end of a request, once; ``is_complete``: it got its whole answer.

    The latency of a stream is the time to its first output.
    """
    if state.is_stream:
        counters.streaming -= 1
    if counters.http is not None:
        error = "" if is_complete else (state.ending or Ending.FAILED).value
        counters.http.record(ex.head.method, ex.status, error, ex.ended - ex.received)
    if not is_complete or ex.status >= 500:
        counters.ended(state.ending or Ending.FAILED, state.group, ex.inferences)
        return
    tokens, router = state.tokens, state.target.router
    end = ex.ended
    if state.is_stream:
        end = ex.first_byte if tokens is None else tokens.begun(ex.first_byte)
    target_s = router.latency_s if router is not None else None
    is_slow = False
    if tokens is not None and router is not None and router.per_token_s is not None:
        is_slow = tokens.per_token_s > router.per_token_s
    counters.ended_well(state.group, ex.inferences, end - ex.received, target_s, is_slow)
    if state.trace is not None:
        counters.sampled(state.trace.trace_id, end - ex.received, ex.ended + state.trace.offset)
