"""One client connection of a proxy process: its phases, its limits, its exchange.

A connection is in one of these phases; each has its own limit, kept by the ticker::

    NEW ──first bytes──> HEAD, or all of it to ``H2Conn``
    IDLE ──first byte──> HEAD ──request──> exchange ──answer ended──> IDLE
                                              │
                                              └──refused, early answer──> LINGER ──> closed

While an exchange runs, its own deadline, the body's idle time and the stream's idle and total times count.
"""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import cast

from tidegate.aio.loop import sockets
from tidegate.aio.loop.absence import PeerWatch, peer_is_gone
from tidegate.aio.loop.read_turns import FULL_READ_BYTES, READS_PER_TURN, ReadTurns
from tidegate.aio.loop.splice import sink_of
from tidegate.aio.loop.writes import SMALL_BYTES, WRITE_BUFFER_BYTES, SmallWrites
from tidegate.aio.proxy.contract import Answer, ListeningSide
from tidegate.aio.proxy.exchange import SENT, BodyBudget, Exchange
from tidegate.aio.proxy.forwarding import Forwarding
from tidegate.aio.proxy.http1_exchange import HttpExchange, as_http
from tidegate.aio.proxy.tunnel import join
from tidegate.aio.upstream.http1 import UpstreamConn
from tidegate.wire.http1.events import Data, Piece
from tidegate.wire.http1.fields import Rejected
from tidegate.wire.http1.request_head import RequestHead
from tidegate.wire.http1.server import CHUNKED, CLOSED, LENGTH, UNTIL_CLOSE, WAIT, Event, H1Server
from tidegate.wire.http2.frames import PREFACE

LINGER_BYTES = 1 << 20
LINGER_S = 2.0
"""After an answer that overtook its request we read and discard this much, this long: closing with unread bytes
makes the kernel send RST, and the client would lose the answer."""
_JOIN_BYTES = 64 * 1024
FIRST_REQUEST_S = 1.0
"""While draining: so old a connection must be before it is closed without having carried a request."""
QUIET_S = 0.5
"""While draining: the time without a byte after an answer before the connection is closed. A client that sends requests
without pause gets ``connection: close`` with an answer instead: a request may be on its way at any moment."""
FAREWELL_S = 5.0
"""For an idle client's own close_notify (TLS), which some never send. Our choice."""

_IDLE, _HEAD, _EXCHANGE, _LINGER, _TUNNEL, _CLOSED, _NEW = range(7)


class ServerConn(asyncio.Protocol):
    """One client connection: a transport, an engine, at most one exchange. A ``ClientSide``."""

    __slots__ = (
        "_first", "_full", "_lingered", "_paused", "_read_turns", "_server", "_small_writes", "_stalled", "_turning",
        "_watch", "deadline", "engine", "exchange", "forwarding_lines", "peer", "phase", "transport", "trusted",
    )  # fmt: skip

    transport: asyncio.Transport
    engine: H1Server
    forwarding_lines: Callable[[RequestHead], bytes]

    def __init__(self, server: ListeningSide) -> None:
        self._server = server
        self.exchange: HttpExchange | None = None
        self.phase = _NEW
        self._first = b""
        self.deadline = 0.0
        self.peer = b"unix"
        self.trusted = False
        self._paused = 0
        self._watch = PeerWatch(server.services.absence)
        """Begins with the first pause (docs/adr/0085)."""
        self._full = self._stalled = self._turning = False
        self._lingered = 0
        self._small_writes = SmallWrites()
        self._read_turns = ReadTurns()

    @property
    def is_made(self) -> bool:
        """Whether it has its transport: with TLS, after the handshake."""
        return hasattr(self, "transport")

    # --- asyncio ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        server = self._server
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple):
            self.peer = name[0].encode()
        self.trusted = server.trusts(self.peer)
        # Called for every request: the bound method itself, not one more call.
        self.forwarding_lines = Forwarding(self.peer, server.scheme, server.limits.via, server.random).lines
        self.engine = H1Server(*server.rules_for(self.trusted))
        self.deadline = monotonic() + server.new_timeout_s
        server.opened(self)

    def data_received(self, data: bytes) -> None:
        try:
            if self.phase < _LINGER:
                self._turn(self.engine.receive(data))
                if len(data) >= FULL_READ_BYTES and self.phase < _LINGER:
                    reads = READS_PER_TURN if self.engine.is_chunked else 1
                    if self._read_turns.take(reads, self._next_turn) and not self._paused:
                        self._read(False)
            elif self.phase == _LINGER:
                self._lingered += len(data)
                if self._lingered > LINGER_BYTES:
                    self.close()
            elif self.phase == _NEW:
                self._begin(data)
        except Exception as error:  # an exception here would close the connection without an answer
            self._server.services.report("client connection", error)
            self.abort()

    def _begin(self, data: bytes) -> None:
        """The first bytes: a connection of HTTP/2 has a preface, of which perhaps not all is there yet."""
        data = self._first + data
        if not data.startswith(PREFACE[: len(data)]):
            self.phase = _IDLE
            self._turn(self.engine.receive(data))
        elif len(data) < len(PREFACE):
            if not self._first:
                self.deadline = monotonic() + self._server.limits.head_timeout_s
            self._first = data
        else:
            self.phase = _CLOSED
            self._server.speaks_h2(self).data_received(data)

    def eof_received(self) -> None:
        self._server.outbox.flush()
        self._gone()

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch.end()
        self._gone()
        self.phase = _CLOSED
        self._server.closed(self)

    def pause_writing(self) -> None:
        self._full = True
        if self.exchange is not None:
            self.exchange.pause_upstream()

    def resume_writing(self) -> None:
        self._full = False
        self._small_writes.forget(self.transport)
        if self.exchange is not None:
            self.exchange.resume_upstream()
        elif self._stalled:
            self._stalled = False
            if self.phase != _IDLE or self.transport.is_closing():
                return  # It was too late, or has gone: its further requests are not served.
            self.deadline = self._server.services.now + self._server.idle_timeout_s
            if self.engine.keep_alive:
                self._turn(self.engine.next())
            else:
                self._linger()  # It sent more meanwhile than is kept: what follows is no beginning of a request.

    # --- requests ---------------------------------------------------------------------------------------------------

    def _turn(self, event: Event | None) -> None:
        """Handles ``event`` and what the engine holds behind it. Never recurses: an exchange that ends inside
        ``start`` returns to this loop."""
        while type(event) is RequestHead:
            engine = self.engine
            server = self._server
            now = monotonic()
            self.phase = _EXCHANGE
            self.exchange = exchange = HttpExchange(
                self, server.app, event, engine.body, engine.body_complete, engine.trailers,
                now, now + server.response_timeout_s,
            )  # fmt: skip
            self._turning = True
            server.app.start(exchange)
            self._turning = False
            if exchange._state < SENT:
                exchange.charge_budget(server.budget)
            if self.phase != _IDLE or self._stalled:
                return
            event = engine.next()
        if event is None:
            if self.phase == _IDLE and self.engine.pending and not self._stalled:
                self.phase = _HEAD
                self.deadline = monotonic() + self._server.limits.head_timeout_s
        elif type(event) is Data:
            if self.exchange is not None:
                self.exchange.client_data(event, self._server.services.now)
        elif type(event) is Rejected:
            self._refuse(event)

    def _next_turn(self) -> None:
        if not self._paused and self.phase < _TUNNEL:
            self._read(True)

    def _refuse(self, bad: Rejected) -> None:
        """Answers what the engine refused, if no answer has begun, and closes."""
        exchange = self.exchange
        if exchange is not None:
            clean = exchange.refuse(bad.status)
            self.exchange = None
            if not clean:
                self.truncate()
                return
        self._write(self.engine.refuse(bad, b"date: %b\r\n" % self._server.services.date))
        self._linger()

    def _gone(self) -> None:
        """The client ended the connection, in whatever way."""
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.client_gone()
            self.phase = _CLOSED
            self.transport.abort()

    def _write(self, data: Piece) -> None:
        """Writes unless the transport has met an error: it refuses writes then, before ``connection_lost`` is
        called."""
        self._server.outbox.flush()
        transport = self.transport
        if not transport.is_closing():
            if len(data) < SMALL_BYTES and not self._full:
                self._small_writes.note(transport)
            transport.write(data)

    def _read(self, on: bool) -> None:
        transport = self.transport
        if not transport.is_closing():
            if on:
                transport.resume_reading()
            else:
                transport.pause_reading()

    # --- ClientSide -------------------------------------------------------------------------------------------------

    @property
    def budget(self) -> BodyBudget:
        return self._server.budget

    def carry(self, exchange: Exchange) -> None:
        self.exchange = as_http(exchange)

    def date(self) -> bytes:
        return self._server.services.date

    def answer(self, answer: Answer) -> None:
        status, reason, block, extra, length, body, done, trailers = answer
        engine = self.engine
        transport = self.transport
        if self._server.draining:
            engine.keep_alive = False
        head = engine.respond(status, reason, block, extra, length)
        if engine.coding != LENGTH:
            framed = engine.data(body)
            body = framed + engine.end(trailers) if done else framed
        if transport.is_closing():
            return
        outbox = self._server.outbox
        if done and not self._turning and len(body) < _JOIN_BYTES:
            outbox.write(transport, b"".join((head, body)))
            return
        # More follows, or the client's next request is waiting to be looked at: `_full` must be true at once.
        outbox.flush()
        transport.write(b"".join((head, body)))
        if self._full and not done and self.exchange is not None:
            self.exchange.pause_upstream()  # Answers before this one have filled the buffer: nothing was paused yet.

    def more(self, data: Piece, done: bool, trailers: bytes, framed: bytes = b"") -> None:
        engine = self.engine
        coding = engine.coding
        if framed and coding == CHUNKED:
            data = framed
        elif coding != LENGTH:
            framed = engine.data(data)
            data = framed + engine.end(trailers) if done else framed
        if data:
            self._write(data)

    def sink(self) -> int | None:
        return sink_of(self.transport) if self.engine.coding == LENGTH else None

    def last(self) -> None:
        self.engine.keep_alive = False

    def interim(self, status: int, reason: bytes, block: bytes) -> None:
        self._write(b"HTTP/1.1 %d %b%b\r\n" % (status, reason, block))

    def ended(self) -> None:
        engine = self.engine
        self.exchange = None
        if self._paused:
            self._paused = 0
            self._read(True)
        if engine.keep_alive:
            server = self._server
            self.phase = _IDLE
            self.deadline = server.services.now + server.idle_timeout_s
            if self._full:
                # The client asks for more than it reads: its next request waits until the answer has gone out.
                self._stalled = True
                self.deadline = server.services.now + server.limits.stream_idle_timeout_s
            elif not self._turning and engine.rest():
                self._turn(engine.next())
        elif engine.state == WAIT and not engine.pending:
            self.close()
        else:
            self._linger()

    def truncate(self) -> None:
        """Aborts, so that the missing end is visible."""
        if self.engine.coding == UNTIL_CLOSE:
            sock = self.transport.get_extra_info("socket")
            if sock is not None:
                sockets.reset_on_close(sock)
        self.abort()

    def pause(self, why: int) -> None:
        if not self._paused and self.phase == _EXCHANGE:
            self._read(False)
            self._watch.begin(self.transport, self._vanished)
        self._paused |= why

    def resume(self, why: int) -> None:
        if self._paused:
            self._paused &= ~why
            if not self._paused and self.phase == _EXCHANGE:
                self._read(True)
                if self.exchange is not None:
                    self.exchange.resumed(self._server.services.now)

    def switch(self, head: bytes, protocol: asyncio.Protocol) -> None:
        self.exchange = None
        self.phase = _CLOSED
        self._watch.end()
        transport = self.transport
        self._write(head)
        self._server.closed(self)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        rest = self.engine.leftover()
        if self.engine.state == CLOSED:
            transport.abort()  # More than is held came before: what follows has a hole.
        elif rest:
            protocol.data_received(rest)

    def tunnel(self, head: bytes, upstream: UpstreamConn) -> None:
        exchange = self.exchange
        if exchange is None:
            raise RuntimeError("a tunnel without an exchange")
        if self.engine.state == CLOSED:
            upstream.discard()
            self._refuse(Rejected(413, "more than is held came before the upgrade: what follows has a hole"))
            return
        self.phase = _TUNNEL
        self._watch.end()
        self._write(head)
        self._small_writes.forget(self.transport)
        limit_s = self._server.limits.tunnel_idle_timeout_s
        rest = self.engine.leftover()
        ended = self._server.tunnel_ended
        tunnel = join(exchange, self.transport, upstream, rest, limit_s, ended, is_client_full=self._full)
        self.exchange = None  # no circle is left to the collector
        self._server.tunnels.add(tunnel)
        self._server.closed(self)

    # --- the end ----------------------------------------------------------------------------------------------------

    def _linger(self) -> None:
        self._server.outbox.flush()
        self.phase = _LINGER
        self._stalled = False
        self._lingered = 0
        self.deadline = monotonic() + LINGER_S
        if self._paused:
            self._paused = 0
            self._read(True)
        if not self.transport.is_closing() and self.transport.can_write_eof():
            self.transport.write_eof()

    def close_if_idle(self, now: float) -> None:
        """While draining: closes between two requests, unless the next one has already reached our socket.

        A client that has just connected has its first request on the way, and does not try that one again; one that
        has sent a part of HTTP/2's preface is not idle. One that reads slowly may have sent requests that are held.
        """
        if (self.phase == _IDLE and not self._stalled) or (self.phase == _NEW and not self._first):
            since = self.deadline - (self._server.new_timeout_s if self.phase == _NEW else self._server.idle_timeout_s)
            if now - since < (FIRST_REQUEST_S if self.engine.head is None else QUIET_S):
                return
            sock = self.transport.get_extra_info("socket")
            if sock is None or not sockets.is_readable(sock):
                self.close()

    def close(self) -> None:
        """Closes after what was written has gone out; a client that does not read it is cut off when a stream's idle
        time is over, one that has read all but says no farewell (TLS) soon."""
        self._server.outbox.flush()
        has_read = self.phase in (_IDLE, _NEW) and not self.transport.get_write_buffer_size()
        self.phase = _CLOSED
        self.deadline = monotonic() + (FAREWELL_S if has_read else self._server.limits.stream_idle_timeout_s)
        self.transport.close()

    def abort(self) -> None:
        """Ends the connection now."""
        self._server.outbox.flush()
        self._gone()
        self.phase = _CLOSED
        self.transport.abort()

    # --- ticker -----------------------------------------------------------------------------------------------------

    def sweep(self, now: float) -> None:
        """Acts on the limit of the present phase, if it has passed."""
        exchange = self.exchange
        if exchange is not None:
            if self._paused and peer_is_gone(self.transport):
                self.abort()
            elif exchange.sweep(now, self._server.limits, is_paused=self._paused > 0):
                self._refuse(Rejected(408, self._server.limits.slow_body))
        elif now < self.deadline:
            return
        elif self.phase == _HEAD or (self.phase == _NEW and self._first):
            self._refuse(Rejected(408, "the head took too long"))
        elif self.phase in (_IDLE, _NEW, _LINGER):
            self.close()
        elif self.phase == _CLOSED:
            self.transport.abort()

    def _vanished(self) -> None:
        """The client has gone. While it is read from, its end is found behind its last bytes."""
        if self._paused and self.exchange is not None:
            self.abort()

    def __repr__(self) -> str:
        phase = ("IDLE", "HEAD", "EXCHANGE", "LINGER", "TUNNEL", "CLOSED", "NEW")[self.phase]
        return f"<ServerConn {self.peer.decode()} {phase} {self.engine!r}>"
