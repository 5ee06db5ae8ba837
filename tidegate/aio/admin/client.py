"""A small HTTP client for probes and admin calls: one connection per call, whole answers, bounded."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from tidegate.aio.loop.sockets import UNIX, host_port, is_unix
from tidegate.wire.http1.client import Event, H1Client
from tidegate.wire.http1.events import Data, Piece
from tidegate.wire.http1.response_head import ResponseHead


class FetchError(Exception):
    """No usable answer: refused, timed out, broken off or not HTTP. The message says which."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    """Lower-case names; the last of equal names."""
    body: bytes = b""


class _Call(asyncio.Protocol):
    """One request and its answer; ``answer`` resolves with the final (or the 101) head and the body."""

    __slots__ = ("_body", "_body_bytes", "_data", "_head", "_late", "_size", "answer", "engine", "transport")

    transport: asyncio.Transport

    def __init__(self, method: bytes, data: bytes, body_bytes: int) -> None:
        self._data = data
        self._body_bytes = body_bytes
        self._head: ResponseHead | None = None
        self._body: list[Piece] = []
        self._late: list[bytes] = []
        self._size = 0
        self.engine = H1Client()
        self.engine.request(method)
        self.answer: asyncio.Future[tuple[ResponseHead, bytes]] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._data)

    def data_received(self, data: bytes) -> None:
        if self.answer.done():
            self._late.append(data)
        else:
            self._take(self.engine.receive(data))

    def leftover(self) -> bytes:
        """Bytes that followed a 101."""
        return self.engine.leftover() + b"".join(self._late)

    def eof_received(self) -> None:
        self._take(self.engine.eof())

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the connection ended before the answer: {exc or 'closed by the peer'}")

    def _take(self, event: Event | None) -> None:
        while event is not None and not self.answer.done():
            if type(event) is ResponseHead:
                if event.status < 200 and event.status != 101:
                    event = self.engine.next()
                    continue
                self._head = event
                if event.status == 101:
                    self.answer.set_result((event, b""))
                    return
                self._add(self.engine.body, self.engine.complete)
            elif type(event) is Data:
                self._add(event.data, event.done)
            else:
                self._fail(event.why)
            return

    def _add(self, data: Piece, done: bool) -> None:
        self._body.append(data)
        self._size += len(data)
        if self._size > self._body_bytes:
            self._fail(f"the answer is larger than {self._body_bytes} bytes")
        elif done and self._head is not None:
            self.answer.set_result((self._head, b"".join(self._body)))

    def _fail(self, why: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(FetchError(why))


def _request(address: str, method: str, path: str, body: bytes, headers: Iterable[tuple[str, str]]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    if not any(line.lower().startswith("host:") for line in lines[1:]):
        lines.append("host: localhost" if is_unix(address) else f"host: {address}")
    if body or method not in ("GET", "HEAD"):
        lines.append(f"content-length: {len(body)}")
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a line break in the request's path or headers")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


async def _call(address: str, method: str, data: bytes, body_bytes: int) -> tuple[_Call, ResponseHead, bytes]:
    """Connects, sends, waits. The caller ends the connection."""
    loop = asyncio.get_running_loop()
    call = _Call(method.encode("ascii"), data, body_bytes)
    try:
        if is_unix(address):
            await loop.create_unix_connection(lambda: call, address.removeprefix(UNIX))
        else:
            host, port = host_port(address)
            await loop.create_connection(lambda: call, host, port)
    except OSError as error:
        raise FetchError(f"no connection to {address}: {error.strerror or error}") from error
    try:
        head, body = await call.answer
    except BaseException:
        call.transport.abort()
        raise
    return call, head, body


async def fetch(
    address: str,
    method: str,
    path: str,
    body: bytes = b"",
    headers: Iterable[tuple[str, str]] = (),
    *,
    timeout_s: float = 5.0,
    body_bytes: int = 64 << 20,
) -> Reply:
    """One request to ``host:port`` or ``unix:/path``; raises FetchError."""
    data = _request(address, method, path, body, [*headers, ("connection", "close")])
    try:
        async with asyncio.timeout(timeout_s):
            call, head, content = await _call(address, method, data, body_bytes)
    except TimeoutError as error:
        raise FetchError(f"no answer from {address} within {timeout_s} s") from error
    call.transport.close()
    fields: dict[str, str] = {}
    for line in head.received_fields().split(b"\r\n"):
        name, colon, value = line.partition(b":")
        if colon:
            fields[name.lower().decode("ascii")] = value.strip(b" \t").decode("latin-1")
    return Reply(head.status, fields, content)


async def connect_once(address: str, *, timeout_s: float = 5.0) -> None:
    """Opens a connection to ``host:port`` or ``unix:/path`` and closes it; raises FetchError where none is accepted."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            if is_unix(address):
                transport, _ = await loop.create_unix_connection(asyncio.Protocol, address.removeprefix(UNIX))
            else:
                host, port = host_port(address)
                transport, _ = await loop.create_connection(asyncio.Protocol, host, port)
    except TimeoutError as error:
        raise FetchError(f"no connection to {address} within {timeout_s} s") from error
    except OSError as error:
        raise FetchError(f"no connection to {address}: {error.strerror or error}") from error
    transport.close()


async def open_upgraded(
    address: str,
    path: str,
    upgrade: str,
    factory: Callable[[], asyncio.Protocol],
    headers: Iterable[tuple[str, str]] = (),
    *,
    timeout_s: float = 5.0,
) -> tuple[asyncio.Transport, asyncio.Protocol]:
    """``GET path`` with ``Upgrade``; after the 101 the transport belongs to a new protocol of ``factory``.

    The protocol gets ``connection_made`` and whatever bytes followed the 101. Raises FetchError.
    """
    data = _request(address, "GET", path, b"", [*headers, ("connection", "upgrade"), ("upgrade", upgrade)])
    try:
        async with asyncio.timeout(timeout_s):
            call, head, _ = await _call(address, "GET", data, 1 << 16)
    except TimeoutError as error:
        raise FetchError(f"no answer from {address} within {timeout_s} s") from error
    transport = call.transport
    if head.status != 101 or head.upgrade != upgrade.lower().encode():
        transport.abort()
        raise FetchError(f"{address} refused the upgrade to {upgrade}: status {head.status}")
    protocol = factory()
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    rest = call.leftover()
    if rest:
        protocol.data_received(rest)
    return transport, protocol
