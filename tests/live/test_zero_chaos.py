"""Clients of every protocol that leave when they like, while their functions go from zero to one and back.

HTTP/1, server-sent events of OpenAI's API, HTTP/2 and gRPC, each a client with a connection of its own. Most arrive
while nothing runs. A client that stays gets its own answer; one that leaves, or is too late, takes everything along:
when the last one is gone no process has a request, a byte of a waiting body, a quota or a descriptor more than before.
"""

import asyncio
import json
import random
import socket
import struct
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest

from tests.support.deadline import Patience
from tests.support.http2.echo import Echo, Record, message
from tests.support.http2.live import connect
from tests.support.http2.view import View, call_block
from tests.support.live.live_edge import Edge, Replica, client, edge, run, table
from tidegate.records.cold_rules import ColdRules
from tidegate.records.route_table import RouteTable
from tidegate.records.tenants import AccessRule, Quotas, Tenant, digest
from tidegate.wire.http2 import frames
from tidegate.wire.http2.hpack import literal

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

CLIENTS = 500
SPREAD_S = 6.0
"""In which they arrive."""
SLOTS = "40"
AT_ONCE = 200
"""Quota of the tenant; fewer of its clients are there at once."""
KEY = "tg-key-of-the-one-tenant"
PATIENCE_S = 60.0
EVENTS = 5
LATE_S = 5.0
"""After its deadline a client has its answer, on a machine that does other things."""


class Backend:
    """A model server that speaks gRPC (the capture backend's engine) and HTTP/1 on one port."""

    def __init__(self) -> None:
        self.record = Record()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.address = ""

    async def __aenter__(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1024)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"

    def drop(self) -> None:
        """Ends all connections."""
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.drop()
        await asyncio.sleep(0.1)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                first = await reader.readexactly(3)
                await (self._calls(reader, writer, first) if first == b"PRI" else self._http(reader, writer, first))
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _calls(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> None:
        echo, now = Echo(lambda: self.record), asyncio.get_running_loop().time
        try:
            while True:
                echo.receive(data, now())
                while piece := echo.take():
                    writer.write(piece)
                try:
                    async with asyncio.timeout(0.005):
                        data = await reader.read(1 << 16)
                    if not data:
                        return
                except TimeoutError:
                    data = b""
                    echo.tick(now())
        finally:
            echo.lost(now())

    async def _http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: bytes) -> None:
        while True:
            head = first + await reader.readuntil(b"\r\n\r\n")
            first = b""
            fields = dict(line.lower().split(": ", 1) for line in head.decode("latin-1").split("\r\n")[1:-2])
            body = await _body(reader, fields)
            if head.startswith(b"POST /v1/"):
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                )
                name = json.loads(body)["messages"][0]["content"]
                for number in range(EVENTS):
                    await asyncio.sleep(0.02)
                    event = {"choices": [{"index": 0, "delta": {"content": f"{name}.{number} "}}]}
                    _chunk(writer, b"data: %b\n\n" % json.dumps(event).encode())
                _chunk(writer, b"data: [DONE]\n\n")
                _chunk(writer, b"")
            else:
                await asyncio.sleep(float(fields.get("x-work-ms", "0")) / 1000)
                size = int(fields.get("x-size", "0"))
                answer = b"%b %d " % (fields.get("x-name", "").encode(), len(body)) + bytes(size)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(answer), answer))
            await writer.drain()


async def _body(reader: asyncio.StreamReader, fields: dict[str, str]) -> bytes:
    if fields.get("transfer-encoding") != "chunked":
        return await reader.readexactly(int(fields.get("content-length", "0")))
    parts = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        parts.append((await reader.readexactly(size + 2))[:-2])
    await reader.readuntil(b"\r\n")
    return b"".join(parts)


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


# --- clients ---------------------------------------------------------------------------------------------------------


@dataclass
class Visit:
    """One client, and what became of it."""

    name: str
    kind: str
    leaves_after_s: float | None
    """None: it stays until it is answered."""
    by_reset: bool
    deadline_ms: int | None
    end: str = "no answer"
    took_s: float = 0.0

    def __repr__(self) -> str:
        return f"{self.kind} {self.name} (deadline {self.deadline_ms}, leaves {self.leaves_after_s}): {self.end}"


class Http1:
    """A client of HTTP/1, or of server-sent events."""

    def __init__(self, visit: Visit, port: int, source: random.Random) -> None:
        self._visit, self._port, self._source = visit, port, source

    async def run(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            async with asyncio.timeout(self._visit.leaves_after_s):
                await (self._stream if self._visit.kind == "sse" else self._ask)(reader, writer)
        except TimeoutError:
            self._visit.end = "left"
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            self._visit.end = f"broken: {error!r}"
        finally:
            if self._visit.by_reset:
                sock = writer.get_extra_info("socket")
                with suppress(OSError):  # the server's reset was here first
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
            writer.close()

    def _lines(self) -> bytes:
        limit = self._visit.deadline_ms
        return b"" if limit is None else b"tidegate-timeout-ms: %d\r\n" % limit

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = self._source.choice((0, 100, 5_000, 100_000, 400_000))
        body, name = self._source.randbytes(size), self._visit.name.encode()
        more = self._source.choice((0, 0, 0, 300_000))
        writer.write(
            b"POST /anything HTTP/1.1\r\nhost: localhost\r\nx-name: %b\r\nx-work-ms: %d\r\nx-size: %d\r\n%b"
            % (name, self._source.randrange(60), more, self._lines())
        )
        if self._source.random() < 0.5:
            writer.write(b"content-length: %d\r\n\r\n" % size)
            writer.write(body)
        else:
            writer.write(b"transfer-encoding: chunked\r\n\r\n")
            for at in range(0, size, 10_000):
                _chunk(writer, body[at : at + 10_000])
                await asyncio.sleep(0)
            _chunk(writer, b"")
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head[9:12])
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length: "))
        answer = await reader.readexactly(int(length[16:]))
        is_own = answer == b"%b %d " % (name, size) + bytes(more)
        self._visit.end = "ok" if status == 200 and is_own else "504" if status == 504 else f"{status} {answer[:200]!r}"

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = {"model": "o", "stream": True, "messages": [{"role": "user", "content": self._visit.name}]}
        body = json.dumps(asked).encode()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nx-api-key: %b\r\n%b"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (KEY.encode(), self._lines(), len(body), body)
        )
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            self._visit.end = f"{int(head[9:12])}"
            return
        text = b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            text += (await reader.readexactly(size + 2))[:-2]
        events = [line[6:] for line in text.decode().split("\n") if line.startswith("data: ")]
        if "deadline_exceeded" in text.decode():
            self._visit.end = "504"
        elif events[-1:] != ["[DONE]"]:
            self._visit.end = f"no end: {text[-300:]!r}"
        else:
            said = "".join(json.loads(event)["choices"][0]["delta"]["content"] for event in events[:-1])
            right = "".join(f"{self._visit.name}.{number} " for number in range(EVENTS))
            self._visit.end = "ok" if said == right else f"another answer: {said}"


class Http2:
    """A client of HTTP/2: one request of HTTP, or one gRPC call."""

    def __init__(self, visit: Visit, port: int, source: random.Random) -> None:
        self._visit, self._port, self._source = visit, port, source

    async def run(self) -> None:
        client = await connect(("127.0.0.1", self._port))
        view = View({"name": self._visit.name}, client.write)
        client.on_data = view.received
        size = self._source.choice((0, 100, 5_000, 50_000))
        body, block = self._request(size)
        window = self._source.choice((65535, 1 << 20))
        client.write(
            frames.PREFACE + frames.settings((frames.INITIAL_WINDOW_SIZE, window)) + frames.window_update(0, 1 << 30)
        )
        client.write(frames.headers(1, block, 0, 16384))
        for at in range(0, max(1, len(body)), 16384):
            part = body[at : at + 16384]
            ends = frames.END_STREAM if at + 16384 >= len(body) else 0
            client.write(frames.frame_head(len(part) << 8, ends, 1) + part)
            await asyncio.sleep(0)
        try:
            async with asyncio.timeout(self._visit.leaves_after_s):
                while not (1 in view.answers and view.answers[1].over):
                    view.acknowledge()
                    if client.closed:
                        self._visit.end = "closed"
                        return
                    await asyncio.sleep(0.01)
            self._judge(view, body, size)
        except TimeoutError:
            self._visit.end = "left"
            if self._source.random() < 0.5:
                client.write(frames.rst_stream(1, frames.CANCEL))
                await asyncio.sleep(0.2)  # the connection outlives its stream
        finally:
            (client.reset if self._visit.by_reset and not client.closed else client.transport.close)()

    def _request(self, size: int) -> tuple[bytes, bytes]:
        limit = self._visit.deadline_ms
        name = self._visit.name.encode()
        if self._visit.kind == "grpc":
            more = [] if limit is None else [(b"grpc-timeout", b"%dm" % limit)]
            method = self._source.choice(("Unary", "Bidi"))
            return message(name + bytes(size)), call_block(f"/corpus.Echo/{method}", *more)
        fields = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b"/anything"),
            (b":authority", b"localhost"),
            (b"x-name", name),
            (b"x-work-ms", b"%d" % self._source.randrange(60)),
        ]
        if limit is not None:
            fields.append((b"tidegate-timeout-ms", b"%d" % limit))
        return bytes(size), b"\x20" + b"".join(literal(*field) for field in fields)

    def _judge(self, view: View, body: bytes, size: int) -> None:
        answer = view.answers[1]
        assert not view.faults
        if self._visit.kind == "grpc":
            status = answer.last("grpc-status")
            is_own = bytes(answer.data) == body
            self._visit.end = "ok" if status == "0" and is_own else "504" if status == "4" else f"grpc {status}"
        else:
            is_own = bytes(answer.data) == b"%b %d " % (self._visit.name.encode(), size)
            self._visit.end = "ok" if answer.status() == "200" and is_own else f"{answer.status()}"
        if answer.reset not in (None, frames.NO_ERROR):
            self._visit.end = f"reset {answer.reset}"


def visits(source: random.Random) -> list[Visit]:
    found = []
    for number in range(CLIENTS):
        kind = source.choice(("h1", "sse", "h2", "grpc"))
        leaves = source.uniform(0.0, 2.5) if source.random() < 0.5 else None
        limit = source.randrange(100, 1500) if source.random() < 0.2 else None
        found.append(Visit(f"{kind}{number}", kind, leaves, source.random() < 0.5, limit))
    return found


# --- the world -------------------------------------------------------------------------------------------------------


class World:
    """A gateway worker, one replica at most, and a route table for what there is."""

    def __init__(self, edge: Edge, upstream: str) -> None:
        self.edge = edge
        self._upstream = upstream
        self._number = 0
        self.replica: Replica | None = None

    async def tell(self) -> None:
        self._number += 1
        routes = table(self._number, *([] if self.replica is None else [self.replica]), max_wait_s=PATIENCE_S)
        f = replace(routes.functions[0], timeout_s=PATIENCE_S)
        (revision,) = f.revisions
        (group,) = revision.groups
        group = replace(group, replicas=tuple(replace(each, id=f"o-{each.id}") for each in group.replicas))
        o = replace(
            f,
            name="o",
            models=("o",),
            protocol="openai",
            cold=ColdRules(heartbeat_s=0.2),
            access=AccessRule(api_keys=True),
            revisions=(replace(revision, id="o-00001", groups=(group,)),),
        )
        tenant = Tenant(name="t", keys=(digest(KEY.encode()),), quotas=Quotas(concurrency=AT_ONCE))
        await self.edge.put_table(
            RouteTable(epoch=5, number=self._number, workers=1, default="f", functions=(f, o), tenants=(tenant,))
        )

    async def one(self) -> int:
        """From zero to one; descriptors of the queue_proxy before anybody knows of it."""
        settings = {"TIDEGATE_UPSTREAM": self._upstream, "TIDEGATE_READINESS_PATH": ""}
        replica = self.edge.start_replica(limit=SLOTS, model=False, settings=settings)
        await self.edge.replica_ready(replica)
        before = await settled(lambda: len(descriptors(replica.proxy.pid)))
        self.replica = replica
        await self.tell()
        return before

    async def zero(self) -> Replica:
        """The replica drains, then no process knows of it any more; it still runs."""
        replica = self.replica
        assert replica is not None
        assert (await self.edge.order(replica, "drain", epoch=5)).status_code == 200
        await self.edge.reached(replica, "drained")
        self.replica = None
        await self.tell()
        return replica

    async def gateway(self) -> dict[str, float]:
        """What the gateway says is under way."""
        admin = self.edge.gateway_admin()
        found: Counter[str] = Counter()
        sample = await self.edge.sample(admin)
        found["connections"] = sample["connections"]
        for demand in sample["demands"]:
            ends = ("answered", "failed", "refused", "expired", "cancelled")
            found["waiting"] += demand["waiting"]
            found["under way"] += demand["arrivals"] - sum(demand[end] for end in ends)
        async with client(admin) as http:
            lines = (await http.get("/metrics")).text.splitlines()
        for line in lines:
            if line.startswith("tidegate_gateway_waiting_body_bytes"):
                found["body bytes"] += int(float(line.split()[-1]))
        return dict(found)


def descriptors(pid: int) -> list[str]:
    """What the process has open, but for what it opens once and keeps: the pipe through which long answers pass, and
    the epoll of connections that are not read from."""
    found = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(each.readlink()))
    return sorted(one for one in found if not one.startswith(("pipe:", "anon_inode:[eventpoll]")))


async def _count(pid: int) -> int:
    return len(descriptors(pid))


async def settled(ask: Callable[[], int]) -> int:
    """The number once it has stood still for half a second."""
    patience, found, since = Patience(10.0), ask(), 0
    while since < 10 and not patience.is_over:
        await asyncio.sleep(0.05)
        now = ask()
        found, since = now, since + 1 if now == found else 0
    return found


async def becomes(wanted: object, ask: Callable[[], Coroutine[object, object, object]]) -> object:
    """The last answer: the wanted one, or what it was when patience was over."""
    patience = Patience(10.0)
    while True:
        found = await ask()
        if found == wanted or patience.is_over:
            return found
        await asyncio.sleep(0.05)


async def warm(world: World) -> None:
    """Once there and back, so that every code path has opened what it keeps."""
    await world.one()
    source = random.Random(0)
    for kind in ("h1", "sse", "h2", "grpc"):
        visit = Visit(kind, kind, None, False, None)
        await (Http1 if kind in ("h1", "sse") else Http2)(visit, world.edge.port, source).run()
        assert visit.end == "ok", visit


async def quota_is_whole(world: World) -> None:
    """Just as many may be there at once as before."""
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{world.edge.port}",
        timeout=None,
        limits=httpx.Limits(max_connections=None),
        verify=False,
    ) as http:

        async def ask() -> httpx.Response:
            return await http.post("/v1/chat/completions", json={"model": "o"}, headers={"x-api-key": KEY})

        tasks = [asyncio.get_running_loop().create_task(ask()) for _ in range(AT_ONCE)]
        waits = await becomes(AT_ONCE, lambda: _waiting(world))
        assert waits == AT_ONCE, "a quota is still held"
        assert (await ask()).status_code == 429
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _waiting(world: World) -> float:
    return (await world.gateway())["waiting"]


def test_nothing_is_lost_or_left_while_clients_leave_and_functions_sleep_and_wake() -> None:
    async def main() -> None:
        source = random.Random(7)
        backend = Backend()
        async with backend, edge() as owned:
            owned.limits = {"idle_timeout_s": 20.0}
            owned.start_gateway()
            await owned.gateway_ready()
            world = World(owned, backend.address)
            await world.tell()
            await warm(world)
            first = await world.zero()
            first.proxy.terminate()
            gateway_pid = owned.workers[0].pid
            await becomes(0, lambda: _connections(world))
            before = await settled(lambda: len(descriptors(gateway_pid)))

            everybody = visits(source)
            over = asyncio.Event()

            async def life() -> tuple[Replica, int]:
                """0 -> 1 -> 0 until all clients have gone."""
                while True:
                    await asyncio.sleep(source.uniform(0.3, 0.8))
                    free = await world.one()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(source.uniform(0.5, 1.0)):
                            await over.wait()
                    replica = await world.zero()
                    if over.is_set():
                        return replica, free
                    replica.proxy.terminate()

            async def live(visit: Visit) -> None:
                await asyncio.sleep(source.uniform(0.0, SPREAD_S))
                began = asyncio.get_running_loop().time()
                chosen = Http1 if visit.kind in ("h1", "sse") else Http2
                await chosen(visit, owned.port, random.Random(visit.name)).run()
                visit.took_s = asyncio.get_running_loop().time() - began

            async with asyncio.TaskGroup() as group:
                world_turns = group.create_task(life())
                async with asyncio.TaskGroup() as crowd:
                    for visit in everybody:
                        crowd.create_task(live(visit))
                over.set()
            replica, free = world_turns.result()

            ends = Counter(f"{visit.kind} {visit.end}" for visit in everybody)
            sys.stdout.write(json.dumps(dict(sorted(ends.items())), indent=1) + "\n")
            permitted = {"ok", "left", "504"}
            answered_late = [v for v in everybody if v.end == "504"]
            assert [v for v in everybody if v.end not in permitted] == []
            late_s = [v.took_s - (PATIENCE_S if v.deadline_ms is None else v.deadline_ms / 1000) for v in answered_late]
            assert min(late_s) > 0.0, "a deadline was not waited for"
            assert max(late_s) < LATE_S
            assert not backend.record.malformed

            quiet = {"connections": 0, "waiting": 0, "under way": 0, "body bytes": 0}
            assert await becomes(quiet, world.gateway) == quiet
            sample = await owned.sample(replica.admin)
            assert (sample["in_flight"], sample["queued"]) == (0, 0)
            await quota_is_whole(world)
            assert await becomes(quiet, world.gateway) == quiet
            backend.drop()
            after = await becomes(before, lambda: _count(gateway_pid))
            assert after == before, descriptors(gateway_pid)
            left = await becomes(free, lambda: _count(replica.proxy.pid))
            assert left == free, descriptors(replica.proxy.pid)
            sys.stdout.write(f"a deadline was answered up to {max(late_s):.3f} s after it\n")
            sys.stdout.write(f"descriptors: gateway {before} -> {after}, queue_proxy {free} -> {left}\n")

    run(main())


async def _connections(world: World) -> float:
    return (await world.gateway())["connections"]
