"""One request between a client and an upstream: the half that HTTP and gRPC share.

``HttpExchange`` and ``GrpcCall`` add what their protocol needs. An application (gateway chain, queue_proxy) sees both
as :class:`Exchange` and implements :class:`ProxyApp`. The application's methods are synchronous, run on the event loop,
must be quick and must not raise. Order of calls for one exchange::

    start ──> [upstream_failed | expired]* ──> answering ──> finished          (forwarded)
    start ──> finished                                                         (answered with respond or fail)
    start ──> abandoned ──> finished                                           (client went away)

States (``NEXT_STATES`` lists all legal transitions)::

    WAITING ──forward──> CONNECTING ──connected──> SENT ──head──> ANSWERING ──> STREAMING ──> ENDED
       ^                     │                      │                 │
       └── connect failed, upstream died, answer taken back ──────────┘        respond, fail, client gone: ──> ENDED

``finished`` is called exactly once per exchange. All times are seconds of ``time.monotonic``.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from tidegate.errors import DEADLINE, REPLICA_BROKE, ErrorKind, Executed, Failure
from tidegate.headers import REQUEST_ID
from tidegate.wire.message_heads import AnyRequestHead, AnyResponseHead

if TYPE_CHECKING:
    from tidegate.aio.proxy.limits import Limits
    from tidegate.aio.upstream.pool import UpstreamPool

WAITING, CONNECTING, SENT, ANSWERING, STREAMING, ENDED = range(6)
STATES: Final = ("WAITING", "CONNECTING", "SENT", "ANSWERING", "STREAMING", "ENDED")
NEXT_STATES: Final[Mapping[int, frozenset[int]]] = {
    WAITING: frozenset({CONNECTING, SENT, STREAMING, ENDED}),
    CONNECTING: frozenset({WAITING, SENT, ENDED}),
    SENT: frozenset({WAITING, ANSWERING, STREAMING, ENDED}),
    ANSWERING: frozenset({WAITING, STREAMING, ENDED}),
    STREAMING: frozenset({ENDED}),
    ENDED: frozenset(),
}
"""The legal transitions. From WAITING to STREAMING goes a gRPC call that is answered here, from SENT to STREAMING an
upgrade (101). Documentation and tests read this table; the code moves by plain assignments."""

KEPT_BYTES: Final = 256 * 1024
"""Body kept for a late or repeated forward. Beyond it reading pauses (while waiting) or the replay is given up (once
sent)."""
PIECE_BYTES: Final = 4096
"""Pieces of a kept body are joined up to this size: an object for each would take many times what it carries."""
ALWAYS_READ_BYTES: Final = 16 * 1024
"""Bytes of a waiting body that are read whatever the budget says: they may hold the request's batch size."""
CLIENT_GONE: Final = 499


class ProxyApp(Protocol):
    """An application: decides about requests. The module head gives the order of calls."""

    def start(self, ex: "Exchange") -> None:
        """A head (and perhaps some or all of the body) has arrived.

        Now or later the application calls exactly one of ``ex.forward``, ``ex.respond``, ``ex.fail``, ``ex.upgrade``.
        Until then the request waits; up to 256 KB of its body are buffered, then reading pauses.
        """

    def abandoned(self, ex: "Exchange") -> None:
        """The client went away before its answer was complete, or the rest of its body was faulty or too slow. The
        upstream connection is already aborted."""

    def expired(self, ex: "Exchange") -> None:
        """``ex.deadline`` passed before the first response byte. The upstream connection is already aborted.

        The usual action is ``ex.fail(DEADLINE, ...)``. If the application answers nothing, the engine sends its own
        504.
        """

    def answering(self, ex: "Exchange", head: AnyResponseHead) -> bytes | None:
        """The upstream's final head has arrived. Returns header lines to add (``b"name: value\\r\\n"``..., or b"").

        ``head.drop(...)`` removes fields. None takes the answer back (only if ``ex.replayable``): the client sees
        nothing, the exchange waits again, and the application forwards or answers it, already in here or later.
        ``ex.fail`` and ``ex.respond`` replace the answer; the returned value is ignored then. A 101 can only be
        replaced, not taken back.
        """

    def upstream_failed(self, ex: "Exchange", sent: bool, why: str) -> None:
        """Connecting failed (``sent`` False) or the connection died before any response byte was passed on.

        The application forwards again (``ex.may_retry(sent, idempotent)`` says whether the rules allow it), fails the
        request, or lets it wait.
        """

    def finished(self, ex: "Exchange") -> None:
        """The exchange has ended; called exactly once. ``ex.status`` (499: client gone), ``ex.ended`` and
        ``ex.bytes_in/bytes_out`` are final."""


class BodyBudget:
    """The memory that the bodies of all waiting requests of a process may take together.

    Beyond it no more of a waiting request's body is read; reading goes on when the request is sent. A read under way is
    not cut: the sum may exceed the limit by what the kernel held for each connection, about 64 KB.
    """

    __slots__ = ("limit", "slow", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        """Bytes."""
        self.slow = 0
        """Requests that were ended because their bodies came too slowly."""

    def __repr__(self) -> str:
        return f"<BodyBudget {self.used} of {self.limit} bytes>"


class HeldWork(Protocol):
    """Work of the upstream that goes on without a client. It calls ``on_end`` at its end."""

    on_end: Callable[[], None] | None


class Client(Protocol):
    """The client's end as every exchange sees it."""

    peer: bytes
    trusted: bool

    @property
    def budget(self) -> BodyBudget:
        """The budget that a waiting body is charged to."""


class RequestBody(ABC):
    """The body of a request as far as it has arrived, kept for a late or repeated forward.

    A base class of :class:`Exchange` and not a member of it: as a member it costs each request 3 % of its instructions
    (docs/adr/0110). For the same reason its attributes are set by :class:`Exchange`.
    """

    __slots__ = (
        "_budget", "_charged", "_client", "_early", "_kept", "_pace", "_parts", "_replay", "body_complete", "bytes_in",
        "heard", "received",
    )  # fmt: skip

    received: float
    """When the head was complete."""
    heard: float
    """When the last piece of a body was received or sent; moves the idle limits (coarse clock)."""
    body_complete: bool
    bytes_in: int
    """Bytes received from the client."""
    _client: Client
    _kept: int
    """Bytes received and kept, or given up after they were sent."""
    _early: bytes
    """The part that arrived first."""
    _parts: list[bytes] | None
    """Pieces behind ``_early``."""
    _replay: int
    """Up to this size the body is kept after it was sent; 0: it was given up."""
    _budget: BodyBudget | None
    """Set once it has waited."""
    _charged: int
    """Bytes charged to the budget; set once it has waited."""
    _pace: tuple[float, int]
    """Since when the rate of the body is measured, and its bytes by then; set once it is."""

    # --- for applications -------------------------------------------------------------------------------------------

    @property
    def body(self) -> bytes:
        """The body received so far, as long as it is kept (HTTP 256 KB, gRPC 64 KB with its framing); then b""."""
        if self._parts is not None:
            self._early = b"".join([self._early, *self._parts])
            self._parts = None
        return self._early

    @property
    def budget(self) -> BodyBudget:
        """The memory that the bodies of all waiting requests may take."""
        return self._client.budget

    @property
    def is_over_budget(self) -> bool:
        """Whether the bodies of all waiting requests exceed their budget."""
        return self._budget is not None and self._budget.used > self._budget.limit

    def keep(self, size: int) -> None:
        """Keeps the body up to ``size`` bytes after it was sent, if that is more than usual and it is still there."""
        if 0 < self._replay < size:
            self._replay = size

    def read_ahead(self, size: int = KEPT_BYTES) -> None:  # noqa: B027 - nothing to do for a gRPC call
        """Reads up to ``size`` bytes of an HTTP body while the request waits, for an application that searches it.

        Meanwhile the budget does not stop the reading: the application must heed :attr:`is_over_budget`. A gRPC call
        ignores it: its window bounds what is read.
        """

    def discard(self) -> None:
        """Drops the body and keeps reading, for an application that refuses the request once all of it has arrived: a
        client that still sends may not see an answer before."""
        self._kept = 0
        self._give_body_up()
        self._settle_budget()

    # --- for the client side ----------------------------------------------------------------------------------------

    def charge_budget(self, budget: BodyBudget) -> None:
        """Charges the body to ``budget`` from now on: the request waits, and its body with it."""
        if self._budget is None:
            self._budget, self._charged = budget, 0
        self._settle_budget()

    def resumed(self, now: float) -> None:
        """The client is read from again: its idle time and its rate are measured from here on."""
        self.heard = now
        self._pace = now, self.bytes_in

    def _is_slow(self, now: float, limits: "Limits") -> bool:
        """Whether fewer bytes of the body than ``limits`` asks for have come in its ``body_idle_timeout_s``.

        A body that brings as many sooner begins a new measurement then, so that a quick beginning earns no time.
        """
        since, before = getattr(self, "_pace", None) or (self.received, 0)
        if self.bytes_in - before >= limits.due_bytes:
            self._pace = now, self.bytes_in
        elif now - since > limits.body_idle_timeout_s:
            self._client.budget.slow += 1
            return True
        return False

    # --- steps of an exchange ---------------------------------------------------------------------------------------

    def _keep_piece(self, data: bytes) -> None:
        """Appends ``data`` to the kept body."""
        parts = self._parts
        if parts is None:
            self._parts = [data]
        elif len(parts[-1]) + len(data) <= PIECE_BYTES:
            parts[-1] += data
        else:
            parts.append(data)
        self._kept += len(data)

    def _forget_body(self) -> None:
        self._early = b""
        self._parts = None

    def _give_body_up(self) -> None:
        """Keeps the body no longer: the request is not sent again."""
        self._replay = 0
        self._forget_body()

    def _charge(self, size: int) -> bool:
        """Charges the body as ``size`` bytes. Returns whether it must not grow: the budget is exceeded, and the body is
        large enough to count."""
        budget = self._budget
        if budget is None:
            return False
        budget.used += size - self._charged
        self._charged = size
        return size >= ALWAYS_READ_BYTES and budget.used > budget.limit

    @abstractmethod
    def _settle_budget(self) -> None:
        """Adjusts the budget to what the waiting body takes now; acts if the budget is exceeded."""

    def _update_backpressure(self) -> None:  # noqa: B027 - the window of a gRPC call's stream does it
        """Pauses or resumes an HTTP client after the state or the kept amount has changed."""


class Exchange(RequestBody):
    """One request and its answer."""

    is_rpc: ClassVar[bool] = False
    """Whether it is a gRPC call (``GrpcCall``)."""
    _no_replay: ClassVar[str] = "the request cannot be sent again"

    __slots__ = (
        "_again", "_continued", "_extra", "_state", "_target", "_trailers", "_upstream", "app", "attempts", "bytes_out",
        "check", "context", "deadline", "ended", "first_byte", "head", "held", "holding", "inferences",
        "on_body", "status", "truncated",
    )  # fmt: skip

    _extra: bytes
    """Header lines of the last forward."""
    _target: bytes | None
    """Request target of the last forward, where it differs from the client's."""

    def __init__(
        self,
        client: Client,
        app: ProxyApp,
        head: AnyRequestHead,
        body: bytes,
        complete: bool,
        trailers: bytes | None,
        received: float,
        deadline: float,
    ) -> None:
        """``body``: the part that arrived with the head; ``complete``: it is the whole body, with these ``trailers``.

        The attributes of both protocols are set here: a nested constructor would cost a tenth of a microsecond.
        """
        self._client = client
        self.app = app
        self.head = head
        self.received = received
        self.deadline = deadline
        """Bounds waiting and the time to the first response byte; of a gRPC call the whole call."""
        self.ended = 0.0
        """When the last byte was handed to the client's transport; 0.0 while running."""
        self.first_byte = 0.0
        """When the answer's head was handed to the client's transport; 0.0 before."""
        self.heard = received
        self.context: Any = None
        """The application's own state of this request."""
        self.inferences = 1
        """Batch size; set by the application."""
        self.on_body: Callable[[Any], None] | None = None
        """Set by an application that waits for the first bytes of the body (many clients send head and body apart):
        called once with the exchange when more of the request arrives, if it still waits then."""
        self.check: Callable[[Exchange, bytes, bool], None] | None = None
        """Set by an application that must read each further piece of an HTTP body before it goes on to an upstream.
        Its last argument says whether the piece is the last. It ends the exchange if something is wrong."""
        self.status = 0
        """Final HTTP status (of a gRPC call: ``grpc.http_status``). 0 before the end, 499 if the client went away, 502
        if the answer broke off."""
        self.truncated = False
        """The answer's head was sent, its end never came."""
        self.held: HeldWork | None = None
        """The upstream work that goes on after the client has left (``UpstreamPool.hold_s``, or the application's)."""
        self.body_complete = complete
        self.bytes_in = self._kept = len(body)
        self.bytes_out = 0
        """Body bytes sent to the client."""
        self.attempts = 0
        """Number of forwards."""
        self.holding = False
        """Sent, and the rest of the body waits for the upstream's 100."""
        self._early = body
        self._parts = None
        self._budget = None
        self._replay = KEPT_BYTES
        self._state = WAITING
        self._continued = False
        """A 100 has gone to the client."""
        self._trailers = trailers
        """HTTP: lines, or b"". gRPC: a header block, or None."""
        self._upstream: Any = None
        """The connection that carries it; the subclasses give the type."""
        self._again: tuple[UpstreamPool, bytes, bytes | None, bool] | None = None
        """Arguments of a forward that follows an answer taken back."""

    # --- for applications: questions --------------------------------------------------------------------------------

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
    def peer(self) -> bytes:
        """Address of the client without port; b"unix" on a unix socket."""
        return self._client.peer

    @property
    def trusted(self) -> bool:
        """Whether the peer is in the trusted networks."""
        return self._client.trusted

    def may_retry(self, sent: bool, idempotent: bool) -> bool:
        """The rule for one retry after ``upstream_failed(ex, sent, ...)``.

        Allowed if this was the first attempt, the request is replayable, and either nothing was sent or running it
        twice does no harm (:meth:`may_repeat`; a reused connection may have been stale).
        """
        return self.attempts <= 1 and (self.may_repeat(idempotent) if sent else self.replayable)

    def may_repeat(self, idempotent: bool) -> bool:
        """Whether it can be sent again and running it twice does no harm: the function declares so."""
        return idempotent and self.replayable

    # --- for applications: settings ---------------------------------------------------------------------------------

    def set_deadline(self, when: float) -> None:
        """Moves the deadline (seconds of ``time.monotonic``)."""
        self.deadline = when

    # --- for applications: actions ----------------------------------------------------------------------------------

    def forward(
        self, pool: "UpstreamPool", extra: bytes = b"", target: bytes | None = None, hold: bool = False
    ) -> None:
        """Sends the request to a connection of ``pool``.

        ``extra``: header lines to add (``b"name: value\\r\\n"``...). ``target`` replaces the request target.
        ``hold``: body bytes beyond the buffer (HTTP 256 KB) flow only after the upstream's 100 (slots, rule 2).
        """
        state = self._state
        if state == ANSWERING:
            self.attempts += 1
            self._again = (pool, extra, target, hold)
            return
        if state != WAITING:
            raise RuntimeError(f"forward of {self!r}")
        self.attempts += 1
        self._extra = extra
        self._target = target
        self.holding = hold and not self.body_complete
        self._dispatch(pool)

    @abstractmethod
    def proceed(self) -> None:
        """Answers ``Expect: 100-continue`` with 100 now, instead of passing it on. Does nothing without it."""

    @abstractmethod
    def respond(
        self,
        status: int,
        body: bytes = b"",
        *,
        content_type: bytes = b"application/json",
        extra: bytes = b"",
        close: bool = False,
    ) -> None:
        """Answers the request from here; an upstream that works on it is aborted.

        ``close`` ends the connection after the answer. A gRPC call ends with the gRPC status that ``status`` maps to
        and the text of ``body`` as its message.
        """

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
        """Answers with an error of ours: the JSON shape of ``tidegate.errors``, or a gRPC status. The request id
        defaults to the client's."""
        if request_id is None:
            given = self.head.get(REQUEST_ID)
            request_id = given.decode("latin-1") if given is not None else None
        self._answer_failure(Failure(kind, message, function, executed, request_id), extra)

    def upgrade(self, factory: Callable[[], asyncio.Protocol], fields: bytes = b"") -> asyncio.Protocol:
        """Answers 101 to ``head.upgrade`` and hands the transport to a new protocol of ``factory``.

        The protocol gets ``connection_made`` and, if bytes followed the request, ``data_received``. The exchange
        is finished with status 101. Raises RuntimeError if the request does not wait or asks for no upgrade.
        """
        raise RuntimeError(f"upgrade of {self!r}")

    @abstractmethod
    def truncate(self) -> None:
        """Ends an answer that has begun and cannot be completed, visibly for the client."""

    # --- for the client side ----------------------------------------------------------------------------------------

    def client_gone(self) -> None:
        """The client cancelled the request, or closed, reset or half-closed its connection: its work ends, too."""
        if self._state == ENDED:
            return
        self._leave_upstream()
        self.status = CLIENT_GONE
        self.app.abandoned(self)
        self._finish(CLIENT_GONE)

    def refuse(self, status: int) -> bool:
        """Ends the exchange because the rest of the request is faulty. Returns True if no answer has begun, so that the
        client may still get one."""
        if self._state == ENDED:
            return False
        clean = self._state < STREAMING
        self._leave_upstream()
        self.truncated = not clean
        self.app.abandoned(self)
        self._finish(status)
        return clean

    def expire(self) -> None:
        """The deadline has passed; of HTTP before the first response byte."""
        self._leave_upstream()
        self.app.expired(self)
        if self._state == WAITING or self._state == STREAMING:
            self.fail(DEADLINE, "the deadline passed before the answer was complete", executed=Executed.UNKNOWN)

    # --- for the upstream side --------------------------------------------------------------------------------------

    def connect_failed(self, attempt: int, why: str) -> None:
        """Connecting for ``attempt`` failed."""
        if self._state == CONNECTING and attempt == self.attempts:
            self._state = WAITING
            self.app.upstream_failed(self, False, why)

    # --- steps that the protocols share -----------------------------------------------------------------------------

    def _body_continued(self) -> None:
        """More of the request has arrived: settles the budget and calls ``on_body`` if the request still waits."""
        if self._budget is not None:
            self._settle_budget()
        on_body = self.on_body
        if on_body is not None:
            self.on_body = None
            if self._state == WAITING:
                on_body(self)

    def _return_to_app(self, sent: bool, why: str) -> None:
        """The attempt failed before an answer began: the application decides again."""
        self._state = WAITING
        self.holding = False
        if not self.body_complete:
            self._update_backpressure()
        self.app.upstream_failed(self, sent, why)
        if self._state < SENT:
            self.charge_budget(self._client.budget)

    def _take_back(self) -> None:
        """The application does not want this answer: the request waits again."""
        self._give_answer_up()
        self._state = WAITING
        self.holding = False
        if not self._replay:
            self.fail(REPLICA_BROKE, self._no_replay, executed=Executed.UNKNOWN)
            return
        self._update_backpressure()
        again, self._again = self._again, None
        if again is not None:
            pool, extra, target, hold = again
            self.attempts -= 1  # It was counted when the application forwarded.
            self.forward(pool, extra, target, hold)
        if self._state < SENT:
            self.charge_budget(self._client.budget)

    def _leave_upstream(self) -> None:
        """Parts from the upstream: its work is aborted, or held until it has ended (``UpstreamPool.hold_s``)."""
        self._part_from_upstream()
        if self._state < STREAMING:
            self._state = WAITING
        self.holding = False

    def _finish(self, status: int, now: float | None = None) -> None:
        """Ends the exchange at ``now`` (by default: at this moment), once; the only exit. The caller informs the client
        side."""
        if self._state == ENDED:
            return
        self._state = ENDED
        if self._budget is not None:
            self._settle_budget()
        self.status = status
        self.ended = monotonic() if now is None else now
        self._early = b""
        self._parts = None
        self.app.finished(self)
        self.context = None  # The application's state often refers back: no cycle is left to the collector.
        self.on_body = self.check = None

    # --- steps that differ ------------------------------------------------------------------------------------------

    @abstractmethod
    def _dispatch(self, pool: "UpstreamPool") -> None:
        """Sends the request on a free connection of ``pool``, or waits (CONNECTING) for one."""

    @abstractmethod
    def _answer_failure(self, failure: Failure, extra: bytes) -> None:
        """Sends an error of ours and finishes."""

    @abstractmethod
    def _part_from_upstream(self) -> None:
        """Aborts or holds the upstream's work on this request."""

    def _give_answer_up(self) -> None:
        """Parts from an upstream whose answer is not wanted."""
        self._leave_upstream()

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"<{kind} {self.head.method!r} {self.head.target!r} {STATES[self._state]}, status {self.status}>"
