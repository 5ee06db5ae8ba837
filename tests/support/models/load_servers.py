"""Servers for load clients, in memory and on virtual time: what is written to them is answered as a script says."""

import asyncio
from collections.abc import Callable
from typing import Any

from tests.support.worlds.h2_world import ANSWER, block, status
from tests.support.worlds.virtual_loop import VirtualLoop
from tidegate.wire.http2 import frames
from tidegate.wire.http2.block_memory import REQUEST, Blocks
from tidegate.wire.http2.events import BODY
from tidegate.wire.http2.roles import H2Server

Piece = tuple[float, bytes | None]
"""After so many seconds these bytes; None: the connection ends."""
Script = Callable[[bytes], list[Piece]]


class Connection(asyncio.Transport):
    """The client's end of a connection; the script gets what is written, one answer for each write."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: Any, script: Script) -> None:
        super().__init__()
        self._loop, self._protocol, self._script = loop, protocol, script
        self.written: list[bytes] = []
        self.is_closed = False

    def write(self, data: Any) -> None:
        assert not self.is_closed
        self.written.append(bytes(data))
        for after_s, piece in self._script(bytes(data)):
            self._loop.call_later(after_s, self._deliver, piece)

    def _deliver(self, piece: bytes | None) -> None:
        if self.is_closed:
            return
        if piece is not None:
            self._protocol.data_received(piece)
            return
        self._protocol.eof_received()
        self.abort()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Everything is taken at once."""

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._loop.call_soon(self._protocol.connection_lost, None)


class ServedLoop(VirtualLoop):
    """Connects to servers that are scripts; ``script`` is called for each connection. It refuses the first ones."""

    def __init__(self, script: Callable[[], Script], refused: int = 0) -> None:
        super().__init__()
        self._script = script
        self._refused = refused
        self.connections: list[Connection] = []

    async def create_connection(self, factory: Any, *_: Any, **__: Any) -> Any:  # type: ignore[override]  # the part
        if self._refused:
            self._refused -= 1
            raise ConnectionRefusedError(111, "Connection refused")
        protocol = factory()
        connection = Connection(self, protocol, self._script())
        self.connections.append(connection)
        protocol.connection_made(connection)
        return connection, protocol


def fixed(*pieces: Piece) -> Callable[[], Script]:
    """Every request gets the same."""
    return lambda: lambda data: list(pieces)


class GrpcScript:
    """A gRPC server: answers each call with so many messages and a status, after ``wait_s``."""

    def __init__(self, messages: int = 1, code: int = 0, wait_s: float = 0.0) -> None:
        self.messages, self.code, self.wait_s = messages, code, wait_s
        self.bodies: list[bytes] = []
        self._engine = H2Server(Blocks(REQUEST))
        self._engine._out.append(frames.settings())

    def __call__(self, data: bytes) -> list[Piece]:
        for kind, stream, value, ends in self._engine.receive(data, 0.0):
            if kind == BODY and ends:
                self.bodies.append(value)
                self._engine.head(stream, block(*ANSWER), False)
                for number in range(self.messages):
                    self._engine.data(stream, b"\0\0\0\0\1%d" % number, False)
                self._engine.trailers(stream, status(self.code))
        return [(self.wait_s, self._engine.take())]
