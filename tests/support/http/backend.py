"""A backend that a test scripts, and a client that speaks raw bytes."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Collection

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class ScriptedBackend:
    """Runs ``script`` for every connection; the test reads what it noted."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.connections = 0
        self.gone = asyncio.Event()
        """A connection has ended under the script's hands."""

    async def start(self, sock: socket.socket | None = None) -> str:
        """Listens on ``sock``, else on a free port; the address."""
        if sock is None:
            sock = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._server = await asyncio.start_server(self._serve, sock=sock, limit=1 << 20)
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            await self._script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.gone.set()
        finally:
            writer.close()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        await close_all(self._writers)


async def close_all(writers: Collection[asyncio.StreamWriter]) -> None:
    """Ends connections and waits until the loop has let go of them."""
    for writer in tuple(writers):
        with contextlib.suppress(AttributeError):  # asyncio's transports that have ended since cannot be aborted
            writer.transport.abort()
    for writer in tuple(writers):
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    await asyncio.sleep(0.005)


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body (length or none); raises IncompleteReadError at the end of the connection."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    return head, await reader.readexactly(length)


async def read_answer(reader: asyncio.StreamReader, *, bodyless: bool = False) -> tuple[bytes, bytes]:
    """Head and body of an answer; chunked bodies are decoded; without framing: to the end."""
    head = await reader.readuntil(b"\r\n\r\n")
    fields = head.lower()
    if bodyless:
        return head, b""
    if b"transfer-encoding: chunked" in fields:
        body = b""
        while True:
            size = int((await reader.readuntil(b"\r\n"))[:-2], 16)
            if size == 0:
                while await reader.readuntil(b"\r\n") != b"\r\n":
                    pass
                return head, body
            body += await reader.readexactly(size)
            await reader.readexactly(2)
    for line in fields.split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return head, await reader.readexactly(int(line.partition(b":")[2]))
    return head, await reader.read()


def answering(*answers: bytes) -> Script:
    """Answers each request on a connection with the next of ``answers``, the last one for ever."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = 0
        while True:
            await read_request(reader)
            writer.write(answers[min(number, len(answers) - 1)])
            await writer.drain()
            number += 1

    return script


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
