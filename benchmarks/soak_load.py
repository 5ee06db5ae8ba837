"""The clients of ``benchmarks.soak``: a bulk of plain requests, as cheap as they can be, and nasty ones beside."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import cast

from tests.support.live.raw_clients import Ask, Outcome, Wire, any_ask, exchange

BODY = b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[0.25,0.5,0.75,%d]}]}'
HEAD = (
    b"POST /v2/models/m/infer HTTP/1.1\r\nhost: localhost\r\nuser-agent: soak\r\naccept: */*\r\n"
    b"content-type: application/json\r\nx-request-id: soak-%d\r\ncontent-length: %d\r\n\r\n%b"
)
BAD = (
    b"GET / HTTP/1.1\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: x\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
    b"POST /functions/f/x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n",
    b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 20_000 + b"\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /nothing HTTP/1.1\r\nhost: absent.localhost\r\n\r\n",
)
"""Requests that are refused; the chunked one after its head has been forwarded."""
WEBSOCKET = (
    b"GET /functions/f/ws HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


class Counts:
    """Results of all clients of a soak."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.done = 0
        self.bulk: Counter[str] = Counter()
        self.nasty: Counter[str] = Counter()
        self.over = asyncio.Event()

    def one(self, of: Counter[str], what: str) -> None:
        of[what] += 1
        self.done += 1
        if self.done >= self.wanted:
            self.over.set()


class Bulk(asyncio.Protocol):
    """Plain requests on a kept connection, ``depth`` at once; another connection after ``turns`` answers."""

    def __init__(self, counts: Counts, again: Callable[[], None], depth: int, turns: int) -> None:
        self._counts = counts
        self._again = again
        self._depth = depth
        self._turns = turns
        self._open = 0
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._ask()

    def _ask(self) -> None:
        counts = self._counts
        if counts.over.is_set() or self._turns <= 0:
            self._transport.close()
            return
        self._turns -= self._depth
        self._open = self._depth
        requests = []
        for number in range(counts.done, counts.done + self._depth):
            body = BODY % number
            requests.append(HEAD % (number, len(body), body))
        self._transport.write(b"".join(requests))

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        while self._open:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                break
            at = data.lower().find(b"content-length: ", 0, end)
            whole = end + 4 + int(data[at + 16 : data.index(b"\r", at)])
            if len(data) < whole:
                break
            self._counts.one(self._counts.bulk, data[9:12].decode())
            self._open -= 1
            data = data[whole:]
        self._rest = data
        if not self._open:
            self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        for _ in range(self._open):
            self._counts.one(self._counts.bulk, "closed")
        if not self._counts.over.is_set():
            self._again()


class Clients:
    """All clients of one soak, evenly over ``ports``."""

    def __init__(self, ports: list[int], counts: Counts, rng: random.Random) -> None:
        self._ports = ports
        self._counts = counts
        self._rng = rng

    async def run(self, *, bulk: int, nasty: int) -> None:
        """So many connections of each kind, until the wanted number is done."""
        async with asyncio.TaskGroup() as group:
            for number in range(bulk):
                group.create_task(self._bulk(number))
            for number in range(nasty):
                group.create_task(self._nasty(number))

    async def _bulk(self, number: int) -> None:
        """One client: every sixth pipelines, every fifth reconnects after some requests."""
        port = self._ports[number % len(self._ports)]
        depth = 8 if number % 6 == 0 else 1
        turns = 40 if number % 5 == 0 else 1 << 60
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        while not self._counts.over.is_set():
            ended.clear()
            try:
                await loop.create_connection(lambda: Bulk(self._counts, ended.set, depth, turns), "127.0.0.1", port)
            except OSError:
                self._counts.bulk["refused"] += 1
                await asyncio.sleep(0.05)
                continue
            waiting = [loop.create_task(event.wait()) for event in (ended, self._counts.over)]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()

    async def _nasty(self, number: int) -> None:
        index = number % len(self._ports)
        rng = random.Random(self._rng.random())
        wire = Wire(self._ports[index])
        while not self._counts.over.is_set():
            match rng.randrange(8):
                case 0:
                    await self._raw(index, rng.choice(BAD), "refused")
                case 1:
                    await self._raw(index, WEBSOCKET, "websocket")
                case 2:
                    await self._raw(index, HEAD[: rng.randrange(1, 120)], "half a head", leave=True)
                case _:
                    await self._ask(wire, index, any_ask(rng))
        wire.abort()

    async def _ask(self, wire: Wire, index: int, ask: Ask) -> None:
        outcome = Outcome(name="soak", worker=index, kind=ask.kind, began=monotonic())
        await exchange(wire, ask, outcome, 30.0)
        self._counts.one(self._counts.nasty, f"{ask.kind}: {outcome.end} {outcome.status or ''}".strip())

    async def _raw(self, index: int, data: bytes, what: str, *, leave: bool = False) -> None:
        """Bytes on a connection of their own; reads the first line of what comes, unless it leaves before."""
        said = b""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(12.0):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._ports[index])
                writer.write(data)
                if not leave:
                    said = (await reader.readline())[9:12]
                    if said == b"101":
                        writer.write(b"echo")
                        await reader.read(1000)
                writer.transport.abort()
        self._counts.one(self._counts.nasty, f"{what}: {said.decode()}")
