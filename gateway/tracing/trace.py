"""The trace of a sampled request: W3C Trace Context in and out, and what its spans are made of at its end. Pure.

The ``traceparent`` that goes to the replica names the innermost span that is known for it (``spans.py`` shows all).
"""

import random
from binascii import hexlify
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from tidegate.gateway.tracing.facts import Asked, Attempt, Traced, new_span_id
from tidegate.records.replica_state import ColdStartPhases, known_phases
from tidegate.wire.message_heads import AnyRequestHead

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange

_NOT_ZERO: Final = 1 << 64 | 1
_FLAGS: Final = 3
"""The flags that are passed on: sampled, and random trace id."""


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
                attempt.timing = timing
                return

    def __repr__(self) -> str:
        return f"<Trace {self.trace_id.decode()}, {len(self.attempts)} attempts>"


class Tracer:
    """Decides which requests are traced. ``put`` takes what is known of those that are over."""

    __slots__ = ("_offset", "_put", "_ratio", "_rng")

    def __init__(
        self,
        *,
        ratio: float,
        rng: random.Random,
        offset: float,
        put: Callable[[Sequence[Traced]], None],
    ) -> None:
        """``ratio``: share of the requests without a parent that are traced; ``offset``: Unix time less the chain's
        clock."""
        self._ratio = ratio
        self._rng = rng
        self._offset = offset
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

    def ended(self, ex: "Exchange", trace: Trace, function: str | None, revision: str | None, asked: Asked) -> None:
        """The request is over: passes on what is known of it. ``function``: None if it named none; ``revision``: None
        if it was not counted."""
        has_waited = revision is not None and not trace.has_stages
        self._put((_traced(ex, trace, ex.status, function, revision, has_waited, asked),))

    def stage_ended(self, ex: "Exchange", trace: Trace, name: str, revision: str | None, status: int) -> None:
        """A stage of a pipeline is over. ``revision``: None if it was not counted; ``status``: 0 if no answer came."""
        self._put((_traced(ex, trace, status, name, revision, revision is not None, None),))

    def __repr__(self) -> str:
        return f"<Tracer of {self._ratio:.2%}>"


def _traced(
    ex: "Exchange",
    trace: Trace,
    status: int,
    function: str | None,
    revision: str | None,
    has_waited: bool,
    asked: Asked | None,
) -> Traced:
    cold = None
    if trace.cold is not None:
        ready_at, phases = trace.cold
        cold = ready_at, [(name, seconds) for name, seconds in known_phases(phases) if name != "first_response"]
    return Traced(
        trace.trace_id,
        trace.span_id,
        trace.parent_id,
        trace.trace_state,
        ex.received,
        ex.ended,
        status,
        function,
        revision,
        has_waited,
        trace.attempts,
        cold,
        asked,
    )
