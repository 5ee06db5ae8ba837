"""One HTTP/1.1 connection to a model server or queue_proxy, and an exchange as the connection sees it."""

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from tidegate.aio.loop.read_turns import FULL_READ_BYTES, READS_PER_TURN, ReadTurns
from tidegate.aio.loop.services import LoopServices
from tidegate.aio.loop.sockets import has_unsent, is_readable, reset_on_close
from tidegate.aio.loop.splice import GLIMPSED_BYTES, LEAST_BYTES, MOST_BYTES, Glimpse
from tidegate.aio.loop.writes import SMALL_BYTES, WRITE_BUFFER_BYTES, Outbox, SmallWrites
from tidegate.wire.http1.client import CHUNKED, LENGTH, Event, H1Client
from tidegate.wire.http1.events import Data, Piece
from tidegate.wire.http1.fields import Rejected
from tidegate.wire.http1.request_head import RequestHead
from tidegate.wire.http1.response_cache import ResponseHeads
from tidegate.wire.http1.response_head import ResponseHead

MAX_INTERIMS = 32
"""Interim answers (1xx) before one answer; an upstream that sends more is faulty."""
TOO_MANY_INTERIMS = f"the upstream sent more than {MAX_INTERIMS} interim answers (1xx)"


class Forwarded(Protocol):
    """An exchange as the connection that carries it sees it (``HttpExchange`` describes the methods)."""

    head: RequestHead
    attempts: int

    def connected(self, upstream: "UpstreamConn", attempt: int) -> bool: ...
    def connect_failed(self, attempt: int, why: str) -> None: ...
    def interim(self, head: ResponseHead) -> None: ...
    def response(self, head: ResponseHead, body: Piece, complete: bool, trailers: bytes) -> None: ...
    def response_data(self, event: Data, now: float) -> None: ...
    def sink(self) -> int | None: ...
    def response_passed(self, size: int, done: bool, now: float) -> None: ...
    def tunnelled(self, head: ResponseHead, upstream: "UpstreamConn") -> None: ...
    def upstream_slow(self, slow: bool) -> None: ...
    def upstream_lost(self, why: str) -> None: ...


class ConnectionOwner(Protocol):
    """A pool as its connections see it (``UpstreamPool``)."""

    address: str
    services: LoopServices
    outbox: Outbox
    heads: ResponseHeads
    hold_s: float
    is_closed: bool
    idle: "list[UpstreamConn]"
    held: "set[UpstreamConn]"

    def closed(self, upstream: "UpstreamConn") -> None:
        """The connection is gone, or its transport has another protocol now."""

    def report(self, name: str, error: BaseException) -> None:
        """Reports an error that no caller can get."""


class UpstreamConn(asyncio.Protocol):
    """One connection to a model server or queue_proxy; carries one exchange at a time."""

    __slots__ = (
        "_interims",
        "_is_glimpsed",
        "_read_turns",
        "_small_writes",
        "dead",
        "engine",
        "exchange",
        "full",
        "held_until",
        "idle_since",
        "is_paused",
        "on_end",
        "pool",
        "request_complete",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, pool: ConnectionOwner) -> None:
        self.pool = pool
        self.engine = H1Client(pool.heads)
        self.exchange: Forwarded | None = None
        self.idle_since = 0.0
        self.request_complete = False
        """Whether all of the present request was written."""
        self.dead = False
        self._interims = 0
        """Interim answers (1xx) of the present answer."""
        self._read_turns = ReadTurns()
        self._is_glimpsed = False
        """The last answer was long and could be spliced: a ``Glimpse`` reads."""
        self.is_paused = False
        """It is not read from, because the client is slow."""
        self.full = False
        """Much of what was written has not gone out yet."""
        self._small_writes = SmallWrites()
        self.on_end: Callable[[], None] | None = None
        """Set while the connection is held without an exchange: called when the upstream has ended its work."""
        self.held_until = 0.0

    # --- asyncio ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        try:
            engine = self.engine
            event = engine.receive(data)
            exchange = self.exchange
            if type(event) is Data and exchange is not None:
                exchange.response_data(event, self.pool.services.now)
                if engine.state == LENGTH and engine.left >= LEAST_BYTES:
                    self._splice(exchange)
                if len(data) >= FULL_READ_BYTES:
                    self._take_turns(1)
            elif type(event) is ResponseHead and event.status >= 200 and exchange is not None:
                exchange.response(event, engine.body, engine.complete, engine.trailers)
                if engine.state == LENGTH and engine.left >= LEAST_BYTES:
                    self._splice(exchange)
                elif self._is_glimpsed:
                    self._glimpse(False)
            elif event is not None:
                self._heard(event)
        except Exception as error:  # an exception here would close the connection without an answer
            self.pool.report("upstream connection", error)
            self._lost("internal error")

    def _splice(self, exchange: Forwarded) -> None:
        """Passes on what else has come of a long body, where the client's socket takes it as it is.

        Whether anything stands behind the last byte is asked of the socket: after a read it would be seen.
        """
        engine, splicer = self.engine, self.pool.services.splicer
        if self.exchange is not exchange or self.is_paused or not splicer.is_usable:
            return
        sink = exchange.sink()
        glimpse = sink is not None and (self._is_glimpsed or engine.left >= GLIMPSED_BYTES)
        if glimpse != self._is_glimpsed:
            self._glimpse(glimpse)
        if sink is None:
            return
        now = self.pool.services.now
        sock = self.transport.get_extra_info("socket")
        passed, rest = splicer.move(sock.fileno(), sink, min(engine.left, MOST_BYTES))
        if passed:
            done = engine.passed(passed, surplus=passed == engine.left and is_readable(sock))
            exchange.response_passed(passed, done, now)
        if rest:
            event = engine.receive(rest)
            if type(event) is Data:
                exchange.response_data(event, now)
        if self.exchange is exchange and passed:
            self._take_turns(READS_PER_TURN if passed == MOST_BYTES else 1)

    def _glimpse(self, on: bool) -> None:
        """From now on reads little at once, or as much as the loop likes to."""
        if not self.transport.is_closing():
            self._is_glimpsed = on
            self.transport.set_protocol(Glimpse(self, self.pool.services.splicer.buffer) if on else self)

    def _take_turns(self, reads: int) -> None:
        """An upstream that sends as fast as we read: after some reads the others have their turn."""
        is_over = self._read_turns.take(READS_PER_TURN if self.engine.state == CHUNKED else reads, self._next_turn)
        if is_over and not self.dead and not self.transport.is_closing():
            self.transport.pause_reading()

    def _next_turn(self) -> None:
        if not self.is_paused:
            self.resume_reading()

    def _heard(self, event: Event | None) -> None:
        """Handles events other than the usual pieces of an answer: interim heads and what follows them, 101, faults."""
        engine = self.engine
        while event is not None:
            exchange = self.exchange
            if exchange is None:
                if self.on_end is None:
                    self.close()
                elif type(event) is ResponseHead and event.status < 200 and event.status != 101:
                    event = self._interim(None, event)
                    continue
                elif type(event) is not ResponseHead and type(event) is not Data:
                    self._lost(event.why)
                elif engine.complete:
                    self._let_go()
                return
            if type(event) is ResponseHead:
                if event.status >= 200:
                    exchange.response(event, engine.body, engine.complete, engine.trailers)
                elif event.status == 101:
                    self._switch(exchange, event)
                else:
                    event = self._interim(exchange, event)
                    continue
            elif type(event) is Data:
                exchange.response_data(event, self.pool.services.now)
            else:
                self._lost(event.why)
            return

    def _interim(self, exchange: Forwarded | None, head: ResponseHead) -> Event | None:
        """Passes an interim answer on and returns the event behind it. Too many of them are a fault of the upstream:
        one that sends them for ever would keep this process and the client busy for as long."""
        self._interims += 1
        if self._interims > MAX_INTERIMS:
            return Rejected(502, TOO_MANY_INTERIMS)
        if exchange is not None:
            exchange.interim(head)
        return self.engine.next()

    def _switch(self, exchange: Forwarded, head: ResponseHead) -> None:
        if exchange.head.upgrade is None or head.upgrade != exchange.head.upgrade:
            self._lost("the upstream switched protocols without being asked")
        else:
            exchange.tunnelled(head, self)

    def eof_received(self) -> None:
        event = self.engine.eof()
        exchange = self.exchange
        if exchange is not None:
            if type(event) is Data:
                exchange.response_data(event, self.pool.services.now)
            else:
                self._lost("the upstream closed the connection")
        self.dead = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.dead = True
        self.pool.closed(self)
        self._lost(str(exc) if exc is not None else "the upstream closed the connection")

    def pause_writing(self) -> None:
        self.full = True
        if self.exchange is not None:
            self.exchange.upstream_slow(True)

    def resume_writing(self) -> None:
        self.full = False
        self._small_writes.forget(self.transport)
        if self.exchange is not None:
            self.exchange.upstream_slow(False)

    # --- for exchanges ----------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Writes unless the transport has met an error: it refuses writes then, before ``connection_lost`` is
        called."""
        transport = self.transport
        if not transport.is_closing():
            if len(data) < SMALL_BYTES and not self.full:
                self._small_writes.note(transport)
            transport.write(data)

    def release(self) -> None:
        """The answer has ended, or is not wanted: back to the idle list if another request may follow."""
        self.exchange = None
        self._interims = 0
        engine = self.engine
        pool = self.pool
        if (
            engine.complete
            and engine.reusable
            and self.request_complete
            and not (self.dead or self.full or pool.is_closed)
        ):
            if self.is_paused:
                self.resume_reading()
            self.idle_since = pool.services.now
            pool.idle.append(self)
        else:
            self.discard()

    def hold(self, now: float) -> None:
        """Keeps the connection of an unwanted answer until the upstream has ended its work.

        The answer is read and dropped. ``on_end`` is called at the end, at the latest when the pool's ``hold_s`` is
        over and the connection is aborted.
        """
        self.exchange = None
        self.on_end = _ignore_end
        self.held_until = now + self.pool.hold_s
        self.pool.held.add(self)
        self.resume_reading()

    def _let_go(self) -> None:
        """A held answer has ended."""
        on_end, self.on_end = self.on_end, None
        self.pool.held.discard(self)
        self.release()
        if on_end is not None:
            on_end()

    def discard(self) -> None:
        """Aborts the connection: whatever runs behind it is not wanted any more.

        Where the upstream does not read, the connection is reset, so that it notices this at once.
        """
        self.exchange = None
        self.dead = True
        sock = self.transport.get_extra_info("socket")
        if sock is not None and has_unsent(sock):
            reset_on_close(sock)
        self.transport.abort()

    def give_away(self) -> None:
        """The transport gets another protocol."""
        self._small_writes.forget(self.transport)
        self.exchange = None
        self.dead = True
        self.pool.closed(self)

    def close(self) -> None:
        """Closes an idle connection."""
        self.dead = True
        self.transport.close()

    def pause_reading(self) -> None:
        if not self.dead and not self.transport.is_closing():
            self.is_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if not self.dead and not self.transport.is_closing():
            self.is_paused = False
            self.transport.resume_reading()

    def _lost(self, why: str) -> None:
        self.dead = True
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            self.transport.abort()
            exchange.upstream_lost(why)
        elif self.on_end is not None:
            on_end, self.on_end = self.on_end, None
            self.pool.held.discard(self)
            self.transport.abort()
            on_end()

    def __repr__(self) -> str:
        return f"<UpstreamConn {self.pool.address} {self.engine!r}{' dead' if self.dead else ''}>"


def _ignore_end() -> None:
    """Does nothing: no code waits for the end."""
