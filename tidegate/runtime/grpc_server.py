"""gRPC over HTTP/2 at the model server's port: the shared engine, one task per call.

Messages go through the same engine as in the proxies (``tidegate.wire.http2.roles``), so nothing is to be installed and
little is loaded. This file is imported with the first HTTP/2 connection. A call's request is credited as it is read:
the bytes that a client sends ahead of a stream's method are bounded by the stream's window, one message by
``body_bytes``.
"""

import asyncio
import time
from collections import deque
from typing import Final, cast

from tidegate.aio.log_stream import say_error
from tidegate.aio.loop.tasks import TaskOwner
from tidegate.headers import TimeoutFieldError, read_timeout_s
from tidegate.runtime.errors import RequestError
from tidegate.runtime.grpc_service import CallError, GrpcService, Handler
from tidegate.runtime.protocols.bodies import decompress
from tidegate.runtime.service import ModelService
from tidegate.wire.grpc.first_message import MESSAGE_HEAD
from tidegate.wire.http2 import frames, grpc_fields
from tidegate.wire.http2.block_memory import REQUEST, Block, Blocks
from tidegate.wire.http2.events import BODY, HEAD, RESET, SENT, TRAILERS, Event
from tidegate.wire.http2.hpack import literal
from tidegate.wire.http2.roles import H2Server
from tidegate.wire.http2.streams import Stream

STALLED_S: Final = 60.0
"""Time after which a client that reads nothing of an answer counts as gone."""
_HEAD: Final = (
    literal(b":status", b"200")
    + literal(b"content-type", b"application/grpc")
    + literal(b"grpc-accept-encoding", b"identity,deflate,gzip")
)
_NO_POST: Final = literal(b":status", b"405") + literal(b"allow", b"POST")
_NO_GRPC: Final = literal(b":status", b"415")


class GrpcServer:
    """The HTTP/2 connections of one model server."""

    def __init__(self, service: ModelService, *, body_bytes: int) -> None:
        self.service = GrpcService(service)
        self.body_bytes = body_bytes
        """Largest message, before and after decompression."""
        self.blocks = Blocks(REQUEST)
        self.connections: set[GrpcConnection] = set()
        self.tasks = TaskOwner("grpc")
        self._ended = asyncio.Event()
        self._is_closing = False

    def connect(self) -> "GrpcConnection":
        """Returns the protocol of a new connection."""
        return GrpcConnection(self)

    def lost(self, connection: "GrpcConnection") -> None:
        """Drops a connection that has ended."""
        self.connections.discard(connection)
        if self._is_closing and not self.connections:
            self._ended.set()

    def sweep(self, now: float) -> None:
        """Ends stalled connections. Called several times a second."""
        for connection in tuple(self.connections):
            connection.sweep(now)

    async def close(self, flush_s: float = 10.0) -> None:
        """Ends open calls as grpc.UNAVAILABLE and waits until that is sent, at most ``flush_s`` seconds."""
        self._is_closing = True
        for connection in tuple(self.connections):
            connection.shut_down()
        await self.tasks.close()
        if self.connections:
            try:
                await asyncio.wait_for(self._ended.wait(), flush_s)
            except TimeoutError:
                for connection in tuple(self.connections):
                    connection.transport.abort()

    def __repr__(self) -> str:
        return f"<GrpcServer {len(self.connections)} connections, {len(self.tasks)} calls>"


class GrpcConnection(asyncio.Protocol):
    """The connection of one client."""

    __slots__ = ("_due", "_server", "engine", "transport")

    transport: asyncio.Transport

    def __init__(self, server: GrpcServer) -> None:
        self._server = server
        self.engine = H2Server(server.blocks)
        self._due = 0.0
        """Time at which the rest of a head or frame must have arrived. 0 if none is due."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._server.connections.add(self)
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        for stream in tuple(self.engine.streams.values()):
            _drop(stream)
        self._server.lost(self)

    def data_received(self, data: bytes) -> None:
        self._handle(self.engine.receive(data, time.monotonic()))
        if not self.engine.is_head_due:
            self._due = 0.0
        elif not self._due:
            self._due = time.monotonic() + 30.0
        self.flush()

    def pause_writing(self) -> None:
        self.engine.pause()

    def resume_writing(self) -> None:
        self._handle(self.engine.resume())
        self.flush()

    def flush(self) -> None:
        """Writes the output of the engine."""
        data = self.engine.take()
        if data and not self.transport.is_closing():
            self.transport.write(data)
        if self.engine.is_over or (self.engine.is_closing and not self.engine.streams):
            self.transport.close()

    def sweep(self, now: float) -> None:
        """Ends calls and connections without progress."""
        if self._due and now > self._due:
            self.transport.abort()
            return
        for stream in self.engine.stalled(now, STALLED_S):
            self.engine.reset(stream, frames.CANCEL)
            _drop(stream)
        self.flush()

    def shut_down(self) -> None:
        """Ends open calls now and accepts no more."""
        for stream in tuple(self.engine.streams.values()):
            if isinstance(stream.owner, ServedCall):
                stream.owner.finish(grpc_fields.UNAVAILABLE, "the model server is stopping")
            _drop(stream)
        self.engine.goaway()
        self.flush()

    def _handle(self, events: list[Event]) -> None:
        for kind, stream, value, flag in events:
            if kind == HEAD:
                self._begin(stream, value, flag)
            elif isinstance(stream.owner, ServedCall):
                call = stream.owner
                if kind == BODY:
                    call.feed(value, flag)
                elif kind == TRAILERS:
                    call.feed(b"", True)
                elif kind == SENT and flag:
                    call.sent()
                elif kind == RESET:
                    _drop(stream)
        if self.engine.is_over:
            for stream in tuple(self.engine.streams.values()):
                _drop(stream)

    def _begin(self, stream: Stream, head: Block, is_whole: bool) -> None:
        if head.method != b"POST":
            self.engine.head(stream, _NO_POST, True)
            return
        if not grpc_fields.is_grpc(head.get(b"content-type")):
            self.engine.head(stream, _NO_GRPC, True)
            return
        handler = self._server.service.methods.get(head.path)
        if handler is None:
            text = f"there is no method {head.path.decode('latin-1')[:200]} here"
            self.engine.head(stream, grpc_fields.trailers_only(grpc_fields.UNIMPLEMENTED, text), True)
            return
        try:
            timeout_s = read_timeout_s(None, head.get(b"grpc-timeout"))
        except TimeoutFieldError as error:
            self.engine.head(stream, grpc_fields.trailers_only(grpc_fields.INVALID_ARGUMENT, str(error)), True)
            return
        call = ServedCall(self, stream, head.get(b"grpc-encoding"), self._server.body_bytes)
        stream.owner = call
        if is_whole:
            call.feed(b"", True)
        call.task = self._server.tasks.spawn(call.run(handler, timeout_s), name=head.path.decode("latin-1"))

    def __repr__(self) -> str:
        return f"<GrpcConnection {self.engine!r}>"


class ServedCall:
    """One call: the method's :class:`~tidegate.runtime.grpc_service.Stream`."""

    __slots__ = (
        "_changed",
        "_coding",
        "_connection",
        "_has_head",
        "_have",
        "_inbox",
        "_is_whole",
        "_limit",
        "_need",
        "_pieces",
        "_stream",
        "_uncredited",
        "task",
    )

    def __init__(self, connection: GrpcConnection, stream: Stream, coding: bytes | None, limit: int) -> None:
        self.task: asyncio.Task[None] | None = None
        self._connection = connection
        self._stream = stream
        self._coding = None if coding is None else coding.decode("latin-1")
        self._limit = limit
        self._changed = asyncio.Event()
        self._inbox: deque[tuple[int, bytes]] = deque()
        """Complete messages: whether compressed, and the bytes."""
        self._pieces: list[bytes] = []
        """Pieces of the next message."""
        self._have, self._need = 0, MESSAGE_HEAD
        self._uncredited = 0
        """Bytes that were not credited to the client yet."""
        self._is_whole = self._has_head = False

    # --- called by the connection

    def feed(self, data: bytes, is_whole: bool) -> None:
        """Adds a piece of the request."""
        self._is_whole = is_whole
        self._uncredited += len(data)
        if data:
            self._pieces.append(data)
            self._have += len(data)
            if self._have >= self._need:
                self._split_messages()
        if not self._inbox:
            self._give_credit()
        self._changed.set()

    def sent(self) -> None:
        """Records that the whole answer so far was sent."""
        self._changed.set()

    def _split_messages(self) -> None:
        data = b"".join(self._pieces)
        at = 0
        self._need = MESSAGE_HEAD
        while len(data) - at >= MESSAGE_HEAD:
            start = at + MESSAGE_HEAD
            size = int.from_bytes(data[at + 1 : start], "big")
            if size > self._limit or len(data) - start < size:
                self._need = MESSAGE_HEAD + size
                break
            self._inbox.append((data[at], data[start : start + size]))
            at = start + size
        self._pieces = [data[at:]] if at < len(data) else []
        self._have = len(data) - at

    def _give_credit(self) -> None:
        if self._uncredited:
            self._connection.engine.passed(self._stream, self._uncredited)
            self._uncredited = 0

    # --- called by the method

    async def receive(self) -> bytes | None:
        """See :class:`~tidegate.runtime.grpc_service.Stream`."""
        while not self._inbox:
            if self._need - MESSAGE_HEAD > self._limit:
                size = self._need - MESSAGE_HEAD
                raise CallError(
                    grpc_fields.RESOURCE_EXHAUSTED, f"a message of {size} bytes is larger than {self._limit}"
                )
            if self._is_whole:
                if self._pieces:
                    raise CallError(grpc_fields.INTERNAL, "the request ends inside a message")
                return None
            self._changed.clear()
            await self._changed.wait()
        flag, message = self._inbox.popleft()
        if not self._inbox:
            self._give_credit()
            self._connection.flush()
        if not flag:
            return message
        if flag != 1 or self._coding is None:
            raise CallError(grpc_fields.INTERNAL, "a compressed message without grpc-encoding")
        try:
            return decompress(message, self._coding, self._limit)
        except RequestError as error:
            raise CallError(
                {413: grpc_fields.RESOURCE_EXHAUSTED, 415: grpc_fields.UNIMPLEMENTED}.get(
                    error.status, grpc_fields.INTERNAL
                ),
                error.message,
            ) from error

    async def send(self, message: bytes) -> None:
        """See :class:`~tidegate.runtime.grpc_service.Stream`."""
        self.reply(message)
        self._connection.flush()
        while self._stream.waiting:
            self._changed.clear()
            await self._changed.wait()

    def reply(self, message: bytes) -> None:
        """See :class:`~tidegate.runtime.grpc_service.Stream`."""
        engine, stream = self._connection.engine, self._stream
        if not self._has_head:
            self._has_head = True
            engine.head(stream, _HEAD, False)
        engine.data(stream, b"\0" + len(message).to_bytes(4, "big") + message, False)

    async def run(self, handler: Handler, timeout_s: float | None) -> None:
        """Runs the method and sends its status, whatever happens."""
        status, message = grpc_fields.OK, ""
        try:
            async with asyncio.timeout(timeout_s):
                await handler(self)
        except CallError as error:
            status, message = error.status, error.message
        except TimeoutError:
            status, message = grpc_fields.DEADLINE_EXCEEDED, "its deadline passed while the model server had it"
        except Exception as error:  # Border: the client gets a status, the operator the trace.
            say_error(error)
            status, message = grpc_fields.INTERNAL, "the model server failed; its log says why"
        self.finish(status, message)
        self._connection.flush()
        self.task = self._stream.owner = None  # Leaves no cycle to the garbage collector.

    def finish(self, status: int, message: str) -> None:
        """Sends the status of the call. Nothing follows."""
        engine, stream = self._connection.engine, self._stream
        if self._has_head:
            engine.trailers(stream, grpc_fields.trailers(status, message))
        elif status:
            engine.head(stream, grpc_fields.trailers_only(status, message), True)
        else:
            engine.head(stream, _HEAD, False)
            engine.trailers(stream, grpc_fields.trailers(status, message))

    def __repr__(self) -> str:
        return f"<Call {self._stream!r}, {len(self._inbox)} messages to take>"


def _drop(stream: Stream) -> None:
    """Cancels a call that its client has left."""
    call, stream.owner = stream.owner, None
    if isinstance(call, ServedCall) and call.task is not None:
        call.task.cancel()
