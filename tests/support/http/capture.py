"""A backend that writes down what a proxy sends it. Parses strictly, by hand, and not with the code under test.

Cases follow each other behind one proxy, and what a client has begun may arrive here when it has already gone. So each
case has a client address of its own (all of 127.0.0.0/8 is this machine), and a request belongs to the case whose
address the proxy names in ``x-forwarded-for``.
"""

import asyncio
import socket
from dataclasses import dataclass, field
from ipaddress import IPv4Address

_TOKEN = frozenset(b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_HEX = frozenset(b"0123456789abcdefABCDEF")
_DIGITS = frozenset(b"0123456789")
_CLIENTS = IPv4Address("127.1.0.0")
"""The first case's client has the address after it."""


class MalformedError(Exception):
    """What was received is not HTTP as the specification writes it."""


@dataclass
class Captured:
    """One request as it arrived."""

    method: str
    target: bytes
    fields: list[tuple[str, bytes]]
    head: bytes
    body: bytes = b""
    trailers: list[tuple[str, bytes]] = field(default_factory=list)
    complete: bool = False

    def values(self, name: str) -> list[bytes]:
        return [value for key, value in self.fields if key == name]


@dataclass
class Captures:
    """What came of one case."""

    client: str = ""
    """The address from which its client must connect."""
    requests: list[Captured] = field(default_factory=list)
    """In order of arrival; ``complete`` tells whole ones from partial ones."""
    malformed: list[str] = field(default_factory=list)
    last_activity: float = 0.0

    @property
    def complete(self) -> list[Captured]:
        return [request for request in self.requests if request.complete]


class CaptureBackend:
    """Answers 200 with three bytes; keeps complete, partial and malformed requests apart, case by case."""

    def __init__(self) -> None:
        self.address = ""
        self._cases: dict[str, Captures] = {}
        """By their clients' addresses, the present one last."""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_unused = asyncio.Event()
        self._is_unused.set()

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=4 << 20)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"
        return self.address

    def begin(self) -> Captures:
        """A new case begins."""
        client = str(_CLIENTS + len(self._cases) + 1)
        self._cases[client] = found = Captures(client)
        return found

    async def unused(self) -> None:
        """Until no connection is left: nothing can arrive any more once the proxy has ended."""
        await self._is_unused.wait()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in tuple(self._writers):
                writer.transport.abort()
            await asyncio.sleep(0.01)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sock: socket.socket = writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._writers.add(writer)
        self._is_unused.clear()
        log: Captures | None = None
        try:
            while (head := await self._head(reader, log)) is not None:
                log = self._case_of(head, log)
                try:
                    if not await self._request(head, log, reader, writer):
                        break
                except MalformedError as error:
                    log.malformed.append(str(error))
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()
            if not self._writers:
                self._is_unused.set()

    def _case_of(self, head: bytes, before: Captures | None) -> Captures:
        """The case of a request. One that no proxy vouches for was smuggled in: it belongs to the one ``before`` it on
        its connection, else to the present case."""
        for line in reversed(head.split(b"\r\n")):
            name, _, value = line.partition(b":")
            if name.lower() == b"x-forwarded-for":
                for address in reversed(value.split(b",")):
                    if (found := self._cases.get(address.strip().decode("latin-1"))) is not None:
                        return found
        return before or self._present

    @property
    def _present(self) -> Captures:
        return next(reversed(self._cases.values())) if self._cases else self.begin()

    async def _head(self, reader: asyncio.StreamReader, before: Captures | None) -> bytes | None:
        try:
            return await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            if error.partial:
                self._case_of(error.partial, before).malformed.append(f"head cut off: {error.partial[:80]!r}")
            return None

    async def _request(
        self, head: bytes, log: Captures, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        _active(log)
        request = _parse_head(head)
        log.requests.append(request)
        length, chunked = _framing(request)
        if any(value.lower() == b"100-continue" for value in request.values("expect")):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if chunked:
            await self._chunks(reader, request, log)
        else:
            while length > len(request.body):
                data = await reader.read(min(65536, length - len(request.body)))
                if not data:
                    return False
                _active(log)
                request.body += data
        request.complete = True
        _active(log)
        body = b"" if request.method == "HEAD" else b"ok\n"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\n" + body)
        await writer.drain()
        return True

    async def _chunks(self, reader: asyncio.StreamReader, request: Captured, log: Captures) -> None:
        while True:
            line = await reader.readuntil(b"\r\n")
            _active(log)
            size, _, _ = line[:-2].partition(b";")
            if not size or not set(size) <= _HEX or b"\n" in line[:-2] or b"\r" in line[:-2]:
                raise MalformedError(f"chunk line {line!r}")
            count = int(size, 16)
            if count == 0:
                break
            request.body += await reader.readexactly(count)
            if await reader.readexactly(2) != b"\r\n":
                raise MalformedError("chunk data without CRLF")
        while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
            request.trailers.append(_field(line[:-2]))


def _active(log: Captures) -> None:
    log.last_activity = asyncio.get_running_loop().time()


def _field(line: bytes) -> tuple[str, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or not name or not set(name) <= _TOKEN:
        raise MalformedError(f"field {line[:80]!r}")
    if any(byte in value for byte in b"\0\r\n"):
        raise MalformedError(f"value in {line[:80]!r}")
    return name.decode().lower(), value.strip(b" \t")


def _parse_head(head: bytes) -> Captured:
    lines = head[:-4].split(b"\r\n")
    parts = lines[0].split(b" ")
    if len(parts) != 3 or not parts[0] or not set(parts[0]) <= _TOKEN or not parts[1]:
        raise MalformedError(f"request line {lines[0][:80]!r}")
    if parts[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise MalformedError(f"version in {lines[0][:80]!r}")
    return Captured(parts[0].decode(), parts[1], [_field(line) for line in lines[1:]], head)


def _framing(request: Captured) -> tuple[int, bool]:
    lengths, codings = request.values("content-length"), request.values("transfer-encoding")
    if len(lengths) > 1 or len(codings) > 1 or (lengths and codings):
        raise MalformedError("framing given twice")
    if codings and codings[0].lower() != b"chunked":
        raise MalformedError(f"transfer coding {codings[0]!r}")
    if lengths and (not lengths[0] or not set(lengths[0]) <= _DIGITS):
        raise MalformedError(f"content length {lengths[0]!r}")
    return (int(lengths[0]) if lengths else 0), bool(codings)
