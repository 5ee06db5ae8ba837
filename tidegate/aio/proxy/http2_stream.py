"""A stream of HTTP/2 that is no gRPC call: the client side of an ordinary exchange towards an HTTP/1.1 upstream."""

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final

from tidegate.aio.proxy.contract import Answer, ListeningSide, StreamConnection
from tidegate.aio.proxy.exchange import SENT, BodyBudget, Exchange
from tidegate.aio.proxy.http1_exchange import HttpExchange, as_http
from tidegate.errors import BAD_REQUEST, TOO_LARGE, error_body
from tidegate.wire.http1.events import Data, Piece
from tidegate.wire.http1.fields import Rejected
from tidegate.wire.http1.request_head import RequestHead
from tidegate.wire.http1.server import too_large
from tidegate.wire.http2.block_memory import Block
from tidegate.wire.http2.frames import INTERNAL_ERROR, PROTOCOL_ERROR
from tidegate.wire.http2.hpack import literal
from tidegate.wire.http2.streams import Stream
from tidegate.wire.http2.to_http1 import answer_block, field_block, request_head, trailer_lines

if TYPE_CHECKING:
    from tidegate.aio.proxy.limits import Limits
    from tidegate.aio.upstream.http1 import UpstreamConn

_JSON: Final = literal(b"content-type", b"application/json")


class RestStream:
    """A ``ClientSide`` and a ``StreamOwner``."""

    __slots__ = (
        "_connection",
        "_has_ended",
        "_length",
        "_owed",
        "_paused",
        "_pieces",
        "_received",
        "_server",
        "_stream",
        "exchange",
        "peer",
        "trusted",
    )

    def __init__(self, connection: StreamConnection, server: ListeningSide, stream: Stream) -> None:
        self._connection = connection
        self._server = server
        self._stream = stream
        self._received = self._owed = self._paused = 0
        self._length = -1
        """Announced length of the body, or -1. The body is complete at that length, with or without END_STREAM."""
        self._pieces: list[bytes] = []
        """Pieces of the body from the present read. Frames may be tiny, and each write costs more than they carry."""
        self._has_ended = False
        """The body's end is among them."""
        self.exchange: HttpExchange | None = None
        self.peer = connection.peer
        self.trusted = connection.trusted

    def start(self, block: Block, body: bytes, ends: bool, now: float) -> None:
        """The request, with what of its body came at once."""
        server = self._server
        self._stream.lingers = True
        rules, body_bytes, _ = server.rules_for(self.trusted)
        head = request_head(block, ends and not body, rules)
        if type(head) is not Rejected and max(len(body), head.content_length or 0) > body_bytes:
            head = too_large(body_bytes)
        if type(head) is Rejected:
            self._answer_bad(head, block.method)
            return
        self._stream.owner = self
        self._received = len(body)
        if head.content_length is not None:
            self._length = head.content_length
        complete, deadline = ends or self._received == self._length, now + server.response_timeout_s
        self.exchange = exchange = HttpExchange(self, server.app, head, body, complete, b"", now, deadline)
        self._credit(len(body))
        server.app.start(exchange)
        if exchange._state < SENT:
            exchange.charge_budget(server.budget)

    def _answer_bad(self, bad: Rejected, method: bytes) -> None:
        body = error_body(TOO_LARGE if bad.status == TOO_LARGE.status else BAD_REQUEST, bad.why)
        engine, is_head = self._connection.engine, method == b"HEAD"
        fields = _JSON + literal(b"content-length", b"%d" % len(body)) + literal(b"date", self.date())
        engine.head(self._stream, literal(b":status", b"%d" % bad.status) + fields, is_head)
        if not is_head:
            engine.data(self._stream, body, True)
        self._connection.touch()

    # --- StreamOwner ------------------------------------------------------------------------------------------------

    def client_data(self, data: bytes, ends: bool) -> None:
        exchange = self.exchange
        if exchange is None or exchange.body_complete or self._has_ended:
            return
        self._received += len(data)
        if self._received > self._server.limits.body_bytes:
            self._refuse(too_large(self._server.limits.body_bytes))
            return
        if not self._pieces:
            self._connection.at_read_end.append(self.gathered)
        self._pieces.append(data)
        self._has_ended = ends or self._received == self._length

    def client_trailers(self, block: Block) -> None:
        if self.exchange is not None and not self.exchange.body_complete and not self._has_ended:
            self._has_ended = True
            self.gathered(trailer_lines(block))

    def gathered(self, trailers: bytes = b"") -> None:
        """The read is over, or the body: what came of it goes on, in one piece."""
        pieces, self._pieces = self._pieces, []
        exchange = self.exchange
        if exchange is None or exchange.body_complete or not (pieces or self._has_ended):
            return
        data = b"".join(pieces)
        exchange.client_data(Data(data, self._has_ended, trailers), self._server.services.now)
        self._credit(len(data))

    def passed(self, size: int) -> None:
        if self.exchange is not None and not self._stream.waiting:
            self.exchange.resume_upstream()

    def client_gone(self) -> None:
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            self._stream.owner = None
            exchange.client_gone()

    def refuse(self, status: int) -> None:
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            self._stream.owner = None
            exchange.refuse(status)

    def sweep(self, now: float, limits: "Limits") -> None:
        exchange = self.exchange
        if exchange is not None and exchange.sweep(now, limits, is_paused=self._paused > 0):
            self._refuse(Rejected(408, limits.slow_body))

    def _refuse(self, bad: Rejected) -> None:
        """The rest of the request is not wanted: answers so, if no answer has begun."""
        exchange, self.exchange = self.exchange, None
        if exchange is None:
            return
        self._stream.owner = None
        if exchange.refuse(bad.status):
            self._answer_bad(bad, exchange.head.method)
        else:
            self._connection.engine.reset(self._stream, PROTOCOL_ERROR)
            self._connection.touch()

    def _credit(self, size: int) -> None:
        """The body went on, or is kept: the client may send as much more, unless it is to pause."""
        if self._paused:
            self._owed += size
        elif size:
            self._connection.engine.passed(self._stream, size)
            self._connection.touch()

    # --- ClientSide -------------------------------------------------------------------------------------------------

    def forwarding_lines(self, head: RequestHead) -> bytes:
        return self._connection.forwarding.lines(head)

    @property
    def budget(self) -> BodyBudget:
        return self._server.budget

    def carry(self, exchange: Exchange) -> None:
        self.exchange = as_http(exchange)

    def date(self) -> bytes:
        return self._server.services.date

    def answer(self, answer: Answer) -> None:
        status, _, block, extra, _, body, done, trailers = answer
        exchange = self.exchange
        is_bodyless = status in (204, 304) or (exchange is not None and exchange.head.method == b"HEAD")
        if is_bodyless:
            body, trailers = b"", b""
        ends = done and not body and not trailers
        self._connection.engine.head(self._stream, answer_block(status, block + extra), ends)
        self._connection.touch()
        if not ends and (body or done):
            self.more(body, done, trailers)

    def more(self, data: Piece, done: bool, trailers: bytes, framed: bytes = b"") -> None:
        engine, stream = self._connection.engine, self._stream
        size = engine.data(stream, bytes(data), done and not trailers)
        if trailers:
            engine.trailers(stream, field_block(trailers))
        elif size < len(data) and not done and self.exchange is not None:
            self.exchange.pause_upstream()
        self._connection.touch()

    def sink(self) -> int | None:
        return None

    def last(self) -> None:
        """Other streams go on: this one's end is enough."""

    def interim(self, status: int, reason: bytes, block: bytes) -> None:
        self._connection.engine.interim(self._stream, answer_block(status, block))
        self._connection.touch()

    def truncate(self) -> None:
        """Resets the stream, so that the missing end is visible."""
        self.exchange = self._stream.owner = None
        self._connection.engine.reset(self._stream, INTERNAL_ERROR)
        self._connection.touch()

    def ended(self) -> None:
        self.exchange = self._stream.owner = None

    def pause(self, why: int) -> None:
        self._paused |= why

    def resume(self, why: int) -> None:
        if self._paused:
            self._paused &= ~why
            if not self._paused:
                owed, self._owed = self._owed, 0
                self._credit(owed)
                if self.exchange is not None:
                    self.exchange.resumed(monotonic())

    def switch(self, head: bytes, protocol: asyncio.Protocol) -> None:
        raise RuntimeError("a stream of HTTP/2 changes to no other protocol")

    def tunnel(self, head: bytes, upstream: "UpstreamConn") -> None:
        raise RuntimeError("a stream of HTTP/2 changes to no other protocol")

    def __repr__(self) -> str:
        return f"<RestStream {self._stream!r} {self.exchange!r}>"
