"""An open-loop HTTP/1.1 load client: requests leave when the schedule says, whatever became of the earlier ones.

Latency counts from the *scheduled* time, so a client that falls behind shows in its own figures instead of hiding the
server's (coordinated omission). Connections are kept alive and taken last in, first out; a new one is opened when none
is idle. Nothing is ever sent twice: what fails is an outcome.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

HEAD_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Shot:
    """One request of the schedule; ``at_s`` seconds after the start."""

    at_s: float
    body: bytes
    inferences: int = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one shot. ``status`` None: no answer, and ``error`` says why."""

    at_s: float
    latency_s: float
    inferences: int
    status: int | None
    error: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    @property
    def is_good(self) -> bool:
        return self.status == 200


class BrokenAnswerError(Exception):
    """The connection ended, or what came is no answer."""


class HttpLoad:
    """Sends POSTs to ``path`` at ``host:port``; ``done`` is called with every outcome as it becomes known."""

    def __init__(
        self,
        address: str,
        path: str,
        *,
        headers: Iterable[tuple[str, str]] = (),
        timeout_s: float = 60.0,
        keep_bodies: bool = False,
        done: Callable[[Outcome], None],
    ) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        fields = {"host": address, "content-type": "application/json"} | dict(headers)
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._head = f"POST {path} HTTP/1.1\r\n{lines}content-length: ".encode()
        self._timeout_s = timeout_s
        self._keep_bodies = keep_bodies
        self._done = done
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.in_flight = 0

    async def run(self, shots: Iterable[Shot]) -> None:
        """Sends all shots (in order of time) and waits for every outcome."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        try:
            async with asyncio.TaskGroup() as group:
                for shot in shots:
                    wait_s = start + shot.at_s - loop.time()
                    if wait_s > 0:
                        await asyncio.sleep(wait_s)
                    group.create_task(self._send(shot, start + shot.at_s), name=f"shot {shot.at_s:.3f}")
        finally:
            self.close()

    async def fire(self, body: bytes, inferences: int = 1) -> Outcome:
        """One request now, outside any schedule."""
        return await self._attempt(Shot(0.0, body, inferences), asyncio.get_running_loop().time())

    def close(self) -> None:
        """Closes the idle connections."""
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()

    async def _send(self, shot: Shot, due: float) -> None:
        self.in_flight += 1
        try:
            self._done(await self._attempt(shot, due))
        finally:
            self.in_flight -= 1

    async def _attempt(self, shot: Shot, due: float) -> Outcome:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                status, headers, body = await self._exchange(shot.body)
        except (BrokenAnswerError, OSError, TimeoutError, asyncio.LimitOverrunError, ValueError) as error:
            text = str(error) or type(error).__name__
            return Outcome(shot.at_s, loop.time() - due, shot.inferences, None, text)
        kept = body if self._keep_bodies or status != 200 else b""
        return Outcome(shot.at_s, loop.time() - due, shot.inferences, status, None, headers, kept)

    async def _exchange(self, body: bytes) -> tuple[int, tuple[tuple[str, str], ...], bytes]:
        reader, writer = self._living() or await self._connect()
        is_reusable = False
        try:
            writer.write(b"%b%d\r\n\r\n%b" % (self._head, len(body), body))
            status, headers, answer, is_reusable = await read_answer(reader)
        finally:
            if is_reusable:
                self._idle.append((reader, writer))
            else:
                writer.close()
        return status, headers, answer

    def _living(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """An idle connection that the server has not closed."""
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof():
                return reader, writer
            writer.close()
        return None

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._host, self._port, limit=HEAD_BYTES)

    def __repr__(self) -> str:
        return f"<HttpLoad {self._host}:{self._port}, {self.in_flight} in flight, {len(self._idle)} idle>"


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, tuple[tuple[str, str], ...], bytes, bool]:
    """(status, headers, body, whether the connection can be used again). Raises BrokenAnswerError."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        line, *lines = head[:-4].decode("latin-1").split("\r\n")
        version, code = line.split(" ", 2)[:2]
        pairs = (each.partition(":") for each in lines)
        headers = tuple((name.lower(), value.strip()) for name, _, value in pairs)
        found = dict(headers)
        if "content-length" in found:
            body = await reader.readexactly(int(found["content-length"]))
        elif found.get("transfer-encoding", "").lower() == "chunked":
            body = await _read_chunks(reader)
        else:
            body = await reader.read()
            return int(code), headers, body, False
    except asyncio.IncompleteReadError as error:
        raise BrokenAnswerError(f"the connection ended after {len(error.partial)} bytes of the answer") from error
    is_reusable = version == "HTTP/1.1" and found.get("connection", "").lower() != "close"
    return int(code), headers, body, is_reusable


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":
        continue
    return b"".join(parts)
