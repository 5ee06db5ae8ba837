"""Two answers to one request on real sockets: the client's passes, both are heard without their framing."""

import asyncio

import pytest

from tests.support.http.backend import read_answer, read_request
from tests.support.http.loopback import LOOPS, Relay, RelayApp, play, until
from tidegate.aio.proxy.detached import shadow_copy, tap_response
from tidegate.aio.proxy.exchange import Exchange
from tidegate.wire.message_heads import AnyResponseHead

pytestmark = [pytest.mark.live, pytest.mark.parametrize("loop", sorted(LOOPS))]


class Listening(RelayApp):
    """Sends a copy of the first request when its answer begins; ``heard`` has what both said."""

    def __init__(self, keeps: int = 0) -> None:
        super().__init__()
        self.keeps = keeps
        self.heard = (bytearray(), bytearray())
        self.copy: Exchange | None = None
        self.is_copied = False

    def start(self, ex: Exchange) -> None:
        super().start(ex)
        ex.keep(self.keeps)

    def answering(self, ex: Exchange, head: AnyResponseHead) -> bytes | None:
        if not self.is_copied:
            self.is_copied = True
            self.copy = shadow_copy(ex, self, ex.received, self.heard[1].extend)
            tap_response(ex, self.heard[0].extend)
            if self.copy is not None and self.pool is not None:
                self.running += 1
                self.copy.forward(self.pool)
        return super().answering(ex, head)


LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nanswer"
PIECES = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nans\r\n",
    b"2\r\nwe\r\n1\r\nr\r\n0\r\n\r\n",
)
LARGE = (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"y" * 300_000, b"y" * 700_000)


@pytest.mark.parametrize(
    ("first", "second", "body"),
    [((LENGTH,), PIECES, b"answer"), (PIECES, (LENGTH,), b"answer"), (LARGE, LARGE, b"y" * 1_000_000)],
    ids=["length and pieces", "pieces and length", "large"],
)
def test_both_are_heard_as_the_same_whatever_their_framing(
    loop: str, first: tuple[bytes, ...], second: tuple[bytes, ...], body: bytes
) -> None:
    app = Listening()
    answers = [first, second]

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            for part in answers.pop(0):
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.01)

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello")
        assert (await read_answer(reader))[1] == body
        await until(lambda: len(app.ended) == 2)

    play(loop, script, scene, app=app)
    assert (bytes(app.heard[0]), bytes(app.heard[1])) == (body, body)


@pytest.mark.parametrize(("keeps", "is_copied"), [(0, False), (400_000, True)])
def test_a_long_body_is_there_for_a_copy_where_it_was_kept(loop: str, keeps: int, is_copied: bool) -> None:
    app = Listening(keeps)
    bodies: list[bytes] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            bodies.append((await read_request(reader))[1])
            writer.write(LENGTH)

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 400000\r\n\r\n")
        for _ in range(40):
            writer.write(b"z" * 10_000)
            await writer.drain()
            await asyncio.sleep(0.001)
        assert (await read_answer(reader))[1] == b"answer"
        if is_copied:
            await until(lambda: len(app.ended) == 2)

    play(loop, script, scene, app=app)
    assert (app.copy is not None) == is_copied
    assert bodies == [b"z" * 400_000] * (1 + is_copied)


def test_a_copy_that_breaks_off_is_nothing_to_the_client(loop: str) -> None:
    app = Listening()
    count = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        while True:
            await read_request(reader)
            count += 1
            if count > 1:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nan")
                return
            writer.write(PIECES[0])
            await until(lambda: len(app.ended) == 1)
            writer.write(PIECES[1])

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello")
        assert (await read_answer(reader))[1] == b"answer"

    play(loop, script, scene, app=app)
    assert bytes(app.heard[1]) == b"an"
    assert [ex.truncated for ex in app.ended] == [True, False]
