"""An HTTP/1.1 load client. In the open loop requests leave when the schedule says, whatever became of the earlier ones;
in the closed loop each of so many callers sends its next request when it has the answer to the one before.

Latency counts from the time at which a request was *due*, so a client that falls behind shows in its own figures
instead of hiding the server's (coordinated omission); how late it left is in every outcome. Connections are kept alive
and taken last in, first out; a new one is opened when none is idle. Nothing is ever sent twice: what fails is an
outcome.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

HEAD_BYTES: Final = 64 * 1024
FAILED_PAUSE_S: Final = 0.05
"""A caller of the closed loop that got no answer waits so long: a server that refuses is not hammered."""


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
    lag_s: float = 0.0
    """How long after it was due this client came to send it: above some milliseconds the client is the bottleneck."""

    @property
    def is_good(self) -> bool:
        return self.status == 200


class BrokenAnswerError(Exception):
    """The connection ended, or what came is no answer."""


class HttpLoad:
    """Sends POSTs to ``path`` at ``host:port``; ``done`` is called with every outcome as it becomes known.

    ``batch_header``: a field in which each request says how many inferences it carries.
    """

    def __init__(
        self,
        address: str,
        path: str,
        *,
        headers: Iterable[tuple[str, str]] = (),
        timeout_s: float = 60.0,
        keep_bodies: bool = False,
        batch_header: str | None = None,
        done: Callable[[Outcome], None],
    ) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        fields = {"host": address, "content-type": "application/json"} | dict(headers)
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._head = f"POST {path} HTTP/1.1\r\n{lines}content-length: ".encode()
        self._batch = None if batch_header is None else f"{batch_header}: ".encode()
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

    async def run_callers(
        self, callers: int, draw: Callable[[], Shot], seconds: float, *, every_s: float = 0.0
    ) -> None:
        """Closed loop: so many callers, for so many seconds; the last answers are waited for.

        ``draw``: the next request (its ``at_s`` means nothing here); ``every_s``: no caller sends its next request
        sooner than this after its last one, and their beginnings are spread evenly over it.
        """
        loop = asyncio.get_running_loop()
        start = loop.time()
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(callers):
                    first = start + every_s * number / callers
                    group.create_task(self._call(draw, start, first, seconds, every_s), name=f"caller {number}")
        finally:
            self.close()

    async def _call(self, draw: Callable[[], Shot], start: float, due: float, seconds: float, every_s: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            if due >= start + seconds - 1e-6:
                return
            shot = draw()
            self.in_flight += 1
            try:
                outcome = await self._attempt(Shot(due - start, shot.body, shot.inferences), due)
            finally:
                self.in_flight -= 1
            self._done(outcome)
            due = max(due + every_s, loop.time() + (0.0 if outcome.status is not None else FAILED_PAUSE_S))

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
        lag_s = max(0.0, loop.time() - due)
        try:
            async with asyncio.timeout(self._timeout_s):
                status, headers, body = await self._exchange(shot)
        except (BrokenAnswerError, OSError, TimeoutError, asyncio.LimitOverrunError, ValueError) as error:
            text = str(error) or type(error).__name__
            return Outcome(shot.at_s, loop.time() - due, shot.inferences, None, text, lag_s=lag_s)
        kept = body if self._keep_bodies or status != 200 else b""
        return Outcome(shot.at_s, loop.time() - due, shot.inferences, status, None, headers, kept, lag_s)

    async def _exchange(self, shot: Shot) -> tuple[int, tuple[tuple[str, str], ...], bytes]:
        reader, writer = self._living() or await self._connect()
        is_reusable = False
        try:
            told = b"" if self._batch is None else b"\r\n%b%d" % (self._batch, shot.inferences)
            writer.write(b"%b%d%b\r\n\r\n%b" % (self._head, len(shot.body), told, shot.body))
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
