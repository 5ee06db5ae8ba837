"""The driver on fake transports: for any input and any disconnection of both sides, the accounting balances.

A fuzzer's input is a list of events (a client connects, sends, pauses, closes; an upstream connects, answers, breaks;
the application decides; time passes). At the end every connection is gone. Then each exchange was finished exactly
once, nothing runs, nothing was reported as an error, and upstreams received valid HTTP only.
"""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any, cast

from tests.fuzz.bytes_plan import Plan
from tests.fuzz.engines import BEHIND
from tidegate.aio.loop.services import LoopServices
from tidegate.aio.proxy.exchange import Exchange
from tidegate.aio.proxy.http1_connection import ServerConn
from tidegate.aio.proxy.server import Limits, ProxyServer
from tidegate.aio.upstream.http1 import Forwarded, UpstreamConn
from tidegate.aio.upstream.pool import UpstreamPool
from tidegate.errors import DEADLINE, QUEUE_FULL, REPLICA_BROKE, Executed
from tidegate.wire.http1.fields import Rejected
from tidegate.wire.http1.server import H1Server
from tidegate.wire.message_heads import AnyResponseHead

EVENTS = 200
"""Maximum events of one input."""


class Handle:
    def cancel(self) -> None:
        """Timers of this loop never fire by themselves."""


class Loop:
    """Runs soon-callbacks on request; timers never."""

    def __init__(self) -> None:
        self._soon: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def call_soon(self, callback: Callable[..., object], *arguments: Any) -> None:
        self._soon.append((callback, arguments))

    def call_later(self, delay_s: float, callback: Callable[..., object], *arguments: Any) -> Handle:
        return Handle()

    def run(self) -> None:
        """Runs iterations until nothing is left."""
        while self._soon:
            soon, self._soon = self._soon, []
            for callback, arguments in soon:
                callback(*arguments)


class Transport:
    """A fake socket for a protocol."""

    def __init__(self, loop: Loop, protocol: Any) -> None:
        self._loop = loop
        self.protocol = protocol
        self.written = bytearray()
        self.closing = self.lost = self.paused = self.ended = self.full = False

    def write(self, data: bytes) -> None:
        assert not self.closing or self.lost is False, "written to a connection that is gone"
        self.written += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self._loop.call_soon(self._lose, None)

    def abort(self) -> None:
        self.close()

    def _lose(self, error: Exception | None) -> None:
        self.lost = True
        self.protocol.connection_lost(error)

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def set_write_buffer_limits(self, high: int) -> None:
        """Ignored: the fuzzer decides when a buffer is full."""

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        assert not self.closing
        self.ended = True

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_extra_info(self, name: str) -> object:
        return ("10.0.0.1", 1) if name == "peername" else None

    # --- what the other side does -----------------------------------------------------------------------------------

    def receives(self, data: bytes) -> None:
        if data and not (self.closing or self.paused):
            self.protocol.data_received(data)

    def ends(self) -> None:
        """Signals EOF; a protocol that does not want to stay open is closed, as asyncio does."""
        if not (self.closing or self.paused) and not self.protocol.eof_received():
            self.close()

    def breaks(self) -> None:
        if not self.closing:
            self.closing = True
            self._loop.call_soon(self._lose, ConnectionResetError("reset"))

    def fills(self, full: bool) -> None:
        if full is not self.full and not self.closing:
            self.full = full
            (self.protocol.pause_writing if full else self.protocol.resume_writing)()


class Pool(UpstreamPool):
    """Connects when the fuzzer decides."""

    __slots__ = ("asked", "loop", "opened_ever")

    def __init__(self, loop: Loop, services: LoopServices, hold_s: float) -> None:
        super().__init__("10.0.0.2:80", services, hold_s=hold_s)
        self.loop = loop
        self.asked: list[tuple[Forwarded, int]] = []
        self.opened_ever: list[tuple[UpstreamConn, Transport]] = []

    def connect(self, exchange: Forwarded) -> None:
        self.asked.append((exchange, exchange.attempts))

    def settle(self, fine: bool) -> None:
        """Ends the oldest attempt to connect."""
        if not self.asked:
            return
        exchange, attempt = self.asked.pop(0)
        if not fine:
            exchange.connect_failed(attempt, "refused")
            return
        upstream = UpstreamConn(self)
        transport = Transport(self.loop, upstream)
        upstream.connection_made(cast(asyncio.Transport, transport))
        self.opened_ever.append((upstream, transport))
        if not exchange.connected(upstream, attempt):
            self.put(upstream)


class App:
    """Decides as the input states, and keeps the accounting."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.pool: Pool | None = None
        self.running: list[Exchange] = []
        self.finished_ids: list[Exchange] = []

    def start(self, ex: Exchange) -> None:
        self.running.append(ex)
        self.decide(ex)

    def decide(self, ex: Exchange) -> None:
        """Forwards the request, refuses it, or lets it wait."""
        if not ex.waiting:
            return
        choice = self._plan.below(8)
        assert self.pool is not None
        if choice < 5:
            ex.forward(self.pool, b"x-own: 1\r\n", hold=choice == 4)
        elif choice == 5:
            ex.fail(QUEUE_FULL, "full")
        elif choice == 6:
            ex.proceed()

    def abandoned(self, ex: Exchange) -> None:
        assert ex in self.running

    def expired(self, ex: Exchange) -> None:
        assert ex in self.running
        if self._plan.below(2):
            ex.fail(DEADLINE, "late", executed=Executed.UNKNOWN)

    def answering(self, ex: Exchange, head: AnyResponseHead) -> bytes | None:
        assert ex in self.running
        choice = self._plan.below(8)
        if choice == 7 and ex.replayable and ex.attempts < 3 and head.status != 101:
            if self._plan.below(2):
                assert self.pool is not None
                ex.forward(self.pool)
            return None
        if choice == 6:
            head.drop(b"x-a", b"content-type")
        if choice == 5:
            ex.fail(REPLICA_BROKE, "not this one")
        return b"x-added: 1\r\n"

    def upstream_failed(self, ex: Exchange, sent: bool, why: str) -> None:
        assert ex in self.running
        assert self.pool is not None
        if ex.may_retry(sent, idempotent=self._plan.below(2) == 1):
            ex.forward(self.pool)
        elif self._plan.below(4):
            ex.fail(REPLICA_BROKE, why, executed=Executed.UNKNOWN)

    def finished(self, ex: Exchange) -> None:
        self.running.remove(ex)
        assert ex not in self.finished_ids, "finished twice"
        self.finished_ids.append(ex)


REQUESTS = (
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"HEAD /h HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /e HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
    b"POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"3\r\nabc\r\n",
    b"0\r\nX-T: 1\r\n\r\n",
    b"GET /w HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"GET /old HTTP/1.0\r\n\r\n",
    b"hello",
    b"x" * 300_000,
    b"POST /l HTTP/1.1\r\nHost: a\r\nContent-Length: 300000\r\n\r\n",
)
ANSWERS = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"3\r\nabc\r\n",
    b"0\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart",
    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
    b"y" * 100_000,
    b"junk\r\n\r\n",
)


class World:
    """One proxy with its connections."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.loop = Loop()
        self.errors: list[BaseException] = []
        loop = cast(asyncio.AbstractEventLoop, self.loop)
        self.services = LoopServices(loop, report=lambda _, error: self.errors.append(error))
        self.app = App(plan)
        self.pool = self.app.pool = Pool(self.loop, self.services, hold_s=5.0 if plan.below(4) == 3 else 0.0)
        self.server = ProxyServer(self.app, Limits(body_bytes=400_000), self.services)
        self.clients: list[Transport] = []
        self._later_s = 0.0

    def event(self) -> None:
        """Carries out one event."""
        plan = self.plan
        kind = plan.below(16)
        if kind < 1:
            self._connect()
        elif kind < 6:
            self._client(kind)
        elif kind < 11:
            self._upstream(kind)
        elif kind == 11:
            self.pool.settle(fine=plan.below(4) > 0)
        elif kind == 12:
            if self.app.running:
                self.app.decide(self.app.running[plan.below(len(self.app.running))])
        elif kind == 13:
            self._later_s += (0.0, 0.3, 6.0, 400.0)[plan.below(4)]
            self.services.tick(monotonic() + self._later_s)
        elif kind == 14:
            self.pool.settle(fine=True)
        if plan.below(4):
            self.loop.run()

    def _connect(self) -> None:
        connection = ServerConn(self.server)
        transport = Transport(self.loop, connection)
        self.clients.append(transport)
        connection.connection_made(cast(asyncio.Transport, transport))

    def _client(self, kind: int) -> None:
        if not self.clients:
            self._connect()
        client = self.clients[self.plan.below(len(self.clients))]
        if kind == 5:
            (client.ends, client.breaks, lambda: client.fills(True), lambda: client.fills(False))[self.plan.below(4)]()
        else:
            client.receives(self._bytes(REQUESTS))

    def _upstream(self, kind: int) -> None:
        if not self.pool.opened_ever:
            self.pool.settle(fine=True)
            return
        upstream = self.pool.opened_ever[-1 - self.plan.below(len(self.pool.opened_ever))][1]
        if kind == 10:
            ends = (upstream.ends, upstream.breaks, lambda: upstream.fills(True), lambda: upstream.fills(False))
            ends[self.plan.below(4)]()
        else:
            upstream.receives(self._bytes(ANSWERS))

    def _bytes(self, known: tuple[bytes, ...]) -> bytes:
        """Returns a known message, a part of one, several, or bytes of the input."""
        choice = self.plan.below(len(known) + 4)
        if choice < len(known):
            return known[choice]
        message = known[self.plan.below(len(known))]
        if choice == len(known):
            return self.plan.take(self.plan.below(64))
        if choice == len(known) + 1:
            return message[: self.plan.below(256)]
        if choice == len(known) + 2:
            return message * (1 + self.plan.below(4))
        return message + known[self.plan.below(len(known))]

    def end(self) -> None:
        """Closes all connections; then the accounting must balance."""
        self.loop.run()
        for _, upstream in self.pool.opened_ever:
            upstream.breaks()
        for client in self.clients:
            client.breaks()
        self.loop.run()
        while self.pool.asked:
            self.pool.settle(fine=False)
        self.loop.run()
        assert not self.errors, self.errors
        assert not self.app.running, self.app.running
        assert self.server.connections == 0, self.server
        assert self.pool.connections == 0, self.pool
        assert not self.pool.held
        for _, upstream in self.pool.opened_ever:
            self._check_sent(bytes(upstream.written))

    def _check_sent(self, sent: bytes) -> None:
        """Checks that upstreams received requests that the strict parser accepts; after an upgrade the bytes belong to
        another protocol."""
        engine = H1Server(BEHIND, 1 << 30)
        event = engine.receive(sent)
        while event is not None:
            assert type(event) is not Rejected, (event, sent[:300])
            if engine.head is not None and engine.head.upgrade is not None:
                return
            event = engine.next() if engine.body_complete else None


def driver(data: bytes) -> None:
    """Runs any order of events on both sides of a proxy."""
    plan = Plan(data)
    world = World(plan)
    outer = asyncio._get_running_loop()
    asyncio._set_running_loop(cast(asyncio.AbstractEventLoop, world.loop))
    try:
        for _ in range(EVENTS):
            if not plan.left:
                break
            world.event()
        world.end()
    finally:
        asyncio._set_running_loop(outer)
