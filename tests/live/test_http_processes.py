"""Bytes through real gateways and queue_proxies on both loops: slow readers, vanished clients, stale connections.

What the engine does by itself is tested in ``tests/aio``; here the whole way counts, in processes of its own, and what
they hold while somebody is slow is read from the kernel.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.support.http.backend import OK, Script, ScriptedBackend, close_all, read_answer, read_request
from tests.support.http.doors import Door, door
from tests.support.http.echo import KINDS, doors
from tests.support.http.loopback import LOOPS, run_on, until

WAYS = [(kind, loop) for kind in KINDS for loop in sorted(LOOPS)]
pytestmark = [pytest.mark.live, pytest.mark.timeout(90)]

GET = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n"
MB = 1 << 20
GROWTH = 16 * MB
SOON_S = 0.5
"""Ten times what a vanished client may take to be felt, on a machine that is busy with other things."""

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Ways:
    """Doors that stay open from test to test, and the socket on which each test's backend listens."""

    def __init__(self, opened: dict[tuple[str, str], Door], listener: socket.socket) -> None:
        self._opened = opened
        self._listener = listener

    def play(self, way: tuple[str, str], script: Script, scene: Callable[[Door], Awaitable[None]]) -> None:
        """Plays ``scene`` at a door before a backend with ``script``."""
        backend = ScriptedBackend(script)

        async def main() -> None:
            async with asyncio.timeout(80):
                await backend.start(self._listener.dup())
                try:
                    await scene(self._opened[way])
                finally:
                    await backend.close()

        run_on("uvloop", main())


@pytest.fixture(scope="module")
def ways() -> Iterator[Ways]:
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        listener.setblocking(False)
        with doors(WAYS, f"127.0.0.1:{listener.getsockname()[1]}") as opened:
            yield Ways(opened, listener)


@pytest.fixture(params=WAYS, ids="-".join)
def way(request: pytest.FixtureRequest) -> tuple[str, str]:
    found: tuple[str, str] = request.param
    return found


async def connect(way: Door) -> Client:
    return await asyncio.open_connection(*way.address, limit=4 * MB)


def forget_peaks(way: Door) -> None:
    for pid in way.pids:
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def peaks(way: Door) -> list[int]:
    """The most bytes that each process has had in memory since :func:`forget_peaks`."""
    found = []
    for pid in way.pids:
        (line,) = (one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmHWM"))
        found.append(int(line.split()[1]) * 1024)
    return found


async def warm(way: Door) -> None:
    """One small exchange, so that what is loaded late is there."""
    reader, writer = await connect(way)
    writer.write(GET)
    await read_answer(reader)
    await close_all([writer])


def test_100_mb_to_a_backend_that_reads_slowly(ways: Ways, way: tuple[str, str]) -> None:
    size = 100 * MB

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        left = size if b"content-length" in head.lower() else 0
        while left:
            left -= len(await reader.read(MB))
            await asyncio.sleep(0.01)
        writer.write(OK)

    async def scene(at: Door) -> None:
        await warm(at)
        forget_peaks(at)
        before = peaks(at)
        reader, writer = await connect(at)
        writer.write(b"POST /up HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size // MB):
            writer.write(b"x" * MB)
            await writer.drain()
        assert (await read_answer(reader))[1] == b"ok"
        await close_all([writer])
        assert [after - first for first, after in zip(before, peaks(at), strict=True) if after - first > GROWTH] == []

    ways.play(way, script, scene)


def test_200_mb_for_a_client_that_reads_slowly(ways: Ways, way: tuple[str, str]) -> None:
    size = 200 * MB

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, _ = await read_request(reader)
        if b"/down" not in head:
            writer.write(OK)
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size // MB):
            writer.write(b"x" * MB)
            await writer.drain()

    async def scene(at: Door) -> None:
        await warm(at)
        forget_peaks(at)
        before = peaks(at)
        reader, writer = await connect(at)
        writer.write(b"GET /down HTTP/1.1\r\nHost: a\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        left = size
        while left:
            left -= len(await reader.read(MB))
            await asyncio.sleep(0.005)
        await close_all([writer])
        assert [after - first for first, after in zip(before, peaks(at), strict=True) if after - first > GROWTH] == []

    ways.play(way, script, scene)


@pytest.mark.parametrize("what", ["running", "uploading", "streaming"])
def test_a_vanished_client_is_felt_at_the_backend(ways: Ways, way: tuple[str, str], what: str) -> None:
    asked, gone = asyncio.Event(), asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        if what == "streaming":
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        try:
            while await reader.read(65536):
                pass
        finally:
            gone.set()

    async def scene(at: Door) -> None:
        reader, writer = await connect(at)
        length, sent = (1_000_000, 300_000) if what == "uploading" else (6000, 6000)
        writer.write(b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % length + b"x" * sent)
        await asked.wait()
        if what == "streaming":
            await reader.readuntil(b"abc\r\n")
        await close_all([writer])
        await until(gone.is_set, SOON_S)

    ways.play(way, script, scene)


def test_a_client_that_vanishes_while_queued_is_never_started(way: tuple[str, str]) -> None:
    """One slot: the second waits and leaves, the third gets the slot."""
    seen: list[bytes] = []
    go = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, _ = await read_request(reader)
            seen.append(head.split(b" ")[1])
            await go.wait()
            writer.write(OK)

    async def scene(at: Door) -> None:
        clients = []
        for number, name in enumerate((b"/1", b"/2", b"/3"), start=1):
            reader, writer = await connect(at)
            writer.write(GET.replace(b"/x", name))
            clients.append((reader, writer))
            await at.begun(number)
        await close_all([clients[1][1]])
        await at.begun(2)
        go.set()
        for reader, _ in (clients[0], clients[2]):
            assert (await read_answer(reader))[1] == b"ok"
        assert seen == [b"/1", b"/3"]
        await close_all([writer for _, writer in clients])

    async def main() -> None:
        backend = ScriptedBackend(script)
        kind, loop = way
        async with asyncio.timeout(60), door(kind, loop, await backend.start(), slots="1") as at:
            await scene(at)
            await backend.close()

    run_on("uvloop", main())


def test_stale_connections_cost_no_answer(ways: Ways, way: tuple[str, str]) -> None:
    """The backend closes every connection right after its answer; 50 of 50 requests are answered."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK)
        await writer.drain()

    async def scene(at: Door) -> None:
        reader, writer = await connect(at)
        for _ in range(50):
            writer.write(GET)
            assert (await read_answer(reader))[0].startswith(b"HTTP/1.1 200 ")
        await close_all([writer])

    ways.play(way, script, scene)


def test_a_thousand_pipelined_requests_in_order(ways: Ways, way: tuple[str, str]) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            path = (await read_request(reader))[0].split(b" ")[1]
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(path), path))

    async def scene(at: Door) -> None:
        reader, writer = await connect(at)
        writer.write(b"".join(GET.replace(b"/x", b"/%04d" % number) for number in range(1000)))
        for number in range(1000):
            assert (await read_answer(reader))[1] == b"/%04d" % number
        await close_all([writer])

    ways.play(way, script, scene)


def test_events_pass_when_they_come(ways: Ways, way: tuple[str, str]) -> None:
    lines: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        while (line := await lines.get()) is not None:
            writer.write(b"%x\r\n%b\r\n" % (len(line), line))
        writer.write(b"0\r\n\r\n")

    async def scene(at: Door) -> None:
        clock = asyncio.get_running_loop().time
        reader, writer = await connect(at)
        writer.write(GET)
        await reader.readuntil(b"\r\n\r\n")
        delays = []
        for number in range(30):
            begun = clock()
            lines.put_nowait(b"data: %03d\n\n" % number)
            await reader.readuntil(b"data: %03d\n\n\r\n" % number)
            delays.append(clock() - begun)
        lines.put_nowait(None)
        await reader.readuntil(b"0\r\n\r\n")
        assert sorted(delays)[len(delays) // 2] < 0.1
        await close_all([writer])

    ways.play(way, script, scene)


@pytest.mark.parametrize("first", ["client", "backend"])
def test_a_websocket_echoes_and_closes_by_halves(ways: Ways, way: tuple[str, str], first: str) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
        writer.write(await reader.readexactly(5))
        if first == "backend":
            writer.write_eof()
            assert await reader.read() == b"last words"
        else:
            assert await reader.read() == b""
            writer.write(b"last words")

    async def scene(at: Door) -> None:
        reader, writer = await connect(at)
        writer.write(GET[:-2] + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        if first == "backend":
            assert await reader.read() == b""
            writer.write(b"last words")
            await writer.drain()
        writer.write_eof()
        if first == "client":
            assert await reader.read() == b"last words"
        await until(lambda: reader.at_eof())
        await close_all([writer])

    ways.play(way, script, scene)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n",
    ],
    ids=["length", "chunked"],
)
def test_a_backend_that_dies_mid_answer_leaves_a_visible_gap(ways: Ways, way: tuple[str, str], answer: bytes) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer)
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()

    async def scene(at: Door) -> None:
        reader, writer = await connect(at)
        writer.write(GET)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await read_answer(reader)
        await close_all([writer])

    ways.play(way, script, scene)
