"""REST and gRPC at one port, distinguished by the first bytes of a connection.

HTTP/2 clients with prior knowledge (gRPC's, and the queue_proxy) begin with a preface that no HTTP/1 request can begin
with (RFC 9113 section 3.4). The modules for gRPC are imported with the first such connection, so a server that is
called by REST alone starts as fast as if there were no gRPC.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from tidegate.runtime.service import ModelService

if TYPE_CHECKING:
    from tidegate.runtime.grpc_server import GrpcServer

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Listener:
    """The connections of the port. ``connect`` stands between a new connection and its REST protocol."""

    def __init__(self, service: ModelService, *, body_bytes: int) -> None:
        self._service = service
        self._body_bytes = body_bytes
        self._grpc: GrpcServer | None = None

    def connect(self, rest: asyncio.Protocol) -> asyncio.Protocol:
        """Returns the protocol of a new connection: ``rest``, unless its first bytes are those of HTTP/2."""
        return _First(rest, self._connect_grpc)

    def sweep(self, now: float) -> None:
        """Ends stalled connections. Called several times a second."""
        if self._grpc is not None:
            self._grpc.sweep(now)

    async def close(self) -> None:
        """Ends the gRPC connections."""
        if self._grpc is not None:
            await self._grpc.close()

    def _connect_grpc(self) -> asyncio.Protocol:
        if self._grpc is None:
            from tidegate.runtime.grpc_server import GrpcServer

            self._grpc = GrpcServer(self._service, body_bytes=self._body_bytes)
        return self._grpc.connect()


class _First(asyncio.Protocol):
    """A connection with no bytes read yet. Its REST protocol knows it, so that it is swept and closed."""

    __slots__ = ("_connect_grpc", "_held", "_rest", "_transport")

    def __init__(self, rest: asyncio.Protocol, connect_grpc: Callable[[], asyncio.Protocol]) -> None:
        self._rest = rest
        self._connect_grpc = connect_grpc
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._rest.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest.connection_lost(exc)

    def eof_received(self) -> bool | None:
        return self._rest.eof_received()

    def data_received(self, data: bytes) -> None:
        data = self._held = self._held + data
        if not data.startswith(PREFACE) and PREFACE.startswith(data):
            return
        protocol = self._rest
        if data.startswith(PREFACE):
            self._rest.connection_lost(None)
            protocol = self._connect_grpc()
            protocol.connection_made(self._transport)
        self._transport.set_protocol(protocol)
        protocol.data_received(data)
