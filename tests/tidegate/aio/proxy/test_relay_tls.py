"""The listening side over TLS, as its clients and upstreams see it."""

import asyncio
import socket
import ssl
from pathlib import Path

import pytest

from tests.support.http.backend import OK, answering, read_answer, read_request
from tests.support.http.loopback import LOOPS, Relay, RelayApp, play, until
from tests.support.live.certificates import contexts, make_certificate
from tidegate.aio.proxy.exchange import Exchange
from tidegate.aio.proxy.server import Limits

pytestmark = [pytest.mark.live, pytest.mark.parametrize("loop", sorted(LOOPS))]

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
Pair = tuple[ssl.SSLContext, ssl.SSLContext]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def tls(files: tuple[Path, Path]) -> Pair:
    return contexts(*files)


def test_requests_over_tls_say_so_to_the_backend(loop: str, tls: Pair) -> None:
    seen: list[bytes] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            seen.append((await read_request(reader))[0])
            writer.write(OK)

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        for _ in range(3):
            writer.write(GET)
            assert (await read_answer(reader))[1] == b"ok"

    play(loop, script, scene, tls=tls)
    assert len(seen) == 3
    for head in seen:
        assert b"x-forwarded-proto: https\r\n" in head
        assert b'forwarded: for=127.0.0.1;host="a";proto=https\r\n' in head


@pytest.mark.parametrize("sent", [GET, b"", b"\x16\x03\x01\x00\x02\x01\x00"], ids=["plain", "silence", "broken"])
def test_a_handshake_that_fails_is_no_request(
    loop: str, tls: Pair, sent: bytes, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody who speaks no TLS, or too slowly, is cut off: nothing is counted and nothing is printed."""

    async def scene(relay: Relay) -> None:
        reader, writer = await asyncio.open_connection(relay.host, relay.port)
        writer.write(sent)
        try:
            await reader.read()
        except ConnectionResetError:
            pass
        finally:
            writer.transport.abort()
        assert relay.server.connections == 0

    app, backend = play(loop, answering(OK), scene, Limits(handshake_timeout_s=0.2), tls=tls)
    assert app.log == []
    assert backend.connections == 0
    assert capfd.readouterr().err == ""
    assert caplog.records == []


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n",
    ],
    ids=["length", "chunked"],
)
def test_a_truncated_answer_is_visible(loop: str, tls: Pair, answer: bytes, version: bytes) -> None:
    """Also to an HTTP/1.0 client that reads to the end: there is no close_notify."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer)
        await arrived.wait()

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(GET.replace(b"1.1", version))
        await until(lambda: "answering 200" in relay.app.log)
        arrived.set()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError, ssl.SSLError)):
            await read_answer(reader)

    arrived = asyncio.Event()
    app, _ = play(loop, script, scene, tls=tls)
    assert [(ex.status, ex.truncated) for ex in app.ended] == [(502, True)]


def test_an_answer_that_overtakes_its_request_is_not_lost(loop: str, tls: Pair) -> None:
    """TLS has no half-close: what still comes is read and dropped, and only then the connection ends."""
    size = 600_000

    class Refusing(RelayApp):
        def start(self, ex: Exchange) -> None:
            self.running += 1
            ex.respond(413, b"no", close=True)

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size // 60_000):
            writer.write(b"x" * 60_000)
            await asyncio.sleep(0.005)
        head, body = await read_answer(reader)
        assert head.startswith(b"HTTP/1.1 413 ")
        assert body == b"no"

    play(loop, answering(OK), scene, app=Refusing(), tls=tls)


def test_a_vanished_client_takes_its_work_with_it(loop: str, tls: Pair) -> None:
    async def scene(relay: Relay) -> None:
        _, writer = await relay.connect()
        writer.write(GET)
        await until(lambda: relay.app.running == 1)
        writer.close()
        await until(lambda: relay.app.running == 0)

    app, _ = play(loop, answering(OK), scene, forwards=False, tls=tls)
    assert app.log == ["start", "abandoned", "finished 499"]


@pytest.mark.parametrize("first", ["client", "backend"])
def test_a_tunnel_ends_with_either_side(loop: str, tls: Pair, first: str) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
        writer.write(await reader.readexactly(4))
        if first == "client":
            assert await reader.read() == b""
            noticed.set()

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(GET[:-2] + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n")
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"ping")
        assert await reader.readexactly(4) == b"ping"
        if first == "client":
            writer.close()
            await noticed.wait()
        else:
            assert await reader.read() == b""
        await until(lambda: relay.server.connections == 0)

    noticed = asyncio.Event()
    app, _ = play(loop, script, scene, tls=tls)
    assert app.log[-1] == "finished 101"


def test_a_slow_reader_over_tls_holds_the_backend_back(loop: str, tls: Pair) -> None:
    size, written = 64 << 20, 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        while written < size:
            writer.write(b"x" * 65536)
            await writer.drain()
            written += 65536

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(GET)
        await reader.readuntil(b"\r\n\r\n")
        last = -1
        while last != written:
            last = written
            await asyncio.sleep(0.2)
        assert written < size // 2
        left = size
        while left:
            left -= len(await reader.read(1 << 20))

    app, _ = play(loop, script, scene, tls=tls)
    assert app.ended[0].bytes_out == size


def test_another_certificate_serves_new_connections(loop: str, tls: Pair, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)

    async def scene(relay: Relay) -> None:
        first, writer = await relay.connect()
        tls[0].load_cert_chain(certificate, key)
        writer.write(GET)
        assert (await read_answer(first))[1] == b"ok"
        with pytest.raises(ssl.SSLCertVerificationError):
            await relay.connect()
        trust = ssl.create_default_context(cafile=str(certificate))
        reader, writer = await asyncio.open_connection(relay.host, relay.port, ssl=trust, server_hostname="localhost")
        writer.write(GET)
        assert (await read_answer(reader))[1] == b"ok"
        writer.transport.abort()

    play(loop, answering(OK), scene, tls=tls)


def test_a_slow_handshake_makes_none_wait_when_the_queue_of_a_listener_is_taken_in(loop: str, tls: Pair) -> None:
    async def scene(relay: Relay) -> None:
        with socket.create_connection((relay.host, relay.port)):  # Says nothing.
            late = socket.create_connection((relay.host, relay.port))
            relay.server.stop_accepting()
            late.setblocking(False)
            reader, writer = await asyncio.open_connection(sock=late, ssl=tls[1], server_hostname="localhost")
            writer.write(GET)
            assert (await read_answer(reader))[1] == b"ok"
            writer.transport.abort()

    play(loop, answering(OK), scene, Limits(handshake_timeout_s=60.0), tls=tls, limit_s=20)
