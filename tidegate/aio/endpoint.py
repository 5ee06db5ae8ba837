"""A small HTTP/1.1 server for admin sockets and for the shipped model server: one handler coroutine per request."""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass


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
    headers: Iterable[tuple[str, str]] = ()


Handler = Callable[[Request], Awaitable[Response | StreamResponse]]


class EndpointServer:
    address: str
    """``host:port`` (the real port) or ``unix:/path``."""

    async def close(self) -> None:
        """Stops listening, cancels running handlers and waits for them."""
        raise RuntimeError("not built yet")


async def serve_endpoint(
    handler: Handler, address: str | socket.socket, *, body_bytes: int = 64 << 20
) -> EndpointServer:
    """Serves ``handler`` on ``unix:/path``, ``host:port`` or a listening socket.

    The handler's task is cancelled when its client goes away; a handler that raises answers 500 and is reported.
    """
    raise RuntimeError("not built yet")
