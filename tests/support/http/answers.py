"""A hostile backend behind a proxy: one case is what it answers, and what a client may then see of it.

Fields of a case (``http_hostile_answers.jsonl``), texts with a character per byte:

- ``name``, ``class``, ``why``; ``request`` (text; default a GET of ``/x``);
- ``answer``: a list of ``[text, seconds to wait before it, how often (1)]``; ``early``: it does not wait for the body;
- ``after``: what the backend does then: ``open`` (goes on to the next request), ``close`` or ``reset``;
- ``settle``: seconds before the next request; ``expect``.

``expect.any`` lists the permitted outcomes:

- ``answer``: a complete answer of ``status``, with ``body``, ``has`` {name: value}, ``lacks`` [names], ``trailers``
  {name: value}, ``interim`` [statuses] where they are given;
- ``error``: a complete answer whose status is in ``status``;
- ``broken``: an answer began and never ended: the connection closed before the end of its framing, or was reset.

``expect.never``: strings that the client must not receive. After each case ``GET /next`` is asked, on the same
connection where it is still open and on a fresh one, and must get its own answer: nothing of a hostile answer may be
left in any connection that is used again. What the client receives is parsed by h11.
"""

import asyncio
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

import h11

from tests.support.deadline import within
from tests.support.http.backend import close_all, read_request

Case = dict[str, Any]

GET = "GET /x HTTP/1.1\r\nHost: a.example\r\n\r\n"
NEXT = b"GET /next HTTP/1.1\r\nHost: a.example\r\n\r\n"
NEXT_BODY = b"the next one"
WAIT_S = 5.0


class HostileBackend:
    """Answers as the present case says, and ``/next`` as it should."""

    def __init__(self) -> None:
        self.case: Case = {}
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=4 << 20)
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        await close_all(self._writers)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while await self._answer(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if self.case.get("early"):
            head, _ = await reader.readuntil(b"\r\n\r\n"), b""
        else:
            head, _ = await read_request(reader)
        if head.startswith(b"GET /next"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(NEXT_BODY), NEXT_BODY))
            return True
        case = self.case
        for text, pause_s, *times in case["answer"]:
            await asyncio.sleep(pause_s)
            writer.write(text.encode("latin-1") * (times[0] if times else 1))
            await writer.drain()
        after = case.get("after", "open")
        if after == "reset":
            await asyncio.sleep(0.1)
            sock: socket.socket = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        return bool(after == "open")


@dataclass
class Seen:
    """What the client saw of one answer."""

    status: int = 0
    fields: list[tuple[bytes, bytes]] = field(default_factory=list)
    interim: list[int] = field(default_factory=list)
    body: bytes = b""
    trailers: list[tuple[bytes, bytes]] = field(default_factory=list)
    complete: bool = False
    fault: str = ""
    """What was no HTTP."""
    received: bytes = b""

    def take_all(self, parser: h11.Connection) -> None:
        """What the parser has understood, up to the end of the message."""
        while not self.complete and isinstance(event := parser.next_event(), h11.Event):
            self._take(event)

    def _take(self, event: h11.Event) -> None:
        if isinstance(event, h11.InformationalResponse):
            self.interim.append(event.status_code)
        elif isinstance(event, h11.Response):
            self.status, self.fields = event.status_code, list(event.headers)
        elif isinstance(event, h11.Data):
            self.body += event.data
        elif isinstance(event, h11.EndOfMessage):
            self.complete = True
            self.trailers = list(event.headers)


async def _read(reader: asyncio.StreamReader, request: bytes) -> Seen:
    """Reads one answer to ``request``; returns at its end, at the end of the connection or after WAIT_S."""
    seen = Seen()
    method = request.partition(b" ")[0]
    parser = h11.Connection(h11.CLIENT)
    length = [("content-length", "0")] if method == b"POST" else []
    parser.send(h11.Request(method=method, target="/", headers=[("host", "a"), *length]))
    parser.send(h11.EndOfMessage())
    try:
        async with within(WAIT_S):
            while not seen.complete:
                data = await reader.read(65536)
                seen.received += data
                parser.receive_data(data)
                seen.take_all(parser)
                if not data:
                    break
    except ConnectionError:
        pass
    except h11.RemoteProtocolError as error:
        # Too few bytes before the end are how a broken answer looks.
        if "without sending complete message" not in str(error) and "incomplete chunked" not in str(error):
            seen.fault = str(error)
    except TimeoutError:
        seen.fault = f"no end within {WAIT_S} s"
    return seen


async def run_case(case: Case, address: tuple[str, int], backend: HostileBackend) -> list[str]:
    """What is wrong; empty: the case passes."""
    backend.case = case
    request = case.get("request", GET).encode("latin-1")
    reader, writer = await asyncio.open_connection(*address, limit=4 << 20)
    try:
        writer.write(request)
        seen = await _read(reader, request)
        faults = _judge(case["expect"], seen)
        await asyncio.sleep(case.get("settle", 0.0))
        if seen.complete and not _closes(seen, request):
            faults += await _next(reader, writer, "on the same connection")
    finally:
        await close_all({writer})
    reader, writer = await asyncio.open_connection(*address)
    try:
        return faults + await _next(reader, writer, "on a new connection")
    finally:
        await close_all({writer})


def _closes(seen: Seen, request: bytes) -> bool:
    said = [value.lower() for name, value in seen.fields if name == b"connection"]
    return b"close" in said or b"HTTP/1.0" in request


async def _next(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, where: str) -> list[str]:
    writer.write(NEXT)
    seen = await _read(reader, NEXT)
    if seen.fault or seen.status != 200 or seen.body != NEXT_BODY:
        return [f"the next request {where}: {seen.fault or seen.status} {seen.body[:80]!r}"]
    return []


def _judge(expect: Case, seen: Seen) -> list[str]:
    faults = [f"{text} was received" for text in expect.get("never") or [] if text.encode("latin-1") in seen.received]
    if seen.fault:
        faults.append(f"the client was sent what is no HTTP: {seen.fault}")
    reasons = [_holds(option, seen) for option in expect["any"]]
    if not any(reason == "" for reason in reasons):
        faults.append("no outcome holds: " + "; ".join(reasons))
    return faults


def _holds(option: Case, seen: Seen) -> str:
    """Why an outcome does not hold; "" when it does."""
    if option["kind"] == "broken":
        begun = seen.status == option.get("status", 200) and not seen.complete
        return "" if begun else f"not broken: {seen.status}, complete {seen.complete}"
    if option["kind"] == "error":
        fine = seen.complete and seen.status in option["status"]
        return "" if fine else f"{seen.status}, complete {seen.complete}"
    if not seen.complete or seen.status != option.get("status", 200):
        return f"{seen.status}, complete {seen.complete}"
    names = [name for name, _ in seen.fields]
    wrong = [name for name, value in (option.get("has") or {}).items() if not _has(seen.fields, name, value)]
    wrong += [name for name in option.get("lacks") or [] if name.encode() in names]
    wrong += [name for name, value in (option.get("trailers") or {}).items() if not _has(seen.trailers, name, value)]
    wrong += [name for name in option.get("lacks_trailers") or [] if name.encode() in dict(seen.trailers)]
    if "body" in option and seen.body != option["body"].encode("latin-1"):
        wrong.append(f"body {seen.body[:80]!r}")
    if "interim" in option and seen.interim != option["interim"]:
        wrong.append(f"interim {seen.interim}")
    return ", ".join(wrong)


def _has(fields: list[tuple[bytes, bytes]], name: str, value: str) -> bool:
    return (name.encode(), value.encode("latin-1")) in fields
