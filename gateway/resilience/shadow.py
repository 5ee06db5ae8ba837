"""Shadows: copies of some requests go to another revision; their answers are compared with the client's, then dropped.

The copy is made when the answer of the real request begins, so that its body is whole and a replica has run it. It is
sent at the end of that loop turn, behind everything that a client waits for. It takes a slot that is free at this
moment or is not sent, is never sent twice, and starts no replica. Its cost in memory is bounded: a body up to
``BODY_BYTES``, all bodies together up to ``ALL_BYTES``, and ``MAX_COPIES`` copies at once. Copies beyond that are
counted as skipped.

Two answers are compared by status and by a digest of their bodies, taken while both stream. Event streams, whose pieces
carry times and ids of their own, are compared by status alone. Both latencies are taken from a slot to the end (event
streams: first byte). So waiting in the room, which no copy does, makes neither look better.

Copies are no arrivals of the shadow's revision and no part of its SLA; the work of its replicas for them is real work.
"""

from collections.abc import Callable
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from tidegate import headers
from tidegate.activator.room import WaitingRoom
from tidegate.activator.state.bind import Bind
from tidegate.errors import DEADLINE, NOT_SERVABLE, REPLICA_BROKE, STALE_CREDIT
from tidegate.gateway.counting.counters import Report, ShadowCounters
from tidegate.gateway.routing.function import FunctionRouter
from tidegate.gateway.routing.match import stripped
from tidegate.gateway.routing.request_state import RequestState
from tidegate.wire.http1.events import Piece
from tidegate.wire.message_heads import AnyResponseHead

if TYPE_CHECKING:
    from tidegate.aio.proxy.detached import BodyTap
    from tidegate.aio.proxy.exchange import Exchange, ProxyApp
    from tidegate.aio.upstream.pool import UpstreamPool

BODY_BYTES: Final = 1 << 20
"""A longer body is not copied."""
USUAL_BYTES: Final = 256 * 1024
"""Bytes of a body that are kept anyway; assumed for a body of unknown length."""
ALL_BYTES: Final = 64 << 20
"""Bytes of all bodies together that wait for their copy or are on their way."""
MAX_COPIES: Final = 256
"""Requests with a copy to be made at once, and copies on their way at once."""
_SHADOW_LINE: Final = b"%b: true\r\n" % headers.SHADOW
_NOT_NOW: Final = frozenset({STALE_CREDIT.status, NOT_SERVABLE.status})
"""Statuses of a replica that gives a copy back because it has no slot for it or drains: they say nothing of its
model."""


class ObservedAnswer:
    """One of the two answers that are compared."""

    __slots__ = ("_digest", "is_over", "is_stream", "latency_s", "status")

    def __init__(self) -> None:
        self._digest = blake2b(digest_size=16)
        self.is_stream = False
        self.is_over = False
        self.latency_s = 0.0
        self.status = 0
        """0 before its head is there."""

    def begins(self, head: AnyResponseHead) -> None:
        self.status = head.status
        self.is_stream = is_event_stream(head)

    def read(self, data: Piece) -> None:
        if not self.is_stream:
            self._digest.update(data)

    def ends(self, ex: "Exchange", since: float) -> None:
        self.is_over = True
        if ex.is_rpc:
            self.status = ex.status  # A call's status is in its trailers.
        self.latency_s = (ex.first_byte if self.is_stream else ex.ended) - since

    def equals(self, other: "ObservedAnswer") -> bool:
        """Returns whether both answers are equal."""
        return self.is_stream == other.is_stream and self._digest.digest() == other._digest.digest()


class ShadowPair:
    """A request and its copy, until both have ended or the comparison is given up."""

    __slots__ = (
        "bind",
        "copy",
        "counters",
        "is_broken",
        "is_closed",
        "keeps_credit",
        "on_ended",
        "revision",
        "router",
        "served",
        "shadow",
        "since",
        "size",
        "state",
    )

    def __init__(
        self, revision: str, counters: ShadowCounters, router: FunctionRouter, state: RequestState, size: int
    ) -> None:
        self.revision = revision
        self.counters = counters
        self.router = router
        self.state = state
        """State of the request; the copy has none."""
        self.size = size
        """Bytes that its body takes of the bound."""
        self.served, self.shadow = ObservedAnswer(), ObservedAnswer()
        self.copy: Exchange | None = None
        self.bind: Bind | None = None
        self.since = 0.0
        """When the copy got its slot."""
        self.on_ended: Callable[[], None] | None = None
        self.keeps_credit = False
        self.is_broken = False
        """The copy got no answer, or not all of one."""
        self.is_closed = False
        """The comparison is over, or given up."""


class Shadows:
    """All copies of one worker, and the application behind them (a ``tidegate.aio.proxy.exchange.ProxyApp``)."""

    __slots__ = (
        "_bytes", "_due", "_live", "_pairs", "_pool_of", "_report", "_room", "_shadow_copy", "_tap_response",
    )  # fmt: skip

    def __init__(
        self,
        room: WaitingRoom,
        report: Report,
        *,
        pool_of: Callable[[str], "UpstreamPool"],
        shadow_copy: "Callable[[Exchange, ProxyApp, float, BodyTap], Exchange | None]",
        tap_response: "Callable[[Exchange, BodyTap], None]",
    ) -> None:
        """``shadow_copy`` and ``tap_response`` are those of ``tidegate.aio.proxy.detached``."""
        self._room = room
        self._report = report
        self._pool_of = pool_of
        self._shadow_copy = shadow_copy
        self._tap_response = tap_response
        self._pairs: dict[RequestState, ShadowPair] = {}
        """Pairs by the state of their request, while that runs."""
        self._live: dict[ShadowPair, Exchange] = {}
        """Copies on their way."""
        self._due: list[ShadowPair] = []
        """Copies to be sent at the end of this loop turn."""
        self._bytes = 0

    def __repr__(self) -> str:
        return f"<Shadows {len(self._pairs)} to come, {len(self._live)} on their way, {self._bytes} bytes>"

    # --- the real request -------------------------------------------------------------------------------------------

    def bound(self, ex: "Exchange", state: RequestState, router: FunctionRouter) -> None:
        """A request of a function with shadows was sent to its replica."""
        counters = state.counters
        if counters is None or ex.attempts > 1 or ex.head.upgrade is not None:
            return  # What is sent once more was decided upon before.
        revision = router.shadow()
        if revision is None or revision == counters.revision:
            return
        seen = self._report.revision(router.name, revision).shadowed()
        length = ex.head.content_length
        size = len(ex.body) if ex.body_complete else USUAL_BYTES if length is None else length
        crowded = len(self._pairs) >= MAX_COPIES or len(self._live) >= MAX_COPIES or self._bytes + size > ALL_BYTES
        if crowded or size > BODY_BYTES:
            seen.skipped += 1
            return
        ex.keep(size)
        self._bytes += size
        self._pairs[state] = ShadowPair(revision, seen, router, state, size)
        state.follow(ex)

    def moved(self, before: RequestState, after: RequestState, ex: "Exchange") -> None:
        """Another exchange answers the client now: the second copy of a late request has won."""
        pair = self._pairs.pop(before, None)
        if pair is not None:
            self._pairs[after] = pair
            pair.state = after
            after.follow(ex)

    def begins(self, ex: "Exchange", state: RequestState, head: AnyResponseHead, now: float) -> None:
        """The head of the client's answer is there: makes the copy, which is sent when this loop turn ends."""
        pair = self._pairs.get(state)
        if pair is None or pair.copy is not None:
            return
        pair.copy = copy = self._shadow_copy(ex, self, now, pair.shadow.read)
        if copy is None:
            self._skip(pair)
            return
        if state.trace is not None:
            copy.head = copy.head.without_trace()  # Its span is that of the request itself.
        copy.context = pair
        pair.served.begins(head)
        self._tap_response(ex, pair.served.read)
        self._due.append(pair)
        self._room.unsettled = True

    def ends(self, ex: "Exchange", state: RequestState, well: bool) -> None:
        """The client's answer has ended; ``well``: completely."""
        pair = self._pairs.pop(state, None)
        if pair is None or pair.is_closed:
            return
        if well and pair.copy is not None:
            pair.served.ends(ex, state.bound_at)
            self._judge(pair)
            return
        self._skip(pair)
        if pair in self._live and pair.copy is not None:
            pair.is_broken = True
            pair.copy.client_gone()

    # --- time -------------------------------------------------------------------------------------------------------

    def launch(self, now: float, on_ended: Callable[[], None]) -> None:
        """Sends the copies that are due; those without a free slot are skipped. Called at the end of a loop turn.

        ``on_ended`` is called after the end of each copy: the room may have decided something then.
        """
        due, self._due = self._due, []
        for pair in due:
            copy = pair.copy
            if copy is None or pair.is_closed:
                continue
            bind = self._room.take_idle_slot(copy, pair.revision, copy.inferences, now)
            if bind is None:
                self._skip(pair)
                continue
            pair.bind, pair.since, pair.on_ended = bind, now, on_ended
            self._live[pair] = copy
            router, state = pair.router, pair.state
            copy.set_deadline(now + router.timeout_s)
            strip = state.target.strip
            copy.forward(
                self._pool_of(bind.replica.address),
                router.lines(copy.inferences) + bind.header() + state.id_line + _SHADOW_LINE,
                target=stripped(copy.head.target, strip) if strip else None,
            )

    def sweep(self, now: float) -> None:
        """Ends copies that are past their deadline. Called some times a second."""
        for pair, copy in tuple(self._live.items()):
            if now < copy.deadline:
                continue
            pair.is_broken = pair.is_broken or not pair.shadow.is_stream
            copy.client_gone()

    # --- the engine's calls about copies ----------------------------------------------------------------------------

    def start(self, ex: "Exchange") -> None:
        raise RuntimeError("copies are made here, they do not arrive")

    def abandoned(self, ex: "Exchange") -> None:
        """Does nothing: copies are given up by this object alone."""

    def expired(self, ex: "Exchange") -> None:
        self._breaks(ex, DEADLINE.status)

    def answering(self, ex: "Exchange", head: AnyResponseHead) -> bytes:
        pair: ShadowPair = ex.context
        outcome = head.control(headers.OUTCOME) if head.status >= 400 else None
        if outcome == b"not-started" and head.status in _NOT_NOW:
            self._skip(pair)
        if outcome == b"not-started" or outcome == b"started":
            self._breaks(ex, head.status)
            return b""
        pair.keeps_credit = head.control(headers.CREDIT) == b"keep"
        pair.shadow.begins(head)
        return b""

    def upstream_failed(self, ex: "Exchange", sent: bool, why: str) -> None:
        self._breaks(ex, REPLICA_BROKE.status)

    def finished(self, ex: "Exchange") -> None:
        pair: ShadowPair = ex.context
        bind, pair.bind = pair.bind, None
        del self._live[pair]
        pair.is_broken = pair.is_broken or (ex.truncated and not pair.shadow.is_stream)
        if bind is not None:
            has_status = bool(pair.shadow.status) and (ex.is_rpc or ex.status == pair.shadow.status)
            if pair.is_broken or ex.truncated or not has_status:
                self._room.aborted(bind, ex.ended)
            else:
                self._room.answered(bind, pair.keeps_credit, ex.ended)
        self._forget_body(pair)
        if not pair.is_closed:
            pair.shadow.ends(ex, pair.since)
            self._judge(pair)
        if pair.on_ended is not None:
            pair.on_ended()

    # --- small things -----------------------------------------------------------------------------------------------

    def _breaks(self, ex: "Exchange", status: int) -> None:
        """Ends a copy that failed; it is never sent again."""
        ex.context.is_broken = True
        ex.respond(status)

    def _judge(self, pair: ShadowPair) -> None:
        """Compares two answers once both have ended."""
        served, shadow, seen = pair.served, pair.shadow, pair.counters
        if not (served.is_over and shadow.is_over):
            return
        pair.is_closed = True
        seen.requests += 1
        if not pair.is_broken:
            seen.latency.record(shadow.latency_s)
            seen.served_latency.record(served.latency_s)
        if served.status < 500 and (pair.is_broken or shadow.status >= 500):
            seen.failed += 1
        elif pair.is_broken or shadow.status != served.status:
            seen.status_differs += 1
        elif not served.equals(shadow):
            seen.output_differs += 1

    def _skip(self, pair: ShadowPair) -> None:
        if not pair.is_closed:
            pair.is_closed = True
            pair.counters.skipped += 1
            self._forget_body(pair)

    def _forget_body(self, pair: ShadowPair) -> None:
        self._bytes -= pair.size
        pair.size = 0


def is_event_stream(head: AnyResponseHead) -> bool:
    """Returns whether the answer is a stream of events."""
    return head.content_length is None and (head.get(b"content-type") or b"").startswith(b"text/event-stream")
