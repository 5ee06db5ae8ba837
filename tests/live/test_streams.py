"""Streams and departures through real processes.

A client that leaves takes its work with it, wherever that is. A stream or WebSocket lives through scale-in, rollout
and the restart of the gateway, and loses nothing.

Times at the model server are read in its journal; the machine's monotonic clock is the same for all processes.
"""

import asyncio
import json
import socket
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic_ns

import pytest

from tests.support.deadline import within
from tests.support.live.chaos import ChaosEdge
from tests.support.live.live_edge import Replica, client, infer
from tidegate.records.codec import encode
from tidegate.records.route_table import GroupRoute, RevisionRoute, RouteTable

ROUNDS = 10


@asynccontextmanager
async def world_of(
    limits: list[int], workers: int = 1, settings: dict[str, float] | None = None
) -> AsyncIterator[ChaosEdge]:
    """``settings``: limits of the gateway workers."""
    with tempfile.TemporaryDirectory(prefix="streams-") as directory:
        world = ChaosEdge(Path(directory))
        world.limits = settings or {}
        try:
            await world.begin(workers, limits)
            yield world
            assert world.complaints() == []
        finally:
            world.close()
            await asyncio.sleep(0.05)  # transports of a failed test let go of their sockets


def ask(name: str, size: int = 0, **fields: int) -> bytes:
    """A whole head with its fields; ``size``: of the body that the caller sends."""
    lines = "".join(f"{key.replace('_', '-')}: {value}\r\n" for key, value in fields.items())
    head = f"POST /v2/models/m/infer HTTP/1.1\r\nhost: localhost\r\nx-id: {name}\r\n{lines}"
    return f"{head}content-length: {size}\r\n\r\n".encode()


# --- who leaves takes the work along ---------------------------------------------------------------------------------


class Leaver:
    """A client on a plain socket, so that it is closed the moment it says so."""

    def __init__(self, address: str, data: bytes) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setblocking(False)
        self._socket.send(data)

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    def leave(self, *, reset: bool) -> int:
        """Closes it with a FIN or a reset; when, in nanoseconds."""
        if reset:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        at = monotonic_ns()
        self._socket.close()
        return at


def noted(world: ChaosEdge, kind: str, name: str) -> int | None:
    """When a model server wrote this line; None: not yet."""
    for journal in world.directory.glob("*.journal"):
        for line in journal.read_text().splitlines():
            if line.startswith(f"{kind} {name} "):
                return int(line.split(" ")[2])
    return None


async def until_noted(world: ChaosEdge, kind: str, name: str) -> int:
    async with within(15.0):
        while True:
            at = noted(world, kind, name)
            if at is not None:
                return at
            await asyncio.sleep(0.005)


def judge(what: str, delays_ms: list[float]) -> None:
    """Prints the figures; the bounds are for a machine that does ten other things."""
    median, longest = statistics.median(delays_ms), max(delays_ms)
    sys.stdout.write(json.dumps({"left": what, "p50_ms": round(median, 2), "max_ms": round(longest, 2)}) + "\n")
    assert median < 500.0
    assert longest < 2500.0


@pytest.mark.live
@pytest.mark.parametrize("through", ["gateway", "queue_proxy"])
def test_who_leaves_while_it_runs_streams_or_uploads_ends_it_at_the_model_at_once(through: str) -> None:
    async def main() -> None:
        async with world_of([1]) as world:
            address = world.living[0].address if through == "queue_proxy" else f"127.0.0.1:{world.ports[0]}"

            async def left(kind: str, number: int) -> float:
                name = f"{kind}-{number}"
                head = {
                    "running": ask(name, x_work_ms=5000),
                    "streaming": ask(name, x_events=1000, x_gap_ms=5),
                    "uploading": ask(name, 1_000_000) + b"b" * 300_000,
                }[kind]
                leaver = Leaver(address, head)
                await until_noted(world, "S", name)
                if kind == "uploading":
                    await leaver.send(b"b" * 100_000)
                await asyncio.sleep(0.02)
                at = leaver.leave(reset=number % 2 == 1)
                return (await until_noted(world, "X", name) - at) / 1e6

            for kind in ("running", "streaming", "uploading"):
                judge(f"{kind}, through the {through}", [await left(kind, number) for number in range(ROUNDS)])
            assert await world.quiet() == []
            assert (await world.stats(world.living[0]))["most"] == 1

    asyncio.run(main())


@pytest.mark.live
@pytest.mark.parametrize("through", ["gateway", "queue_proxy"])
@pytest.mark.parametrize("size", [0, 600_000])
def test_who_leaves_while_it_waits_is_forgotten_and_never_runs(through: str, size: int) -> None:
    """A body of which more than 256 KB wait is not read on, and its client's end is found by the services (250 ms)."""

    async def main() -> None:
        async with world_of([1]) as world:
            address = world.living[0].address if through == "queue_proxy" else f"127.0.0.1:{world.ports[0]}"

            admin = client(world.living[0].admin if through == "queue_proxy" else world.admins[0])

            async def reached(count: int) -> None:
                waiting = -1
                async with within(15.0):
                    while waiting != count:
                        sample = (await admin.get("/sample")).json()
                        demands = sample.get("demands", [])
                        waiting = sample["queued"] if through == "queue_proxy" else sum(d["waiting"] for d in demands)

            runner = Leaver(address, ask("runner", x_work_ms=60_000))
            await until_noted(world, "S", "runner")
            delays = []
            for number in range(ROUNDS):
                leaver = Leaver(address, ask(f"waiter-{number}", size))
                if size:
                    sending = asyncio.get_running_loop().create_task(leaver.send(b"b" * (size // 2)))
                    await asyncio.wait((sending,), timeout=0.1)
                    sending.cancel()
                await reached(1)
                at = leaver.leave(reset=number % 2 == 1)
                await reached(0)
                delays.append((monotonic_ns() - at) / 1e6)
            judge(f"waiting with {size // 2} bytes, through the {through}", delays)
            runner.leave(reset=True)
            await admin.aclose()
            await until_noted(world, "X", "runner")
            assert await world.quiet() == []
            assert [noted(world, "S", f"waiter-{number}") for number in range(ROUNDS)] == [None] * ROUNDS

    asyncio.run(main())


# --- what lives through everything -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Stream:
    """A client of server-sent events; what it got."""

    name: str
    numbers: list[int] = field(default_factory=list)
    delays_ms: list[float] = field(default_factory=list)
    is_whole: bool = False

    async def read(self, port: int, events: int, gap_ms: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(ask(self.name, x_events=events, x_gap_ms=gap_ms))
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            while size := int(await reader.readuntil(b"\r\n"), 16):
                event = await reader.readexactly(size + 2)
                now = monotonic_ns()
                for one in event[:-2].split(b"\n\n")[:-1]:
                    _, name, number, sent = one.split(b" ")
                    assert name.decode() == self.name
                    self.numbers.append(int(number))
                    self.delays_ms.append((now - int(sent)) / 1e6)
            self.is_whole = True
        finally:
            writer.close()


class Socket:
    """An upgraded connection that sends a byte now and then. Without a key the server echoes bytes, not frames."""

    async def open(self, port: int) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
        self._writer.write(
            b"GET /v2/models/m/ws HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
            b"sec-websocket-version: 13\r\n\r\n"
        )
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101"), head

    async def echo(self, text: bytes) -> None:
        self._writer.write(text)
        async with within(15.0):
            assert await self._reader.readexactly(len(text)) == text

    async def is_cut(self, within_s: float) -> bool:
        try:
            async with within(within_s):
                return await self._reader.read(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    async def stays_open(self, seconds: float) -> bool:
        """Whether nothing ends it for so long by the clock: a limit that a busy machine extends would wait for more."""
        try:
            async with asyncio.timeout(seconds):
                await self._reader.read(1)
        except TimeoutError:
            return True
        return False

    def close(self) -> None:
        self._writer.close()


class Passers:
    """Short requests on new connections, which nothing that happens may harm."""

    def __init__(self, world: ChaosEdge) -> None:
        self._world = world
        self.answered = 0

    async def pass_by(self, done: asyncio.Event) -> None:
        index = 0
        while not done.is_set():
            index = (index + 1) % len(self._world.ports)
            async with self._world.client(index) as http:
                answer = await infer(http)
                assert answer.status_code == 200, answer.text
                self.answered += 1
            await asyncio.sleep(0.05)


def two_revisions(before: RouteTable, number: int, *new: Replica, keeps_old: bool) -> RouteTable:
    """The traffic goes to a new revision; the old one is in the table without traffic, or not any more."""
    (route,) = before.functions
    (old,) = route.revisions
    group = GroupRoute(accelerator="cpu", weight=1.0, replicas=tuple(each.route for each in new))
    successor = RevisionRoute(id="f-00002", percent=100.0, groups=(group,))
    revisions = (replace(old, percent=0.0), successor) if keeps_old else (successor,)
    return replace(before, number=number, functions=(replace(route, revisions=revisions),))


async def life(seconds: float) -> None:
    """Streams of ``seconds``; scale-in after an eighth, rollout after a quarter, restart of both workers after three
    eighths, the end of a queue_proxy after a half."""
    gap_ms = 50
    events = round(seconds * 1000 / gap_ms)
    async with world_of([8, 8], workers=2) as world:
        streams = [Stream(f"stream-{number}") for number in range(6)]
        sockets = [Socket() for _ in range(2)]
        passers, done = Passers(world), asyncio.Event()
        for number, each in enumerate(sockets):
            await each.open(world.ports[number])
            await each.echo(b"hello")
        async with asyncio.TaskGroup() as group:
            reading = [
                group.create_task(each.read(world.ports[number % 2], events, gap_ms))
                for number, each in enumerate(streams)
            ]
            group.create_task(passers.pass_by(done))
            one, two = world.living
            await asyncio.sleep(seconds / 8)
            assert (await world.order(one, "drain", epoch=5)).status_code == 200
            await asyncio.sleep(seconds / 8)
            before = world.route_table()
            three = await world.add_replica(8)
            for keeps_old in (True, False):
                world.number += 1
                await tell(world, two_revisions(before, world.number, three, keeps_old=keeps_old))
            await asyncio.sleep(seconds / 8)
            retired = [world.workers[index] for index in range(2)]
            for index in range(2):
                await world.retire_worker(index)
            await asyncio.sleep(seconds / 8)
            two.proxy.terminate()
            await asyncio.wait(reading)
            for each in sockets:
                await each.echo(b"still here")
                each.close()
            done.set()
        await world.reached(one, "drained")
        for process in (*retired, two.proxy):
            assert await world.ended(process, 30.0) == 0
        for stream in streams:
            assert stream.numbers == list(range(events))
            assert stream.is_whole
        assert passers.answered > seconds
        delays = sorted(delay for stream in streams for delay in stream.delays_ms)
        figures = {"events": len(delays), "p50_ms": round(delays[len(delays) // 2], 2), "max_ms": round(delays[-1], 2)}
        sys.stdout.write(json.dumps({"streams of s": seconds, "requests beside": passers.answered, **figures}) + "\n")
        assert {name: len(where) for name, where in world.journal().starts.items() if name != "-"} == {
            stream.name: 1 for stream in streams
        }


async def tell(world: ChaosEdge, table: RouteTable) -> None:
    (world.directory / "routes.json").write_bytes(table_bytes := encode(table))
    for admin in world.admins:
        async with client(admin) as http:
            assert (await http.put("/table", content=table_bytes)).json()["number"] == table.number


@pytest.mark.live
@pytest.mark.timeout(90)
def test_a_stream_survives_scale_in_rollout_and_the_restart_of_the_gateway() -> None:
    asyncio.run(life(16.0))


@pytest.mark.deep
@pytest.mark.timeout(600)
def test_a_five_minute_stream_survives_scale_in_rollout_and_the_restart_of_the_gateway() -> None:
    asyncio.run(life(300.0))


@pytest.mark.deep
@pytest.mark.timeout(300)
def test_a_websocket_outlives_the_channels_of_its_function() -> None:
    """Nothing else uses the function: idle connections close after 60 and 75 s, slot channels after 60 s."""

    async def main() -> None:
        async with world_of([2]) as world:
            quiet = Socket()
            await quiet.open(world.ports[0])
            await asyncio.sleep(150.0)
            await quiet.echo(b"still here")
            quiet.close()
            assert await world.quiet() == []
            await world.all_slots_work()

    asyncio.run(main())


@pytest.mark.live
@pytest.mark.timeout(60)
def test_a_websocket_is_cut_by_its_own_limit_alone() -> None:
    """A second is too long for everything else here."""

    async def silent(settings: dict[str, float], *, is_cut: bool) -> bool:
        async with world_of([2], settings=settings) as world:
            quiet = Socket()
            await quiet.open(world.ports[0])
            await quiet.echo(b"x")
            if is_cut:
                found = await quiet.is_cut(10.0)
            else:
                found = await quiet.stays_open(4.0)
                await quiet.echo(b"y")
            quiet.close()
            assert await world.quiet() == []
            return found

    names = ("stream_idle", "body_idle", "head", "idle", "response")
    limits = {f"{name}_timeout_s": 1.0 for name in names} | {"stream_total_s": 1.0}
    assert asyncio.run(silent(limits, is_cut=False))
    assert asyncio.run(silent({"tunnel_idle_timeout_s": 1.0}, is_cut=True))
