"""The spans of a traced request, in the process that exports them. Pure.

::

    POST /v2/models/m/infer      SERVER    the gateway: from the head to the last byte
    ├─ waiting room              INTERNAL  until a replica had a slot
    │  └─ cold start: load ...   INTERNAL  the phases of the start that it waited through (control process)
    └─ forward                   CLIENT    one for each replica that it was sent to
       └─ queue_proxy            INTERNAL  at the replica, up to the head of the answer
          └─ model               CLIENT    the model server; its own spans are children of this one

A pipeline's request has a span ``stage NAME`` for each stage instead, which has the waiting room and the attempts.

The gateway makes all of them. A queue_proxy reports its two durations in the head of its answer, and a replica the
phases of its start on the slot channel: neither needs a clock that agrees with the gateway's.
"""

import random
from typing import Final

from tidegate.gateway.counting.outcomes import ending_of
from tidegate.gateway.tracing.facts import Answer, AskedFacts, Attempt, Facts
from tidegate.gateway.tracing.otlp import CLIENT, INTERNAL, SERVER, Span, SpanType, Value

GATEWAY: Final = "tidegate-gateway"
CONTROL: Final = "tidegate-control"
QUEUE_PROXY: Final = "tidegate-queue-proxy"

KEPT_TYPES: Final = 1024
"""Types of spans that are kept at most; then all are made again."""

_Trace = tuple[bytes, str]
"""Trace id and ``tracestate``."""
_KNOWN_METHODS: Final = frozenset((b"GET", b"POST", b"PUT", b"HEAD", b"DELETE", b"PATCH", b"OPTIONS"))


class Spans:
    """Makes the spans of one worker's requests."""

    __slots__ = ("_at_replica", "_offset", "_rng", "_scheme", "_types", "_waiting_room", "_worker")

    def __init__(self, *, rng: random.Random, offset: float, worker: str, scheme: str) -> None:
        """``rng``: for the ids of spans that no replica has seen; ``offset``: Unix time less the worker's clock;
        ``scheme``: ``http`` or ``https``."""
        self._rng = rng
        self._offset = offset
        self._worker = worker
        self._scheme = scheme
        self._types: dict[tuple[object, ...], SpanType] = {}
        self._at_replica: dict[str, tuple[SpanType, SpanType]] = {}
        self._waiting_room = SpanType(GATEWAY, worker, "waiting room")

    def made(self, traced: Facts) -> list[Span]:
        """Returns all spans of a request, or of a stage; as many as ``traced.spans``."""
        asked = traced.asked
        trace = traced.trace_id, traced.trace_state.decode("latin-1")
        own = traced.span_id.to_bytes(8, "big") if traced.span_id else self._drawn()
        found = [self._stage(traced, trace, own) if asked is None else self._request(traced, trace, asked, own)]
        if traced.has_waited:
            found += self._waiting(traced, trace, own)
        attempts = traced.attempts
        last = {attempt[0]: number for number, attempt in enumerate(attempts)}
        answers = {last[answer[0]]: answer for answer in traced.answers}
        for number, attempt in enumerate(attempts):
            follower = attempts[number + 1] if number + 1 < len(attempts) else None
            found += self._attempt(traced, trace, own, attempt, answers.get(number), number, follower)
        return found

    def _drawn(self) -> bytes:
        return (self._rng.getrandbits(64) or 1).to_bytes(8, "big")

    def _kept(self, key: tuple[object, ...], made: SpanType) -> SpanType:
        if len(self._types) >= KEPT_TYPES:
            self._types.clear()
        self._types[key] = made
        return made

    def _span(self, trace: _Trace, kind: SpanType, span_id: bytes, parent_id: bytes, start: float, end: float) -> Span:
        offset = self._offset
        return Span(kind, trace[0], span_id, parent_id, start + offset, end + offset, trace[1])

    def _stage(self, traced: Facts, trace: _Trace, own: bytes) -> Span:
        key = traced.function, traced.revision, traced.status
        kind = self._types.get(key) or self._kept(key, self._stage_type(*key))
        return self._span(trace, kind, own, traced.parent_id, traced.received, traced.ended)

    def _stage_type(self, function: str | None, revision: str | None, status: int) -> SpanType:
        attributes: list[tuple[str, Value]] = [("tidegate.function", function or "")]
        if revision is not None:
            attributes.append(("tidegate.revision", revision))
        if status:
            attributes.append(("http.response.status_code", status))
        return SpanType(
            GATEWAY, self._worker, f"stage {function or ''}", INTERNAL, tuple(attributes), is_error=status >= 500
        )

    def _request(self, traced: Facts, trace: _Trace, asked: AskedFacts, own: bytes) -> Span:
        key = (
            traced.function,
            traced.revision,
            traced.status,
            asked.method,
            asked.target,
            asked.host,
            asked.is_rpc,
            asked.inferences,
            asked.ending,
            asked.is_truncated,
        )
        kind = self._types.get(key) or self._kept(key, self._request_type(traced, asked))
        offset = self._offset
        return Span(
            kind,
            trace[0],
            own,
            traced.parent_id,
            traced.received + offset,
            traced.ended + offset,
            trace[1],
            (("tidegate.request.id", asked.request_id.decode("latin-1")),),
        )

    def _request_type(self, traced: Facts, asked: AskedFacts) -> SpanType:
        status = traced.status
        ending = ending_of(asked.ending, status, is_truncated=asked.is_truncated).value
        path = asked.target.partition(b"?")[0].decode("latin-1")
        method = asked.method.decode("latin-1") if asked.method in _KNOWN_METHODS else "_OTHER"
        attributes: list[tuple[str, Value]] = [
            ("http.request.method", method),
            ("url.scheme", self._scheme),
            ("url.path", path),
            ("server.address", asked.host.decode("latin-1")),
            ("tidegate.ending", ending),
        ]
        if status:
            attributes.append(("http.response.status_code", status))
        if asked.is_rpc:
            attributes += [("rpc.system", "grpc"), ("rpc.method", path[1:])]
        if traced.function is not None:
            attributes.append(("tidegate.function", traced.function))
        if traced.revision is not None:
            attributes += [("tidegate.revision", traced.revision), ("tidegate.inferences", asked.inferences)]
        is_error = status >= 500 or ending == "failed"
        if is_error:
            attributes.append(("error.type", str(status) if status >= 500 else ending))
        name = path[1:] if asked.is_rpc else "HTTP" if method == "_OTHER" else method
        return SpanType(GATEWAY, self._worker, name, SERVER, tuple(attributes), is_error=is_error)

    def _waiting(self, traced: Facts, trace: _Trace, own: bytes) -> list[Span]:
        until = traced.attempts[0][2] if traced.attempts else traced.ended
        waiting = self._span(trace, self._waiting_room, self._drawn(), own, traced.received, until)
        found = [waiting]
        if traced.cold is not None:
            end, known = traced.cold
            start = end - sum(seconds for _, seconds in known)
            for name, seconds in known:
                attributes = (("tidegate.cold_start.phase", name), ("tidegate.replica", traced.attempts[-1][0]))
                kind = SpanType(CONTROL, "control", f"cold start: {name}", INTERNAL, attributes)
                found.append(self._span(trace, kind, self._drawn(), waiting.span_id, start, start + seconds))
                start += seconds
        return found

    def _attempt(
        self,
        traced: Facts,
        trace: _Trace,
        own: bytes,
        attempt: Attempt,
        answer: Answer | None,
        number: int,
        follower: Attempt | None,
    ) -> list[Span]:
        replica, group, at, span_id = attempt
        _, answered_at, status, timing = answer or (replica, None, 0, None)
        seen = span_id.to_bytes(8, "big")
        is_error = answered_at is None or status >= 500
        key = replica, group, number, status, is_error
        kind = self._types.get(key) or self._kept(key, self._forward_type(*key))
        end = traced.ended if answered_at is not None or follower is None else follower[2]
        if answered_at is None or timing is None:
            return [self._span(trace, kind, seen, own, at, end)]
        forward = self._span(trace, kind, self._drawn(), own, at, end)
        queue_s, model_s = _times(timing)
        model_from = max(at, answered_at - model_s)
        queue_from = max(at, model_from - queue_s)
        proxy_type, model_type = self._at_replica.get(replica) or self._kept_at(replica)
        proxy = self._span(trace, proxy_type, self._drawn(), forward.span_id, queue_from, answered_at)
        return [forward, proxy, self._span(trace, model_type, seen, proxy.span_id, model_from, answered_at)]

    def _kept_at(self, replica: str) -> tuple[SpanType, SpanType]:
        """Returns the types of the spans in a replica's queue_proxy, and keeps them."""
        if len(self._at_replica) >= KEPT_TYPES:
            self._at_replica.clear()
        attributes = (("tidegate.replica", replica),)
        found = self._at_replica[replica] = (
            SpanType(QUEUE_PROXY, replica, "queue_proxy", INTERNAL, attributes),
            SpanType(QUEUE_PROXY, replica, "model", CLIENT, attributes),
        )
        return found

    def _forward_type(self, replica: str, group: str, number: int, status: int, is_error: bool) -> SpanType:
        attributes: list[tuple[str, Value]] = [("tidegate.replica", replica), ("tidegate.group", group)]
        if number:
            attributes.append(("http.request.resend_count", number))
        if status:
            attributes.append(("http.response.status_code", status))
        return SpanType(GATEWAY, self._worker, "forward", CLIENT, tuple(attributes), is_error=is_error)

    def __repr__(self) -> str:
        return f"<Spans of {self._worker}>"


def _times(timing: bytes) -> tuple[float, float]:
    """Returns the seconds in ``queue=MS,model=MS``; 0.0 if the field is none, or for a figure that is no duration."""
    queue, _, model = timing.removeprefix(b"queue=").partition(b",model=")
    try:
        return max(0.0, float(queue) / 1e3), max(0.0, float(model) / 1e3)
    except ValueError:
        return 0.0, 0.0
