"""An exchange over gRPC: one call between a client's stream and an upstream's.

The differences to HTTP: streams of any kind flow both ways at once; the answer ends well when its trailers have
arrived; the deadline bounds the whole call; failures are gRPC statuses, so :attr:`GrpcCall.status` is their meaning in
HTTP.

Credit is returned to either side for bytes that were passed on, never before. A call that the client cancels, loses or
sends malformed is reset upstream with CANCEL: the upstream never sees an end of the request that the client did not
send.
"""

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, ClassVar, Final

from tidegate.aio.proxy.contract import CallClient
from tidegate.aio.proxy.exchange import (
    ANSWERING,
    CONNECTING,
    ENDED,
    SENT,
    STREAMING,
    WAITING,
    Exchange,
    ProxyApp,
)
from tidegate.aio.upstream.http1 import MAX_INTERIMS, TOO_MANY_INTERIMS
from tidegate.errors import Failure
from tidegate.headers import OUTCOME
from tidegate.wire.grpc.first_message import MESSAGE_HEAD, first_message_end
from tidegate.wire.http2 import grpc_fields
from tidegate.wire.http2.block_memory import Block
from tidegate.wire.http2.frames import CANCEL, ENHANCE_YOUR_CALM, REFUSED_STREAM
from tidegate.wire.http2.header_blocks import LIST_BYTES
from tidegate.wire.http2.heads import CONTINUE, AnswerHead, CallHead, answer_head, literals, with_path
from tidegate.wire.http2.limits import STREAM_WINDOW
from tidegate.wire.http2.streams import Stream
from tidegate.wire.http2.tails import EXPECTATION

if TYPE_CHECKING:
    from tidegate.aio.proxy.limits import Limits
    from tidegate.aio.upstream.http2 import H2Upstream
    from tidegate.aio.upstream.pool import UpstreamPool

CALL_KEPT_BYTES: Final = STREAM_WINDOW
"""Size up to which a body is kept for another attempt: what a client may send before any of it went on. A larger call
is sent once."""
MESSAGE_CHARACTERS: Final = 1000
"""Limit of a grpc-message of ours."""
LOCAL_BYTES: Final = STREAM_WINDOW - MESSAGE_HEAD
"""Largest message of a call that is answered here: no more arrives before the first bytes were taken."""
_STATUS_OF_RESET: Final = {CANCEL: 408, ENHANCE_YOUR_CALM: 429, REFUSED_STREAM: 503}
_BROKE_OFF: Final = b"%b: started\r\n" % OUTCOME
"""Added to the trailers for a gateway: they are ours, the model server's have never arrived."""
_REPEATABLE: Final = "the upstream did not look at it"


class GrpcCall(Exchange):
    """One gRPC call and its answer."""

    is_rpc: ClassVar[bool] = True
    _no_replay: ClassVar[str] = "the call cannot be sent again"

    __slots__ = ("_credited", "_first_end", "_interims", "_sent", "_sent_bytes", "_stream", "_withheld")

    head: CallHead
    _client: CallClient
    _first_end: int
    """Bytes of the first message with its head, 0 if not known; set if it was sent before its request was complete."""
    _sent: Stream
    """The upstream's stream, while there is an upstream."""
    _upstream: "H2Upstream | None"

    def __init__(
        self,
        client: CallClient,
        app: ProxyApp,
        stream: Stream,
        head: CallHead,
        body: bytes,
        complete: bool,
        received: float,
        deadline: float,
    ) -> None:
        """``body``, ``complete``: the part of the request that arrived with its head."""
        # Not by `super()`, which costs a tenth of a microsecond more.
        Exchange.__init__(self, client, app, head, body, complete, None, received, deadline)
        self._replay = CALL_KEPT_BYTES
        self._stream = stream
        self._sent_bytes = self._credited = 0
        """Bytes of the body that went to the present upstream, and that the client has got credit for."""
        self._interims = 0
        """Interim answers (1xx), of all attempts."""
        self._withheld: list[bytes] | None = None
        """Pieces of the body that wait for the upstream's 100."""

    # --- for applications -------------------------------------------------------------------------------------------

    def mark_as_gateway(self) -> None:
        """Marks the client as a gateway of the deployment: the limits of one client do not hold."""
        self._client.mark_as_gateway()

    def take_in(self) -> None:
        """Gives credit for what has come of a call that waits: an application that needs all of it bounds it."""
        self.sent(self.bytes_in - self._sent_bytes)

    def proceed(self) -> None:
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
        code = grpc_fields.status_of(status)
        self._end_with(status, code, "" if code == grpc_fields.OK else body.decode("utf-8", "replace"), extra)

    def _answer_failure(self, failure: Failure, extra: bytes) -> None:
        if failure.request_id is not None and b"x-request-id:" not in extra:
            extra = b"x-request-id: %b\r\n%b" % (failure.request_id.encode("latin-1", "replace"), extra)
        status = failure.kind.status
        self._end_with(status, grpc_fields.status_of(status), failure.message, extra)

    def _end_with(self, status: int, code: int, message: str, extra: bytes) -> None:
        """Ends the call with trailers alone, or behind the part of an answer that has gone out."""
        state = self._state
        if state == ENDED:
            raise RuntimeError(f"an answer to {self!r}")
        self._leave_upstream()
        message = message[:MESSAGE_CHARACTERS]
        client = self._client
        fields = literals(extra) if extra else b""
        if state == STREAMING:
            self.truncated = code != grpc_fields.OK
            client.engine.trailers(self._stream, grpc_fields.trailers(code, message) + fields)
        else:
            if b"tidegate-outcome:" in extra:
                fields += literals(b"tidegate-status: %d\r\n" % status)
            self.first_byte = monotonic()
            client.engine.head(self._stream, grpc_fields.trailers_only(code, message) + fields, True)
        client.touch()
        self._finish(status)

    def truncate(self) -> None:
        self._end_with(502, grpc_fields.UNAVAILABLE, "the answer broke off", b"")

    def reply(self, message: bytes, extra: bytes = b"") -> None:
        """Answers the call from here with one message and ends it, with these lines in its trailers."""
        self._forget_body()
        self.serve().send(message)
        self.end(extra=extra)

    def serve(self, callback: "Callable[[LocalReply], object] | None" = None) -> "LocalReply":
        """Answers the call here, message by message, until :meth:`end`.

        ``callback`` is called now, whenever more of the request arrives, and when bytes that waited have gone to the
        client.
        """
        if self._state != WAITING:
            raise RuntimeError(f"serving of {self!r}")
        self._stream.owner = reply = LocalReply(self, callback)
        self._forget_body()
        reply.go_on()
        return reply

    def end(self, status: int = grpc_fields.OK, message: str = "", extra: bytes = b"") -> None:
        """Ends an answer of ours with a gRPC status."""
        self._end_with(grpc_fields.http_status(status), status, message, extra)

    # --- towards the upstream ---------------------------------------------------------------------------------------

    def _dispatch(self, pool: "UpstreamPool") -> None:
        calls = pool.for_calls()
        upstream = calls.take()
        if upstream is not None:
            self._send(upstream)
        else:
            self._state = CONNECTING
            calls.wait(self)

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
            block += grpc_fields.timeout(int((self.deadline - monotonic()) * 1000.0))
        complete = self.body_complete
        if self.holding:
            block += EXPECTATION
            self._withheld = []
        body = self._early if self._parts is None else self.body
        if not complete:
            self._first_end = first_message_end(body)
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

    def not_understood(self, attempt: int, why: str) -> None:
        """The upstream does not speak HTTP/2. Ends the call: another attempt would bring the same."""
        if self._state == CONNECTING and attempt == self.attempts:
            self._end_with(502, grpc_fields.UNIMPLEMENTED, why, b"")

    def _part_from_upstream(self) -> None:
        upstream, self._upstream = self._upstream, None
        self._withheld = None
        if upstream is not None:
            self.held = upstream.part_from(self._sent, self.body_complete) or self.held

    def _forget_upstream(self) -> None:
        """The upstream's stream is over."""
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.ended(self._sent)

    def _settle_budget(self) -> None:
        """Charges the budget with what the waiting body takes now. Refuses the call if the budget is exceeded: its
        client has credit for more, which cannot be taken back."""
        waits = self._state < SENT
        if self._charge(self._kept if waits else 0) and waits:
            self.app.abandoned(self)
            self._end_with(
                429, grpc_fields.RESOURCE_EXHAUSTED, "the messages of waiting calls take too much memory", b""
            )

    # --- for the client side ----------------------------------------------------------------------------------------

    def client_data(self, data: bytes, ends: bool) -> None:
        """A further piece of the request's body."""
        self.bytes_in += len(data)
        self.body_complete = ends
        if self._replay and data:
            if self._kept + len(data) <= self._replay or self._state < SENT or self._withheld is not None:
                self._keep_piece(data)
            else:
                self._give_body_up()
        self._pass(data, ends)
        self._body_continued()

    def client_trailers(self, block: Block) -> None:
        """The request ends with trailers."""
        self._trailers = block.outgoing
        self.body_complete = True
        if not self._withheld:
            self._pass_trailers(block.outgoing)
        self._body_continued()

    def _pass(self, data: bytes, ends: bool) -> None:
        upstream = self._upstream
        if upstream is None:
            return
        withheld = self._withheld
        if withheld is not None and (withheld or self._kept > CALL_KEPT_BYTES):
            withheld.append(data)
            return
        self.sent(upstream.engine.data(self._sent, data, ends))
        upstream.touch()

    def _pass_trailers(self, trailers: bytes) -> None:
        upstream = self._upstream
        if upstream is not None:
            upstream.engine.trailers(self._sent, trailers)
            upstream.touch()

    def _release(self) -> None:
        """The upstream has begun: the rest of the body may flow, and is kept no longer than others."""
        self.holding = False
        withheld, self._withheld = self._withheld, None
        if self._kept > self._replay:
            self._give_body_up()
        self.sent(0)
        for piece in withheld or ():
            self._pass(piece, False)
        if withheld and self.body_complete:
            if self._trailers is None:
                self._pass(b"", True)
            else:
                self._pass_trailers(self._trailers)

    def sent(self, size: int) -> None:
        """``size`` body bytes have gone to the upstream: the client gets credit, for each byte once."""
        self._sent_bytes += size
        more = self._sent_bytes - self._credited
        if more > 0 and self._withheld is None:
            self._credited = self._sent_bytes
            client = self._client
            client.engine.passed(self._stream, more)
            client.touch()

    def passed(self, size: int) -> None:
        """``size`` bytes of the answer have gone out: the upstream gets credit."""
        upstream = self._upstream
        if upstream is not None:
            upstream.engine.passed(self._sent, size)
            upstream.touch()

    def sweep(self, now: float, limits: "Limits") -> None:
        """Acts on the deadline, and on a first message that comes too slowly.

        Behind its first whole message a stream may be silent: the server may have to speak first.
        """
        if self._state == ENDED:
            return
        if now >= self.deadline:
            self.expire()
        elif self.body_complete or self._state >= STREAMING or not limits.front_door or self._is_first_message_whole():
            return
        elif self.bytes_in - self._credited >= CALL_KEPT_BYTES:
            self.resumed(now)  # The client has no credit for more.
        elif self._is_slow(now, limits):
            self.app.abandoned(self)
            self._end_with(408, grpc_fields.DEADLINE_EXCEEDED, limits.slow_body, b"")

    def _is_first_message_whole(self) -> bool:
        end = (self._first_end if self._state >= SENT else 0) or first_message_end(self.body)
        return self.bytes_in >= end if end else not self._replay  # Without its body so much has come that it is.

    # --- for the upstream side --------------------------------------------------------------------------------------

    def interim(self, block: Block) -> None:
        """A 1xx answer: 100 frees a held body; others are passed on. Too many of them fail the attempt."""
        self._interims += 1
        if self._interims > MAX_INTERIMS and self._state < STREAMING:
            self._part_from_upstream()
            self._attempt_failed(True, TOO_MANY_INTERIMS)
        elif block.status == 100:
            if self._withheld is not None:
                self._release()
        elif self._state < STREAMING:
            self._client.engine.interim(self._stream, block.outgoing)
            self._client.touch()

    def answer_head(self, block: Block, ends: bool) -> None:
        """The head of the answer."""
        self._state = ANSWERING
        head: AnswerHead = answer_head(block, ends)
        extra = self.app.answering(self, head)
        if self._state != ANSWERING:
            return  # The application answered by itself.
        if extra is None:
            self._take_back()
            return
        self.first_byte = monotonic()
        client = self._client
        client.engine.head(self._stream, head.outgoing + literals(extra) if extra else head.outgoing, ends)
        client.touch()
        if ends:
            self._forget_upstream()
            self._finish(head.status)
            return
        self._state = STREAMING
        self.status = head.status
        if self._withheld is not None:
            self._release()

    def answer_data(self, data: bytes, ends: bool) -> None:
        """A piece of the answer."""
        client, upstream = self._client, self._upstream
        self.bytes_out += len(data)
        size = client.engine.data(self._stream, data, ends)
        client.touch()
        if ends:
            self._forget_upstream()
            self._finish(grpc_fields.ended_status(self.status, None))
        elif size and upstream is not None:
            upstream.engine.passed(self._sent, size)

    def answer_trailers(self, block: Block) -> None:
        """The end of the answer."""
        client = self._client
        client.engine.trailers(self._stream, block.outgoing)
        client.touch()
        self._forget_upstream()
        status = block.grpc_status
        if status and block.get(OUTCOME) is not None:
            self.truncated = True
        self._finish(grpc_fields.ended_status(self.status, status))

    def upstream_reset(self, code: int, ours: bool) -> None:
        """The upstream's stream was reset, ``ours``: by us, for a fault of the upstream."""
        if ours and code == ENHANCE_YOUR_CALM:
            self._forget_upstream()
            self.end(grpc_fields.RESOURCE_EXHAUSTED, f"the answer's metadata is larger than {LIST_BYTES} bytes")
        elif ours:
            self.upstream_lost(f"its answer was malformed (error {code})")
        elif code == REFUSED_STREAM and self._state < STREAMING:
            self._attempt_failed(False, _REPEATABLE)
        else:
            # It ends this call by a code instead of a status and lives on: an answer of its own, perhaps to nonsense.
            self._forget_upstream()
            self._client.engine.reset(self._stream, code)
            self._client.touch()
            self._finish(_STATUS_OF_RESET.get(code, 502))

    def upstream_lost(self, why: str) -> None:
        """The connection died before the answer was complete."""
        if self._state == STREAMING:
            self._forget_upstream()
            outcome = _BROKE_OFF if self._client.is_gateway_peer else b""
            self._end_with(502, grpc_fields.UNAVAILABLE, f"the upstream broke off: {why}", outcome)
        elif self._state != ENDED:
            self._attempt_failed(True, why)

    def _attempt_failed(self, sent: bool, why: str) -> None:
        self._forget_upstream()
        self._withheld = None
        self._return_to_app(sent, why)

    # --- the end ----------------------------------------------------------------------------------------------------

    def _finish(self, status: int, now: float | None = None) -> None:
        self._stream.owner = None  # No cycle is left to the collector.
        Exchange._finish(self, status, now)


class LocalReply:
    """The answer to a call that is answered here, message by message. It owns the client's stream in place of the
    call."""

    __slots__ = ("_body", "_call", "_callback")

    def __init__(self, call: GrpcCall, callback: "Callable[[LocalReply], object] | None") -> None:
        self._call = call
        self._callback = callback
        self._body = bytearray(call.body)
        """Bytes of the request that were not taken; the stream's window bounds them."""

    # --- for applications -------------------------------------------------------------------------------------------

    @property
    def unsent(self) -> int:
        """Bytes of the answer that wait because its client does not read."""
        return self._call._stream.waiting

    def take(self) -> tuple[bool, bytes] | None:
        """Returns whether the next message of the request is compressed, and the message. Returns None if it is not
        complete, or too large: that ends the call."""
        call, body = self._call, self._body
        if len(body) < MESSAGE_HEAD:
            return None
        size = int.from_bytes(body[1:MESSAGE_HEAD], "big")
        if size > LOCAL_BYTES:
            call.end(grpc_fields.RESOURCE_EXHAUSTED, f"a message of {size} bytes is larger than {LOCAL_BYTES}")
            return None
        end = MESSAGE_HEAD + size
        if len(body) < end:
            return None
        found = body[0] != 0, bytes(body[MESSAGE_HEAD:end])
        del body[:end]
        call._client.engine.passed(call._stream, end)
        call._client.touch()
        return found

    def send(self, message: bytes) -> None:
        """Sends one message of the answer."""
        call = self._call
        client, stream = call._client, call._stream
        if call._state < STREAMING:
            call.first_byte = monotonic()
            call._state = STREAMING
            client.engine.head(stream, grpc_fields.ANSWER, False)
        framed = b"\0%b%b" % (len(message).to_bytes(4, "big"), message)
        call.bytes_out += len(framed)
        client.engine.data(stream, framed, False)
        client.touch()

    # --- for the client side ----------------------------------------------------------------------------------------

    def go_on(self) -> None:
        """Something has changed: lets the application continue."""
        if self._callback is not None:
            self._callback(self)

    def client_data(self, data: bytes, ends: bool) -> None:
        """A further piece of the request's body."""
        self._body += data
        self._call.bytes_in += len(data)
        self._call.body_complete = ends
        self.go_on()

    def client_trailers(self, block: Block) -> None:
        """The request ends with trailers."""
        self._call.body_complete = True
        self.go_on()

    def passed(self, size: int) -> None:
        """``size`` bytes of the answer have gone out."""
        self.go_on()

    def client_gone(self) -> None:
        """The client has cancelled the call, or has gone."""
        self._call.client_gone()

    def refuse(self, status: int) -> None:
        """The rest of the request is faulty."""
        self._call.refuse(status)

    def sweep(self, now: float, limits: "Limits") -> None:
        """Acts on the deadline of the call."""
        self._call.sweep(now, limits)

    def __repr__(self) -> str:
        return f"<LocalReply {len(self._body)} bytes not taken>"
