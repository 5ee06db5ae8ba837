"""A client that leaves before its answer on real sockets: the work goes on and a sink gets the answer."""

import asyncio

import pytest

from tests.support.http.backend import read_answer, read_request
from tests.support.http.loopback import LOOPS, Relay, RelayApp, play, until
from tidegate.aio.proxy.detached import DeferredClient, defer_client, second_copy, swap_clients
from tidegate.aio.proxy.exchange import Exchange
from tidegate.wire.http1.events import Piece
from tidegate.wire.message_heads import AnyResponseHead

pytestmark = [pytest.mark.live, pytest.mark.parametrize("loop", sorted(LOOPS))]

POST = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
LENGTH = (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nX-A: b\r\n\r\nanswer",)
PIECES = (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: b\r\n\r\n3\r\nans\r\n", b"3\r\nwer\r\n0\r\n\r\n")
LARGE = (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\nX-A: b\r\n\r\n" + b"y" * 300_000, b"y" * 700_000)


class Sink:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.block = b""
        self.heard = bytearray()
        self.exchange: Exchange | None = None

    def carried(self, exchange: Exchange) -> None:
        self.log.append("carried")
        self.exchange = exchange

    def begins(self, status: int, block: bytes) -> None:
        self.log.append(f"begins {status}")
        self.block = block

    def body(self, data: Piece) -> None:
        self.heard += data

    def ended(self) -> None:
        self.log.append("ended")

    def broke_off(self) -> None:
        self.log.append("broke off")


class Deferring(RelayApp):
    """Lets the client of the first request go when it arrives, if it ``parts``."""

    def __init__(self, *, parts: bool = True) -> None:
        super().__init__()
        self.parts = parts
        self.sink = Sink()
        self.first: Exchange | None = None
        self.copy: Exchange | None = None
        self.client: DeferredClient | None = None

    def start(self, ex: Exchange) -> None:
        if self.first is None:
            self.first = ex
            self.client = defer_client(ex, self.sink)
            super().start(ex)
            if self.parts:
                self.client.part(202, b"{}", b"x-job: 1\r\n")
        else:
            super().start(ex)

    def answering(self, ex: Exchange, head: AnyResponseHead) -> bytes | None:
        if ex is self.copy and self.first is not None:
            swap_clients(self.first, ex)
        super().answering(ex, head)
        return b"x-added: 1\r\n"


@pytest.mark.parametrize(
    ("answer", "body"),
    [(LENGTH, b"answer"), (PIECES, b"answer"), (LARGE, b"y" * 1_000_000)],
    ids=["length", "pieces", "large"],
)
def test_the_client_gets_a_202_and_serves_on_and_the_sink_gets_the_answer(
    loop: str, answer: tuple[bytes, ...], body: bytes
) -> None:
    app = Deferring()
    answers = [answer, LENGTH]

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            for part in answers.pop(0):
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.01)

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(POST)
        head, document = await read_answer(reader)
        assert head.startswith(b"HTTP/1.1 202 Accepted\r\n") and b"x-job: 1\r\n" in head and document == b"{}"
        await until(lambda: app.sink.log == ["begins 200", "ended"])
        writer.write(POST)
        assert (await read_answer(reader))[1] == b"answer"

    play(loop, script, scene, app=app)
    assert bytes(app.sink.heard) == body
    assert b"X-A: b\r\n" in app.sink.block and app.sink.block.endswith(b"x-added: 1\r\n")


def test_a_client_that_closes_after_its_202_ends_nothing(loop: str) -> None:
    app = Deferring()
    is_closed = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await is_closed.wait()
        writer.writelines(LENGTH)
        await reader.read(1)

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(POST)
        await read_answer(reader)
        writer.transport.abort()
        await until(lambda: not relay.server.connections)
        is_closed.set()
        await until(lambda: app.sink.log == ["begins 200", "ended"])

    play(loop, script, scene, app=app)
    assert [ex.status for ex in app.ended] == [200]


@pytest.mark.parametrize("parts", [True, False])
def test_an_answer_that_breaks_off_is_seen(loop: str, parts: bool) -> None:
    app = Deferring(parts=parts)

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart")
        await writer.drain()
        await asyncio.sleep(0.05)

    async def scene(relay: Relay) -> None:
        _, writer = await relay.connect()
        writer.write(POST)
        await until(lambda: app.sink.log[-1:] == ["broke off"])

    play(loop, script, scene, app=app)
    assert bytes(app.sink.heard) == (b"part" if parts else b""), "a client that waits gets it itself"


def test_without_a_202_the_client_gets_the_answer(loop: str) -> None:
    app = Deferring(parts=False)

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.writelines(PIECES)
        await reader.read(1)

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(POST)
        assert (await read_answer(reader))[1] == b"answer"

    play(loop, script, scene, app=app)
    assert app.sink.log == ["ended"] and not app.sink.heard


def test_the_answer_of_a_second_copy_that_wins_goes_to_the_sink(loop: str) -> None:
    app = Deferring()
    requests: list[bytes] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append((await read_request(reader))[1])
        if len(requests) == 2:
            writer.writelines(LENGTH)
        await reader.read(1)

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(POST)
        await read_answer(reader)
        await until(lambda: len(requests) == 1)
        assert app.first is not None and app.pool is not None
        app.copy = second_copy(app.first)
        assert app.copy is not None
        app.running += 1
        app.copy.forward(app.pool)
        await until(lambda: app.sink.log == ["carried", "begins 200", "ended"])

    play(loop, script, scene, app=app)
    assert bytes(app.sink.heard) == b"answer" and app.sink.exchange is app.copy
    assert sorted(ex.status for ex in app.ended) == [200, 499]
