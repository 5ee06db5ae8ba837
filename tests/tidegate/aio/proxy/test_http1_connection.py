"""One client connection without sockets: what a client that does not read, or sends too much ahead, can do to us."""

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.support.http.loopback import RelayApp, until
from tidegate.aio.loop.absence import AbsenceWatch
from tidegate.aio.loop.read_turns import FULL_READ_BYTES, READS_PER_TURN
from tidegate.aio.loop.services import LoopServices
from tidegate.aio.loop.writes import SMALL_WRITES, WRITE_BUFFER_BYTES
from tidegate.aio.proxy.http1_connection import _IDLE, FAREWELL_S, ServerConn
from tidegate.aio.proxy.http1_exchange import HttpExchange
from tidegate.aio.proxy.server import Limits, ProxyServer
from tidegate.aio.proxy.tunnel import CLOSING_S, Tunnel
from tidegate.aio.upstream.http1 import UpstreamConn
from tidegate.aio.upstream.pool import UpstreamPool
from tidegate.wire.http1.server import HELD_BYTES

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
WEBSOCKET = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
LARGE = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"


class Wire(asyncio.Transport):
    """A transport that takes all and remembers it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.is_read = True
        self.is_aborted = self.is_closed = self.has_ended = False
        self.unsent = 0
        """Bytes that the client has not made room for."""

    def reads(self) -> bool:
        return self.is_read

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Buffers are full when the test says so."""

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """The test calls it."""

    def is_closing(self) -> bool:
        return self.is_closed

    def write(self, data: Any) -> None:
        assert not self.has_ended
        self.sent += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_ended = True

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = self.is_aborted = True

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True


class Stage:
    """A client's connection, and connections to an upstream."""

    def __init__(self, *, forwards: bool = True) -> None:
        self.services = LoopServices(asyncio.get_running_loop())
        self.pool = UpstreamPool("127.0.0.1:1", self.services)
        self.app = RelayApp(self.pool if forwards else None)
        self.server = ProxyServer(self.app, Limits(), self.services)
        self.client, self.wire = ServerConn(self.server), Wire()
        self.client.connection_made(self.wire)

    def upstream(self) -> tuple[UpstreamConn, Wire]:
        made, wire = UpstreamConn(self.pool), Wire()
        made.connection_made(wire)
        self.pool.put(made)
        return made, wire

    async def answered_but_unread(self, ahead: bytes = b"") -> None:
        """The client has got a large answer, most of which it has not read; ``ahead`` came with its request."""
        upstream, _ = self.upstream()
        self.client.data_received(GET + ahead)
        await asyncio.sleep(0)
        upstream.data_received(LARGE)
        self.client.pause_writing()
        upstream.resume_reading()
        upstream.data_received(b"x" * 1_000_000)
        assert [ex.status for ex in self.app.ended] == [200]


def on_stage(scene: Callable[[Stage], Coroutine[Any, Any, None]], *, forwards: bool = True) -> None:
    async def play() -> None:
        stage = Stage(forwards=forwards)
        try:
            await scene(stage)
        finally:
            stage.services.close()

    asyncio.run(play())


def test_a_buffer_that_filled_before_the_answer_begins_pauses_the_upstream() -> None:
    async def scene(stage: Stage) -> None:
        stage.client.data_received(GET)
        exchange = stage.client.exchange
        assert exchange is not None
        stage.client.pause_writing()  # Answers before it have only now left the outbox.
        upstream, wire = stage.upstream()
        exchange.forward(stage.pool)
        await asyncio.sleep(0)
        upstream.data_received(LARGE)
        assert not wire.reads()
        stage.client.resume_writing()
        assert wire.reads()

    on_stage(scene, forwards=False)


def test_an_upstream_that_is_paused_stays_so_when_it_is_read_in_another_way() -> None:
    async def scene(stage: Stage) -> None:
        stage.client.data_received(GET)
        exchange = stage.client.exchange
        assert exchange is not None
        stage.client.pause_writing()
        upstream, wire = stage.upstream()
        upstream._glimpse(True)  # Its last answer was a long one.
        exchange.forward(stage.pool)
        await asyncio.sleep(0)
        upstream.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n")
        assert not wire.reads()
        stage.client.resume_writing()
        assert wire.reads()

    on_stage(scene, forwards=False)


@pytest.mark.parametrize("what", ["a body", "chunks of a byte", "requests"])
def test_who_sends_as_fast_as_we_read_lets_others_have_their_turn(what: str) -> None:
    """What counts is what was read, not what there is in it: small chunks and requests are more work than a body."""
    head = b"POST / HTTP/1.1\r\nHost: a\r\n"
    first, read, reads = {
        "a body": (head + b"Content-Length: 100000000\r\n\r\n", b"b" * FULL_READ_BYTES, READS_PER_TURN),
        "chunks of a byte": (head + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 22_000, 1),
        "requests": (GET, GET * (FULL_READ_BYTES // len(GET) + 1), READS_PER_TURN),
    }[what]

    async def scene(stage: Stage) -> None:
        upstream, _ = stage.upstream()
        stage.client.data_received(first)
        for number in range(reads):
            assert stage.wire.reads(), f"it was read {number} times"
            stage.client.data_received(read)
        assert not stage.wire.reads()
        await asyncio.sleep(0)
        assert stage.wire.reads()
        upstream.discard()

    on_stage(scene)


def test_what_a_client_sends_beyond_what_is_kept_is_never_read_as_a_request() -> None:
    """It asks again with a large body while it reads nothing: the body must not be taken for requests."""

    async def scene(stage: Stage) -> None:
        await stage.answered_but_unread()
        body = b"y" * (HELD_BYTES + 1)
        hidden = b"GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n"
        head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (len(body) + len(hidden))
        stage.client.data_received(head + body)
        stage.client.data_received(hidden)
        stage.client.resume_writing()
        assert stage.app.log.count("start") == 1
        assert stage.wire.has_ended, "the connection ends after the answer"

    on_stage(scene)


def test_requests_of_a_client_that_reads_slowly_wait_until_it_has_read() -> None:
    """They are whole and held here: no head is late, however much more of them comes."""

    async def scene(stage: Stage) -> None:
        await stage.answered_but_unread()
        limits, now = Limits(), time.monotonic()
        stage.client.data_received(GET)
        stage.client.data_received(GET[:9])
        stage.client.sweep(now + limits.head_timeout_s + 1.0)
        stage.client.sweep(now + limits.idle_timeout_s + 1.0)
        assert (stage.client.phase, stage.wire.is_closed) == (_IDLE, False)
        stage.client.resume_writing()
        assert stage.app.log.count("start") == 2
        stage.client.close()

    on_stage(scene)


def test_a_drain_tells_a_client_that_reads_slowly_which_of_its_requests_were_answered() -> None:
    async def scene(stage: Stage) -> None:
        await stage.answered_but_unread(GET + GET)
        stage.server.draining = True
        stage.client.close_if_idle(time.monotonic() + 1000.0)
        assert not stage.wire.is_closed
        upstream, _ = stage.upstream()
        stage.client.resume_writing()
        await asyncio.sleep(0)
        upstream.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        assert stage.wire.sent.endswith(b"\r\nconnection: close\r\n\r\nok")
        assert (stage.app.log.count("start"), stage.wire.has_ended) == (2, True)

    on_stage(scene)


def test_an_idle_time_begins_when_the_client_has_read() -> None:
    async def scene(stage: Stage) -> None:
        await stage.answered_but_unread()
        stage.client.resume_writing()
        assert stage.client.deadline == stage.services.now + Limits().idle_timeout_s
        stage.client.close_if_idle(time.monotonic() + 1000.0)
        assert stage.wire.is_closed

    on_stage(scene)


def test_requests_that_came_unread_are_not_served_when_their_client_reads_too_late() -> None:
    async def scene(stage: Stage) -> None:
        await stage.answered_but_unread()
        stage.client.data_received(GET)
        stage.client.sweep(stage.client.deadline)
        assert stage.wire.is_closed
        stage.client.resume_writing()
        assert stage.app.log.count("start") == 1

    on_stage(scene)


@pytest.mark.parametrize(("unsent", "limit_s"), [(1, Limits().stream_idle_timeout_s), (0, FAREWELL_S)])
def test_an_idle_client_that_does_not_go_is_cut_off(unsent: int, limit_s: float) -> None:
    """It never reads the end of its answer; or it has, and says no farewell over TLS."""

    async def scene(stage: Stage) -> None:
        await stage.answered_but_unread()
        stage.wire.unsent = unsent
        stage.client.sweep(stage.client.deadline)
        assert stage.wire.is_closed, "idle for too long"
        assert stage.client.deadline == pytest.approx(time.monotonic() + limit_s, abs=2.0)
        stage.client.sweep(stage.client.deadline - 1.0)
        assert stage.wire.is_aborted is False, "it has some time"
        stage.client.sweep(stage.client.deadline)
        assert stage.wire.is_aborted

    on_stage(scene)


def test_a_slow_upstream_that_is_lost_leaves_the_client_to_the_next() -> None:
    async def scene(stage: Stage) -> None:
        next_one, next_wire = stage.upstream()
        slow, _ = stage.upstream()
        stage.client.data_received(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n1234")
        slow.pause_writing()
        assert stage.wire.reads() is False
        slow.connection_lost(None)
        assert next_wire.sent.endswith(b"1234")
        assert stage.wire.reads(), "the rest is still to come"
        stage.client.data_received(b"56789")
        assert next_wire.sent.endswith(b"123456789")
        next_one.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await asyncio.sleep(0)
        assert stage.wire.sent.startswith(b"HTTP/1.1 200 ")

    on_stage(scene)


def test_a_tunnel_whose_other_side_does_not_read_its_end_is_cut_off() -> None:
    async def scene(stage: Stage) -> None:
        closed: list[Tunnel] = []
        stage.client.data_received(GET)
        exchange = stage.client.exchange
        assert isinstance(exchange, HttpExchange)
        client, upstream = Wire(), Wire()
        tunnel = Tunnel(exchange, client, upstream, 7200.0, closed.append)
        tunnel.lost()  # The upstream's connection is gone.
        assert exchange.is_ended
        assert (client.is_closed, client.is_aborted) == (True, False)
        assert closed == [], "it is swept on"
        tunnel.sweep(tunnel.heard + CLOSING_S + 1.0)
        assert client.is_aborted
        tunnel.lost()
        assert closed == [tunnel]

    on_stage(scene, forwards=False)


@pytest.mark.parametrize("full", ["client", "upstream"])
def test_a_side_of_a_tunnel_is_not_read_while_the_other_one_is_full(full: str) -> None:
    """It filled before the tunnel was there: nothing is reported again, only when there is room."""

    async def scene(stage: Stage) -> None:
        upstream, wire = stage.upstream()
        stage.client.data_received(WEBSOCKET)
        exchange = stage.client.exchange
        assert exchange is not None
        stage.client.pause_writing() if full == "client" else upstream.pause_writing()
        exchange.forward(stage.pool)
        await asyncio.sleep(0)
        upstream.data_received(b"HTTP/1.1 101 x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
        (tunnel,) = stage.server.tunnels
        full_side, read_wire = (tunnel._client, wire) if full == "client" else (tunnel._upstream, stage.wire)
        assert (stage.wire.reads(), wire.reads()) == (full == "client", full == "upstream")
        full_side.resume_writing()
        assert read_wire.reads()
        tunnel.lost()
        tunnel.lost()

    on_stage(scene, forwards=False)


def test_a_client_that_sent_more_than_is_held_before_the_101_gets_no_tunnel() -> None:
    """Bytes amid what it sent are gone."""

    async def scene(stage: Stage) -> None:
        upstream, wire = stage.upstream()
        stage.client.data_received(WEBSOCKET)
        stage.client.data_received(b"y" * (HELD_BYTES + 1))
        stage.client.data_received(b"z" * 100)
        await asyncio.sleep(0)
        upstream.data_received(b"HTTP/1.1 101 x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
        assert stage.server.tunnels == set()
        assert (stage.wire.sent, stage.wire.is_aborted, wire.is_aborted) == (b"", True, True)
        assert b"z" not in wire.sent
        assert [ex.status for ex in stage.app.ended] == [413]

    on_stage(scene)


@pytest.mark.parametrize("size", [HELD_BYTES, HELD_BYTES + 1])
def test_an_app_that_takes_an_upgrade_gets_all_that_came_before_or_nothing(size: int) -> None:
    class Taking(asyncio.Protocol):
        heard = b""

        def data_received(self, data: bytes) -> None:
            self.heard += data

    async def scene(stage: Stage) -> None:
        stage.client.data_received(WEBSOCKET)
        stage.client.data_received(b"y" * size)
        exchange = stage.client.exchange
        assert exchange is not None
        taking = exchange.upgrade(Taking)
        assert isinstance(taking, Taking)
        assert (len(taking.heard), stage.wire.is_aborted) == ((size, False) if size == HELD_BYTES else (0, True))

    on_stage(scene, forwards=False)


def test_a_tunnel_closes_each_side_once() -> None:
    """asyncio's TLS transports forget at a second close what an abort would end."""

    class Once(Wire):
        def close(self) -> None:
            assert not self.is_closed
            super().close()

    async def scene(stage: Stage) -> None:
        stage.client.data_received(GET)
        exchange = stage.client.exchange
        assert isinstance(exchange, HttpExchange)
        client, upstream = Once(), Once()
        tunnel = Tunnel(exchange, client, upstream, 7200.0, lambda _: None)
        tunnel.close()
        tunnel._upstream.connection_lost(None)
        assert client.is_closed
        tunnel._client.connection_lost(None)

    on_stage(scene, forwards=False)


def test_the_side_of_a_tunnel_that_is_left_is_cut_off_where_the_other_one_is_gone() -> None:
    """asyncio's transports raise when they are aborted after their end."""

    class Gone(Wire):
        def abort(self) -> None:
            raise AttributeError

    async def scene(stage: Stage) -> None:
        stage.client.data_received(GET)
        exchange = stage.client.exchange
        assert isinstance(exchange, HttpExchange)
        client, upstream = Gone(), Wire()
        tunnel = Tunnel(exchange, client, upstream, 7200.0, lambda _: None)
        tunnel._client.connection_lost(None)
        tunnel.sweep(tunnel.heard + CLOSING_S + 1.0)
        assert upstream.is_aborted
        tunnel._upstream.connection_lost(None)

    on_stage(scene, forwards=False)


class Stuck(Wire):
    """Its peer does not read; it says that it is full when there is no room at all."""

    def __init__(self) -> None:
        super().__init__()
        self.unsent, self.high, self.writes = 1, WRITE_BUFFER_BYTES, 0
        self.protocol: asyncio.BaseProtocol | None = None

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None
        self.high = high

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def write(self, data: Any) -> None:
        super().write(data)
        self.writes += 1
        if not self.high:
            assert self.protocol is not None
            self.protocol.pause_writing()


def test_small_events_that_a_client_does_not_read_count_by_their_number() -> None:
    async def scene(stage: Stage) -> None:
        stage.wire = wire = Stuck()
        stage.client = wire.protocol = ServerConn(stage.server)
        stage.client.connection_made(wire)
        upstream, upstream_wire = stage.upstream()
        stage.client.data_received(GET)
        await asyncio.sleep(0)
        upstream.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for again in range(2):  # the second time as the first
            before = wire.writes
            for _ in range(10 * SMALL_WRITES):
                if upstream_wire.reads():
                    upstream.data_received(b"1\r\nx\r\n")
            assert SMALL_WRITES <= wire.writes - before <= SMALL_WRITES + 2, again
            wire.unsent = 0
            stage.client.resume_writing()
            assert (upstream_wire.reads(), wire.high) == (True, WRITE_BUFFER_BYTES)
            for _ in range(2 * SMALL_WRITES):
                upstream.data_received(b"1\r\nx\r\n")
            assert upstream_wire.reads(), "one that reads is never slow"
            wire.unsent = 1
        upstream.data_received(b"0\r\n\r\n")
        assert [ex.status for ex in stage.app.ended] == [200]

    on_stage(scene)


def test_small_pieces_in_a_tunnel_count_by_their_number() -> None:
    async def scene(stage: Stage) -> None:
        stage.client.data_received(GET)
        exchange = stage.client.exchange
        assert isinstance(exchange, HttpExchange)
        client, upstream = Wire(), Stuck()
        tunnel = Tunnel(exchange, client, upstream, 7200.0, lambda _: None)
        for _ in range(10 * SMALL_WRITES):
            if client.reads():
                tunnel._client.data_received(b"x")
        assert upstream.writes == SMALL_WRITES + 1
        upstream.unsent = 0
        tunnel._upstream.resume_writing()
        assert (client.reads(), upstream.high) == (True, WRITE_BUFFER_BYTES)
        tunnel.lost()
        tunnel.lost()

    on_stage(scene, forwards=False)


class _Watch(AbsenceWatch):
    """Counts what it is asked for."""

    __slots__ = ("asked",)

    def __init__(self) -> None:
        super().__init__(asyncio.get_running_loop())
        self.asked = 0

    def watch(self, owner: object, fd: int, gone: Callable[[], None]) -> None:
        self.asked += 1
        super().watch(owner, fd, gone)


class _OnSocket(Wire):
    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self._sock = sock

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._sock if name == "socket" else super().get_extra_info(name, default)


@pytest.mark.live
def test_a_body_that_pauses_often_is_watched_once_and_its_client_is_missed_in_each_pause() -> None:
    """Each watch is two system calls: one for each pause made a large upload a fifth slower."""

    async def scene(stage: Stage) -> None:
        ours, theirs = socket.socketpair()
        with ours:
            stage.services.absence = watch = _Watch()
            client, wire = ServerConn(stage.server), _OnSocket(ours)
            client.connection_made(wire)
            client.data_received(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nx")
            for _ in range(20):
                client.pause(1)
                assert not wire.reads()
                client.resume(1)
                assert wire.reads()
            assert watch.asked == 1
            client.pause(1)
            theirs.close()
            await until(lambda: wire.is_aborted)
            assert [ex.status for ex in stage.app.ended] == [499]
            client.connection_lost(None)
            assert repr(watch) == "<AbsenceWatch of 0 connections>"

    on_stage(scene, forwards=False)


@pytest.mark.live
def test_an_end_that_is_seen_while_the_client_is_read_from_is_left_to_the_reading() -> None:
    async def scene(stage: Stage) -> None:
        ours, theirs = socket.socketpair()
        with ours:
            stage.services.absence = watch = _Watch()
            client, wire = ServerConn(stage.server), _OnSocket(ours)
            client.connection_made(wire)
            client.data_received(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nx")
            client.pause(1)
            client.resume(1)
            theirs.close()
            await until(lambda: repr(watch) == "<AbsenceWatch of 0 connections>")
            assert not wire.is_aborted, "its last bytes may still stand before its end"
            client.pause(1)
            await until(lambda: wire.is_aborted)

    on_stage(scene, forwards=False)
