"""A small HTTP/1.1 server for admin sockets and for the shipped model server: one handler coroutine per request.

The same strict engine as the proxy's; unlike there, a request is a task here, and its body is collected first.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from tidegate.aio.loop import sockets
from tidegate.aio.loop.services import LoopServices
from tidegate.aio.loop.tasks import Report, TaskOwner, report_to_stderr
from tidegate.errors import TOO_LARGE
from tidegate.wire.http1.events import REASONS, Data
from tidegate.wire.http1.fields import Rejected
from tidegate.wire.http1.request_head import HeadRules, RequestHead
from tidegate.wire.http1.server import Event, H1Server, too_large

if TYPE_CHECKING:
    import ssl

_IDLE_TIMEOUT_S = 75.0
_RECEIVE_TIMEOUT_S = 30.0
_LINGER_S = 2.0
_HANDSHAKE_S = 5.0
_FLUSH_S = 10.0
"""At the end, the time for clients to read the answers that are already written."""
_RULES = HeadRules(front_door=False, trusted=True, upgrades=frozenset())


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    """Percent-encoded as received, without the query."""
    query: str
    headers: Mapping[str, str]
    """Lower-case names; equal names are joined with a comma."""
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: Iterable[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class StreamResponse:
    """Endless or unknown length: chunked; every piece is sent at once."""

    chunks: AsyncIterator[bytes]
    content_type: str = "application/x-ndjson"
    status: int = 200
    headers: Iterable[tuple[str, str]] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What clients may hold together, where anyone may connect. Above it a connection is ended: the one that is nearest
    to its time limit, or has the largest part of a body."""

    connections: int
    bytes_of_bodies: int
    """Of requests that have not come as a whole."""


Handler = Callable[[Request], Awaitable[Response | StreamResponse]]
Admits = Callable[[Request], bool]
Connect = Callable[[asyncio.Protocol], asyncio.Protocol]
"""Puts something between a new connection and its protocol: another protocol that may be spoken on the same port."""


class _Connection(asyncio.Protocol):
    """One client; one request at a time."""

    __slots__ = ("_body", "_engine", "_room", "_server", "_task", "closing", "deadline", "received", "transport")

    transport: asyncio.Transport

    def __init__(self, server: "EndpointServer") -> None:
        self._server = server
        self._engine = H1Server(_RULES, server.body_bytes)
        self._body: list[bytes] = []
        self._task: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._room.set()
        self.closing = False
        self.received = 0
        """Bytes of a body that has not come as a whole."""
        self.deadline = time.monotonic() + _IDLE_TIMEOUT_S

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._server.made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        self._room.set()
        self._server.lost(self)

    def eof_received(self) -> None:
        self._cancel()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def data_received(self, data: bytes) -> None:
        if not self.closing:
            self.deadline = time.monotonic() + _RECEIVE_TIMEOUT_S
            self._take(self._engine.receive(data))

    def _take(self, event: Event | None) -> None:
        if event is None:
            return
        if type(event) is Rejected:
            self._refuse(event)
            return
        engine = self._engine
        if type(event) is RequestHead:
            if not engine.body_complete and not self._server.admits(_request(event, b"")):
                self._refuse(Rejected(401, "the body of this request is not read without the credential"))
                return
            self._body = [engine.body]
            self._server.hold(self, len(engine.body))
            if event.expect_continue and not engine.body_complete:
                self._send(b"HTTP/1.1 100 Continue\r\n\r\n")
        elif type(event) is Data:
            self._body.append(event.data)
            self._server.hold(self, len(event.data))
        if engine.body_complete and engine.head is not None:
            self.deadline = float("inf")
            request = _request(engine.head, b"".join(self._body))
            self._body = []
            self._server.let_go(self)
            self._task = self._server.tasks.spawn(self._answer(request), name=request.path)

    def _send(self, data: bytes) -> None:
        """Writes unless the transport has met an error: it refuses writes then, before ``connection_lost`` is
        called."""
        if not self.transport.is_closing():
            self.transport.write(data)

    async def _answer(self, request: Request) -> None:
        try:
            response = await self._server.handler(request)
        except Exception as error:  # the border of foreign code: answer 500, tell the operator
            self._server.report(f"{request.method} {request.path}", error)
            response = Response(500, b'{"error": "internal error"}')
        if isinstance(response, Response):
            self._write(response)
        else:
            await self._stream(response)
        self._task = None
        self._end()

    def _write(self, response: Response) -> None:
        body = response.body
        lines = b"content-length: %d\r\n" % len(body)
        head = self._head(response, lines, len(body))
        if self._engine.head is not None and self._engine.head.method == b"HEAD":
            body = b""
        if len(body) < 65536:
            self._send(head + body)
        else:
            self._send(head)
            self._send(body)

    async def _stream(self, response: StreamResponse) -> None:
        engine = self._engine
        self._send(self._head(response, b"", None))
        try:
            async with contextlib.aclosing(_as_generator(response.chunks)) as chunks:
                async for piece in chunks:
                    self._send(engine.data(piece))
                    await self._room.wait()
        except BaseException:
            self.transport.abort()  # the client must see that the end is missing
            raise
        self._send(engine.end())

    def _head(self, response: Response | StreamResponse, lines: bytes, length: int | None) -> bytes:
        fields = [f"content-type: {response.content_type}"] if response.content_type else []
        fields += [f"{name}: {value}" for name, value in response.headers]
        block = "".join(f"\r\n{line}" for line in fields).encode("latin-1") + b"\r\n"
        extra = b"date: %b\r\n%b" % (self._server.services.date, lines)
        reason = REASONS.get(response.status, b"Status")
        return self._engine.respond(response.status, reason, block, extra, length)

    def _end(self) -> None:
        if self.transport.is_closing():
            return
        if not self._engine.keep_alive or self._server.closed:
            self.transport.close()
            return
        self.deadline = time.monotonic() + _IDLE_TIMEOUT_S
        self._take(self._engine.next())

    def _refuse(self, bad: Rejected) -> None:
        self.closing = True
        if bad.status == TOO_LARGE.status:
            bad = too_large(self._server.body_bytes, self._server.limit_of_bodies)
        self._send(self._engine.refuse(bad))
        if not self.transport.can_write_eof():  # TLS
            self.transport.close()
        elif not self.transport.is_closing():
            self.transport.write_eof()
        self.deadline = time.monotonic() + _LINGER_S

    def _cancel(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    def __repr__(self) -> str:
        return f"<endpoint connection {self._engine!r}>"


async def _as_generator(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """The pieces of any iterator; a generator among them is closed when the client goes away."""
    try:
        async for piece in chunks:
            yield piece
    finally:
        close = getattr(chunks, "aclose", None)
        if close is not None:
            await close()


def _request(head: RequestHead, body: bytes) -> Request:
    path, _, query = head.target.partition(b"?")
    headers: dict[str, str] = {}
    for line in head.received_fields().split(b"\r\n"):
        name, colon, value = line.partition(b":")
        if colon:
            key, text = name.lower().decode("ascii"), value.strip(b" \t").decode("latin-1")
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return Request(head.method.decode("ascii"), path.decode("ascii"), query.decode("ascii"), headers, body)


class EndpointServer:
    """A running endpoint."""

    __slots__ = (
        "_between",
        "_bounds",
        "_ended",
        "_held",
        "_listener",
        "address",
        "admits",
        "body_bytes",
        "closed",
        "connections",
        "handler",
        "limit_of_bodies",
        "report",
        "services",
        "tasks",
    )

    def __init__(
        self,
        handler: Handler,
        sock: socket.socket,
        body_bytes: int,
        report: Report,
        between: Connect | None,
        limit_of_bodies: str,
        admits: Admits,
        bounds: Bounds | None,
    ) -> None:
        self.handler = handler
        self._bounds = bounds
        self._held = 0
        self._between = between
        self.body_bytes = body_bytes
        self.limit_of_bodies = limit_of_bodies
        self.admits = admits
        self.report = report
        self.address = sockets.address_of(sock)
        """``host:port`` (the real port) or ``unix:/path``."""
        self.connections: set[_Connection] = set()
        self.tasks = TaskOwner(f"endpoint {self.address}", report)
        self.services = LoopServices(asyncio.get_running_loop(), report=report)
        self.services.add(self._sweep)
        self.closed = False
        self._listener: asyncio.AbstractServer | None = None
        self._ended = asyncio.Event()

    async def listen(self, sock: socket.socket, tls: "ssl.SSLContext | None" = None) -> None:
        """Accepts connections."""
        loop = asyncio.get_running_loop()
        if sock.family == socket.AF_UNIX:
            self._listener = await loop.create_unix_server(self._connect, sock=sock, backlog=sockets.BACKLOG)
        else:
            self._listener = await loop.create_server(
                self._connect,
                sock=sock,
                backlog=sockets.BACKLOG,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else _HANDSHAKE_S,
            )

    def _connect(self) -> asyncio.Protocol:
        connection = _Connection(self)
        return connection if self._between is None else self._between(connection)

    def _sweep(self, now: float) -> None:
        for connection in tuple(self.connections):
            if now > connection.deadline:
                connection.transport.abort()

    def made(self, connection: _Connection) -> None:
        """A connection began."""
        self.connections.add(connection)
        if self._bounds is not None and len(self.connections) > self._bounds.connections:
            self._end(min(self.connections, key=lambda each: each.deadline))

    def hold(self, connection: _Connection, size: int) -> None:
        """A part of a body came."""
        connection.received += size
        self._held += size
        if self._bounds is not None and self._held > self._bounds.bytes_of_bodies:
            self._end(max(self.connections, key=lambda each: each.received))

    def let_go(self, connection: _Connection) -> None:
        """The rest of a body came, or its connection ends."""
        self._held -= connection.received
        connection.received = 0

    def _end(self, connection: _Connection) -> None:
        connection.closing = True
        connection.transport.abort()
        self.lost(connection)

    def lost(self, connection: _Connection) -> None:
        """A connection ended."""
        self.let_go(connection)
        self.connections.discard(connection)
        if self.closed and not self.connections:
            self._ended.set()

    async def close(self, flush_s: float = _FLUSH_S) -> None:
        """Stops listening, cancels running handlers, waits until the answers that were written have been sent, at most
        ``flush_s`` seconds; removes its unix socket file."""
        self.closed = True
        if self._listener is not None:
            self._listener.close()
        self.services.close()
        await self.tasks.close()
        await self._flush(flush_s)
        if sockets.is_unix(self.address):
            sockets.remove(self.address)

    async def _flush(self, within_s: float) -> None:
        if not self.connections:
            return
        for connection in tuple(self.connections):
            connection.transport.close()  # once its buffer is empty
        try:
            await asyncio.wait_for(self._ended.wait(), within_s)
        except TimeoutError:
            for connection in tuple(self.connections):
                connection.transport.abort()

    def __repr__(self) -> str:
        return f"<EndpointServer {self.address}: {len(self.connections)} connections>"


async def serve_endpoint(
    handler: Handler,
    address: str | socket.socket,
    *,
    body_bytes: int = 64 << 20,
    report: Report = report_to_stderr,
    connect: Connect | None = None,
    limit_of_bodies: str = "the limit of this address",
    admits: Admits = lambda _: True,
    tls: "ssl.SSLContext | None" = None,
    bounds: Bounds | None = None,
) -> EndpointServer:
    """Serves ``handler`` on ``unix:/path``, ``host:port`` or a listening socket. ``connect`` sees every new connection
    first. ``limit_of_bodies`` says in the refusal of a larger body what its limit is and what raises it. ``admits``
    returns whether the body of a request may be read that has not come with its head. ``tls``: certificates that are
    loaded into it later are those of connections from then on. ``bounds`` None: connections are not counted.

    The handler's task is cancelled when its client goes away; a handler that raises answers 500 and is reported.
    Raises OSError when the address is taken.
    """
    sock = sockets.listen(address) if isinstance(address, str) else address
    server = EndpointServer(handler, sock, body_bytes, report, connect, limit_of_bodies, admits, bounds)
    await server.listen(sock, tls)
    return server
