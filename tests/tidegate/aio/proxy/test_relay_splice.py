"""Long bodies of answers pass through a pipe where they may, and the client sees no difference."""

import asyncio
import contextlib
import random
from pathlib import Path

import pytest

from tests.support.http.backend import OK, Script, ScriptedBackend, answering, read_answer, read_request
from tests.support.http.loopback import LOOPS, Relay, RelayApp, play, run_on, start_relay, until
from tests.support.live.certificates import contexts, make_certificate
from tidegate.aio.loop.splice import IS_THERE, Splicer
from tidegate.aio.proxy.detached import tap_response
from tidegate.aio.proxy.exchange import Exchange
from tidegate.aio.proxy.server import Limits
from tidegate.wire.message_heads import AnyResponseHead

pytestmark = [
    pytest.mark.live,
    pytest.mark.parametrize("loop", sorted(LOOPS)),
    pytest.mark.skipif(not IS_THERE, reason="splice(2) is Linux's"),
]

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
BODY = random.Random(1).randbytes(3_000_000)
LONG = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)

TENSOR = BODY[:600_000]
LARGE = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(TENSOR), TENSOR)
"""So much fits into the sockets' buffers: none is ever full."""
SOON_S = 0.05
"""Within which a vanished client is felt at the backend."""


class Counting(Splicer):
    """Knows what passed through it."""

    __slots__ = ("passed",)

    def __init__(self, *, is_usable: bool = True) -> None:
        super().__init__()
        self.is_usable = is_usable
        self.passed = 0

    def move(self, source: int, sink: int, size: int) -> tuple[int, bytes]:
        passed, rest = super().move(source, sink, size)
        self.passed += passed
        return passed, rest


def counting(relay: Relay, *, is_usable: bool = True) -> Counting:
    """The splicer that ``relay`` uses from now on."""
    relay.services.splicer = splicer = Counting(is_usable=is_usable)
    return splicer


def test_long_answers_pass_whole_and_connections_go_on(loop: str) -> None:
    """Pipelined between short ones, from one connection to another."""

    async def scene(relay: Relay) -> None:
        splicer = counting(relay)
        reader, writer = await relay.connect()
        writer.write(GET * 6)
        for _ in range(3):
            assert (await read_answer(reader))[1] == BODY
            assert (await read_answer(reader))[1] == b"ok"
        writer.write(GET)
        assert (await read_answer(reader))[1] == b"ok"
        assert splicer.passed > len(BODY)

    app, backend = play(loop, answering(LONG, OK, LONG, OK, LONG, OK), scene)
    assert backend.connections == 1
    assert [ex.bytes_out for ex in app.ended] == [len(BODY), 2] * 3 + [2]
    assert {ex.status for ex in app.ended} == {200}


def test_many_long_answers_at_once_do_not_mix(loop: str) -> None:
    bodies = [bytes([number]) * 1_000_000 for number in range(8)]

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, _ = await read_request(reader)
            body = bodies[int(head.split(b" ")[1][1:])]
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
            for at in range(0, len(body), 100_000):
                writer.write(body[at : at + 100_000])
                await asyncio.sleep(0)

    async def ask(relay: Relay, number: int) -> None:
        reader, writer = await relay.connect()
        for _ in range(3):
            writer.write(GET.replace(b"/ ", b"/%d " % number))
            assert (await read_answer(reader))[1] == bodies[number]

    async def scene(relay: Relay) -> None:
        splicer = counting(relay)
        async with asyncio.TaskGroup() as group:
            for number in range(8):
                group.create_task(ask(relay, number), name=str(number))
        assert splicer.passed > 0

    app, _ = play(loop, script, scene)
    assert len(app.ended) == 24


def test_bytes_behind_the_end_of_a_long_answer_belong_to_none(loop: str) -> None:
    """They would be taken for the answer to the next request: the connection does not get one."""

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(GET * 3)
        for _ in range(3):
            assert (await read_answer(reader))[1] == TENSOR

    _, backend = play(loop, answering(LARGE + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"), scene)
    assert backend.connections == 3


@pytest.mark.parametrize("is_usable", [True, False])
def test_a_slow_reader_gets_all_of_it(loop: str, is_usable: bool) -> None:
    size, written = 64 << 20, 0
    piece = bytes(range(256)) * 256

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        while written < size:
            writer.write(piece)
            await writer.drain()
            written += len(piece)

    async def scene(relay: Relay) -> None:
        splicer = counting(relay, is_usable=is_usable)
        reader, writer = await relay.connect()
        writer.write(GET)
        await reader.readuntil(b"\r\n\r\n")
        last = -1
        while last != written:
            last = written
            await asyncio.sleep(0.1)
        assert written < size // 2
        assert relay.held_bytes() < 1 << 20
        for _ in range(size // len(piece)):
            assert await reader.readexactly(len(piece)) == piece
        assert bool(splicer.passed) == is_usable

    app, _ = play(loop, script, scene)
    assert app.ended[0].bytes_out == size


async def _begin(writer: asyncio.StreamWriter) -> None:
    """Most of the long answer, in two steps: the second one finds the connection ready to splice."""
    writer.write(LONG[:1_000_000])
    await asyncio.sleep(0.05)
    writer.write(LONG[1_000_000:2_000_000])
    await writer.drain()


def test_a_client_that_goes_away_in_the_middle_is_felt_by_the_upstream(loop: str) -> None:
    gone_at = 0.0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal gone_at
        await read_request(reader)
        await _begin(writer)
        begun.set()
        try:
            await reader.read()
        finally:
            gone_at = asyncio.get_running_loop().time()

    async def scene(relay: Relay) -> None:
        splicer = counting(relay)
        reader, writer = await relay.connect()
        writer.write(GET)
        await reader.readexactly(1_900_000)
        await begun.wait()
        assert splicer.passed > 0
        writer.transport.abort()
        await until(lambda: gone_at > 0)
        assert gone_at - relay.app.ended[0].ended < SOON_S

    begun = asyncio.Event()
    app, _ = play(loop, script, scene)
    assert [ex.status for ex in app.ended] == [499]


@pytest.mark.parametrize("how", ["close", "reset"])
def test_an_upstream_that_dies_in_the_middle_leaves_a_visible_gap(loop: str, how: str) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await _begin(writer)
        if how == "reset":
            writer.transport.abort()

    async def scene(relay: Relay) -> None:
        splicer = counting(relay)
        reader, writer = await relay.connect()
        writer.write(GET)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await read_answer(reader)
        assert splicer.passed > 0

    app, _ = play(loop, script, scene)
    assert [(ex.status, ex.truncated) for ex in app.ended] == [(502, True)]


def test_an_upstream_that_falls_silent_in_the_middle_is_cut(loop: str) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await _begin(writer)
        await reader.read()

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(GET)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await read_answer(reader)

    app, _ = play(loop, script, scene, Limits(stream_idle_timeout_s=0.3))
    assert [(ex.status, ex.truncated) for ex in app.ended] == [(502, True)]


def test_a_drain_lets_a_long_answer_end(loop: str) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await _begin(writer)
        await draining.wait()
        writer.write(LONG[2_000_000:])
        await reader.read()

    async def scene(relay: Relay) -> None:
        splicer = counting(relay)
        reader, writer = await relay.connect()
        writer.write(GET)
        await until(lambda: splicer.passed > 0)
        async with asyncio.TaskGroup() as group:
            group.create_task(relay.server.drain(10.0), name="drain")
            await asyncio.sleep(0)
            draining.set()
            assert (await read_answer(reader))[1] == BODY
            assert await reader.read() == b""

    draining = asyncio.Event()
    app, _ = play(loop, script, scene)
    assert [ex.status for ex in app.ended] == [200]


def test_a_tunnel_on_a_connection_that_has_carried_a_long_answer(loop: str) -> None:
    upgrade = b"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(LARGE)
        await read_request(reader)
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
        while data := await reader.read(100):
            writer.write(data.upper())
            await writer.drain()

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        splicer = counting(relay)
        writer.write(GET)
        assert (await read_answer(reader))[1] == TENSOR
        assert splicer.passed > 0
        writer.write(upgrade)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        for word in (b"one", b"two"):
            writer.write(word)
            assert await reader.readexactly(3) == word.upper()
        writer.close()

    app, backend = play(loop, script, scene)
    assert backend.connections == 1
    assert [ex.status for ex in app.ended] == [200, 101]


@pytest.mark.parametrize("answer", ["chunked", "until the end"])
def test_what_must_be_framed_is_not_spliced(loop: str, answer: str) -> None:
    head = b"Transfer-Encoding: chunked\r\n" if answer == "chunked" else b""
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY) if answer == "chunked" else BODY

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n%b\r\n%b" % (head, body))

    async def scene(relay: Relay) -> None:
        splicer = counting(relay)
        reader, writer = await relay.connect()
        writer.write(GET)
        assert (await read_answer(reader))[1] == BODY
        assert splicer.passed == 0

    play(loop, script, scene)


def test_who_listens_hears_every_byte(loop: str) -> None:
    heard = bytearray()

    class Overhearing(RelayApp):
        def answering(self, ex: Exchange, head: AnyResponseHead) -> bytes | None:
            tap_response(ex, heard.extend)
            return super().answering(ex, head)

    async def scene(relay: Relay) -> None:
        splicer = counting(relay)
        reader, writer = await relay.connect()
        writer.write(GET)
        assert (await read_answer(reader))[1] == BODY
        assert splicer.passed == 0

    play(loop, answering(LONG), scene, app=Overhearing())
    assert heard == BODY


def test_towards_tls_everything_is_read(loop: str, tmp_path: Path) -> None:
    async def scene(relay: Relay) -> None:
        splicer = counting(relay)
        reader, writer = await relay.connect()
        for _ in range(2):
            writer.write(GET)
            assert (await read_answer(reader))[1] == BODY
        assert splicer.passed == 0

    play(loop, answering(LONG), scene, tls=contexts(*make_certificate(tmp_path)))


def test_from_a_unix_socket(loop: str, tmp_path: Path) -> None:
    async def main(script: Script) -> RelayApp:
        path = f"{tmp_path}/model.sock"
        backend = await asyncio.start_unix_server(script, path)
        relay = await start_relay(f"unix:{path}")
        splicer = counting(relay)
        reader, writer = await relay.connect()
        for _ in range(2):
            writer.write(GET)
            assert (await read_answer(reader))[1] == BODY
        assert splicer.passed > 0
        backend.close()
        await relay.close()
        return relay.app

    app = run_on(loop, main(answering(LONG)))
    assert [ex.bytes_out for ex in app.ended] == [len(BODY)] * 2


def test_a_relay_that_has_ended_leaves_no_descriptor(loop: str) -> None:
    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(GET)
        assert (await read_answer(reader))[1] == BODY

    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        play(loop, answering(LONG), scene)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_shutdown_in_the_middle_of_long_answers_leaves_no_descriptor(loop: str) -> None:
    """Some clients read, some do not, one upstream goes on sending: the pipe and all sockets are closed."""
    piece = bytes(range(256)) * 256

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (1 << 40))
        while True:
            writer.write(piece)
            await writer.drain()

    def descriptors() -> list[str]:
        found = []
        for each in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                found.append(str(each.readlink()))
        return sorted(one for one in found if one.startswith(("pipe:", "socket:")))

    async def main() -> None:
        backend = ScriptedBackend(script)
        address = await backend.start()
        before = descriptors()
        relay = await start_relay(address)
        splicer = counting(relay)
        clients = [await relay.connect() for _ in range(4)]
        for _, writer in clients:
            writer.write(GET)
        for _ in range(50):
            await clients[0][0].readexactly(1 << 20)
        assert splicer.passed > 0
        assert any(one.startswith("pipe:") and one not in before for one in descriptors())
        await relay.close()
        await until(lambda: not relay.server.connections)
        assert relay.app.running == 0
        await backend.close()
        await until(lambda: len(descriptors()) <= len(before) - 1)  # its listening socket is gone, too
        assert not set(descriptors()) - set(before)

    run_on(loop, main())
