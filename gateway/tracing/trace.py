"""The trace of a sampled request: W3C Trace Context in and out, and what its spans are made of at its end. Pure.

The ``traceparent`` that goes to the replica names the innermost span that is known for it (``spans.py`` shows all). One
request in a hundred comes here, so none of this code is in the processor's cache: a worker keeps what it has at hand,
and the process that exports spans works out the rest (``facts.py``).
"""

import random
from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Final

from tidegate.gateway.tracing.facts import Answer, Attempt, Cold, Traced
from tidegate.records.replica_state import ColdStartPhases, known_phases
from tidegate.wire.message_heads import AnyRequestHead

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange

_ODD_DIGITS: Final = b"13579bdf"
_RANDOM_DIGITS: Final = b"37bf"
_ROOT: Final = b"00-%032x-0000000000000000-03"
"""The ``traceparent`` of a request that has none: sampled, and its trace id is random."""


class Trace:
    """The trace of one request while it is here."""

    __slots__ = ("answers", "attempts", "cold", "parent", "span_id", "spans", "state", "tracer")

    tracer: "Tracer"
    parent: bytes
    """The ``traceparent`` that came, or ``_ROOT``."""
    state: bytes
    """The ``tracestate`` that came."""
    span_id: int
    """That of the request if its stages have spans below it; 0: the exporter draws it."""
    attempts: list[Attempt]
    answers: list[Answer]
    cold: Cold | None
    spans: int
    """Its own span and those of its attempts."""

    def of_stage(self) -> "Trace":
        """Returns the trace of one stage, if this is that of a pipeline's request."""
        if not self.span_id:
            self.span_id = self.tracer.rng.getrandbits(64) or 1
        stage = copy(self)
        stage.parent = b"00-%b%016x%b" % (self.parent[3:36], self.span_id, self.parent[52:55])
        stage.span_id = 0
        stage.spans = 1
        stage.attempts, stage.answers = [], []
        return stage

    def forwarded(self, ex: "Exchange", id_line: bytes, replica: str, group: str, now: float) -> bytes:
        """It goes to a replica: its head names the span there, or the line behind ``id_line`` that this returns."""
        tracer, parent = self.tracer, self.parent
        span_id = tracer.rng.getrandbits(64) or 1
        flags = b"%016x-03" if parent[54] in _RANDOM_DIGITS else b"%016x-01"  # Sampled, and random trace id.
        ours = flags % span_id
        is_renewed = False
        if self.attempts or ex.is_rpc:  # The replica before has this head, or another call: equal ones share it.
            ex.head = ex.head.without_trace()
        else:
            is_renewed = ex.head.renew_parent(ours)
        self.attempts.append((replica, group, now, span_id))
        self.spans += 1
        if is_renewed:
            return id_line
        return b"%btraceparent: 00-%b%b\r\n" % (id_line, parent[3:36], ours)

    def answered(self, replica: str, status: int, timing: bytes | None, now: float) -> None:
        """The head of a replica's answer was accepted; ``timing`` is its ``tidegate-timing``."""
        self.answers.append((replica, now, status, timing))
        if timing is not None:
            self.spans += 2

    def waited_for(self, start: tuple[float, ColdStartPhases] | None) -> None:
        """It waited for a cold start: when the replica became ready, and the phases before. None: it did not."""
        if start is not None:
            ready_at, phases = start
            known = [(name, seconds) for name, seconds in known_phases(phases) if name != "first_response"]
            self.cold = ready_at, known

    def count(self, revision: str | None) -> int:
        """Returns the number of its spans: its own, those of its attempts, and those of the waiting room. A pipeline's
        request did not wait: its stages did. ``revision``: None if it was not counted."""
        cold = self.cold
        if revision is None or self.span_id:
            return self.spans
        return self.spans + 1 if cold is None else self.spans + 1 + len(cold[1])

    def __repr__(self) -> str:
        return f"<Trace {self.parent.decode()}, {len(self.attempts)} attempts>"


class Tracer:
    """Decides which requests are traced. ``put`` takes what is known of those that are over (``outcome_step.py``)."""

    __slots__ = ("_ratio", "offset", "put", "rng")

    def __init__(self, *, ratio: float, rng: random.Random, offset: float, put: Callable[[Traced], None]) -> None:
        """``ratio``: share of the requests without a parent that are traced; ``offset``: Unix time less the chain's
        clock."""
        self._ratio = ratio
        self.rng = rng
        self.offset = offset
        self.put = put

    def begin(self, head: AnyRequestHead) -> Trace | None:
        """Begins the trace of a request: its parent's, or its own. Returns None if it is not traced: its parent
        decides, and the ratio if it has none."""
        if head.traced:
            parent, state = head.trace_fields()
            if parent[54] not in _ODD_DIGITS:
                return None
        else:
            if self.rng.random() >= self._ratio:
                return None
            if head.get(b"tracestate") is not None:
                head.drop(b"tracestate")  # It belongs to the trace that the request did not name.
            parent, state = _ROOT % (self.rng.getrandbits(128) or 1), b""
        trace = Trace()  # Without arguments: a third of the time.
        trace.tracer = self
        trace.parent = parent
        trace.state = state
        trace.span_id = 0
        trace.spans = 1
        trace.attempts = []
        trace.answers = []
        trace.cold = None
        return trace

    def stage_ended(self, ex: "Exchange", trace: Trace, name: str, revision: str | None, status: int) -> None:
        """A stage of a pipeline is over. ``revision``: None if it was not counted; ``status``: 0 if no answer came."""
        self.put(
            (
                trace.count(revision),
                trace.parent,
                trace.state,
                0,
                ex.received,
                ex.ended,
                status,
                name,
                revision,
                trace.attempts,
                trace.answers,
                trace.cold,
                None,
            )
        )

    def __repr__(self) -> str:
        return f"<Tracer of {self._ratio:.2%}>"
