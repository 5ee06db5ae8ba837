"""One request between a client side and an upstream side: state, retry, deadline, accounting exactly once.

An application (gateway chain, queue_proxy) implements :class:`ProxyApp`. All its methods are synchronous, run on
the event loop, must be quick and must not raise. Order of calls for one exchange::

    start ──> [upstream_failed | expired]* ──> answering ──> finished          (forwarded)
    start ──> finished                                                         (answered with respond or fail)
    start ──> abandoned ──> finished                                           (client went away)

States::

    WAITING ──forward──> CONNECTING ──connected──> SENT ──head──> ANSWERING ──> STREAMING ──> ENDED
       ^                     │                      │                 │
       └── connect failed, upstream died, answer taken back ──────────┘        respond, fail, client gone: ──> ENDED

``finished`` comes exactly once, whatever happened. All times are seconds of ``time.monotonic``.
"""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from tidegate.aio.proxy.contract import ClientSide
from tidegate.errors import DEADLINE, REPLICA_BROKE, ErrorKind, Executed, error_body
from tidegate.headers import REQUEST_ID
from tidegate.wire.http1.chunked import chunk, last_chunk
from tidegate.wire.http1.events import REASONS, Data, Piece
from tidegate.wire.http1.request_head import RequestHead
from tidegate.wire.http1.response_head import ResponseHead
from tidegate.wire.http1.server import H1Server

if TYPE_CHECKING:
    from tidegate.aio.upstream.pool import UpstreamConn, UpstreamPool

WAITING, CONNECTING, SENT, ANSWERING, STREAMING, ENDED = range(6)
_STATES = ("WAITING", "CONNECTING", "SENT", "ANSWERING", "STREAMING", "ENDED")

KEPT_BYTES = 256 * 1024
"""Body kept for a late or repeated forward; beyond it reading pauses (waiting) or the replay is given up (sent)."""
_PIECE_BYTES = 4096
"""Smaller pieces of a kept body are joined: an object for each would take many times what it carries."""
JOIN_BYTES = 64 * 1024
"""Head and body are one write below this, two above."""
BODY_KEPT, UPSTREAM_SLOW, BUDGET_SPENT = 1, 2, 4
"""Why reading from the client is paused; bits."""
ALWAYS_READ_BYTES = 16 * 1024
"""Of a waiting body, whatever the budget says: the size of a request may stand there."""
CLIENT_GONE = 499
_IDEMPOTENT = frozenset({b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE"})


class ProxyApp(Protocol):
    """What decides about requests. See the module head for the order of calls."""

    def start(self, ex: "Exchange") -> None:
        """A head (and perhaps some or all of the body) is there.

        Now or later exactly one of ``ex.forward``, ``ex.respond``, ``ex.fail``, ``ex.upgrade``. Until then the
        request waits; up to 256 KB of its body are buffered, then reading pauses.
        """

    def abandoned(self, ex: "Exchange") -> None:
        """The client went away before its answer was complete, or the rest of its body was faulty or too late; the
        upstream connection is already aborted."""

    def expired(self, ex: "Exchange") -> None:
        """``ex.deadline`` passed before the first response byte; the upstream connection is already aborted.

        The usual action is ``ex.fail(DEADLINE, ...)``. An app that answers nothing gets the engine's own 504.
        """

    def answering(self, ex: "Exchange", head: ResponseHead) -> bytes | None:
        """The upstream's final head is there. Returns header lines to add (``b"name: value\\r\\n"``..., or b"").

        ``head.drop(...)`` removes fields. None takes the answer back (only if ``ex.replayable``): the client sees
        nothing, the exchange waits again, and the app forwards or answers it, already in here or later.
        ``ex.fail`` and ``ex.respond`` replace the answer; what is returned then does not matter. A 101 can only be
        replaced, not taken back.
        """

    def upstream_failed(self, ex: "Exchange", sent: bool, why: str) -> None:
        """Connecting failed (``sent`` False) or the connection died before any response byte was passed on.

        The app forwards again (``ex.may_retry(sent, idempotent)`` says whether the rules allow it), fails, or lets
        the request wait.
        """

    def finished(self, ex: "Exchange") -> None:
        """The end, exactly once: ``ex.status`` (499: client gone), ``ex.ended``, ``ex.bytes_in/bytes_out``."""


class BodyBudget:
    """What the bodies of all waiting requests of a process may take together.

    Beyond it a waiting request is read no further than it was; it goes on when it is sent. A read that is under way is
    not cut: the sum may pass the limit by what the kernel held for each connection, about 64 KB.
    """

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        """Bytes."""

    def __repr__(self) -> str:
        return f"<BodyBudget {self.used} of {self.limit} bytes>"


def with_piece(parts: list[bytes] | None, data: bytes) -> list[bytes]:
    """A kept body with another piece behind it."""
    if parts is None:
        return [data]
    if len(parts[-1]) + len(data) <= _PIECE_BYTES:
        parts[-1] += data
    else:
        parts.append(data)
    return parts


class Exchange:
    """One request and its answer."""

    is_rpc: ClassVar[bool] = False
    """A gRPC call is an ``Rpc``, which offers the same."""

    __slots__ = (
        "_again",
        "_budget",
        "_charged",
        "_client",
        "_continued",
        "_early",
        "_extra",
        "_kept",
        "_parts",
        "_replay",
        "_state",
        "_target",
        "_trailers",
        "_upstream",
        "app",
        "attempts",
        "body_complete",
        "bytes_in",
        "bytes_out",
        "check",
        "context",
        "deadline",
        "ended",
        "first_byte",
        "head",
        "heard",
        "held",
        "holding",
        "inferences",
        "on_body",
        "received",
        "status",
        "truncated",
    )

    _charged: int
    """Bytes that it takes of the budget, once it has waited."""
    _extra: bytes
    """Header lines of the last forward."""
    _target: bytes

    def __init__(
        self,
        client: ClientSide,
        app: ProxyApp,
        head: RequestHead,
        engine: H1Server,
        received: float,
        deadline: float,
    ) -> None:
        """``engine``: has just reported ``head``, and what of the body came with it."""
        body = engine.body
        self._client = client
        self.app = app
        self.head = head
        self.received = received
        """When the head was complete."""
        self.deadline = deadline
        """Bounds waiting and the time to the first response byte."""
        self.ended = 0.0
        """When the last byte was handed to the client's transport; 0.0 while running."""
        self.first_byte = 0.0
        """When the answer's head was handed to the client's transport; 0.0 before."""
        self.heard = received
        """When the last piece of a body came or went; moves the idle limits (coarse clock)."""
        self.context: Any = None
        """The app's own state of this request."""
        self.inferences = 1
        """Set by the app."""
        self.on_body: Callable[[Exchange], None] | None = None
        """Set by an app that waits for the first bytes of the body (many clients send head and body apart): called
        once when more of the request arrives, if it still waits then."""
        self.check: Callable[[Exchange, bytes, bool], None] | None = None
        """Set by an app that must have read each further piece of the body, and whether it is the last, before it goes
        on to an upstream; it ends the exchange where something is wrong with it."""
        self.status = 0
        """Final status; 0 before, 499 when the client went away, 502 when the answer broke off."""
        self.truncated = False
        """The answer's head was sent, its end never came."""
        self.held: UpstreamConn | None = None
        """The upstream connection that works on although nobody waits for its answer (``UpstreamPool.hold_s``)."""
        self.body_complete = engine.body_complete
        self.bytes_in = self._kept = len(body)
        """Body bytes received from the client."""
        self.bytes_out = 0
        """Body bytes sent to the client."""
        self.attempts = 0
        """How often it was forwarded."""
        self.holding = False
        """Sent, and the rest of the body waits for the upstream's 100."""
        self._early = body
        self._parts: list[bytes] | None = None
        """What came of the body after ``_early``."""
        self._trailers = engine.trailers
        self._budget: BodyBudget | None = None
        """Set once it has waited."""
        self._replay = KEPT_BYTES
        """Up to so many bytes the body is kept after it was sent; 0: it is not there any more."""
        self._continued = False
        self._state = WAITING
        self._upstream: UpstreamConn | None = None
        self._again: tuple[UpstreamPool, bytes, bytes | None, bool] | None = None

    # --- what an app may ask ----------------------------------------------------------------------------------------

    @property
    def body(self) -> bytes:
        """The body received so far, as long as it is kept (256 KB); b"" once it was given up."""
        if self._parts is not None:
            self._early = b"".join([self._early, *self._parts])
            self._parts = None
        return self._early

    def _forget_body(self) -> None:
        self._early = b""
        self._parts = None

    @property
    def replayable(self) -> bool:
        """Every body byte received so far is still kept and the client has seen nothing of an answer."""
        return self._replay > 0 and self._state < STREAMING

    @property
    def waiting(self) -> bool:
        """Neither forwarded nor answered at this moment."""
        return self._state == WAITING

    @property
    def is_ended(self) -> bool:
        return self._state == ENDED

    @property
    def answered(self) -> bool:
        """The head of an answer has gone to the client."""
        return self._state == STREAMING or (self._state == ENDED and self.first_byte > 0)

    @property
    def body_due(self) -> bool:
        """The client is to send the rest of its body now (it may hold it back until it has seen a 100)."""
        return not self.body_complete and (self._continued or not self.head.expect_continue)

    @property
    def peer(self) -> bytes:
        """Address of the client without port; b"unix" on a unix socket."""
        return self._client.peer

    @property
    def trusted(self) -> bool:
        """Whether the peer is in the trusted networks."""
        return self._client.trusted

    def may_retry(self, sent: bool, idempotent: bool) -> bool:
        """The rule for one retry after ``upstream_failed(ex, sent, ...)``.

        Replayable and the first attempt; and nothing was sent, or running it twice does no harm: the function
        declares it (``idempotent``), or the method does and a reused connection may have been stale.
        """
        return self.attempts <= 1 and (self.may_repeat(idempotent) if sent else self.replayable)

    def may_repeat(self, idempotent: bool) -> bool:
        """Whether it can be sent again, and running it twice does no harm: the function declares it, or the method."""
        return self.replayable and (idempotent or self.head.method in _IDEMPOTENT)

    def keep(self, size: int) -> None:
        """Keeps its body after it was sent up to this size, where that is more than usual and it is still there."""
        if 0 < self._replay < size:
            self._replay = size

    def gather(self, size: int = KEPT_BYTES) -> None:
        """Reads up to ``size`` bytes of the body while it waits, for an app that looks for something in there; without
        a size as much as usual. Meanwhile the budget does not stop it: the app must heed :attr:`is_over_budget`."""
        self._replay = max(size, KEPT_BYTES)
        self._room()
        self._settle_budget()

    def discard(self) -> None:
        """Keeps nothing of the body any more and reads on, for an app that refuses the request when it has all come: a
        client that still sends may not see an answer before."""
        self._replay = self._kept = 0
        self._forget_body()
        self._settle_budget()
        self._client.resume(BODY_KEPT | BUDGET_SPENT)

    @property
    def is_over_budget(self) -> bool:
        """The bodies of all waiting requests take more than they may."""
        return self._budget is not None and self._budget.used > self._budget.limit

    def set_deadline(self, when: float) -> None:
        """Moves the deadline (seconds of ``time.monotonic``)."""
        self.deadline = when

    # --- what an app may do -----------------------------------------------------------------------------------------

    def forward(
        self, pool: "UpstreamPool", extra: bytes = b"", *, target: bytes | None = None, hold: bool = False
    ) -> None:
        """Sends the request to a connection of ``pool``.

        ``extra``: header lines to add (``b"name: value\\r\\n"``...). ``target`` replaces the request target.
        ``hold``: body bytes beyond the 256 KB buffer flow only after the upstream's 100 (slots, rule 2).
        """
        state = self._state
        if state == ANSWERING:
            self._again = (pool, extra, target, hold)
            return
        if state != WAITING:
            raise RuntimeError(f"forward of {self!r}")
        self.attempts += 1
        self._extra = extra
        self._target = self.head.target if target is None else target
        self.holding = hold and not self.body_complete
        upstream = pool.take()
        if upstream is not None:
            self._send(upstream)
        else:
            self._state = CONNECTING
            pool.connect(self)

    def proceed(self) -> None:
        """Answers ``Expect: 100-continue`` with 100 now, instead of passing it on; no-op without it."""
        if self.head.expect_continue and not self._continued and not self.body_complete:
            self._continue()

    def respond(
        self,
        status: int,
        body: bytes = b"",
        *,
        content_type: bytes = b"application/json",
        extra: bytes = b"",
        close: bool = False,
    ) -> None:
        """Answers the request from here; an upstream that works on it is aborted."""
        if self._state >= STREAMING:
            raise RuntimeError(f"respond to {self!r}")
        self._leave_upstream()
        kind = b"content-type: %b\r\n" % content_type if body else b""
        block = b"\r\n%bcontent-length: %d\r\ndate: %b\r\n" % (kind, len(body), self._client.date())
        if close:
            self._client.last()
        self.first_byte = monotonic()
        self.bytes_out = len(body)
        self._client.answer(status, REASONS.get(status, b"Status"), block, extra, len(body), body, True, b"")
        self._finish(status)
        self._client.ended()

    def fail(
        self,
        kind: ErrorKind,
        message: str,
        *,
        function: str | None = None,
        executed: Executed = Executed.FALSE,
        request_id: str | None = None,
        extra: bytes = b"",
    ) -> None:
        """Answers with the JSON error shape of ``tidegate.errors``; the request id defaults to the client's."""
        if request_id is None:
            given = self.head.get(REQUEST_ID)
            request_id = given.decode("latin-1") if given is not None else None
        body = error_body(kind, message, function=function, request_id=request_id, executed=executed)
        self.respond(kind.status, body, extra=extra)

    def upgrade(self, factory: Callable[[], asyncio.Protocol], fields: bytes = b"") -> asyncio.Protocol:
        """Answers 101 to ``head.upgrade`` and hands the transport to a new protocol of ``factory``.

        The protocol gets ``connection_made`` and, if bytes followed the request, ``data_received``. The exchange
        is finished with status 101.
        """
        if self._state != WAITING or self.head.upgrade is None:
            raise RuntimeError(f"upgrade of {self!r}")
        protocol = factory()
        client = self._client
        self.first_byte = monotonic()
        self._finish(101)
        client.switch(
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: %b\r\n%b\r\n"
            % (self.head.upgrade, fields),
            protocol,
        )
        return protocol

    # --- towards the upstream ---------------------------------------------------------------------------------------

    def _send(self, upstream: "UpstreamConn") -> None:
        """Writes the request, as far as it is there, on a connection."""
        head = self.head
        self._state = SENT
        if self._budget is not None:
            self._settle_budget()
        self._upstream = upstream
        upstream.exchange = self
        method = head.method
        upstream.engine.request(method)
        body = self._early if self._parts is None else self.body
        upstream.request_complete = complete = self.body_complete
        framing = b"\r\n"
        if not complete or head.chunked or head.upgrade is not None:
            framing, body = self._framing(body)
        lines = self._client.forwarding_lines(head)
        if complete and len(body) < JOIN_BYTES:
            parts = (method, b" ", self._target, b" HTTP/1.1", head._block, self._extra, lines, framing, body)
            upstream.pool.outbox.write(upstream.transport, b"".join(parts))
            return
        # The connection may have been given back by an answer that came before its request had left the outbox.
        upstream.pool.outbox.flush()
        if not complete:
            self._client.resume(UPSTREAM_SLOW)  # Another connection may have been slow, before it was lost.
        upstream.transport.write(
            b"".join((method, b" ", self._target, b" HTTP/1.1", head._block, self._extra, lines, framing))
        )
        upstream.transport.write(body)
        if not complete:
            self._room()

    def _framing(self, body: bytes) -> tuple[bytes, bytes]:
        """The last header lines, the empty one with them, and the framed body.

        Of a request that is chunked, not whole yet, or asks for an upgrade.
        """
        head = self.head
        lines = b""
        if head.chunked:
            if self.body_complete and not self._trailers:
                lines = b"content-length: %d\r\n" % len(body)
            else:
                lines = b"transfer-encoding: chunked\r\n"
                if body:
                    body = chunk(body)
                if self.body_complete:
                    body += last_chunk(self._trailers)
        if not self.body_complete and (self.holding or (head.expect_continue and not self._continued)):
            lines += b"expect: 100-continue\r\n"
        if head.upgrade is not None:
            lines += b"connection: upgrade\r\nupgrade: %b\r\n" % head.upgrade
        return lines + b"\r\n", body

    def connected(self, upstream: "UpstreamConn", attempt: int) -> bool:
        """A connection that was opened for ``attempt`` is there; False: no longer wanted."""
        if self._state != CONNECTING or attempt != self.attempts:
            return False
        if upstream.transport.is_closing():
            self.connect_failed(attempt, "the upstream closed a new connection")
            return False
        self._send(upstream)
        return True

    def connect_failed(self, attempt: int, why: str) -> None:
        """Connecting for ``attempt`` failed."""
        if self._state == CONNECTING and attempt == self.attempts:
            self._state = WAITING
            self.app.upstream_failed(self, False, why)

    def _leave_upstream(self) -> None:
        """Parts from the upstream; what runs there is aborted, or held until it has ended (``UpstreamPool.hold_s``)."""
        upstream = self._upstream
        if upstream is not None:
            self._upstream = None
            if upstream.pool.hold_s and upstream.request_complete and not upstream.dead:
                upstream.hold(monotonic())
                self.held = upstream
            else:
                upstream.discard()
        if self._state < STREAMING:
            self._state = WAITING
        self.holding = False

    def weigh(self, budget: BodyBudget) -> None:
        """It waits, and its body with it."""
        if self._budget is None:
            self._budget, self._charged = budget, 0
        self._settle_budget()

    def _settle_budget(self) -> None:
        """Takes of the budget what the waiting body takes now, and pauses or resumes reading accordingly.

        One of more than the usual size counts until it is not kept any more, also once it was sent.
        """
        budget = self._budget
        if budget is None:
            return
        waits = self._state < SENT
        is_large = self._kept > KEPT_BYTES and self._replay > 0 and self._state < STREAMING
        charged = self._kept if waits or is_large else 0
        budget.used += charged - self._charged
        self._charged = charged
        if waits and not self.body_complete and budget.used > budget.limit and charged >= ALWAYS_READ_BYTES:
            if self._replay <= KEPT_BYTES:
                self._client.pause(BUDGET_SPENT)
        elif not waits:
            self._client.resume(BUDGET_SPENT)

    def _room(self) -> None:
        """Pauses or resumes the client after the state or the kept amount has changed."""
        if self._kept >= (self._replay if self._state < SENT else KEPT_BYTES) and (self._state < SENT or self.holding):
            self._client.pause(BODY_KEPT)
        else:
            self._client.resume(BODY_KEPT)

    # --- from the client side ---------------------------------------------------------------------------------------

    def client_data(self, event: Data, now: float) -> None:
        """A further piece of the request's body."""
        data = event.data
        self.heard = now
        self.bytes_in += len(data)
        if self.check is not None:
            self.check(self, data, event.done)
            if self._state == ENDED:
                return
        if event.done:
            self.body_complete = True
            self._trailers = event.trailers
        if self._replay:
            if self._kept + len(data) <= self._replay or self._state < SENT or self.holding:
                if data:
                    self._parts = with_piece(self._parts, data)
                    self._kept += len(data)
            else:
                self._replay = 0
                self._forget_body()
        upstream = self._upstream
        if upstream is not None:
            if self.head.chunked:
                data = chunk(data) if data else b""
                if event.done:
                    data += last_chunk(event.trailers)
            if data:
                upstream.write(data)
            if event.done:
                upstream.request_complete = True
        if self._kept >= KEPT_BYTES:
            self._room()
        if self._budget is not None:
            self._settle_budget()
        on_body = self.on_body
        if on_body is not None:
            self.on_body = None
            if self._state == WAITING:
                on_body(self)

    def client_gone(self) -> None:
        """The client closed, reset or half-closed its connection: its work goes with it."""
        if self._state == ENDED:
            return
        self._leave_upstream()
        self.status = CLIENT_GONE
        self.app.abandoned(self)
        self._finish(CLIENT_GONE)

    def refuse(self, status: int) -> bool:
        """The rest of the request is faulty. Ends the exchange; True: no answer has begun, the client may get one."""
        if self._state == ENDED:
            return False
        clean = self._state < STREAMING
        self._leave_upstream()
        self.truncated = not clean
        self.app.abandoned(self)
        self._finish(status)
        return clean

    def expire(self) -> None:
        """The deadline has passed before the first response byte."""
        self._leave_upstream()
        self.app.expired(self)
        if self._state == WAITING:
            self.fail(DEADLINE, "the deadline passed before an answer began", executed=Executed.UNKNOWN)

    def pause_upstream(self) -> None:
        """The client reads slowly."""
        if self._upstream is not None:
            self._upstream.pause_reading()

    def resume_upstream(self) -> None:
        """The client's buffer has drained."""
        if self._upstream is not None:
            self._upstream.resume_reading()

    # --- from the upstream side -------------------------------------------------------------------------------------

    def interim(self, head: ResponseHead) -> None:
        """A 1xx answer: 100 frees a held body; it is passed on where the client asked for it."""
        if head.status == 100:
            if self.holding:
                self.holding = False
                self._room()
            if self.head.expect_continue and not self._continued:
                self._continue()
        elif self.head.version_minor:
            self._client.interim(head.status, head.reason, head._block)

    def _continue(self) -> None:
        self._continued = True
        self.heard = monotonic()
        self._client.interim(100, REASONS[100], b"\r\n")

    def response(self, head: ResponseHead, body: Piece, complete: bool, trailers: bytes) -> None:
        """The final head of the answer, and what came of its body."""
        self._state = ANSWERING
        extra = self.app.answering(self, head)
        block = head._block
        head._block = head._kept
        if self._state != ANSWERING:
            return  # the app answered itself
        if extra is None:
            self._take_back()
            return
        length = head.content_length
        if complete and length is None and not trailers and self._may_have_length(head.status):
            length = len(body)
            extra += b"content-length: %d\r\n" % length
        self.first_byte = now = monotonic()
        self.bytes_out = len(body)
        client = self._client
        client.answer(head.status, head.reason, block, extra, length, body, complete, trailers)
        if not complete:
            self.holding = False
            self._state = STREAMING
            self.status = head.status
            if self._kept > KEPT_BYTES:
                self._forget_body()  # It is not sent again; a stream may last for long.
                self._settle_budget()
            return
        upstream = self._upstream
        if upstream is not None:
            self._upstream = None
            upstream.release()
        # As _finish does, whose calls most answers save here.
        self._state = ENDED
        if self._kept > KEPT_BYTES:
            self._settle_budget()
        self.status = head.status
        self.ended = now
        self._early = b""
        self._parts = None
        self.app.finished(self)
        self.context = self.on_body = self.check = None
        client.ended()

    def _may_have_length(self, status: int) -> bool:
        """Whether the length of what came is the length of the answer: not where there can be no body."""
        return status not in (204, 304) and self.head.method != b"HEAD"

    def _take_back(self) -> None:
        """The app does not want this answer: the request waits again."""
        upstream, self._upstream = self._upstream, None
        self._state = WAITING
        self.holding = False
        if upstream is not None:
            upstream.release()
        if not self._replay:
            self.fail(REPLICA_BROKE, "the request cannot be sent again", executed=Executed.UNKNOWN)
            return
        self._room()
        again, self._again = self._again, None
        if again is not None:
            pool, extra, target, hold = again
            self.forward(pool, extra, target=target, hold=hold)
        if self._state < SENT:
            self.weigh(self._client.budget)

    def response_data(self, event: Data, now: float) -> None:
        """A further piece of the answer."""
        self.heard = now
        self.bytes_out += len(event.data)
        self._client.more(event.data, event.done, event.trailers, event.framed)
        if event.done:
            upstream, self._upstream = self._upstream, None
            if upstream is not None:
                upstream.release()
            self._finish(self.status)
            self._client.ended()

    def sink(self) -> int | None:
        """See ``ClientSide.sink``."""
        return self._client.sink()

    def response_passed(self, size: int, done: bool, now: float) -> None:
        """A further piece of the answer has gone to :meth:`sink`."""
        self.bytes_out += size
        self.response_data(Data(b"", done), now)

    def upstream_lost(self, why: str) -> None:
        """The connection died before the answer was complete. It is already gone."""
        self._upstream = None
        if self._state == ENDED:
            return
        if self._state == STREAMING:
            self.truncate()
            return
        self._state = WAITING
        self.holding = False
        if not self.body_complete:
            self._room()
        self.app.upstream_failed(self, True, why)
        if self._state < SENT:
            self.weigh(self._client.budget)

    def upstream_slow(self, slow: bool) -> None:
        """The upstream reads slower than the client sends, or has caught up."""
        if slow:
            self._client.pause(UPSTREAM_SLOW)
        else:
            self._client.resume(UPSTREAM_SLOW)

    def truncate(self) -> None:
        """The answer has begun and cannot be completed."""
        self._leave_upstream()
        self.truncated = True
        client = self._client
        self._finish(502)
        client.truncate()

    def tunnelled(self, head: ResponseHead, upstream: "UpstreamConn") -> None:
        """The upstream switched protocols: from here on bytes flow both ways until both sides have closed."""
        extra = self.app.answering(self, head)
        if self._state != SENT:
            return
        self.first_byte = monotonic()
        self._state = STREAMING
        self.status = 101
        data = b"HTTP/1.1 101 %b%bconnection: upgrade\r\nupgrade: %b\r\n%b\r\n" % (
            head.reason,
            head._block,
            self.head.upgrade or b"",
            extra or b"",
        )
        self._client.tunnel(data, upstream)

    def tunnel_closed(self, bytes_in: int, bytes_out: int) -> None:
        """A side of the tunnel has gone; the other one closes."""
        self._upstream = None
        self.bytes_in += bytes_in
        self.bytes_out += bytes_out
        self._finish(101)

    # --- the end ----------------------------------------------------------------------------------------------------

    def _finish(self, status: int, now: float = 0.0) -> None:
        """The only exit: accounting happens here, once. The caller tells the client side."""
        if self._state == ENDED:
            return
        self._state = ENDED
        if self._budget is not None:
            self._settle_budget()
        self.status = status
        self.ended = now or monotonic()
        self._early = b""
        self._parts = None
        self.app.finished(self)
        self.context = None  # what an app keeps there often refers back: no cycle is left to the collector
        self.on_body = self.check = None

    def __repr__(self) -> str:
        return f"<Exchange {self.head.method!r} {self.head.target!r} {_STATES[self._state]}, status {self.status}>"
