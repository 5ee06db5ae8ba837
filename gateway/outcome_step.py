"""Step *count* of a request: open streams and ends, for the counters of its revision and the access log."""

from typing import TYPE_CHECKING, Final

from tidegate.gateway.access_log.records import AccessLog
from tidegate.gateway.answers.grpc import GrpcFrontend
from tidegate.gateway.counting.counters import RevisionCounters
from tidegate.gateway.counting.outcomes import Ending
from tidegate.gateway.routing.request_state import RequestState
from tidegate.gateway.tracing.trace import Trace
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


def trace_end(ex: "Exchange", state: RequestState, trace: Trace) -> None:
    """Passes on what is known of a traced request at its end."""
    head, router, counters = ex.head, state.target.router, state.counters
    revision = None if counters is None else counters.revision
    trace.tracer.put(
        (
            trace.count(revision),
            trace.parent,
            trace.state,
            trace.span_id,
            ex.received,
            ex.ended,
            ex.status,
            None if router is None else router.name,
            revision,
            trace.attempts,
            trace.answers,
            trace.cold,
            (
                head.method,
                head.target,
                head.host,
                ex.is_rpc,
                ex.inferences,
                state.request_id,
                state.ending,
                ex.truncated,
            ),
        )
    )


def _is_missed(ex: "Exchange", state: RequestState, ending: Ending) -> bool:
    """Returns whether a request without an answer counts as late: it was refused for want of a slot, it had waited for
    one when its deadline passed, or it had been there for longer than the target when it ended: of a stream, when its
    first output came."""
    if state.is_excused or ending is Ending.FAILED:
        return False
    if ending is Ending.REFUSED:
        return True
    router = state.target.router
    target_s = None if router is None else router.latency_s
    begun = (ex.first_byte if state.tokens is None else state.tokens.first_at) if state.is_stream else 0.0
    if target_s is not None and (begun or ex.ended) - ex.received > target_s:
        return True
    if begun:
        return False
    return ending is Ending.EXPIRED and not 0.0 < state.bound_at <= ex.received


def count_end(
    ex: "Exchange", state: RequestState, counters: RevisionCounters, is_complete: bool, log: AccessLog | None
) -> None:
    """Counts the end of a request, once; ``is_complete``: it got its whole answer; ``log``: gets it as well.

    The latency of a stream is the time to its first output.
    """
    received = ex.received
    if state.is_stream:
        counters.streaming -= 1
    if counters.http is not None:
        error = "" if is_complete else (state.ending or Ending.FAILED).value
        counters.http.record(ex.head.method, ex.status, error, ex.ended - received)
    status, inferences = ex.status, ex.inferences
    if not is_complete or status >= 500:
        ending = state.ending or Ending.FAILED
        counters.ended(ending, state.group, inferences)
        counters.missed += _is_missed(ex, state, ending)
        if log is not None and not state.is_uncounted:
            log.ended(ex, state)
        return
    tokens, target = state.tokens, state.target
    router = target.router
    end = ended = ex.ended
    if state.is_stream:
        end = ex.first_byte if tokens is None else tokens.begun(ex.first_byte)
    target_s = router.latency_s if router is not None and not state.is_excused else None
    is_slow = False
    if target_s is not None and tokens is not None and router is not None and router.per_token_s is not None:
        is_slow = tokens.per_token_s > router.per_token_s
    has_settled = counters.ended_well(state.group, inferences, end - received, target_s, is_slow)
    trace = state.trace
    if trace is not None:
        counters.sampled.append((trace.parent, end - received, ended + trace.tracer.offset))
    if log is None:
        return
    rows, line = log.rows, target.line
    if rows is None or line is None or tokens is not None:  # Tokens may have made a broken answer a whole one.
        if not state.is_uncounted:
            log.ended(ex, state)
        return  # Of those that are not counted, a stage has no line, and the second of two copies no counters.
    if trace is not None:
        log.note_trace(trace.parent)
    rows.append(  # As ``AccessLog.ended``, with what is known here: this is the hot path.
        (
            counters.names,
            state.replica,
            line,
            status,
            inferences,
            received,
            state.bound_at,
            ex.first_byte,
            ended,
            state.request_id,
            ex.bytes_in,
            ex.bytes_out,
        )
    )
    if has_settled:  # Often enough, and no row is looked at for it.
        log.full()
