"""One HTTP/2 connection of a client: its streams, its limits, its end.

Each stream is a gRPC call (``grpc_call.py``), or any other request, which goes on as HTTP/1.1 (``http2_stream.py``).
Both have the methods of :class:`StreamOwner`. A connection lives as long as it has streams, and the idle time beyond.
"""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol

from tidegate.aio.loop.absence import PeerWatch, peer_is_gone
from tidegate.aio.loop.read_turns import FULL_READ_BYTES, READS_PER_TURN, ReadTurns
from tidegate.aio.loop.writes import WRITE_BUFFER_BYTES
from tidegate.aio.proxy.contract import ListeningSide
from tidegate.aio.proxy.exchange import SENT as FORWARDED
from tidegate.aio.proxy.exchange import BodyBudget
from tidegate.aio.proxy.forwarding import Forwarding
from tidegate.aio.proxy.grpc_call import GrpcCall
from tidegate.aio.proxy.http2_stream import RestStream
from tidegate.wire.http1.request_head import RequestHead
from tidegate.wire.http2.block_memory import Block
from tidegate.wire.http2.events import BODY, FAILED, HEAD, PONG, RESET, SENT, TRAILERS, Event
from tidegate.wire.http2.frames import CANCEL, NO_ERROR, PROTOCOL_ERROR
from tidegate.wire.http2.heads import CallHead, call_head
from tidegate.wire.http2.roles import H2Server
from tidegate.wire.http2.streams import Stream

if TYPE_CHECKING:
    from tidegate.aio.proxy.limits import Limits

UNREAD_BYTES: Final = 4 * WRITE_BUFFER_BYTES
"""A client that leaves so much of its answers (heads and what keeps the connection) unread is not read from, either."""
GOODBYE_S: Final = 1.0
"""While draining: the time for a client to answer our PING, which proves that it has received the GOAWAY before it."""
_LAST_PING: Final = b"tidegate"
_SERVING, _LEAVING, _CLOSED = range(3)


class StreamOwner(Protocol):
    """The owner of a client's stream: a ``GrpcCall`` or a ``RestStream``."""

    def client_data(self, data: bytes, ends: bool) -> None:
        """A further piece of the request's body."""

    def client_trailers(self, block: Block) -> None:
        """The request has ended with these."""

    def passed(self, size: int) -> None:
        """``size`` waiting bytes of the answer have gone out."""

    def client_gone(self) -> None:
        """The client has cancelled it."""

    def refuse(self, status: int) -> object:
        """Its stream was reset for a fault of the client."""

    def sweep(self, now: float, limits: "Limits") -> None:
        """Acts on what is due."""


class H2Conn(asyncio.Protocol):
    """A transport, an engine, its streams."""

    __slots__ = (
        "_head_due_since",
        "_idle_since",
        "_is_touched",
        "_is_unread",
        "_phase",
        "_read_turns",
        "_server",
        "_watch",
        "at_read_end",
        "deadline",
        "engine",
        "forwarding",
        "is_gateway_peer",
        "own_fields",
        "peer",
        "transport",
        "trusted",
    )

    def __init__(self, server: ListeningSide, transport: asyncio.Transport, peer: bytes, trusted: bool) -> None:
        """Takes over ``transport``, whose first bytes are still to come to :meth:`data_received`."""
        self._server = server
        self.transport = transport
        self.peer = peer
        self.trusted = trusted
        self.engine = H2Server(server.blocks_for(trusted), server.services.windows)
        if trusted and server.limits.front_door:
            self.engine.trust_peer()  # a load balancer that the operator names: it stands for many clients
        self.forwarding = Forwarding(peer, server.scheme, server.limits.via, server.random, version=b"2.0")
        self.own_fields: Callable[[CallHead], bytes] = self.forwarding.fields
        """Returns the fields that are added to every call. The bound method itself, not one more call."""
        self._phase = _SERVING
        self._is_touched = self._is_unread = False
        self._read_turns = ReadTurns()
        self.at_read_end: list[Callable[[], object]] = []
        """Called at the end of the present read."""
        self.is_gateway_peer = False
        """The client has proven that it is a gateway of the deployment."""
        self._head_due_since = 0.0
        self._idle_since = server.services.now
        self._watch = PeerWatch(server.services.absence)
        self.deadline = 0.0
        """When leaving or closing ends."""
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    # --- asyncio ----------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        try:
            now = monotonic()
            engine = self.engine
            events = engine.receive(data, now)
            at, count = 0, len(events)
            while at < count:
                event = events[at]
                kind, stream, value, ends = event
                at += 1
                if kind == HEAD:
                    pieces = []
                    while not ends and at < count and events[at][0] == BODY and events[at][1] is stream:
                        _, _, piece, ends = events[at]
                        pieces.append(piece)
                        at += 1
                    self._start(stream, value, b"".join(pieces), ends, now)
                    continue
                owner: StreamOwner | None = stream.owner
                if owner is None:
                    if kind > SENT:
                        self._heard(event)
                elif kind == BODY:
                    owner.client_data(value, ends)
                elif kind == SENT:
                    owner.passed(value)
                elif kind == RESET:
                    if ends:
                        owner.refuse(400)
                    else:
                        owner.client_gone()
                elif kind == TRAILERS:
                    owner.client_trailers(value)
            if self.at_read_end:
                callbacks, self.at_read_end = self.at_read_end, []
                for callback in callbacks:
                    callback()
            if engine._out:
                self.touch()
            if len(data) >= FULL_READ_BYTES:
                self._take_turn()
        except Exception as error:  # an exception here would close the connection without an answer
            self._server.services.report("client connection", error)
            self.abort()

    def _take_turn(self) -> None:
        """Frames may be small: so much of them is much work."""
        if self._read_turns.take(READS_PER_TURN, self._next_turn) and not self.transport.is_closing():
            self.transport.pause_reading()

    def _next_turn(self) -> None:
        if not self._is_unread and not self.transport.is_closing():
            self.transport.resume_reading()

    def _start(self, stream: Stream, block: Block, body: bytes, ends: bool, now: float) -> None:
        """A request, with what of its body came at once."""
        server = self._server
        head = block.memo
        if head is None or head.is_changed:
            if block.is_call:
                head = call_head(block, front_door=server.limits.front_door, trusted=self.trusted)
            else:
                head = block.memo = _OTHER
        if head is _OTHER:
            RestStream(self, server, stream).start(block, body, ends, now)
            return
        deadline = now + server.response_timeout_s
        stream.owner = call = GrpcCall(self, server.app, stream, head, body, ends, now, deadline)
        server.app.start(call)
        if call._state < FORWARDED:
            call.charge_budget(server.budget)

    def _heard(self, event: Event) -> None:
        """Handles an event that concerns no stream."""
        kind, _, value, _ = event
        if kind == PONG:
            if value == _LAST_PING and self._phase == _LEAVING and not self.engine.is_closing:
                self._say_goodbye()
        elif kind == FAILED:
            self._drop_streams()
            self.close()

    def eof_received(self) -> None:
        self._drop_streams()

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch.end()
        self._drop_streams()
        self._phase = _CLOSED
        self._server.closed(self)

    def pause_writing(self) -> None:
        self.engine.pause()

    def resume_writing(self) -> None:
        for _, stream, size, _ in self.engine.resume():
            if stream.owner is not None:
                stream.owner.passed(size)
        if self._is_unread:
            self._is_unread = False
            self._watch.end()
            if not self._read_turns.is_over and not self.transport.is_closing():
                self.transport.resume_reading()
        self.touch()

    # --- for streams ------------------------------------------------------------------------------------------------

    def mark_as_gateway(self) -> None:
        """A call has proven that the client is a gateway of the deployment."""
        if not self.is_gateway_peer:
            self.is_gateway_peer = True
            self.engine.trust_peer()

    def forwarding_lines(self, head: RequestHead) -> bytes:
        return self.forwarding.lines(head)

    def date(self) -> bytes:
        return self._server.services.date

    @property
    def budget(self) -> BodyBudget:
        """Where a body counts while its call waits."""
        return self._server.budget

    def touch(self) -> None:
        """Something is to be sent."""
        if not self._is_touched:
            self._is_touched = True
            self._server.services.flush_queue.touch(self)

    def flush(self) -> None:
        self._is_touched = False
        transport = self.transport
        engine = self.engine
        data = engine.take()
        if data and not transport.is_closing():
            transport.write(data)
            if engine.is_full and not self._is_unread and transport.get_write_buffer_size() > UNREAD_BYTES:
                self._is_unread = True
                transport.pause_reading()
                self._watch.begin(transport, self._vanished)
        if engine.is_closing and not engine.streams and self._phase == _LEAVING:
            self.close()

    # --- the end ----------------------------------------------------------------------------------------------------

    def _drop_streams(self) -> None:
        """The client is not there any more: its work goes with it."""
        for stream in list(self.engine.streams.values()):
            owner: StreamOwner | None = stream.owner
            if owner is not None:
                owner.client_gone()
        self.engine.end()

    def close_if_idle(self, now: float) -> None:
        """While draining: sends GOAWAY without a last stream, then one with it; streams that exist go on."""
        if self._phase == _SERVING:
            self._phase = _LEAVING
            self.deadline = now + GOODBYE_S
            self.engine.prepare_goaway()
            self.engine.ping(_LAST_PING)
            self.touch()
        elif self._phase == _LEAVING and now >= self.deadline and not self.engine.is_closing:
            self._say_goodbye()

    def _say_goodbye(self) -> None:
        self.engine.goaway(NO_ERROR)
        self.touch()

    def close(self) -> None:
        """Closes after what was written has gone out."""
        self.engine.is_closing = True
        self.engine.is_over = True
        data = self.engine.take()
        if data and not self.transport.is_closing():
            self.transport.write(data)
        self._phase = _CLOSED
        self.deadline = monotonic() + self._server.limits.stream_idle_timeout_s
        self.transport.close()

    def abort(self) -> None:
        """Ends the connection now."""
        self._drop_streams()
        self._phase = _CLOSED
        self.engine.is_over = True
        self.transport.abort()

    # --- ticker -----------------------------------------------------------------------------------------------------

    def sweep(self, now: float) -> None:
        """Acts on what is due, of the connection and of its streams."""
        if self._phase == _CLOSED:
            if now >= self.deadline:
                self.transport.abort()
            return
        engine, limits = self.engine, self._server.limits
        if self._is_unread and peer_is_gone(self.transport):
            self.abort()
            return
        if not engine.is_head_due:
            self._head_due_since = 0.0
        elif not self._head_due_since:
            self._head_due_since = now
        elif now - self._head_due_since > limits.head_timeout_s:
            self._give_up(PROTOCOL_ERROR, b"what was begun took too long")
            return
        if not engine.streams:
            if now - self._idle_since > self._server.idle_timeout_s:
                self._give_up(NO_ERROR, b"idle")
            return
        self._idle_since = now
        for stream in list(engine.streams.values()):
            if stream.owner is not None:
                stream.owner.sweep(now, limits)
        # The rest of an answer has as long as HTTP/1 gives to an idle connection and then to its end.
        rest_s = self._server.idle_timeout_s + limits.stream_idle_timeout_s
        for stream in engine.stalled(now, limits.stream_idle_timeout_s, rest_s):
            owner: StreamOwner | None = stream.owner
            engine.reset(stream, CANCEL)
            self.touch()
            if owner is not None:
                owner.client_gone()
        for stream in engine.lingering(now, limits.body_idle_timeout_s):
            engine.reset(stream, NO_ERROR)
            self.touch()

    def _vanished(self) -> None:
        """The client has gone while it was not read from."""
        if self._is_unread:
            self.abort()

    def _give_up(self, code: int, why: bytes) -> None:
        self.engine.goaway(code, why)
        self._drop_streams()
        self.close()

    def __repr__(self) -> str:
        phase = ("SERVING", "LEAVING", "CLOSED")[self._phase]
        return f"<H2Conn {self.peer.decode()} {phase} {self.engine!r}>"


class _Other:
    """Remembered of a block that is no call's."""

    __slots__ = ()
    is_changed = False


_OTHER: Final = _Other()
