"""How exchanges end early: vanished clients, dying upstreams, deadlines, limits; and what slow readers cost."""

import asyncio
import socket
import struct
import time
from typing import Any

import pytest

from tests.support.http.backend import OK, answering, read_answer, read_request
from tests.support.http.loopback import LOOPS, Relay, RelayApp, play, until
from tidegate.aio.proxy.exchange import KEPT_BYTES, Exchange
from tidegate.aio.proxy.server import Limits
from tidegate.aio.upstream.http1 import UpstreamConn
from tidegate.errors import DEADLINE

pytestmark = [pytest.mark.live, pytest.mark.parametrize("loop", sorted(LOOPS))]

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
SOON_S = 0.05
"""Within which a vanished client is felt at the backend."""


def vanish(writer: asyncio.StreamWriter, how: str) -> None:
    """The client goes away: FIN, RST or half-close."""
    if how == "half-close":
        writer.write_eof()
    elif how == "reset":
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    else:
        writer.transport.abort()


class Gone:
    """A backend that reads one request, answers ``answer`` and waits for the end of its connection."""

    def __init__(self, answer: bytes = b"") -> None:
        self.answer = answer
        self.asked = False
        self.gone_at = 0.0

    async def script(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.asked = True
        writer.write(self.answer)
        try:
            while await reader.read(65536):
                pass
        finally:
            self.gone_at = asyncio.get_running_loop().time()


@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (POST, b""),
        (POST[:-2], b""),
        (POST, b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart"),
        (POST, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"),
    ],
    ids=["running", "uploading", "streaming", "streaming-chunks"],
)
def test_a_vanished_client_reaches_the_backend(loop: str, how: str, request_: bytes, answer: bytes) -> None:
    backend = Gone(answer)

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(request_)
        await until(lambda: backend.asked)
        if answer:
            await reader.readuntil(b"\r\n\r\n")
        vanish(writer, how)
        await until(lambda: backend.gone_at > 0)
        assert relay.app.ended[0].ended > 0
        assert backend.gone_at - relay.app.ended[0].ended < SOON_S

    app, _ = play(loop, backend.script, scene)
    assert [ex.status for ex in app.ended] == [499]
    assert app.log[-2:] == ["abandoned", "finished 499"]


@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
def test_a_client_that_vanishes_while_it_waits(loop: str, how: str) -> None:
    async def scene(relay: Relay) -> None:
        _, writer = await relay.connect()
        writer.write(POST)
        await until(lambda: relay.app.running == 1)
        vanish(writer, how)
        assert await until(lambda: relay.app.running == 0) < SOON_S

    app, backend = play(loop, answering(OK), scene, forwards=False)
    assert app.log == ["start", "abandoned", "finished 499"]
    assert backend.connections == 0


def test_a_client_that_vanishes_while_its_large_body_waits_unread(loop: str) -> None:
    """Reading is paused then, and the event loop sees nothing: the ticker asks the kernel."""

    async def scene(relay: Relay) -> None:
        _, writer = await relay.connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000\r\n\r\n" + b"x" * KEPT_BYTES * 2)
        await until(lambda: bool(waiting) and waiting[0].bytes_in >= KEPT_BYTES)
        vanish(writer, "reset")
        await until(lambda: relay.app.running == 0, 2.0)

    waiting: list[Exchange] = []
    app, _ = play(loop, answering(OK), scene, app=Keeping(waiting), forwards=False)
    assert app.log[-1] == "finished 499"


@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
def test_it_is_felt_at_once_and_not_with_the_ticker(loop: str, how: str) -> None:
    async def scene(relay: Relay) -> None:
        _, writer = await relay.connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000\r\n\r\n" + b"x" * KEPT_BYTES)
        await until(lambda: bool(waiting) and waiting[0].bytes_in >= KEPT_BYTES)
        vanish(writer, how)
        begun = time.monotonic()
        await until(lambda: relay.app.running == 0, 2.0)
        assert time.monotonic() - begun < SOON_S

    waiting: list[Exchange] = []
    app, _ = play(loop, answering(OK), scene, app=Keeping(waiting), forwards=False, sweep_s=3600.0)
    assert app.log[-1] == "finished 499"


class Keeping(RelayApp):
    def __init__(self, waiting: list[Exchange]) -> None:
        super().__init__()
        self.waiting = waiting

    def start(self, ex: Exchange) -> None:
        super().start(ex)
        self.waiting.append(ex)


@pytest.mark.parametrize(
    ("answer", "then"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart", b""),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n", b""),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n", b"xyz\r\n0\r\n\r\n"),
    ],
    ids=["length", "chunked", "bad-chunk"],
)
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
def test_an_upstream_that_dies_mid_answer_leaves_a_visible_gap(
    loop: str, answer: bytes, then: bytes, version: bytes
) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer)
        await arrived.wait()
        writer.write(then)

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(GET.replace(b"1.1", version))
        await until(lambda: bool(relay.app.log) and relay.app.log[-1] == "answering 200")
        arrived.set()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await read_answer(reader)

    arrived = asyncio.Event()
    app, _ = play(loop, script, scene)
    assert [(ex.status, ex.truncated) for ex in app.ended] == [(502, True)]


def test_a_body_until_eof_ends_well(loop: str) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\npart")
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.write(b"rest")

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        for _ in range(2):
            writer.write(GET)
            assert (await read_answer(reader))[1] == b"partrest"

    play(loop, script, scene)


def test_an_upstream_that_dies_before_an_answer_is_asked_again_only_where_that_is_safe(loop: str) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        asked.append(1)
        if len(asked) in (2, 4):
            writer.write(OK)

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(GET)
        assert (await read_answer(reader))[0].startswith(b"HTTP/1.1 200 ")
        writer.write(POST)
        head, body = await read_answer(reader)
        assert head.startswith(b"HTTP/1.1 502 ")
        assert b'"executed": "unknown"' in body

    asked: list[int] = []
    app, _ = play(loop, script, scene)
    assert len(asked) == 3
    assert [ex.attempts for ex in app.ended] == [2, 1]


# --- time -----------------------------------------------------------------------------------------------------------


def test_a_deadline_that_passes_while_waiting(loop: str) -> None:
    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        for _ in range(2):
            writer.write(POST)
            head, body = await read_answer(reader)
            assert head.startswith(b"HTTP/1.1 504 ")
            assert b"deadline_exceeded" in body

    app, backend = play(loop, answering(OK), scene, Limits(response_timeout_s=0.1), forwards=False)
    assert app.log == ["start", "expired", "finished 504"] * 2
    assert backend.connections == 0


def test_a_deadline_that_passes_at_the_upstream_aborts_it(loop: str) -> None:
    backend = Gone()

    class Hurried(RelayApp):
        def start(self, ex: Exchange) -> None:
            ex.set_deadline(time.monotonic() + 0.1)
            super().start(ex)

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(POST)
        assert (await read_answer(reader))[0].startswith(b"HTTP/1.1 504 ")
        await until(lambda: backend.gone_at > 0)

    play(loop, backend.script, scene, app=Hurried())


def test_an_app_that_says_nothing_at_the_deadline_gets_a_504(loop: str) -> None:
    class Silent(RelayApp):
        def expired(self, ex: Exchange) -> None:
            self.log.append("expired")

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(POST)
        head, body = await read_answer(reader)
        assert head.startswith(b"HTTP/1.1 504 ")
        assert DEADLINE.code.encode() in body

    play(loop, answering(OK), scene, Limits(response_timeout_s=0.1), app=Silent(), forwards=False)


@pytest.mark.parametrize(
    ("sent", "limits", "status"),
    [
        (b"GET / HT", Limits(head_timeout_s=0.1), b"408"),
        (POST[:-1], Limits(body_idle_timeout_s=0.1), b"408"),
        (b"", Limits(idle_timeout_s=0.1), b""),
        (GET, Limits(idle_timeout_s=0.1), b"200"),
    ],
    ids=["head", "body", "fresh", "idle"],
)
def test_limits_of_time(loop: str, sent: bytes, limits: Limits, status: bytes) -> None:
    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(sent)
        everything = await reader.read()
        assert everything[9:12] == status

    play(loop, answering(OK), scene, limits)


def test_a_body_that_keeps_coming_is_not_idle(loop: str) -> None:
    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(POST[:-5])
        for byte in b"hello":
            await asyncio.sleep(0.1)
            writer.write(bytes([byte]))
        assert (await read_answer(reader))[1] == b"ok"

    play(loop, answering(OK), scene, Limits(body_idle_timeout_s=0.3))


def test_a_client_that_is_made_to_wait_is_not_idle(loop: str) -> None:
    """It holds its body back for a 100, or we do not read: neither is its fault, also right after the wait."""

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(POST[:-7] + b"Expect: 100-continue\r\n\r\n")
        await asyncio.sleep(0.3)
        waiting[0].proceed()
        assert relay.pool is not None
        waiting[0].forward(relay.pool)
        assert b" 100 " in await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.03)
        writer.write(b"hello")
        assert (await read_answer(reader))[1] == b"ok"

    waiting: list[Exchange] = []
    play(loop, answering(OK), scene, Limits(body_idle_timeout_s=0.15), app=Keeping(waiting), forwards=False)


def test_a_stream_that_falls_silent_is_cut(loop: str) -> None:
    backend = Gone(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart")

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(GET)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await read_answer(reader)
        await until(lambda: backend.gone_at > 0)

    app, _ = play(loop, backend.script, scene, Limits(stream_idle_timeout_s=0.1))
    assert app.ended[0].truncated


def test_idle_upstream_connections_are_closed(loop: str) -> None:
    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(GET)
        await read_answer(reader)
        assert relay.pool is not None
        assert relay.pool.connections == 1
        await until(lambda: relay.pool is not None and relay.pool.connections == 0, 2.0)

    play(loop, answering(OK), scene, idle_timeout_s=0.1)


# --- bodies ---------------------------------------------------------------------------------------------------------

LARGE = 64 << 20
IN_BETWEEN = 32 << 20
"""What the kernel's buffers (up to 10 MB for each of two connections) and ours may hold between writer and reader."""
OURS = 1 << 20
"""Of it, what the proxy itself may hold."""


def test_a_download_moves_at_the_readers_pace(loop: str) -> None:
    written = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % LARGE)
        piece = b"x" * 65536
        while written < LARGE:
            writer.write(piece)
            await writer.drain()
            written += len(piece)

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(GET)
        await reader.readuntil(b"\r\n\r\n")
        await _standstill(lambda: written)
        assert written < IN_BETWEEN
        assert relay.held_bytes() < OURS
        left = LARGE
        while left:
            left -= len(await reader.read(1 << 20))

    app, _ = play(loop, script, scene)
    assert app.ended[0].bytes_out == LARGE


def test_an_upload_moves_at_the_backends_pace(loop: str) -> None:
    sent = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await go.wait()
        left = LARGE
        while left:
            left -= len(await reader.read(1 << 20))
        writer.write(OK)

    async def scene(relay: Relay) -> None:
        nonlocal sent
        reader, writer = await relay.connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % LARGE)

        async def upload() -> None:
            nonlocal sent
            while sent < LARGE:
                writer.write(b"x" * 65536)
                await writer.drain()
                sent += 65536

        async with asyncio.TaskGroup() as group:
            group.create_task(upload())
            await _standstill(lambda: sent)
            assert sent < IN_BETWEEN
            assert relay.held_bytes() < OURS
            go.set()
        assert (await read_answer(reader))[1] == b"ok"

    go = asyncio.Event()
    app, _ = play(loop, script, scene)
    assert app.ended[0].bytes_in == LARGE


def test_a_client_that_asks_and_does_not_read_is_answered_at_its_pace(loop: str) -> None:
    """Pipelined requests for large answers must not pile up as answers in our memory."""
    size = 3 << 20

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(GET * 60)
        await _standstill(lambda: len(relay.app.ended))
        assert len(relay.app.ended) < 30
        assert relay.held_bytes() < size + OURS
        for _ in range(60):
            assert len((await read_answer(reader))[1]) == size

    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size
    play(loop, answering(answer), scene)


async def _standstill(value: Any) -> None:
    """Waits until ``value()`` has not moved for 0.2 s."""
    last = -1
    while (now := value()) != last:
        last = now
        await asyncio.sleep(0.2)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_waits_in_part_and_arrives_whole(loop: str, chunked: bool) -> None:
    size = 3 * KEPT_BYTES + 17

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if chunked:
            received = 0
            while count := int((await reader.readuntil(b"\r\n"))[:-2], 16):
                received += len(await reader.readexactly(count))
                await reader.readexactly(2)
            await reader.readexactly(2)
            assert received == size
        else:
            await reader.readexactly(size)
        writer.write(OK)

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        if chunked:
            writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
            writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (size, b"x" * size))
        else:
            writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)
        await until(lambda: bool(waiting) and waiting[0].bytes_in >= KEPT_BYTES)
        await asyncio.sleep(0.05)
        ex = waiting[0]
        assert ex.bytes_in < 2.1 * KEPT_BYTES
        assert len(ex.body) == ex.bytes_in
        assert relay.pool is not None
        ex.forward(relay.pool)
        assert (await read_answer(reader))[1] == b"ok"
        assert not ex.replayable

    waiting: list[Exchange] = []
    play(loop, script, scene, app=Keeping(waiting), forwards=False)


def test_a_held_body_flows_beyond_the_buffer_only_after_the_100(loop: str) -> None:
    size = 4 * KEPT_BYTES

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"expect: 100-continue" in head
        early = 0
        try:
            async with asyncio.timeout(0.3):
                while early < size:
                    early += len(await reader.read(65536))
        except TimeoutError:
            pass
        assert KEPT_BYTES <= early < 2.1 * KEPT_BYTES
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await reader.readexactly(size - early)
        writer.write(OK)

    class Holding(RelayApp):
        def start(self, ex: Exchange) -> None:
            self.running += 1
            assert self.pool is not None
            ex.forward(self.pool, hold=True)

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)
        head, body = await read_answer(reader)
        assert head.startswith(b"HTTP/1.1 200 "), "the client did not ask for a 100 and sees none"
        assert body == b"ok"

    play(loop, script, scene, app=Holding())


def test_a_connect_that_is_given_up_in_the_turn_in_which_it_was_made_leaves_nothing(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time is over just then: uvloop does not tell the protocol that its connection is gone."""
    made = UpstreamConn.connection_made
    given_up: list[asyncio.Task[Any]] = []

    def give_up(self: UpstreamConn, transport: asyncio.BaseTransport) -> None:
        made(self, transport)
        if not given_up:
            given_up.extend(task for task in asyncio.all_tasks() if task.get_name().startswith("connect to"))
            given_up[0].cancel()

    monkeypatch.setattr(UpstreamConn, "connection_made", give_up)

    async def scene(relay: Relay) -> None:
        assert relay.pool is not None
        _, left = await relay.connect()
        left.write(GET)
        await until(lambda: bool(given_up) and given_up[0].done())
        left.transport.abort()
        reader, writer = await relay.connect()
        writer.write(GET)
        assert (await read_answer(reader))[1] == b"ok"
        await until(lambda: len(relay.app.ended) == 2)
        assert relay.pool.connections == 1, "that of the second request"

    play(loop, answering(OK), scene)
