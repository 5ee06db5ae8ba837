"""HTTP/2 connections to one upstream address, cleartext with prior knowledge: many calls on one or two of them.

Fewer connections batch better, so a second one is opened only when the first is saturated (it holds much that the
upstream does not read), and further ones only when all are at their stream limits.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol, cast

from tidegate.aio.loop.services import LoopServices
from tidegate.aio.loop.sockets import UNIX, host_port, is_unix
from tidegate.aio.loop.tasks import TaskOwner
from tidegate.wire.http2.block_memory import RESPONSE, Block, Blocks
from tidegate.wire.http2.events import BODY, CLOSING, FAILED, HEAD, RESET, SENT, SETTINGS, TRAILERS, Event
from tidegate.wire.http2.frames import CANCEL
from tidegate.wire.http2.heads import drops_internal
from tidegate.wire.http2.roles import H2Client
from tidegate.wire.http2.streams import Stream

WRITE_BUFFER_BYTES: Final = 256 * 1024
"""Beyond it body bytes wait in the engine, and their clients get no credit."""
CONNECTIONS: Final = 2
"""To one upstream, as long as their stream limits suffice."""
MOST_CONNECTIONS: Final = 32
STUCK: Final = 4
"""A connection that had no credit for so many sweeps (a second) gets no more calls: an upstream that takes the bodies
of some calls no further may hold up all that share a connection with them."""
IDLE_S: Final = 60.0
"""A connection without calls is closed then. A request and GOAWAY that cross cost nothing: it is sent again."""
NO_HTTP2: Final = "the upstream speaks no HTTP/2 on this port"


class AnswerReader(Protocol):
    """The owner of an upstream's stream, as its connection sees it: a ``GrpcCall``, or a :class:`Held`."""

    def interim(self, block: Block) -> None: ...
    def answer_head(self, block: Block, ends: bool) -> None: ...
    def answer_data(self, data: bytes, ends: bool) -> None: ...
    def answer_trailers(self, block: Block) -> None: ...
    def sent(self, size: int) -> None: ...
    def upstream_reset(self, code: int, ours: bool) -> None: ...
    def upstream_lost(self, why: str) -> None: ...


class ForwardedCall(Protocol):
    """A gRPC call that waits for a connection (``GrpcCall`` describes the methods)."""

    attempts: int

    @property
    def is_ended(self) -> bool: ...
    def connected(self, upstream: "H2Upstream", attempt: int) -> None: ...
    def connect_failed(self, attempt: int, why: str) -> None: ...
    def not_understood(self, attempt: int, why: str) -> None: ...


class H2Upstream(asyncio.Protocol):
    """One connection."""

    __slots__ = ("_is_touched", "engine", "idle_since", "is_lost", "is_ready", "pool", "transport", "without_credit")

    transport: asyncio.Transport

    def __init__(self, pool: "H2Pool") -> None:
        self.pool = pool
        self.engine = H2Client(pool.blocks, pool.services.windows)
        self.is_ready = False
        """The upstream has sent its settings."""
        self.without_credit = 0
        """Sweeps in a row that found no credit for any stream."""
        self.is_lost = False
        self.idle_since = pool.services.now
        self._is_touched = False

    # --- asyncio ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        try:
            engine = self.engine
            for event in engine.receive(data, monotonic()):
                kind, stream, value, ends = event
                call: AnswerReader | None = stream.owner
                if call is None:
                    self._heard(event)
                elif kind == HEAD:
                    if value.status >= 200:
                        call.answer_head(value, ends)
                    else:
                        call.interim(value)
                elif kind == BODY:
                    call.answer_data(value, ends)
                elif kind == TRAILERS:
                    call.answer_trailers(value)
                elif kind == SENT:
                    call.sent(value)
                elif kind == RESET:
                    call.upstream_reset(value, ends)
            if engine._out:
                self.touch()
        except Exception as error:  # an exception here would close the connection without an answer
            self.pool.services.report("upstream connection", error)
            self.lose("internal error")

    def _heard(self, event: Event) -> None:
        """Handles an event that concerns no call."""
        kind, _, value, _ = event
        if kind == SETTINGS:
            self.is_ready = True
            self.pool.settled(self)
        elif kind == CLOSING:
            self.pool.leave(self)
            if not self.engine.streams:
                self.close()
        elif kind == FAILED:
            if not self.is_ready:
                # It began with something else than SETTINGS: an answer of HTTP/1.1, a page without a head.
                self.pool.refused()
                self.lose(NO_HTTP2)
                return
            self.flush()
            self.lose(f"the upstream broke the rules of HTTP/2 (error {value})")

    def eof_received(self) -> None:
        self.lose("the upstream closed the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lose(str(exc) if exc is not None else "the upstream closed the connection")

    def pause_writing(self) -> None:
        self.engine.pause()

    def resume_writing(self) -> None:
        for _, stream, size, _ in self.engine.resume():
            if stream.owner is not None:
                stream.owner.sent(size)
        self.touch()

    # --- for calls --------------------------------------------------------------------------------------------------

    def has_room(self) -> bool:
        """Whether a call may be sent here now."""
        return self.is_ready and not self.is_lost and self.without_credit < STUCK and self.engine.has_room()

    def touch(self) -> None:
        """Something is to be sent."""
        if not self._is_touched:
            self._is_touched = True
            self.pool.services.flush_queue.touch(self)

    def flush(self) -> None:
        self._is_touched = False
        data = self.engine.take()
        if data and not self.transport.is_closing():
            self.transport.write(data)

    def ended(self, stream: Stream) -> None:
        """The call of ``stream`` has ended: there is room for another, or none is left."""
        stream.owner = None
        engine, pool = self.engine, self.pool
        if self.is_lost:
            return
        if pool.waiting:
            pool.settled(self)
        if not engine.streams:
            self.idle_since = pool.services.now
            if engine.is_closing or (pool.is_closed and not pool.waiting):
                self.close()

    def part_from(self, stream: Stream, is_whole: bool) -> "Held | None":
        """Parts from a call whose answer is not wanted. A call whose request ``is_whole`` is held until the upstream
        has ended its work, if the pool holds such calls; any other is reset."""
        if self.pool.hold_s and is_whole and self.engine.streams.get(stream.number) is stream:
            stream.owner = held = Held(self, stream)
            return held
        self.cancel(stream)
        return None

    def cancel(self, stream: Stream) -> None:
        """Ends a call from our side."""
        self.engine.reset(stream, CANCEL)
        self.touch()
        self.ended(stream)

    def close(self) -> None:
        """Closes an idle connection."""
        self.is_lost = True
        self.pool.forget(self)
        self.flush()
        self.transport.close()

    def lose(self, why: str) -> None:
        """Ends the connection, which is gone or faulty, and informs every call on it."""
        if self.is_lost:
            return
        self.is_lost = True
        owners = [stream.owner for stream in self.engine.streams.values()]
        self.engine.end()
        self.transport.abort()
        self.pool.forget(self, None if self.is_ready else why)
        for call in owners:
            if call is not None:
                call.upstream_lost(why)

    def __repr__(self) -> str:
        state = "lost" if self.is_lost else "ready" if self.is_ready else "opening"
        return f"<H2Upstream {self.pool.address} {state} {self.engine!r}>"


class Held:
    """A call without a client that still runs (``cancel: hold``). An ``AnswerReader``."""

    __slots__ = ("_stream", "_until", "_upstream", "on_end")

    def __init__(self, upstream: H2Upstream, stream: Stream) -> None:
        self._upstream = upstream
        self._stream = stream
        self._until = monotonic() + upstream.pool.hold_s
        self.on_end: Callable[[], None] | None = None

    def answer_head(self, block: Block, ends: bool) -> None:
        if ends:
            self._end()

    def interim(self, block: Block) -> None:
        """Discards it."""

    def answer_data(self, data: bytes, ends: bool) -> None:
        self._upstream.engine.passed(self._stream, len(data))
        if ends:
            self._end()

    def answer_trailers(self, block: Block) -> None:
        self._end()

    def sent(self, size: int) -> None:
        """Does nothing: its client has been given credit before, or is gone."""

    def upstream_reset(self, code: int, ours: bool) -> None:
        self._end()

    def upstream_lost(self, why: str) -> None:
        self._end()

    def sweep(self, now: float) -> None:
        """Resets the stream when its time is over."""
        if now >= self._until:
            self._upstream.engine.reset(self._stream, CANCEL)
            self._upstream.touch()
            self._end()

    def _end(self) -> None:
        on_end, self.on_end = self.on_end, None
        self._upstream.ended(self._stream)
        if on_end is not None:
            on_end()


class H2Pool:
    """Connections to ``host:port`` or ``unix:/path``. Part of an ``UpstreamPool``."""

    __slots__ = (
        "_connect_timeout_s",
        "_is_connecting",
        "_open",
        "_owner",
        "_unregister",
        "address",
        "blocks",
        "connections",
        "hold_s",
        "is_closed",
        "services",
        "waiting",
    )

    def __init__(self, address: str, services: LoopServices, connect_timeout_s: float, hold_s: float) -> None:
        self.address = address
        self.services = services
        self.hold_s = hold_s
        """Time for which an abandoned call is held for an upstream that works on; 0: it is reset at once."""
        self._connect_timeout_s = connect_timeout_s
        self.blocks = Blocks(RESPONSE, drops_internal)
        self.connections: list[H2Upstream] = []
        """Those that take calls, or will; oldest first."""
        self._open: set[H2Upstream] = set()
        """Those, and those that only finish what they have."""
        self.waiting: deque[tuple[ForwardedCall, int]] = deque()
        """Calls, with the number of their attempt, for which there is no connection or no stream yet."""
        self._is_connecting = False
        self._owner = TaskOwner(f"connect to {address}", services.report)
        self.is_closed = False
        self._unregister = services.add(self._sweep)

    def take(self) -> H2Upstream | None:
        """A connection for one more call, if there is one; see :meth:`wait`."""
        full = None
        for upstream in self.connections:
            if upstream.has_room():
                if not upstream.engine.is_full:
                    return upstream
                full = full or upstream
        if full is not None and len(self.connections) < CONNECTIONS:
            self._connect()
        return full

    def wait(self, call: ForwardedCall) -> None:
        """Sends ``call`` as soon as there is a connection with room for it, then calls its ``connected`` or
        ``connect_failed``."""
        self.waiting.append((call, call.attempts))
        if not any(not upstream.is_ready for upstream in self.connections):
            self._connect()

    def settled(self, upstream: H2Upstream) -> None:
        """``upstream`` may have room for calls that wait."""
        waiting = self.waiting
        while waiting and upstream.has_room():
            call, attempt = waiting.popleft()
            call.connected(upstream, attempt)
        self._serve_waiting()

    def _serve_waiting(self) -> None:
        """Another connection, where no present one will have room for the calls that wait."""
        if self.waiting and not any(each.has_room() or not each.is_ready for each in self.connections):
            self._connect()

    def failed(self, why: str) -> None:
        """No connection could be made: the waiting calls fail, unless other connections serve; then the next sweep
        tries again."""
        if any(upstream.is_ready for upstream in self.connections):
            return
        waiting, self.waiting = self.waiting, deque()
        for call, attempt in waiting:
            call.connect_failed(attempt, why)

    def refused(self) -> None:
        """The upstream answered our preface in another protocol: the waiting calls end with that."""
        waiting, self.waiting = self.waiting, deque()
        for call, attempt in waiting:
            call.not_understood(attempt, NO_HTTP2)

    def _connect(self) -> None:
        if not self._is_connecting and len(self._open) < MOST_CONNECTIONS:
            self._is_connecting = True
            self._owner.spawn(self._open_one(), name="connect")

    async def _open_one(self) -> None:
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                upstream = await self._open_connection()
        except TimeoutError:
            self._is_connecting = False
            self.failed(f"no connection to {self.address} within {self._connect_timeout_s} s")
            return
        except OSError as error:
            self._is_connecting = False
            self.failed(f"no connection to {self.address}: {error.strerror or error}")
            return
        self._is_connecting = False
        self.connections.append(upstream)
        self._open.add(upstream)
        # Not sooner: one whose connect is given up in the turn of its making must not be written to (uvloop).
        upstream.touch()
        if upstream.is_lost:
            self.forget(upstream, "the upstream closed a new connection")
        elif upstream.is_ready:
            self.settled(upstream)

    async def _open_connection(self) -> H2Upstream:
        loop = asyncio.get_running_loop()
        if is_unix(self.address):
            path = self.address.removeprefix(UNIX)
            _, upstream = await loop.create_unix_connection(lambda: H2Upstream(self), path)
        else:
            host, port = host_port(self.address)
            _, upstream = await loop.create_connection(lambda: H2Upstream(self), host, port)
        return upstream

    def leave(self, upstream: H2Upstream) -> None:
        """It takes no more calls; those that it has go on."""
        if upstream in self.connections:
            self.connections.remove(upstream)
        if self.waiting and not self.connections:
            self._connect()

    def forget(self, upstream: H2Upstream, why: str | None = None) -> None:
        """It is gone; ``why``: before it was of any use."""
        self._open.discard(upstream)
        if why is not None:
            if upstream in self.connections:
                self.connections.remove(upstream)
            self.failed(why)
        self.leave(upstream)

    def _sweep(self, now: float) -> None:
        for upstream in tuple(self._open):
            engine = upstream.engine
            if not upstream.is_ready:
                if now - upstream.idle_since > self._connect_timeout_s:
                    upstream.lose(f"no answer from {self.address} within {self._connect_timeout_s} s")
                continue
            upstream.without_credit = upstream.without_credit + 1 if engine.is_out_of_credit else 0
            if not engine.streams:
                if now - upstream.idle_since > IDLE_S or upstream.without_credit >= STUCK:
                    upstream.close()
            elif self.hold_s:
                for stream in list(engine.streams.values()):
                    if type(stream.owner) is Held:
                        stream.owner.sweep(now)
        if self.waiting:
            self._forget_gone()
            for upstream in tuple(self.connections):
                self.settled(upstream)
            self._serve_waiting()
        if self.is_closed and not self.waiting:
            self._close_idle()
            if not (self._open or self._is_connecting):
                self._unregister()

    def close(self) -> None:
        """Closes idle connections now and busy ones when their calls have ended. Calls that wait are served first."""
        self.is_closed = True
        self._forget_gone()
        if not self.waiting:
            self._close_idle()

    def _forget_gone(self) -> None:
        """Calls that have ended, or went elsewhere, wait no more."""
        self.waiting = deque(row for row in self.waiting if not row[0].is_ended and row[0].attempts == row[1])

    def _close_idle(self) -> None:
        for upstream in tuple(self._open):
            if not upstream.engine.streams:
                upstream.close()

    @property
    def open_connections(self) -> tuple[H2Upstream, ...]:
        """For the status page and tests."""
        return tuple(self._open)

    def __repr__(self) -> str:
        return f"<H2Pool {self.address}: {len(self._open)} open, {len(self.waiting)} wait>"
