"""The load client against small servers on the loopback address: everything that happens is an outcome."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from loadgen.clients.http_load import HttpLoad, Outcome, Shot

pytestmark = pytest.mark.live

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Drive = Callable[[HttpLoad], Awaitable[None]]


def fire(serve: Serve, shots: list[Shot], **options: float) -> list[Outcome]:
    return driven(serve, lambda load: load.run(shots), **options)


def driven(serve: Serve, drive: Drive, **options: float | str) -> list[Outcome]:
    async def run() -> list[Outcome]:
        running: set[asyncio.Task[None] | None] = set()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            running.add(asyncio.current_task())
            try:
                await serve(reader, writer)
            finally:
                writer.close()
                await writer.wait_closed()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        outcomes: list[Outcome] = []
        load = HttpLoad(f"{host}:{port}", "/infer", done=outcomes.append, **options)  # type: ignore[arg-type]  # any
        async with server:
            await drive(load)
            await asyncio.gather(*(task for task in running if task is not None))
        return outcomes

    return asyncio.run(run())


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return await reader.readexactly(length)


def answering(answer: bytes, connections: list[int]) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        try:
            while True:
                await read_request(reader)
                writer.write(answer)
        except asyncio.IncompleteReadError:
            return

    return serve


def test_answers_of_both_framings_keep_the_connection() -> None:
    shots = [Shot(0.02 * number, b"{}", inferences=2) for number in range(5)]
    for answer in (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nServer-Timing: a;dur=1\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1;x=y\r\nk\r\n0\r\n\r\n",
    ):
        connections: list[int] = []
        outcomes = fire(answering(answer, connections), shots)
        assert [outcome.status for outcome in outcomes] == [200] * 5
        assert sum(outcome.inferences for outcome in outcomes) == 10
        assert len(connections) == 1


def test_an_open_loop_does_not_wait_for_answers() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        arrived.append(None)
        if len(arrived) == 10:
            everybody_is_here.set()
        await everybody_is_here.wait()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")

    arrived: list[None] = []
    everybody_is_here = asyncio.Event()
    outcomes = fire(slow, [Shot(0.01 * number, b"{}") for number in range(10)])
    assert Counter(outcome.status for outcome in outcomes) == {200: 10}, "ten at once, not one after the other"


def test_failures_are_outcomes_with_a_reason() -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")

    (outcome,) = fire(cut, [Shot(0.0, b"{}")])
    assert outcome.status is None
    assert outcome.error is not None
    assert "ended after 4 bytes" in outcome.error

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await reader.read()

    (outcome,) = fire(silent, [Shot(0.0, b"{}")], timeout_s=0.1)
    assert (outcome.status, outcome.error) == (None, "TimeoutError")


def test_an_error_answer_keeps_its_body() -> None:
    refused = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 4\r\n\r\nfull"
    (outcome,) = fire(answering(refused, []), [Shot(0.0, b"{}")])
    assert (outcome.status, outcome.body, outcome.is_good) == (429, b"full", False)


def test_callers_of_the_closed_loop_wait_for_their_answers_and_tell_their_batch() -> None:
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                heads.append(head)
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
                await asyncio.sleep(0.02)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        except asyncio.IncompleteReadError:
            return

    def run(every_s: float) -> list[Outcome]:
        return driven(
            serve,
            lambda load: load.run_callers(3, lambda: Shot(0.0, b"{}", 7), 0.3, every_s=every_s),
            batch_header="x-batch",
        )

    paced, free = run(0.1), run(0.0)
    assert all(outcome.is_good and outcome.inferences == 7 for outcome in paced + free)
    assert all(b"\r\nx-batch: 7\r\n" in head for head in heads)
    assert len(paced) <= 9 < len(free) <= 45, "one request each every 0.1 s; one at a time"
