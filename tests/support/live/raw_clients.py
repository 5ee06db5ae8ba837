"""Raw clients of the edge: each request has a name, a way of being sent, and an outcome that somebody judges later."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from time import monotonic

CHUNK = 16 * 1024
LAG_S = 0.05
HOPS = 4
"""Processes that a request passes and a busy machine may keep waiting, its client included."""


class End(StrEnum):
    """How a request ended for its client."""

    ANSWERED = "answered"
    CLOSED = "closed"
    """Without a byte of an answer."""
    BROKEN = "broken"
    """In the middle of an answer."""
    CANCELLED = "cancelled"
    """By the client itself."""
    HUNG = "hung"
    """Neither within the time that the client gave it."""


@dataclass(slots=True)
class Outcome:
    """One request: what was asked for and what came of it. Times are seconds of ``time.monotonic``."""

    name: str
    worker: int
    kind: str
    began: float
    deadline_s: float | None = None
    """What the client declared; None: the function's timeout."""
    ended: float = 0.0
    end: End = End.HUNG
    status: int = 0
    body: bytes = b""
    is_right: bool = False
    """The answer is the one to this request, whole, after a whole body."""
    slow_s: float = 0.0
    """Time that the client itself takes to send or to read."""
    reused: bool = False
    """Sent on a connection that had carried others: it may be closed at any time between two requests."""

    @property
    def took_s(self) -> float:
        return self.ended - self.began

    def __str__(self) -> str:
        said = self.body[:200].decode("latin-1") if self.status != 200 else ""
        return (
            f"{self.name} {self.kind} via g{self.worker} from {self.began:.3f}, {self.took_s:.3f} s: "
            f"{self.end} {self.status} {'reused ' if self.reused else ''}{said}"
        )


@dataclass(slots=True, kw_only=True)
class Ask:
    """What a client is to send."""

    kind: str
    size: int = 40
    chunked: bool = False
    fields: dict[str, str] = field(default_factory=dict)
    drip_s: float = 0.0
    """Pause between two pieces of the body."""
    sip_s: float = 0.0
    """Pause between two reads of the answer."""
    leave_after_s: float | None = None
    """The client goes away so long after its first byte."""
    answer_bytes: int = 0

    @property
    def slow_s(self) -> float:
        return self.drip_s * (self.size // CHUNK + 1) + self.sip_s * (self.answer_bytes // (4 * CHUNK) + 1)

    def fits(self, outcome: Outcome) -> bool:
        """Whether the body of the answer is what ``scripted_server.py`` gives to this request."""
        name, body = outcome.name.encode(), outcome.body
        if self.answer_bytes:
            return body == b"x" * self.answer_bytes
        if "x-events" in self.fields:
            events = body.split(b"\n\n")[:-1]
            expected = [b"data: %b %d" % (name, number) for number in range(int(self.fields["x-events"]))]
            return [event.rpartition(b" ")[0] for event in events] == expected
        return body == b'{"id":"%b","bytes":%d}' % (name, self.size)


class Wire:
    """One connection; ``ask`` sends a request and waits for the answer."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @property
    def is_open(self) -> bool:
        return self._streams is not None

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
        return self._streams

    async def ask(self, ask: Ask, outcome: Outcome) -> None:
        """Fills in ``outcome``; leaves the connection open where the answer allows."""
        try:
            await self._exchange(*(self._streams or await self.connect()), ask, outcome)
        except (OSError, asyncio.IncompleteReadError):
            outcome.end = End.BROKEN if outcome.status else End.CLOSED
            self.abort()

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ask: Ask, outcome: Outcome
    ) -> None:
        sending = asyncio.get_running_loop().create_task(self._send(writer, ask, outcome.name))
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            outcome.status = int(head[9:12])
            fields = head.lower()
            outcome.body = await self._read(reader, fields, ask)
            outcome.end = End.ANSWERED
            if b"\r\nconnection: close" in fields or not sending.done():
                self.abort()
        finally:
            sending.cancel()
            # uvloop says RuntimeError where the transport is closed already.
            with suppress(asyncio.CancelledError, OSError, RuntimeError):
                await sending

    async def _send(self, writer: asyncio.StreamWriter, ask: Ask, name: str) -> None:
        lines = "".join(f"{key}: {value}\r\n" for key, value in ask.fields.items())
        framing = "transfer-encoding: chunked" if ask.chunked else f"content-length: {ask.size}"
        head = (
            f"POST /v2/models/m/infer HTTP/1.1\r\nhost: localhost\r\nx-id: {name}\r\n{lines}{framing}\r\n\r\n".encode()
        )
        if ask.size <= CHUNK and not ask.chunked and not ask.drip_s:
            writer.write(head + b"b" * ask.size)  # in one piece, as most clients do
        else:
            writer.write(head)
            for at in range(0, ask.size, CHUNK):
                piece = b"b" * min(CHUNK, ask.size - at)
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if ask.chunked else piece)
                await writer.drain()
                if ask.drip_s:
                    await asyncio.sleep(ask.drip_s)
            if ask.chunked:
                writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _read(self, reader: asyncio.StreamReader, fields: bytes, ask: Ask) -> bytes:
        at = fields.find(b"\r\ncontent-length: ")
        if at < 0:
            return await self._chunks(reader)
        left = int(fields[at + 18 :].split(b"\r\n", 1)[0])
        if not ask.sip_s:
            return await reader.readexactly(left)
        parts = []
        while left:
            parts.append(await reader.readexactly(min(left, 4 * CHUNK)))
            left -= len(parts[-1])
            await asyncio.sleep(ask.sip_s)
        return b"".join(parts)

    async def _chunks(self, reader: asyncio.StreamReader) -> bytes:
        parts = []
        while size := int(await reader.readuntil(b"\r\n"), 16):
            parts.append(await reader.readexactly(size))
            await reader.readexactly(2)
        await reader.readuntil(b"\r\n")
        return b"".join(parts)

    def abort(self) -> None:
        """Closes the connection with a reset where bytes are under way."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


async def exchange(wire: Wire, ask: Ask, outcome: Outcome, patience_s: float) -> Outcome:
    """One request over ``wire``, at most ``patience_s`` long; leaves where the client is to leave."""
    given = ask.fields.get("tidegate-timeout-ms")
    outcome.deadline_s = None if given is None else float(given) / 1000
    outcome.slow_s = ask.slow_s
    outcome.reused = wire.is_open
    try:
        async with asyncio.timeout(patience_s if ask.leave_after_s is None else ask.leave_after_s):
            await wire.ask(ask, outcome)
    except TimeoutError:
        outcome.end = End.HUNG if ask.leave_after_s is None else End.CANCELLED
        wire.abort()
    outcome.ended = monotonic()
    outcome.is_right = ask.fits(outcome)
    return outcome


def any_ask(rng: random.Random) -> Ask:
    """One of everything that clients do."""
    work = str(rng.choice((0, 1, 5, 20, 60)))
    match rng.randrange(20):
        case 0 | 1:
            return Ask(kind="large", size=600_000, chunked=rng.random() < 0.5, fields={"x-work-ms": work})
        case 2:
            return Ask(kind="slow upload", size=300_000, drip_s=0.02, fields={"x-work-ms": work})
        case 3:
            size = 1_000_000
            fields = {"x-work-ms": work, "x-size": str(size)}
            return Ask(kind="slow reader", sip_s=0.02, answer_bytes=size, fields=fields)
        case 4 | 5:
            fields = {"x-work-ms": str(rng.choice((10, 300, 600))), "tidegate-timeout-ms": str(rng.choice((150, 400)))}
            return Ask(kind="deadline", fields=fields)
        case 6 | 7:
            return Ask(kind="cancelled", leave_after_s=rng.uniform(0.0, 0.12), fields={"x-work-ms": "100"})
        case 8:
            leave_s = rng.uniform(0.01, 0.3)
            return Ask(kind="cancelled upload", size=600_000, drip_s=0.01, leave_after_s=leave_s, chunked=True)
        case 9:
            return Ask(kind="stream", fields={"x-events": "10", "x-gap-ms": "10"})
        case 10 | 11 | 12:
            return Ask(kind="medium", size=20_000, fields={"x-work-ms": work})
    return Ask(kind="small", fields={"x-work-ms": work})


class Lags:
    """When this process itself was not served by its machine, and for how long: other processes fare no better."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, float]] = []

    async def watch(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            began = monotonic()
            await asyncio.sleep(LAG_S)
            if (late_s := monotonic() - began - LAG_S) > LAG_S:
                self._seen.append((began, late_s))

    def granted_s(self, began: float, ended: float) -> float:
        """What a request of that time is granted: as much at each process that it passes."""
        return HOPS * sum(late_s for at, late_s in self._seen if began <= at + late_s and at <= ended)


class Load:
    """Closed-loop clients, each at one worker, and an open stream of newcomers; ``outcomes`` has all that ended."""

    def __init__(self, ports: list[int], rng: random.Random, *, patience_s: float) -> None:
        """``patience_s``: after which a client calls its request hung."""
        self._ports = ports
        self._rng = rng
        self._patience_s = patience_s
        self._number = 0
        self.outcomes: list[Outcome] = []
        self.lags = Lags()
        self.is_stopping = False

    async def run(self, *, closed: int, open_rps: float, chaos: Callable[[], Awaitable[None]]) -> None:
        """``closed`` clients per worker and ``open_rps`` new connections a second for as long as ``chaos`` lasts."""
        async with asyncio.TaskGroup() as group:
            for worker in range(len(self._ports)):
                for _ in range(closed):
                    group.create_task(self._client(worker, random.Random(self._rng.random())))
            group.create_task(self._newcomers(group, open_rps))
            group.create_task(self.lags.watch(lambda: self.is_stopping))
            await chaos()
            self.is_stopping = True

    async def _client(self, worker: int, rng: random.Random) -> None:
        wire = Wire(self._ports[worker])
        while not self.is_stopping:
            ask = any_ask(rng)
            await self._one(wire, ask, worker)
            if rng.random() < 0.1:
                wire.abort()
            if rng.random() < 0.2:
                await asyncio.sleep(rng.uniform(0.0, 0.1))
        wire.abort()

    async def _newcomers(self, group: asyncio.TaskGroup, rate: float) -> None:
        while not self.is_stopping:
            await asyncio.sleep(self._rng.expovariate(rate))
            group.create_task(self._newcomer(self._rng.randrange(len(self._ports))))

    async def _newcomer(self, worker: int) -> None:
        wire = Wire(self._ports[worker])
        await self._one(wire, Ask(kind="newcomer", fields={"x-work-ms": "2"}), worker)
        wire.abort()

    async def _one(self, wire: Wire, ask: Ask, worker: int) -> None:
        self._number += 1
        outcome = Outcome(name=f"q{self._number}", worker=worker, kind=ask.kind, began=monotonic())
        self.outcomes.append(outcome)
        await exchange(wire, ask, outcome, self._patience_s)
