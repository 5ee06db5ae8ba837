"""The proxy as its clients and upstreams see it: framing, reuse, interim answers, upgrades, retries."""

import asyncio
import gc
import socket
from typing import cast

import pytest

from tests.support.http.backend import OK, ScriptedBackend, answering, read_answer, read_request
from tests.support.http.loopback import LOOPS, Relay, RelayApp, play, run_on, start_relay, until
from tidegate.aio.loop import sockets
from tidegate.aio.loop.services import LoopServices
from tidegate.aio.proxy.exchange import Exchange
from tidegate.aio.proxy.http1_exchange import as_http
from tidegate.aio.proxy.server import Limits, ServerConn, serve_proxy
from tidegate.aio.proxy.tunnel import Tunnel
from tidegate.aio.upstream.pool import UpstreamPool
from tidegate.errors import QUEUE_FULL
from tidegate.wire.message_heads import AnyResponseHead

pytestmark = [pytest.mark.live, pytest.mark.parametrize("loop", sorted(LOOPS))]

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"


async def ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes = GET, *, bodyless: bool = False
) -> tuple[bytes, bytes]:
    writer.write(request)
    return await read_answer(reader, bodyless=bodyless)


def test_one_connection_on_each_side_serves_many_requests(loop: str) -> None:
    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        for _ in range(20):
            head, body = await ask(reader, writer, POST)
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert body == b"ok"
        writer.close()

    app, backend = play(loop, answering(OK), scene)
    assert backend.connections == 1
    assert [ex.status for ex in app.ended] == [200] * 20
    assert all(ex.bytes_in == 5 and ex.bytes_out == 2 for ex in app.ended)


def test_a_thousand_pipelined_requests(loop: str) -> None:
    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(GET * 1000)
        for _ in range(1000):
            assert (await read_answer(reader))[1] == b"ok"
        writer.close()

    app, _ = play(loop, answering(OK), scene)
    assert len(app.ended) == 1000


def test_answers_without_a_body_leave_the_connection_in_step(loop: str) -> None:
    answers = [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"]
    answers += [b"HTTP/1.1 %b\r\nX: y\r\n\r\n" % status for status in (b"204 No Content", b"304 Not Modified")]

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        head, _ = await ask(reader, writer, GET.replace(b"GET", b"HEAD"), bodyless=True)
        assert b"Content-Length: 9" in head
        for status in (b"204", b"304"):
            head, _ = await ask(reader, writer, bodyless=True)
            assert head.startswith(b"HTTP/1.1 " + status)
        assert (await ask(reader, writer))[1] == b"ok"
        writer.close()

    _, backend = play(loop, answering(*answers, OK), scene)
    assert backend.connections == 1


def test_forwarding_fields_and_trace_reach_the_backend(loop: str) -> None:
    seen: list[bytes] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, _ = await read_request(reader)
        seen.append(head)
        writer.write(OK)

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        await ask(reader, writer, b"GET / HTTP/1.1\r\nHost: A:1\r\nX-Forwarded-For: 6.6.6.6\r\n\r\n")
        writer.close()

    play(loop, script, scene)
    (head,) = seen
    assert b"x-forwarded-for: 127.0.0.1\r\n" in head
    assert b"6.6.6.6" not in head
    assert b"x-forwarded-host: a:1\r\n" in head
    assert b'forwarded: for=127.0.0.1;host="a:1";proto=http\r\n' in head
    assert b"via: 1.1 tidegate\r\n" in head
    assert b"\ntraceparent: 00-" in head


def test_a_trusted_peers_forwarding_fields_are_appended_to(loop: str) -> None:
    seen: list[bytes] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append((await read_request(reader))[0])
        writer.write(OK)

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        await ask(reader, writer, GET[:-2] + b"X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-Proto: https\r\n\r\n")
        writer.close()

    play(loop, script, scene, Limits(trusted_proxies=("127.0.0.0/8",)))
    (head,) = seen
    assert head.index(b"X-Forwarded-For: 6.6.6.6") < head.index(b"x-forwarded-for: 127.0.0.1")
    assert head.lower().count(b"x-forwarded-proto") == 1


def test_100_continue_is_relayed_and_only_then_does_the_body_flow(loop: str) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"expect: 100-continue" in head
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert await reader.readexactly(5) == b"hello"
        writer.write(OK)

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(POST[:-7] + b"Expect: 100-continue\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert (await ask(reader, writer, b"hello"))[1] == b"ok"
        writer.close()

    play(loop, script, scene)


def test_a_refusal_comes_without_100_and_closes(loop: str) -> None:
    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(POST[:-7] + b"Expect: 100-continue\r\n\r\n")
        await until(lambda: relay.app.running == 1)
        waiting.pop().fail(QUEUE_FULL, "full", function="f", extra=b"retry-after: 3\r\n")
        head, body = await read_answer(reader)
        assert head.startswith(b"HTTP/1.1 429 ")
        assert b"retry-after: 3" in head
        assert b"connection: close" in head
        assert b'"code": "queue_full"' in body
        assert await reader.read() == b""
        writer.close()

    waiting: list[Exchange] = []
    play(loop, answering(OK), scene, app=Waiting(waiting), forwards=False)


class Waiting(RelayApp):
    """Keeps requests in ``waiting``."""

    def __init__(self, waiting: list[Exchange]) -> None:
        super().__init__()
        self.waiting = waiting

    def start(self, ex: Exchange) -> None:
        super().start(ex)
        self.waiting.append(ex)


def test_an_app_that_is_ready_invites_the_body_itself(loop: str) -> None:
    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(POST[:-7] + b"Expect: 100-continue\r\n\r\n")
        await until(lambda: relay.app.running == 1)
        ex = waiting.pop()
        ex.proceed()
        assert relay.pool is not None
        ex.forward(relay.pool)
        assert b" 100 " in await reader.readuntil(b"\r\n\r\n")
        assert (await ask(reader, writer, b"hello"))[1] == b"ok"
        writer.close()

    waiting: list[Exchange] = []
    play(loop, answering(OK), scene, app=Waiting(waiting), forwards=False)


def test_a_chunked_body_streams_to_the_backend_and_trailers_follow(loop: str) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readuntil(b"\r\n") == b"3\r\n"
        first.set()
        assert await reader.readuntil(b"\r\n\r\n") == b"abc\r\n4\r\ndefg\r\n0\r\nX-T: 1\r\n\r\n"
        writer.write(OK)

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await first.wait()
        assert (await ask(reader, writer, b"4\r\ndefg\r\n0\r\nX-T: 1\r\n\r\n"))[1] == b"ok"
        writer.close()

    first = asyncio.Event()
    play(loop, script, scene)


def test_a_whole_chunked_body_gets_a_length(loop: str) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, body = await read_request(reader)
        assert b"content-length: 3" in head
        assert body == b"abc"
        writer.write(OK)

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        request = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
        assert (await ask(reader, writer, request))[1] == b"ok"
        writer.close()

    play(loop, script, scene)


def test_events_of_a_stream_pass_at_once(loop: str) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        while (line := await lines.get()) is not None:
            writer.write(b"%x\r\n%b\r\n" % (len(line), line))
        writer.write(b"0\r\n\r\n")

    async def scene(relay: Relay) -> None:
        clock = asyncio.get_running_loop().time
        reader, writer = await relay.connect()
        writer.write(GET)
        await reader.readuntil(b"\r\n\r\n")
        delays = []
        for number in range(20):
            begun = clock()
            lines.put_nowait(b"data: %03d\n\n" % number)
            assert b"data: %03d" % number in await reader.readuntil(b"\n\n\r\n")
            delays.append(clock() - begun)
        lines.put_nowait(None)
        await reader.readuntil(b"0\r\n\r\n")
        assert sorted(delays)[len(delays) // 2] < 0.01
        writer.close()

    lines: asyncio.Queue[bytes | None] = asyncio.Queue()
    play(loop, script, scene)


@pytest.mark.parametrize(("version", "expected"), [(b"1.1", b"3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n"), (b"1.0", b"abcdef")])
def test_chunks_pass_without_their_extensions_and_as_plain_bytes_to_1_0(
    loop: str, version: bytes, expected: bytes
) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while (piece := await pieces.get()) is not None:
            writer.write(piece)
        writer.write(b"0\r\n\r\n")

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(b"GET / HTTP/%b\r\nHost: a\r\n\r\n" % version)
        await reader.readuntil(b"\r\n\r\n")
        got = b""
        for piece in (b"3\r\nabc\r\n", b"3;x=y\r\ndef\r\n"):
            pieces.put_nowait(piece)
            got += await reader.readuntil(piece[-5:-2])
        pieces.put_nowait(None)
        got += await reader.readexactly(len(expected) - len(got))
        assert got == expected
        writer.close()

    pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
    play(loop, script, scene)


WEBSOCKET = b"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n\r\n"


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Switches to an echo; ends its side when the other side ends."""
    head, _ = await read_request(reader)
    assert b"upgrade: websocket" in head
    writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\nX-K: v\r\n\r\nhi")
    while data := await reader.read(1000):
        writer.write(data)
    writer.write(b"bye")


def test_a_websocket_passes_both_ways_and_half_closes(loop: str) -> None:
    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(WEBSOCKET + b"early")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")
        assert b"upgrade: websocket" in head
        assert b"X-K: v" in head
        assert await reader.readexactly(7) == b"hiearly"
        writer.write(b"more")
        assert await reader.readexactly(4) == b"more"
        writer.write_eof()
        assert await reader.read() == b"bye"
        writer.close()
        await until(lambda: not relay.app.running)
        assert relay.server.connections == 0

    app, _ = play(loop, echo, scene)
    assert [ex.status for ex in app.ended] == [101]
    assert (app.ended[0].bytes_in, app.ended[0].bytes_out) == (9, 14)


def test_an_upgrade_that_is_refused_is_a_plain_exchange(loop: str) -> None:
    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        assert (await ask(reader, writer, WEBSOCKET))[1] == b"ok"
        assert (await ask(reader, writer))[1] == b"ok"
        writer.close()

    play(loop, answering(OK), scene)


def test_a_101_not_asked_for_is_a_502(loop: str) -> None:
    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        head, _ = await ask(reader, writer, POST)
        assert head.startswith(b"HTTP/1.1 502 ")
        writer.close()

    play(loop, answering(b"HTTP/1.1 101 x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"), scene)


def test_an_app_takes_an_upgrade_for_itself(loop: str) -> None:
    class Echo(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = cast(asyncio.Transport, transport)

        def data_received(self, data: bytes) -> None:
            self.transport.write(data.upper())

    class Upgrading(RelayApp):
        def start(self, ex: Exchange) -> None:
            super().start(ex)
            ex.upgrade(Echo, b"x-k: v\r\n")

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(WEBSOCKET + b"early")
        assert b"x-k: v\r\n" in await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(5) == b"EARLY"
        writer.close()

    app, _ = play(loop, answering(OK), scene, app=Upgrading(), forwards=False)
    assert [ex.status for ex in app.ended] == [101]


def test_an_answer_that_overtakes_its_request_is_not_lost(loop: str) -> None:
    """413 while the client still sends: it reads the answer, then the end, and no reset."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nbig")
        await writer.drain()
        await reader.read()

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 600000\r\n\r\n" + b"x" * 100_000)
        head, body = await read_answer(reader)
        assert b"connection: close" in head
        assert body == b"big"
        writer.write(b"x" * 400_000)
        assert await reader.read() == b""
        writer.close()

    play(loop, script, scene)


def test_junk_from_the_backend_is_a_502(loop: str) -> None:
    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        head, body = await ask(reader, writer, POST)
        assert head.startswith(b"HTTP/1.1 502 ")
        assert b"replica_failed" in body
        assert b"connection: close" not in head
        writer.close()

    play(loop, answering(b"SSH-2.0-junk\r\n"), scene)


def test_stale_connections_cost_no_answer(loop: str) -> None:
    """The backend closes every connection right after its answer; 50 of 50 requests are answered."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK)
        await writer.drain()

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        for _ in range(50):
            head, _ = await ask(reader, writer)
            assert head.startswith(b"HTTP/1.1 200 ")
        writer.close()

    app, _ = play(loop, script, scene)
    assert len(app.ended) == 50


def test_a_refused_connection_is_reported_to_the_app_and_may_go_elsewhere(loop: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        unused = f"127.0.0.1:{free.getsockname()[1]}"

    wrong: UpstreamPool

    class Elsewhere(RelayApp):
        def start(self, ex: Exchange) -> None:
            self.running += 1
            ex.forward(wrong)

    async def scene(relay: Relay) -> None:
        nonlocal wrong
        wrong = UpstreamPool(unused, relay.services)
        reader, writer = await relay.connect()
        assert (await ask(reader, writer, POST))[1] == b"ok"
        writer.close()

    app, _ = play(loop, answering(OK), scene, app=Elsewhere())
    assert "upstream failed, sent False" in app.log
    assert app.ended[0].attempts == 2


def test_an_answer_that_is_taken_back_is_asked_for_again(loop: str) -> None:
    class TakingBack(RelayApp):
        def answering(self, ex: Exchange, head: AnyResponseHead) -> bytes | None:
            if head.status == 409:
                assert ex.replayable
                assert self.pool is not None
                ex.forward(self.pool, b"x-again: 1\r\n")
                return None
            return b"x-attempts: %d\r\n" % ex.attempts

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        head, body = await ask(reader, writer, POST)
        assert body == b"ok"
        assert b"x-attempts: 2" in head
        writer.close()

    conflict = b"HTTP/1.1 409 Conflict\r\nContent-Length: 0\r\n\r\n"
    _, backend = play(loop, answering(conflict, OK), scene, app=TakingBack())
    assert backend.connections == 1, "the connection of the refused request is used again"


def test_a_waiting_request_can_be_forwarded_after_its_answer_was_taken_back(loop: str) -> None:
    class Patient(RelayApp):
        def answering(self, ex: Exchange, head: AnyResponseHead) -> bytes | None:
            if head.status == 409:
                again.append(ex)
                return None
            return b""

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(POST)
        await until(lambda: bool(again) and again[0].waiting)
        assert relay.pool is not None
        again[0].forward(relay.pool)
        assert (await read_answer(reader))[1] == b"ok"
        writer.close()

    again: list[Exchange] = []
    play(loop, answering(b"HTTP/1.1 409 Conflict\r\nContent-Length: 0\r\n\r\n", OK), scene, app=Patient())


def test_drain_answers_what_runs_and_closes_what_idles(loop: str) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await go.wait()
        writer.write(OK)

    async def scene(relay: Relay) -> None:
        idle_reader, idle_writer = await relay.connect()
        reader, writer = await relay.connect()
        writer.write(GET)
        await until(lambda: relay.app.running == 1)
        async with asyncio.TaskGroup() as group:
            group.create_task(relay.server.drain(5.0))
            assert await idle_reader.read() == b""
            with pytest.raises(ConnectionRefusedError):
                await relay.connect()
            go.set()
            head, body = await read_answer(reader)
            assert body == b"ok"
            assert b"connection: close" in head
            assert await reader.read() == b""
        idle_writer.close()
        writer.close()

    go = asyncio.Event()
    play(loop, script, scene)


def test_a_drain_whose_grace_ends_aborts_the_rest(loop: str) -> None:
    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(GET)
        await until(lambda: relay.app.running == 1)
        await relay.server.drain(0.05)
        assert await reader.read() == b""
        assert relay.server.connections <= 1
        writer.close()

    app, _ = play(loop, answering(OK), scene, forwards=False)
    assert [ex.status for ex in app.ended] == [499]


def test_a_unix_socket_upstream(loop: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("s") / "model.sock"
    backend = ScriptedBackend(answering(OK))

    async def main() -> None:
        server = await asyncio.start_unix_server(backend._serve, path)
        relay = await start_relay(f"unix:{path}")
        reader, writer = await relay.connect()
        assert (await ask(reader, writer, POST))[1] == b"ok"
        writer.close()
        await relay.close()
        server.close()
        await backend.close()

    run_on(loop, main())


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
@pytest.mark.parametrize("status", [b"200 OK", b"204 No Content", b"304 Not Modified"])
def test_no_length_is_made_up_for_an_answer_that_has_no_body(loop: str, method: bytes, status: bytes) -> None:
    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        bodyless = method == b"HEAD" or not status.startswith(b"200")
        for _ in range(2):
            head, body = await ask(reader, writer, GET.replace(b"GET", method), bodyless=bodyless)
            assert b"content-length" not in head.lower()
            assert body == (b"" if bodyless else b"x")

    framed = b"Transfer-Encoding: chunked\r\n\r\n"
    answer = b"HTTP/1.1 %b\r\n%b" % (status, b"X: y\r\n\r\n" if status != b"200 OK" else framed)
    if method == b"GET" and status == b"200 OK":
        answer = b"HTTP/1.1 200 OK\r\n\r\nx"

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(answer)
            await writer.drain()
            if answer.endswith(b"x"):
                return

    play(loop, script, scene)


def test_a_connection_that_was_paused_for_a_slow_reader_serves_the_next_request(loop: str) -> None:
    """The client's buffer fills with the last piece of an answer: who takes the connection next must find it read."""

    class Full(RelayApp):
        def answering(self, ex: Exchange, head: AnyResponseHead) -> bytes | None:
            as_http(ex).pause_upstream()
            return super().answering(ex, head)

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        for _ in range(3):
            async with asyncio.timeout(5):
                assert (await ask(reader, writer))[1] == b"ok"

    play(loop, answering(OK), scene, app=Full())


def test_a_request_never_overtakes_one_that_waits_in_the_outbox(loop: str) -> None:
    """An upstream that answers before it was asked ends an exchange whose request has not left: the connection's next
    request, which is written at once because its body is still to come, must stand behind it."""

    async def scene(relay: Relay) -> None:
        assert relay.pool is not None
        first, writer = await relay.connect()
        await ask(first, writer)
        (upstream,) = relay.pool.connections_now()
        seen: list[bytes] = []
        wire = upstream.transport

        class Tap:
            def __getattr__(self, name: str) -> object:
                return getattr(wire, name)

            def write(self, data: bytes) -> None:
                seen.append(data)
                wire.write(data)

        upstream.transport = cast(asyncio.Transport, Tap())
        clients = relay.server.connections_now()
        clients[0].data_received(GET)
        upstream.data_received(OK)
        clients[0].data_received(b"POST /late HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
        assert [data[:4] for data in seen[:2]] == [b"GET ", b"POST"]

    play(loop, answering(OK), scene)


def test_who_stands_in_the_queue_when_the_listener_closes_is_served(loop: str) -> None:
    async def main() -> None:
        services = LoopServices(asyncio.get_running_loop(), interval_s=0.02)
        backend = ScriptedBackend(answering(OK))
        app = RelayApp(UpstreamPool(await backend.start(), services))
        sock = sockets.listen("127.0.0.1:0")
        server = await serve_proxy(app, sock, Limits(), services)
        host, port = sockets.host_port(server_address := sockets.address_of(sock))
        assert server_address
        clients = []
        for _ in range(20):  # No turn of the loop meanwhile: none accepts them.
            client = socket.create_connection((host, port))
            client.sendall(GET)
            client.setblocking(False)
            clients.append(client)
        await server.drain(10.0)
        for client in clients:
            assert client.recv(4096).startswith(b"HTTP/1.1 200 ")
            client.close()
        assert app.pool is not None
        app.pool.close()
        services.close()
        await backend.close()

    run_on(loop, main())


def test_a_drain_gives_a_new_connection_time_for_its_first_request(loop: str) -> None:
    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        await until(lambda: relay.server.connections == 1)
        drain = asyncio.get_running_loop().create_task(relay.server.drain(10.0))
        await asyncio.sleep(0.1)
        head, body = await ask(reader, writer)
        assert b"connection: close" in head
        assert body == b"ok"
        silent, writer = reader, writer
        await drain
        assert await silent.read() == b""

    play(loop, answering(OK), scene)


def test_a_drain_tells_a_busy_connection_with_its_next_answer(loop: str) -> None:
    """Between two requests of a client that asks without pause the next one may be on its way: nothing is closed."""

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        await ask(reader, writer)
        drain = asyncio.get_running_loop().create_task(relay.server.drain(10.0))
        await asyncio.sleep(0.05)
        head, body = await ask(reader, writer)
        assert b"connection: close" in head
        assert body == b"ok"
        await drain

    play(loop, answering(OK), scene)


def test_a_stream_at_full_speed_leaves_others_their_turn(loop: str) -> None:
    """A read of 256 KB is two thousand small chunks to decode; a request beside it waits for a few, not for 32."""
    chunks = b"6e\r\n" + b"x" * 110 + b"\r\n"

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, _ = await read_request(reader)
            if b"/flood" not in head:
                writer.write(OK)
                continue
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while not done.is_set():
                writer.write(chunks * 4096)
                await writer.drain()

    async def scene(relay: Relay) -> None:
        flooded, writer = await relay.connect()
        writer.write(GET.replace(b"/", b"/flood", 1))

        async def drink() -> None:
            while await flooded.read(1 << 20):
                pass

        drinker = asyncio.get_running_loop().create_task(drink())
        reader, writer = await relay.connect()
        for _ in range(20):
            async with asyncio.timeout(5):
                assert (await ask(reader, writer))[1] == b"ok"
        done.set()
        drinker.cancel()

    done = asyncio.Event()
    play(loop, script, scene)


def test_a_tunnel_leaves_nothing_to_the_collector(loop: str) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
        writer.write(await reader.readexactly(4))

    async def scene(relay: Relay) -> None:
        for _ in range(20):
            reader, writer = await relay.connect()
            writer.write(GET[:-2] + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\nping")
            assert (await reader.read()).endswith(b"ping")
            writer.close()
            await until(lambda: relay.server.connections == 0)
        relay.app.ended.clear()
        await asyncio.sleep(0.05)
        alive = [one for one in gc.get_objects() if type(one) in (Tunnel, ServerConn, Exchange)]
        assert len(alive) <= 2, alive

    gc.collect()
    gc.disable()
    try:
        play(loop, script, scene)
    finally:
        gc.enable()
