"""The capture backend of the hostile HTTP/2 corpus behind sockets: a strict h2c server that writes down what it gets.

:class:`tests.support.http2.echo.Echo` is its engine. HTTP/1, in which a proxy may bring what is no gRPC, is answered as
that engine answers what is none: 405 or 415.
"""

import asyncio
from collections.abc import Callable
from typing import cast

from tests.support.http2.echo import Echo, Record
from tidegate.wire.http2.frames import PREFACE

TICK_S = 0.005
_NOT_ALLOWED = b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_NO_GRPC = b"HTTP/1.1 415 Unsupported Media Type\r\nContent-Length: 3\r\nConnection: close\r\n\r\nno\n"


class H2Capture:
    """All connections of one listener; what arrives belongs to the case that runs."""

    def __init__(self) -> None:
        self.record = Record()
        self.address = ""
        self.connections = 0
        """That were ever made."""
        self._open: set[_Connection] = set()
        self._server: asyncio.Server | None = None
        self._ticks: asyncio.TimerHandle | None = None

    async def start(self) -> str:
        """Listens; the address."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self, loop.time), "127.0.0.1", 0, backlog=1024)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"
        self._tick(loop)
        return self.address

    def begin(self) -> Record:
        """A new case begins."""
        self.record = Record()
        return self.record

    async def close(self) -> None:
        if self._ticks is not None:
            self._ticks.cancel()
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._open):
            connection.transport.abort()
        await asyncio.sleep(0.01)

    def opened(self, connection: "_Connection") -> None:
        self.connections += 1
        self._open.add(connection)

    def lost(self, connection: "_Connection") -> None:
        self._open.discard(connection)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        for connection in tuple(self._open):
            connection.tick()
        self._ticks = loop.call_later(TICK_S, self._tick, loop)


class _Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, backend: H2Capture, now: Callable[[], float]) -> None:
        self._backend = backend
        self._now = now
        self._echo = Echo(lambda: backend.record)
        self._start = b""
        self._is_h1 = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._backend.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._echo.lost(self._now())
        self._backend.lost(self)

    def data_received(self, data: bytes) -> None:
        if len(self._start) < len(PREFACE):
            self._start += data[: len(PREFACE)]
            self._is_h1 = not PREFACE.startswith(self._start[: len(PREFACE)])
        if not self._is_h1:
            self._echo.receive(data, self._now())
            self._flush()
        elif b"\r\n\r\n" in data and not self.transport.is_closing():
            self.transport.write(_NO_GRPC if self._start.startswith(b"POST ") else _NOT_ALLOWED)
            self.transport.close()

    def pause_writing(self) -> None:
        self._echo.pause()

    def resume_writing(self) -> None:
        self._echo.resume()
        self._flush()

    def tick(self) -> None:
        """Time has passed."""
        if self._echo.is_timed:
            self._echo.tick(self._now())
            self._flush()

    def _flush(self) -> None:
        """Writes what there is, and then what the socket takes at once."""
        while not self.transport.is_closing() and (data := self._echo.take()):
            self.transport.write(data)
