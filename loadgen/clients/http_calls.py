"""Calls over HTTP/1.1: one keep-alive connection for each call in flight, last in, first out. No call is sent twice.

There is no task per request: a connection is an asyncio protocol around the data plane's engine, and it is free as soon
as it has its answer. A server may close an idle connection at the moment at which a request is written. That call
counts as ``broken``, since it is unknown whether it was executed.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterable
from typing import Final, cast

from tidegate.aio.loop.tasks import TaskOwner, report_to_stderr
from tidegate.loadgen.clients.answers import Answer, FailureAnswer, StreamAnswer, retry_after
from tidegate.loadgen.clients.call import BROKEN, CONNECT, MALFORMED, Call
from tidegate.loadgen.clients.client import LoadClient
from tidegate.wire.http1.client import H1Client
from tidegate.wire.http1.events import Piece
from tidegate.wire.http1.fields import Rejected
from tidegate.wire.http1.response_cache import ResponseHeads
from tidegate.wire.http1.response_head import ResponseHead

CONNECT_S: Final = 10.0
EVENT_STREAM: Final = b"text/event-stream"


class HttpCalls(LoadClient):
    """``method`` requests to ``path`` at ``host:port``; ``fields`` are sent with each (without Host and
    Content-Length). ``takes_streams``: record the times of event streams. ``batch_field`` is the header that carries
    the number of inferences."""

    def __init__(
        self,
        host: str,
        port: int,
        path: str,
        *,
        method: str = "POST",
        fields: Iterable[tuple[str, str]] = (),
        authority: str | None = None,
        tls: ssl.SSLContext | None = None,
        batch_field: str | None = None,
        takes_streams: bool = False,
        most: int,
        timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(most=most, timeout_s=timeout_s, clock=clock)
        self._host, self._port, self._tls = host, port, tls
        name = f"[{host}]" if ":" in host else host
        lines = [f"{method} {path} HTTP/1.1", f"host: {authority or f'{name}:{port}'}"]
        lines += (f"{field}: {value}" for field, value in fields)
        head = "\r\n".join(lines).encode("latin-1")
        self.method = method.encode()
        self._has_body = method not in ("GET", "HEAD")
        """Whether Content-Length is sent, even for an empty body (RFC 9110, section 8.6)."""
        self._batch = b"" if batch_field is None else f"\r\n{batch_field}: ".encode()
        self._head = head
        self.takes_streams = takes_streams
        self.heads = ResponseHeads()
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._owner = TaskOwner("load connections", report_to_stderr)

    def bytes_of(self, call: Call) -> bytes:
        """Returns the bytes of a call's request."""
        body, inferences = call.request
        batch_line = b"" if not self._batch else b"%b%d" % (self._batch, inferences)
        if body or self._has_body:
            return b"%b%b\r\ncontent-length: %d\r\n\r\n%b" % (self._head, batch_line, len(body), body)
        return b"%b%b\r\n\r\n" % (self._head, batch_line)

    def _send(self, call: Call) -> None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing():
                connection.send(call)
                return
        self._owner.spawn(self._connect(call), name="connect")

    async def _connect(self, call: Call) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self),
                    self._host,
                    self._port,
                    ssl=self._tls,
                    server_hostname=self._host if self._tls else None,
                )
        except (OSError, TimeoutError):
            self.finish(call, CONNECT)
            return
        if connection.transport.is_closing():
            self.finish(call, CONNECT)
        elif call not in self.calls:
            self._idle.append(connection)
        else:
            connection.send(call)

    def opened(self, connection: "_Connection") -> None:
        """Counts a connection until it is closed."""
        self._open.add(connection)
        if self.is_closed:
            connection.transport.abort()

    def freed(self, connection: "_Connection") -> None:
        """Takes back a connection that has its answer."""
        self._idle.append(connection)

    def closed(self, connection: "_Connection") -> None:
        """Forgets a connection."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _give_up(self, call: Call) -> None:
        for connection in self._open:
            if connection.call is call:
                connection.call = None
                connection.transport.abort()
                return

    async def _close(self) -> None:
        for connection in tuple(self._open):
            connection.call = None
            connection.transport.abort()
        self._idle.clear()
        await self._owner.close()


class _Connection(asyncio.Protocol):
    """One connection; ``call`` is the call that it carries."""

    __slots__ = ("_answer", "_client", "_engine", "call", "transport")

    transport: asyncio.Transport

    def __init__(self, client: HttpCalls) -> None:
        self._client = client
        self._engine = H1Client(client.heads)
        self._answer: Answer | None = None
        self.call: Call | None = None

    def send(self, call: Call) -> None:
        """Writes a call's request."""
        self.call = call
        self._engine.request(self._client.method)
        data = self._client.bytes_of(call)
        call.written = self._client.clock()
        self.transport.write(data)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._client.opened(self)

    def data_received(self, data: bytes) -> None:
        call = self.call
        if call is None:
            self.transport.abort()
            return
        now = self._client.clock()  # what follows is the client's own time
        event = self._engine.receive(data)
        while type(event) is ResponseHead and event.status < 200 and event.status != 101:
            event = self._engine.next()
        if event is None:
            return
        if type(event) is Rejected:
            self._end(call, MALFORMED, now)
        elif type(event) is ResponseHead:
            self._begin(call, event, now)
            self._feed(self._engine.body, now)
            if self._engine.complete:
                self._end(call, None, now)
        else:
            self._feed(event.data, now)
            if event.done:
                self._end(call, None, now)

    def eof_received(self) -> None:
        event = self._engine.eof()
        if self.call is not None:
            self._end(self.call, BROKEN if type(event) is Rejected else None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.call is not None:
            self._end(self.call, BROKEN)
        self._client.closed(self)

    def _begin(self, call: Call, head: ResponseHead, now: float) -> None:
        call.code = str(head.status)
        call.is_good = 200 <= head.status < 300
        if not call.is_good:
            call.retry_after_s = retry_after(head.get(b"retry-after"))
            self._answer = FailureAnswer()
        elif (head.get(b"content-type") or b"").lower().startswith(EVENT_STREAM):
            if head.content_length is None:  # With a length it is a whole answer, also for the gateway.
                call.began = now
            if self._client.takes_streams:
                self._answer = StreamAnswer(call)

    def _feed(self, data: Piece, now: float) -> None:
        if self._answer is not None and data:
            self._answer.feed(bytes(data), now)

    def _end(self, call: Call, error: str | None = None, now: float | None = None) -> None:
        answer, self._answer, self.call = self._answer, None, None
        if answer is not None and error is None:
            answer.end(call)
        if error is None and self._engine.reusable:
            self._client.freed(self)
        else:
            self.transport.abort()
        self._client.finish(call, error, now)
