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
from tidegate.gateway.tracing.otlp import CLIENT, INTERNAL, SERVER, Attributes, Span, Value

GATEWAY: Final = "tidegate-gateway"
CONTROL: Final = "tidegate-control"
QUEUE_PROXY: Final = "tidegate-queue-proxy"

_KNOWN_METHODS: Final = frozenset((b"GET", b"POST", b"PUT", b"HEAD", b"DELETE", b"PATCH", b"OPTIONS"))


class Spans:
    """Makes the spans of one worker's requests."""

    __slots__ = ("_offset", "_rng", "_scheme", "_worker")

    def __init__(self, *, rng: random.Random, offset: float, worker: str, scheme: str) -> None:
        """``rng``: for the ids of spans that no replica has seen; ``offset``: Unix time less the worker's clock;
        ``scheme``: ``http`` or ``https``."""
        self._rng = rng
        self._offset = offset
        self._worker = worker
        self._scheme = scheme

    def made(self, traced: Facts) -> list[Span]:
        """Returns all spans of a request, or of a stage; as many as ``traced.spans``."""
        asked = traced.asked
        own = _digits(traced.span_id) if traced.span_id else self._drawn()
        found = [self._stage(traced, own) if asked is None else self._request(traced, asked, own)]
        if traced.has_waited:
            found += self._waiting(traced, own)
        attempts = traced.attempts
        last = {attempt[0]: number for number, attempt in enumerate(attempts)}
        answers = {last[answer[0]]: answer for answer in traced.answers}
        for number, attempt in enumerate(attempts):
            follower = attempts[number + 1] if number + 1 < len(attempts) else None
            found += self._attempt(traced, own, attempt, answers.get(number), number, follower)
        return found

    def _drawn(self) -> bytes:
        return _digits(self._rng.getrandbits(64) or 1)

    def _span(
        self,
        traced: Facts,
        name: str,
        parent_id: bytes,
        start: float,
        end: float,
        attributes: Attributes = (),
        *,
        span_id: bytes | None = None,
        kind: int = INTERNAL,
        service: str = GATEWAY,
        instance: str | None = None,
        is_error: bool = False,
        own: Attributes = (),
    ) -> Span:
        return Span(
            service=service,
            instance=self._worker if instance is None else instance,
            name=name,
            kind=kind,
            trace_id=traced.trace_id,
            span_id=self._drawn() if span_id is None else span_id,
            parent_id=parent_id,
            start=start + self._offset,
            end=end + self._offset,
            attributes=attributes,
            is_error=is_error,
            trace_state=traced.trace_state.decode("latin-1"),
            own=own,
        )

    def _stage(self, traced: Facts, own: bytes) -> Span:
        name = traced.function or ""
        attributes: list[tuple[str, Value]] = [("tidegate.function", name)]
        if traced.revision is not None:
            attributes.append(("tidegate.revision", traced.revision))
        if traced.status:
            attributes.append(("http.response.status_code", traced.status))
        return self._span(
            traced,
            f"stage {name}",
            traced.parent_id,
            traced.received,
            traced.ended,
            tuple(attributes),
            span_id=own,
            is_error=traced.status >= 500,
        )

    def _request(self, traced: Facts, asked: AskedFacts, own: bytes) -> Span:
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
        return self._span(
            traced,
            name,
            traced.parent_id,
            traced.received,
            traced.ended,
            tuple(attributes),
            span_id=own,
            kind=SERVER,
            is_error=is_error,
            own=(("tidegate.request.id", asked.request_id.decode("latin-1")),),
        )

    def _waiting(self, traced: Facts, own: bytes) -> list[Span]:
        until = traced.attempts[0][2] if traced.attempts else traced.ended
        waiting = self._span(traced, "waiting room", own, traced.received, until)
        found = [waiting]
        if traced.cold is not None:
            end, known = traced.cold
            start = end - sum(seconds for _, seconds in known)
            for name, seconds in known:
                found.append(
                    self._span(
                        traced,
                        f"cold start: {name}",
                        waiting.span_id,
                        start,
                        start + seconds,
                        (("tidegate.cold_start.phase", name), ("tidegate.replica", traced.attempts[-1][0])),
                        service=CONTROL,
                        instance="control",
                    )
                )
                start += seconds
        return found

    def _attempt(
        self,
        traced: Facts,
        own: bytes,
        attempt: Attempt,
        answer: Answer | None,
        number: int,
        follower: Attempt | None,
    ) -> list[Span]:
        replica, group, at, span_id = attempt
        _, answered_at, status, timing = answer or (replica, None, 0, None)
        seen = _digits(span_id)
        attributes: list[tuple[str, Value]] = [("tidegate.replica", replica), ("tidegate.group", group)]
        if number:
            attributes.append(("http.request.resend_count", number))
        if status:
            attributes.append(("http.response.status_code", status))
        end = traced.ended if answered_at is not None or follower is None else follower[2]
        forward = self._span(
            traced,
            "forward",
            own,
            at,
            end,
            tuple(attributes),
            span_id=seen if timing is None else None,
            kind=CLIENT,
            is_error=answered_at is None or status >= 500,
        )
        if answered_at is None or timing is None:
            return [forward]
        queue_s, model_s = _times(timing)
        model_from = max(at, answered_at - model_s)
        queue_from = max(at, model_from - queue_s)
        at_replica: Attributes = (("tidegate.replica", replica),)
        proxy = self._span(
            traced,
            "queue_proxy",
            forward.span_id,
            queue_from,
            answered_at,
            at_replica,
            service=QUEUE_PROXY,
            instance=replica,
        )
        model = self._span(
            traced,
            "model",
            proxy.span_id,
            model_from,
            answered_at,
            at_replica,
            span_id=seen,
            kind=CLIENT,
            service=QUEUE_PROXY,
            instance=replica,
        )
        return [forward, proxy, model]

    def __repr__(self) -> str:
        return f"<Spans of {self._worker}>"


def _digits(span_id: int) -> bytes:
    return b"%016x" % span_id


def _times(timing: bytes) -> tuple[float, float]:
    """Returns the seconds in ``queue=MS,model=MS``; 0.0 if the field is none, or for a figure that is no duration."""
    queue, _, model = timing.removeprefix(b"queue=").partition(b",model=")
    try:
        return max(0.0, float(queue) / 1e3), max(0.0, float(model) / 1e3)
    except ValueError:
        return 0.0, 0.0
