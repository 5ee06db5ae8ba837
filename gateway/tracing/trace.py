"""The trace of a sampled request: W3C Trace Context in and out, and its spans at its end. Pure.

::

    POST /v2/models/m/infer      SERVER    the gateway: from the head to the last byte
    ├─ waiting room              INTERNAL  until a replica had a slot
    │  └─ cold start: load ...   INTERNAL  the phases of the start that it waited through (control process)
    └─ forward                   CLIENT    one for each replica that it was sent to
       └─ queue_proxy            INTERNAL  at the replica, up to the head of the answer
          └─ model               CLIENT    the model server; its own spans are children of this one

A pipeline's request has a span ``stage NAME`` for each stage instead, which has the waiting room and the attempts.

The gateway makes all of them. A queue_proxy reports its two durations in the head of its answer, and a replica the
phases of its start on the slot channel: neither needs a clock that agrees with the gateway's. The ``traceparent`` that
goes to the replica names the innermost span that is known for it.
"""

import random
from binascii import hexlify
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from tidegate.gateway.tracing.otlp import CLIENT, INTERNAL, SERVER, Attributes, Span, Value
from tidegate.records.replica_state import ColdStartPhases, known_phases
from tidegate.wire.message_heads import AnyRequestHead

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange

GATEWAY: Final = "tidegate-gateway"
CONTROL: Final = "tidegate-control"
QUEUE_PROXY: Final = "tidegate-queue-proxy"

_NOT_ZERO: Final = 1 << 64 | 1
_FLAGS: Final = 3
"""The flags that are passed on: sampled, and random trace id."""
_KNOWN_METHODS: Final = frozenset((b"GET", b"POST", b"PUT", b"HEAD", b"DELETE", b"PATCH", b"OPTIONS"))


class Attempt:
    """One replica that a request was sent to."""

    __slots__ = ("answered_at", "at", "group", "model_s", "queue_s", "replica", "span_id", "status")

    def __init__(self, replica: str, group: str, at: float, span_id: bytes) -> None:
        self.replica = replica
        self.group = group
        self.at = at
        self.span_id = span_id
        """What the replica sees as its parent."""
        self.answered_at: float | None = None
        """When the head of its answer was accepted; None if it was not."""
        self.status = 0
        self.queue_s: float | None = None
        """Time in queue_proxy and in the model server up to the head; None if the replica did not report it."""
        self.model_s = 0.0

    def __repr__(self) -> str:
        return f"<Attempt {self.replica} at {self.at:.3f}>"


class Trace:
    """The trace of one request while it is here."""

    __slots__ = (
        "_flags",
        "_rng",
        "attempts",
        "cold",
        "has_stages",
        "offset",
        "parent_id",
        "span_id",
        "trace_id",
        "trace_state",
    )

    def __init__(
        self,
        trace_id: bytes,
        parent_id: bytes,
        span_id: bytes,
        flags: int,
        trace_state: str,
        rng: random.Random,
        offset: float,
    ) -> None:
        self.trace_id = trace_id
        self.offset = offset
        """Unix time less the chain's clock."""
        self.parent_id = parent_id
        self.span_id = span_id
        self.trace_state = trace_state
        self.attempts: list[Attempt] = []
        self.cold: tuple[float, ColdStartPhases] | None = None
        """When the replica that it waited for became ready, and the phases before."""
        self.has_stages = False
        """It is of a pipeline's request: its stages wait for slots, not the request."""
        self._flags = flags
        self._rng = rng

    def of_stage(self) -> "Trace":
        """Returns the trace of one stage, if this is that of a pipeline's request."""
        self.has_stages = True
        span_id = new_span_id(self._rng)
        return Trace(self.trace_id, self.span_id, span_id, self._flags, self.trace_state, self._rng, self.offset)

    def forwarded(self, id_line: bytes, replica: str, group: str, now: float) -> bytes:
        """It goes to a replica: returns ``id_line`` with the ``traceparent`` line behind it."""
        attempt = Attempt(replica, group, now, new_span_id(self._rng))
        self.attempts.append(attempt)
        return b"%btraceparent: 00-%b-%b-%02x\r\n" % (id_line, self.trace_id, attempt.span_id, self._flags)

    def answered(self, replica: str, status: int, timing: bytes | None, now: float) -> None:
        """The head of a replica's answer was accepted; ``timing`` is its ``tidegate-timing``."""
        for attempt in reversed(self.attempts):
            if attempt.replica == replica:
                attempt.answered_at = now
                attempt.status = status
                times = _times(timing)
                if times is not None:
                    attempt.queue_s, attempt.model_s = times
                return

    def __repr__(self) -> str:
        return f"<Trace {self.trace_id.decode()}, {len(self.attempts)} attempts>"


class Ended(NamedTuple):
    """What the gateway knows of a request at its end, beside its exchange."""

    request_id: bytes
    ending: str
    function: str | None
    """None if the request named none."""
    revision: str | None
    """None if the request was not counted."""


class Tracer:
    """Decides which requests are traced, and makes their spans. ``put`` takes those of one request."""

    __slots__ = ("_offset", "_put", "_ratio", "_rng", "_scheme", "_worker")

    def __init__(
        self,
        *,
        ratio: float,
        rng: random.Random,
        offset: float,
        worker: str,
        scheme: str,
        put: Callable[[Sequence[Span]], None],
    ) -> None:
        """``ratio``: share of the requests without a parent that are traced; ``offset``: Unix time less the chain's
        clock; ``scheme``: ``http`` or ``https``."""
        self._ratio = ratio
        self._rng = rng
        self._offset = offset
        self._worker = worker
        self._scheme = scheme
        self._put = put

    def samples(self, head: AnyRequestHead) -> bool:
        """Returns whether a request is traced: its parent decides, and the ratio if it has none."""
        return head.is_sampled() if head.traced else self._rng.random() < self._ratio

    def begin(self, head: AnyRequestHead) -> Trace:
        """Begins the trace of a request: its parent's, or its own."""
        if head.traced:
            given = head.get(b"traceparent") or b""
            flags = int(given[53:55], 16)
            head.take_trace()
            state = head.get(b"tracestate")
            text = "" if state is None else state.decode("latin-1")
            return Trace(
                given[3:35], given[36:52], new_span_id(self._rng), flags & _FLAGS, text, self._rng, self._offset
            )
        if head.get(b"tracestate") is not None:
            head.drop(b"tracestate")  # It belongs to the trace that the request did not name.
        head.take_trace()
        ids = hexlify((self._rng.getrandbits(192) | _NOT_ZERO).to_bytes(24, "big"))
        return Trace(ids[:32], b"", ids[32:], _FLAGS, "", self._rng, self._offset)

    def ended(self, ex: "Exchange", trace: Trace, ended: Ended) -> None:
        """The request is over: passes its spans on."""
        self._put(tuple(self._spans(ex, trace, ended)))

    def stage_ended(self, ex: "Exchange", trace: Trace, name: str, revision: str | None, status: int) -> None:
        """A stage of a pipeline is over: passes its spans on. ``revision``: None if it was not counted; ``status``: 0
        if no answer came."""
        attributes: list[tuple[str, Value]] = [("tidegate.function", name)]
        if revision is not None:
            attributes.append(("tidegate.revision", revision))
        if status:
            attributes.append(("http.response.status_code", status))
        stage = self._span(
            trace,
            f"stage {name}",
            trace.parent_id,
            ex.received,
            ex.ended,
            tuple(attributes),
            span_id=trace.span_id,
            is_error=status >= 500,
        )
        self._put((stage, *self._at_replicas(ex, trace, is_counted=revision is not None)))

    # --- spans ------------------------------------------------------------------------------------------------------

    def _spans(self, ex: "Exchange", trace: Trace, ended: Ended) -> list[Span]:
        return [
            self._request(ex, trace, ended),
            *self._at_replicas(ex, trace, is_counted=ended.revision is not None and not trace.has_stages),
        ]

    def _at_replicas(self, ex: "Exchange", trace: Trace, *, is_counted: bool) -> list[Span]:
        found = self._waiting(ex, trace) if is_counted else []
        for number, attempt in enumerate(trace.attempts):
            follower = trace.attempts[number + 1] if number + 1 < len(trace.attempts) else None
            found += self._attempt(ex, trace, attempt, number, follower)
        return found

    def _span(
        self,
        trace: Trace,
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
            trace_id=trace.trace_id,
            span_id=new_span_id(self._rng) if span_id is None else span_id,
            parent_id=parent_id,
            start=start + self._offset,
            end=end + self._offset,
            attributes=attributes,
            is_error=is_error,
            trace_state=trace.trace_state,
            own=own,
        )

    def _request(self, ex: "Exchange", trace: Trace, ended: Ended) -> Span:
        head = ex.head
        path = head.path.decode("latin-1")
        method = head.method.decode("latin-1") if head.method in _KNOWN_METHODS else "_OTHER"
        attributes: list[tuple[str, Value]] = [
            ("http.request.method", method),
            ("url.scheme", self._scheme),
            ("url.path", path),
            ("server.address", head.host.decode("latin-1")),
            ("tidegate.ending", ended.ending),
        ]
        if ex.status:
            attributes.append(("http.response.status_code", ex.status))
        if ex.is_rpc:
            attributes += [("rpc.system", "grpc"), ("rpc.method", path[1:])]
        if ended.function is not None:
            attributes.append(("tidegate.function", ended.function))
        if ended.revision is not None:
            attributes += [("tidegate.revision", ended.revision), ("tidegate.inferences", ex.inferences)]
        is_error = ex.status >= 500 or ended.ending == "failed"
        if is_error:
            attributes.append(("error.type", str(ex.status) if ex.status >= 500 else ended.ending))
        name = path[1:] if ex.is_rpc else "HTTP" if method == "_OTHER" else method
        return self._span(
            trace,
            name,
            trace.parent_id,
            ex.received,
            ex.ended,
            tuple(attributes),
            span_id=trace.span_id,
            kind=SERVER,
            is_error=is_error,
            own=(("tidegate.request.id", ended.request_id.decode("latin-1")),),
        )

    def _waiting(self, ex: "Exchange", trace: Trace) -> list[Span]:
        until = trace.attempts[0].at if trace.attempts else ex.ended
        waiting = self._span(trace, "waiting room", trace.span_id, ex.received, until)
        found = [waiting]
        if trace.cold is not None:
            end, phases = trace.cold
            known = [(name, seconds) for name, seconds in known_phases(phases) if name != "first_response"]
            start = end - sum(seconds for _, seconds in known)
            for name, seconds in known:
                found.append(
                    self._span(
                        trace,
                        f"cold start: {name}",
                        waiting.span_id,
                        start,
                        start + seconds,
                        (("tidegate.cold_start.phase", name), ("tidegate.replica", trace.attempts[-1].replica)),
                        service=CONTROL,
                        instance="control",
                    )
                )
                start += seconds
        return found

    def _attempt(
        self, ex: "Exchange", trace: Trace, attempt: Attempt, number: int, follower: Attempt | None
    ) -> list[Span]:
        attributes: list[tuple[str, Value]] = [
            ("tidegate.replica", attempt.replica),
            ("tidegate.group", attempt.group),
        ]
        if number:
            attributes.append(("http.request.resend_count", number))
        if attempt.status:
            attributes.append(("http.response.status_code", attempt.status))
        answered_at = attempt.answered_at
        is_measured = answered_at is not None and attempt.queue_s is not None
        end = ex.ended if answered_at is not None or follower is None else follower.at
        forward = self._span(
            trace,
            "forward",
            trace.span_id,
            attempt.at,
            end,
            tuple(attributes),
            span_id=None if is_measured else attempt.span_id,
            kind=CLIENT,
            is_error=answered_at is None or attempt.status >= 500,
        )
        if answered_at is None or attempt.queue_s is None:
            return [forward]
        model_from = max(attempt.at, answered_at - attempt.model_s)
        queue_from = max(attempt.at, model_from - attempt.queue_s)
        at_replica: Attributes = (("tidegate.replica", attempt.replica),)
        proxy = self._span(
            trace,
            "queue_proxy",
            forward.span_id,
            queue_from,
            answered_at,
            at_replica,
            service=QUEUE_PROXY,
            instance=attempt.replica,
        )
        model = self._span(
            trace,
            "model",
            proxy.span_id,
            model_from,
            answered_at,
            at_replica,
            span_id=attempt.span_id,
            kind=CLIENT,
            service=QUEUE_PROXY,
            instance=attempt.replica,
        )
        return [forward, proxy, model]

    def __repr__(self) -> str:
        return f"<Tracer of {self._ratio:.2%}>"


def new_span_id(rng: random.Random) -> bytes:
    """Returns 16 hexadecimal digits that are not all 0."""
    return hexlify((rng.getrandbits(64) or 1).to_bytes(8, "big"))


def _times(timing: bytes | None) -> tuple[float, float] | None:
    """Returns the seconds in ``queue=MS,model=MS``; None if the field is missing or is none."""
    queue, _, model = (timing or b"").removeprefix(b"queue=").partition(b",model=")
    try:
        return float(queue) / 1e3, float(model) / 1e3
    except ValueError:
        return None
