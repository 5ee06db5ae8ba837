"""One gRPC call between a client's stream and an upstream's: what ``exchange.py`` is for HTTP/1.

An application sees the same of both (``exchange.ProxyApp``) and tells them apart by ``is_rpc``. The states are an
exchange's. What differs: streams of any kind flow both ways at once; the answer ends well when its trailers have come;
the deadline bounds the whole call; failures are gRPC statuses, so :attr:`GrpcCall.status` is what they mean in HTTP.

Credit is returned to either side for bytes that were passed on, never before. What the client cancels, loses or sends
malformed is reset upstream with CANCEL: the upstream never sees an end of the request that the client did not send.
"""

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, Final

from tidegate.aio.proxy.exchange import (
    ALWAYS_READ_BYTES,
    ANSWERING,
    CLIENT_GONE,
    CONNECTING,
    ENDED,
    SENT,
    STREAMING,
    WAITING,
    BodyBudget,
    with_piece,
)
from tidegate.aio.proxy.local_reply import OWN_BYTES, LocalReply
from tidegate.errors import DEADLINE, REPLICA_BROKE, ErrorKind, Executed
from tidegate.headers import OUTCOME, REQUEST_ID
from tidegate.wire.grpc.first_message import MESSAGE_HEAD
from tidegate.wire.http2 import grpc_fields as grpc
from tidegate.wire.http2.block_memory import Block
from tidegate.wire.http2.frames import CANCEL, ENHANCE_YOUR_CALM, REFUSED_STREAM
from tidegate.wire.http2.header_blocks import LIST_BYTES
from tidegate.wire.http2.heads import CONTINUE, AnswerHead, CallHead, answer_head, literals, with_path
from tidegate.wire.http2.limits import STREAM_WINDOW
from tidegate.wire.http2.streams import Stream
from tidegate.wire.http2.tails import EXPECTATION

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import ProxyApp
    from tidegate.aio.proxy.http2_connection import H2Conn
    from tidegate.aio.upstream.http2 import H2Upstream, Held
    from tidegate.aio.upstream.pool import UpstreamPool

_STATES: Final = ("WAITING", "CONNECTING", "SENT", "ANSWERING", "STREAMING", "ENDED")
KEPT_BYTES: Final = STREAM_WINDOW
"""Of a body that is kept for another attempt: what a client may send before any of it went on. With more, a call is
sent once."""
MESSAGE_CHARACTERS: Final = 1000
"""Of a grpc-message of ours."""
_STATUS_OF_RESET: Final = {CANCEL: 408, ENHANCE_YOUR_CALM: 429, REFUSED_STREAM: 503}
_BROKE_OFF: Final = b"%b: started\r\n" % OUTCOME
"""Among the trailers for a gateway: they are ours, the model server's have never come."""
_REPEATABLE: Final = "the upstream did not look at it"


class GrpcCall:
    """One call and its answer."""

    __slots__ = (
        "_again",
        "_budget",
        "_charged",
        "_client",
        "_credited",
        "_early",
        "_extra",
        "_kept",
        "_parts",
        "_replay",
        "_sent",
        "_sent_bytes",
        "_state",
        "_stream",
        "_target",
        "_trailers",
        "_upstream",
        "_withheld",
        "app",
        "attempts",
        "body_complete",
        "bytes_in",
        "bytes_out",
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
        "own",
        "received",
        "status",
        "truncated",
    )

    is_rpc: ClassVar[bool] = True
    _charged: int
    _extra: bytes
    _target: bytes | None

    def __init__(
        self,
        client: "H2Conn",
        app: "ProxyApp",
        stream: Stream,
        head: CallHead,
        body: bytes,
        complete: bool,
        received: float,
        deadline: float,
    ) -> None:
        """``body``, ``complete``: what of the request came with its head. The attributes are an exchange's."""
        self._client = client
        self._stream = stream
        self.app = app
        self.head = head
        self.received = self.heard = received
        self.deadline = deadline
        """Bounds the whole call."""
        self.ended = self.first_byte = 0.0
        self.context: Any = None
        self.inferences = 1
        self.on_body: Callable[[GrpcCall], None] | None = None
        self.status = 0
        """As HTTP has it (``grpc.http_status``); 499: the client went away."""
        self.truncated = False
        self.held: Held | None = None
        self.body_complete = complete
        self.bytes_in = self._kept = len(body)
        self.bytes_out = self.attempts = 0
        self.holding = False
        self.own: LocalReply | None = None
        """Set where it is answered here, message by message."""
        self._early = body
        self._parts: list[bytes] | None = None
        self._trailers: bytes | None = None
        self._budget: BodyBudget | None = None
        self._replay = KEPT_BYTES
        self._sent_bytes = self._credited = 0
        """Of the body that went to the present upstream, and that the client has got credit for."""
        self._withheld: list[bytes] | None = None
        """What of the body waits for the upstream's 100."""
        self._state = WAITING
        self._upstream: H2Upstream | None = None
        self._sent: Stream | None = None
        self._again: tuple[UpstreamPool, bytes, bytes | None, bool] | None = None

    # --- what an app may ask ----------------------------------------------------------------------------------------

    @property
    def body(self) -> bytes:
        """The body received so far, gRPC's framing included, as long as it is kept (64 KB); b"" afterwards."""
        if self._parts is not None:
            self._early = b"".join([self._early, *self._parts])
            self._parts = None
        return self._early

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
    def unsent(self) -> int:
        """Bytes of the answer that wait because its client does not read."""
        return self._stream.waiting

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
        """As ``Exchange.may_retry``; gRPC's method says nothing of repeating, only the function does."""
        return self.attempts <= 1 and self.replayable and (idempotent or not sent)

    def may_repeat(self, idempotent: bool) -> bool:
        """Whether it can be sent again, and running it twice does no harm: the function declares it."""
        return idempotent and self.replayable

    def keep(self, size: int) -> None:
        """Keeps its body after it was sent up to this size, where that is more than usual and it is still there."""
        if 0 < self._replay < size:
            self._replay = size

    def set_deadline(self, when: float) -> None:
        """Moves the deadline (seconds of ``time.monotonic``)."""
        self.deadline = when

    def vouch(self) -> None:
        """Its client is a gateway of the deployment, which stands for many clients: the limits of one do not hold."""
        self._client.vouch()

    # --- what an app may do -----------------------------------------------------------------------------------------

    def forward(
        self, pool: "UpstreamPool", extra: bytes = b"", *, target: bytes | None = None, hold: bool = False
    ) -> None:
        """Sends the call on an HTTP/2 connection of ``pool``. As ``Exchange.forward``."""
        state = self._state
        if state == ANSWERING:
            self._again = (pool, extra, target, hold)
            return
        if state != WAITING:
            raise RuntimeError(f"forward of {self!r}")
        self.attempts += 1
        self._extra = extra
        self._target = target
        self.holding = hold and not self.body_complete
        calls = pool.calls
        upstream = calls.take()
        if upstream is not None:
            self._send(upstream)
        else:
            self._state = CONNECTING
            calls.wait(self)

    def proceed(self) -> None:
        """Tells a client that asked to be told (a gateway) that the rest of the body may come."""
        if self.head.expect_continue and not self.body_complete and self._state < STREAMING:
            self._client.engine.interim(self._stream, CONTINUE)
            self._client.touch()

    def respond(
        self,
        status: int,
        body: bytes = b"",
        *,
        content_type: bytes = b"text/plain",
        extra: bytes = b"",
        close: bool = False,
    ) -> None:
        """Answers with the gRPC status that this HTTP status means, and the text of ``body`` as its message."""
        code = grpc.OK if status < 300 else grpc.STATUS_OF_HTTP.get(status, grpc.INTERNAL)
        self._end_with(status, code, "" if code == grpc.OK else body.decode("utf-8", "replace"), extra)

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
        """Ends the call with a status of ours; the request's id, the client's own by default, is among the fields."""
        if request_id is None:
            given = self.head.get(REQUEST_ID)
            request_id = given.decode("latin-1") if given is not None else None
        if request_id is not None and b"x-request-id:" not in extra:
            extra = b"x-request-id: %b\r\n%b" % (request_id.encode("latin-1", "replace"), extra)
        code = grpc.STATUS_OF_HTTP.get(kind.status, grpc.INTERNAL)
        self._end_with(kind.status, code, message, extra)

    def _end_with(self, status: int, code: int, message: str, extra: bytes) -> None:
        """Trailers alone, or behind what has gone out of an answer."""
        state = self._state
        if state == ENDED:
            raise RuntimeError(f"an answer to {self!r}")
        self._leave_upstream()
        message = message[:MESSAGE_CHARACTERS]
        client = self._client
        fields = literals(extra) if extra else b""
        if state == STREAMING:
            self.truncated = code != grpc.OK
            client.engine.trailers(self._stream, grpc.trailers(code, message) + fields)
        else:
            if b"tidegate-outcome:" in extra:
                fields += literals(b"tidegate-status: %d\r\n" % status)
            self.first_byte = monotonic()
            client.engine.head(self._stream, grpc.trailers_only(code, message) + fields, True)
        client.touch()
        self._finish(status)

    def reply(self, *messages: bytes, status: int = grpc.OK, message: str = "") -> None:
        """Answers the call from here with these messages and ends it."""
        for one in messages:
            self.send(one)
        self.end(status, message)

    def serve(self, callback: "Callable[[GrpcCall], object]") -> None:
        """The call is answered here, message by message (:meth:`send`, :meth:`end`): ``callback`` is called for what is
        there of the request, for whatever comes, and when bytes that waited have gone to the client. It takes messages
        with :meth:`take_message`."""
        if self._state != WAITING:
            raise RuntimeError(f"serving of {self!r}")
        self.own = LocalReply(callback, self.body)
        self._early = b""
        callback(self)

    def take_message(self) -> tuple[bool, bytes] | None:
        """The next whole message of a call that is served here, and whether it is compressed; None: none is there."""
        own = self.own
        if own is None:
            return None
        found = own.take()
        if own.is_too_large:
            self.end(grpc.RESOURCE_EXHAUSTED, f"a message of {own.announced} bytes is larger than {OWN_BYTES}")
            return None
        if found is not None:
            self._client.engine.passed(self._stream, len(found[1]) + MESSAGE_HEAD)
            self._client.touch()
        return found

    def send(self, message: bytes) -> None:
        """One message of an answer of ours."""
        client = self._client
        if self._state < STREAMING:
            self.first_byte = monotonic()
            self._state = STREAMING
            client.engine.head(self._stream, grpc.ANSWER, False)
        framed = b"\0%b%b" % (len(message).to_bytes(4, "big"), message)
        self.bytes_out += len(framed)
        client.engine.data(self._stream, framed, False)
        client.touch()

    def end(self, status: int = grpc.OK, message: str = "", extra: bytes = b"") -> None:
        """The end of an answer of ours, with a gRPC status."""
        self._end_with(grpc.http_status(status), status, message, extra)

    # --- towards the upstream ---------------------------------------------------------------------------------------

    def _send(self, upstream: "H2Upstream") -> None:
        """Writes the call, as far as it is there, on a connection."""
        head = self.head
        self._state = SENT
        if self._budget is not None:
            self._settle_budget()
        block = head.outgoing if self._target is None else with_path(head.outgoing, self._target)
        block += self._client.own_fields(head)
        if self._extra:
            block += literals(self._extra)
        if head.has_timeout:
            block += grpc.timeout(int((self.deadline - monotonic()) * 1000.0))
        complete = self.body_complete
        if self.holding:
            block += EXPECTATION
            self._withheld = []
        body = self._early if self._parts is None else self.body
        self._upstream = upstream
        engine = upstream.engine
        self._sent = stream = engine.request(block, complete and not body and self._trailers is None, self)
        self._sent_bytes = 0
        if body:
            size = engine.data(stream, body, complete and self._trailers is None)
            if not complete:
                self.sent(size)
        if complete and self._trailers is not None:
            engine.trailers(stream, self._trailers)
        upstream.touch()

    def connected(self, upstream: "H2Upstream", attempt: int) -> None:
        """There is room on a connection for ``attempt``, if it is still wanted."""
        if self._state == CONNECTING and attempt == self.attempts:
            self._send(upstream)

    def connect_failed(self, attempt: int, why: str) -> None:
        """Connecting for ``attempt`` failed."""
        if self._state == CONNECTING and attempt == self.attempts:
            self._state = WAITING
            self.app.upstream_failed(self, False, why)  # type: ignore[arg-type]  # an Rpc is an exchange to applications

    def not_understood(self, attempt: int, why: str) -> None:
        """The upstream does not speak HTTP/2: an answer, since asking again would bring the same."""
        if self._state == CONNECTING and attempt == self.attempts:
            self._end_with(502, grpc.UNIMPLEMENTED, why, b"")

    def _leave_upstream(self) -> None:
        """Parts from the upstream; what runs there is reset, or held until it has ended."""
        upstream, stream = self._upstream, self._sent
        self._upstream = self._sent = None
        if upstream is not None and stream is not None:
            if upstream.pool.hold_s and self.body_complete and upstream.engine.streams.get(stream.number) is stream:
                self.held = upstream.hold(stream)
            else:
                stream.owner = None
                upstream.engine.reset(stream, CANCEL)
                upstream.touch()
                upstream.ended()
        if self._state < STREAMING:
            self._state = WAITING
        self.holding = False
        self._withheld = None

    def _parted(self) -> None:
        """The upstream's stream is over."""
        upstream, stream = self._upstream, self._sent
        self._upstream = self._sent = None
        if stream is not None:
            stream.owner = None
        if upstream is not None:
            upstream.ended()

    def weigh(self, budget: BodyBudget) -> None:
        """It waits, and its body with it."""
        if self._budget is None:
            self._budget, self._charged = budget, 0
        self._settle_budget()

    def _settle_budget(self) -> None:
        """Takes of the budget what the waiting body takes now. Beyond it a call is refused: the client has credit for
        more, which cannot be taken back."""
        budget = self._budget
        if budget is None:
            return
        waits = self._state < SENT
        charged = self._kept if waits else 0
        budget.used += charged - self._charged
        self._charged = charged
        if waits and budget.used > budget.limit and charged >= ALWAYS_READ_BYTES:
            self.app.abandoned(self)  # type: ignore[arg-type]  # as above
            self._end_with(429, grpc.RESOURCE_EXHAUSTED, "the messages of waiting calls take too much memory", b"")

    # --- from the client side ---------------------------------------------------------------------------------------

    def client_data(self, data: bytes, ends: bool) -> None:
        """A further piece of the request's body."""
        self.bytes_in += len(data)
        if ends:
            self.body_complete = True
        if self.own is not None:
            self.own.add(data)
            self.own.callback(self)
            return
        if self._replay and data:
            if self._kept + len(data) <= self._replay or self._state < SENT or self._withheld is not None:
                self._parts = with_piece(self._parts, data)
                self._kept += len(data)
            else:
                self._replay = 0
                self._forget_body()
        self._pass(data, ends)
        if self._budget is not None:
            self._settle_budget()
        on_body = self.on_body
        if on_body is not None:
            self.on_body = None
            if self._state == WAITING:
                on_body(self)

    def client_trailers(self, block: Block) -> None:
        """The request ends with trailers."""
        self._trailers = block.outgoing
        self.body_complete = True
        upstream, stream = self._upstream, self._sent
        if not self._withheld and upstream is not None and stream is not None:
            upstream.engine.trailers(stream, block.outgoing)
            upstream.touch()

    def _pass(self, data: bytes, ends: bool) -> None:
        upstream, stream = self._upstream, self._sent
        if upstream is None or stream is None:
            return
        withheld = self._withheld
        if withheld is not None and (withheld or self._kept > KEPT_BYTES):
            withheld.append(data)
            return
        self.sent(upstream.engine.data(stream, data, ends))
        upstream.touch()

    def _release(self) -> None:
        """The upstream has begun: the rest of the body may flow, and is kept no longer than others."""
        self.holding = False
        withheld, self._withheld = self._withheld, None
        if self._kept > self._replay:
            self._replay = 0
            self._forget_body()
        self.sent(0)
        for piece in withheld or ():
            self._pass(piece, False)
        upstream, stream = self._upstream, self._sent
        if withheld and self.body_complete and upstream is not None and stream is not None:
            if self._trailers is None:
                upstream.engine.data(stream, b"", True)
            else:
                upstream.engine.trailers(stream, self._trailers)

    def sent(self, size: int) -> None:
        """So many body bytes have gone to the upstream: the client gets credit, for each byte once."""
        self._sent_bytes += size
        more = self._sent_bytes - self._credited
        if more > 0 and self._withheld is None:
            self._credited = self._sent_bytes
            client = self._client
            client.engine.passed(self._stream, more)
            client.touch()

    def passed(self, size: int) -> None:
        """So many bytes of the answer have gone out: the upstream gets credit, or who answers it here goes on."""
        if self.own is not None:
            self.own.callback(self)
        elif self._upstream is not None and self._sent is not None:
            self._upstream.engine.passed(self._sent, size)
            self._upstream.touch()

    def _forget_body(self) -> None:
        self._early = b""
        self._parts = None

    def client_gone(self) -> None:
        """The client has cancelled the call or closed its connection: its work goes with it."""
        if self._state == ENDED:
            return
        self._leave_upstream()
        self.status = CLIENT_GONE
        self.app.abandoned(self)  # type: ignore[arg-type]  # as above
        self._finish(CLIENT_GONE)

    def refuse(self, status: int) -> None:
        """The rest of the request is faulty: its stream was reset."""
        if self._state == ENDED:
            return
        self._leave_upstream()
        self.truncated = self._state >= STREAMING
        self.app.abandoned(self)  # type: ignore[arg-type]  # as above
        self._finish(status)

    def expire(self) -> None:
        """The deadline has passed, perhaps while the answer streams."""
        self._leave_upstream()
        self.app.expired(self)  # type: ignore[arg-type]  # as above
        if self._state != ENDED:
            self.fail(DEADLINE, "the deadline passed", executed=Executed.UNKNOWN)

    def sweep(self, now: float) -> None:
        """Acts on the deadline."""
        if now >= self.deadline and self._state != ENDED:
            self.expire()

    # --- from the upstream side -------------------------------------------------------------------------------------

    def interim(self, block: Block) -> None:
        """A 1xx answer: 100 frees a held body; others are passed on."""
        if block.status == 100:
            if self._withheld is not None:
                self._release()
        elif self._state < STREAMING:
            self._client.engine.interim(self._stream, block.outgoing)
            self._client.touch()

    def answer_head(self, block: Block, ends: bool) -> None:
        """The head of the answer."""
        self._state = ANSWERING
        head: AnswerHead = answer_head(block, ends)
        extra = self.app.answering(self, head)  # type: ignore[arg-type]  # as above; the head, too, is one to them
        if self._state != ANSWERING:
            return  # the app answered itself
        if extra is None:
            self._take_back()
            return
        self.first_byte = monotonic()
        client = self._client
        client.engine.head(self._stream, head.outgoing + literals(extra) if extra else head.outgoing, ends)
        client.touch()
        if ends:
            self._parted()
            self._finish(head.status)
            return
        self._state = STREAMING
        self.status = head.status
        if self._withheld is not None:
            self._release()

    def _take_back(self) -> None:
        """The app does not want this answer: the call waits again."""
        self._leave_upstream()
        self._state = WAITING
        if not self._replay:
            self.fail(REPLICA_BROKE, "the call cannot be sent again", executed=Executed.UNKNOWN)
            return
        again, self._again = self._again, None
        if again is not None:
            pool, extra, target, hold = again
            self.forward(pool, extra, target=target, hold=hold)
        if self._state < SENT:
            self.weigh(self._client.budget)

    def answer_data(self, data: bytes, ends: bool) -> None:
        """A piece of the answer."""
        client, upstream, stream = self._client, self._upstream, self._sent
        self.bytes_out += len(data)
        size = client.engine.data(self._stream, data, ends)
        client.touch()
        if ends:
            self._parted()
            self._finish(grpc.ended_status(self.status, None))
        elif size and upstream is not None and stream is not None:
            upstream.engine.passed(stream, size)

    def answer_trailers(self, block: Block) -> None:
        """The end of the answer."""
        client = self._client
        client.engine.trailers(self._stream, block.outgoing)
        client.touch()
        self._parted()
        status = block.grpc_status
        if status and block.get(OUTCOME) is not None:
            self.truncated = True
        self._finish(grpc.ended_status(self.status, status))

    def upstream_reset(self, code: int, ours: bool) -> None:
        """The upstream's stream was reset, ``ours``: by us, for a fault of the upstream."""
        if ours and code == ENHANCE_YOUR_CALM:
            self._parted()
            self.end(grpc.RESOURCE_EXHAUSTED, f"the answer's metadata is larger than {LIST_BYTES} bytes")
        elif ours:
            self.upstream_lost(f"its answer was malformed (error {code})")
        elif code == REFUSED_STREAM and self._state < STREAMING:
            self._back_to_app(False, _REPEATABLE)
        else:
            # It ends this call by a code instead of a status and lives on: an answer of its own, perhaps to nonsense.
            self._parted()
            self._client.engine.reset(self._stream, code)
            self._client.touch()
            self._finish(_STATUS_OF_RESET.get(code, 502))

    def upstream_lost(self, why: str) -> None:
        """The connection died before the answer was complete."""
        if self._state == ENDED:
            return
        if self._state == STREAMING:
            self._parted()
            told = _BROKE_OFF if self._client.is_vouched else b""
            self._end_with(502, grpc.UNAVAILABLE, f"the upstream broke off: {why}", told)
        else:
            self._back_to_app(True, why)

    def _back_to_app(self, sent: bool, why: str) -> None:
        self._parted()
        self._state = WAITING
        self.holding = False
        self._withheld = None
        self.app.upstream_failed(self, sent, why)  # type: ignore[arg-type]  # as above
        if self._state < SENT:
            self.weigh(self._client.budget)

    # --- the end ----------------------------------------------------------------------------------------------------

    def _finish(self, status: int) -> None:
        """The only exit: accounting happens here, once."""
        if self._state == ENDED:
            return
        self._state = ENDED
        if self._budget is not None:
            self._settle_budget()
        self.status = status
        self.ended = monotonic()
        self._early = b""
        self._parts = self.own = None
        self._stream.owner = None  # no cycle is left to the collector
        self.app.finished(self)  # type: ignore[arg-type]  # as above
        self.context = self.on_body = None

    def __repr__(self) -> str:
        return f"<Rpc {self.head.target!r} {_STATES[self._state]}, status {self.status}>"
