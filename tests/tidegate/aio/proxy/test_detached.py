"""Second copies of a request on real sockets: the first answer goes to the client, the other copy is aborted."""

import asyncio

import pytest

from tests.support.http.backend import read_answer, read_request
from tests.support.http.loopback import LOOPS, Relay, RelayApp, play, until
from tidegate.aio.proxy.detached import second_copy, swap_clients
from tidegate.aio.proxy.exchange import Exchange
from tidegate.wire.message_heads import AnyResponseHead

pytestmark = [pytest.mark.live, pytest.mark.parametrize("loop", sorted(LOOPS))]

POST = b"POST /a HTTP/1.1\r\nHost: a\r\nX-Here: yes\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"


class TwiceApp(RelayApp):
    """Forwards each request; ``again`` sends a second copy, and whose head comes first has the client."""

    def __init__(self) -> None:
        super().__init__()
        self.first: Exchange | None = None
        self.copy: Exchange | None = None

    def start(self, ex: Exchange) -> None:
        self.first = ex
        super().start(ex)

    def again(self) -> None:
        assert self.first is not None
        assert self.pool is not None
        self.copy = second_copy(self.first)
        if self.copy is not None:
            self.running += 1
            self.copy.forward(self.pool)

    def answering(self, ex: Exchange, head: AnyResponseHead) -> bytes | None:
        first, copy = self.first, self.copy
        if first is not None and copy is not None:
            if ex is copy:
                swap_clients(first, copy)
            else:
                copy.client_gone()
            self.first = self.copy = None
        return super().answering(ex, head)


class Backend:
    """Answers request ``quick`` (counted from 1) when both copies are there, and the third; notes whose connection
    ended without an answer."""

    def __init__(self, quick: int, answer: bytes) -> None:
        self.quick = {quick, 3}
        self.answer = answer
        self.requests: list[tuple[bytes, bytes]] = []
        self.ended: list[int] = []

    async def script(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            self.requests.append(await read_request(reader))
            number = len(self.requests)
            if number in self.quick:
                await until(lambda: len(self.requests) > 1)
                writer.write(self.answer)
                continue
            try:
                await reader.read(1)
            finally:
                self.ended.append(number)
            return


LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes"
PIECES = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nyes\r\n0\r\n\r\n"
LARGE = b"HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\n" + b"y" * 2_000_000


@pytest.mark.parametrize("quick", [1, 2])
@pytest.mark.parametrize(
    ("request_", "answer"),
    [(POST, LENGTH), (CHUNKED, LENGTH), (POST, PIECES), (POST, LARGE)],
    ids=["length", "chunked request", "chunked answer", "large answer"],
)
def test_the_first_answer_counts_and_the_other_copy_is_aborted(
    loop: str, quick: int, request_: bytes, answer: bytes
) -> None:
    backend, app = Backend(quick, answer), TwiceApp()

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(request_)
        await until(lambda: len(backend.requests) == 1)
        app.again()
        _, body = await read_answer(reader)
        assert body == (b"yes" if len(answer) < 1000 else b"y" * 2_000_000)
        await until(lambda: backend.ended == [3 - quick])
        assert [body for _, body in backend.requests] == [b"hello", b"hello"]
        assert backend.requests[0][0].startswith(b"POST /a HTTP/1.1\r\n")
        writer.write(request_)
        assert (await read_answer(reader))[0].startswith(b"HTTP/1.1 200 "), "the connection serves on"

    play(loop, backend.script, scene, app=app)
    statuses = sorted(ex.status for ex in app.ended)
    assert statuses == [200, 200, 499]


def test_a_client_that_leaves_after_the_copy_won_is_felt_by_the_copy(loop: str) -> None:
    backend, app = Backend(2, b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart"), TwiceApp()

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(POST)
        await until(lambda: len(backend.requests) == 1)
        app.again()
        await reader.readuntil(b"part")
        writer.transport.abort()
        await until(lambda: len(app.ended) == 2)
        assert backend.ended == [1]

    play(loop, backend.script, scene, app=app)
    assert [ex.status for ex in app.ended] == [499, 499]


def test_what_is_not_whole_has_no_copy(loop: str) -> None:
    backend, app = Backend(1, LENGTH), TwiceApp()

    async def scene(relay: Relay) -> None:
        reader, writer = await relay.connect()
        writer.write(POST[:-2])
        await until(lambda: app.first is not None)
        app.again()
        assert app.copy is None
        writer.write(POST[-2:])
        await until(lambda: len(backend.requests) == 1)
        backend.requests.append((b"", b""))
        assert (await read_answer(reader))[1] == b"yes"

    play(loop, backend.script, scene, app=app)
