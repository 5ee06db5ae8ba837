"""Event streams that begin before their upstream: what a client reads, whatever the upstream says or does."""

import asyncio
from typing import Any, cast

import pytest

from tests.support.http.backend import Script, read_answer, read_request
from tests.support.http.loopback import LOOPS, Relay, RelayApp, play, until
from tidegate.aio.proxy.early_stream import EarlyEventStream, begin_stream
from tidegate.aio.proxy.exchange import Exchange

FAILURE = b'{"error":"broken"}'
TIMING = b"x-request-id: 1\r\nserver-timing: wait;dur=1.0, cold-load;dur=9.0\r\n"
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream; charset=utf-8\r\n"


class Client:
    """A client side that keeps what it was sent."""

    peer, trusted, exchange = b"127.0.0.1", False, None

    def __init__(self) -> None:
        self.body = b""
        self.is_done = self.is_broken = self.has_ended = False

    def more(self, data: bytes, done: bool, trailers: bytes, framed: bytes = b"") -> None:
        assert not self.is_done
        self.body += bytes(data)
        self.is_done = done

    def truncate(self) -> None:
        self.is_broken = True

    def ended(self) -> None:
        self.has_ended = True


def begun(name: bytes = b"") -> tuple[EarlyEventStream, Client]:
    client = Client()
    return EarlyEventStream(cast(Any, client), name, FAILURE), client


def answer(early: EarlyEventStream, status: int, kind: bytes, body: bytes, *, done: bool, extra: bytes = b"") -> None:
    block = b"\r\ncontent-type: %b\r\ndate: now\r\n" % kind
    early.answer((status, b"OK", block, extra, None, body, done, b""))


def test_a_stream_follows_the_comments_and_nothing_is_put_between_its_bytes() -> None:
    early, client = begun()
    early.send_comment(b"starting, 1 s")
    answer(early, 200, b"text/event-stream", b"data: 1\n", done=False, extra=TIMING)
    early.send_comment(b"late")
    early.more(b"\ndata: 2\n\n", False, b"", b"framed")
    early.more(b"", True, b"")
    assert client.body == b": starting, 1 s\n\n: wait;dur=1.0, cold-load;dur=9.0\n\ndata: 1\n\ndata: 2\n\n"
    assert (client.is_done, early.is_answered) == (True, True)


@pytest.mark.parametrize(("name", "line"), [(b"", b""), (b"error", b"event: error\n")])
@pytest.mark.parametrize("cut", range(1, 14))
def test_a_failure_becomes_one_event_however_it_is_cut(name: bytes, line: bytes, cut: int) -> None:
    early, client = begun(name)
    body = b'{"error":\r\n {}\n}'
    answer(early, 400, b"application/json", body[:cut], done=False)
    early.more(body[cut:], True, b"")
    assert client.body == line + b'data: {"error":\ndata:  {}\ndata: }\n\n'
    assert client.is_done


def test_an_answer_that_is_no_stream_becomes_one_event() -> None:
    early, client = begun(b"error")
    answer(early, 200, b"application/json", b'{"a":1}', done=True)
    assert (client.body, client.is_done) == (b'data: {"a":1}\n\n', True)


@pytest.mark.parametrize(
    ("status", "expected"), [(200, b""), (204, b""), (302, FAILURE), (400, FAILURE), (503, FAILURE)]
)
def test_an_answer_without_a_body_is_no_empty_event(status: int, expected: bytes) -> None:
    early, client = begun(b"error")
    early.answer((status, b"", b"\r\nlocation: /x\r\n", b"", 0, b"", True, b""))
    assert (client.body, client.is_done) == (b"event: error\ndata: %b\n\n" % expected if expected else b"", True)


def test_a_break_before_the_first_byte_of_a_document_is_reported() -> None:
    early, client = begun()
    answer(early, 200, b"application/json", b"", done=False)
    early.truncate()
    assert (client.body, client.is_done) == (b"data: %b\n\n" % FAILURE, True)


@pytest.mark.parametrize("kind", [b"audio/wav", b"application/octet-stream"])
def test_a_sound_is_no_event(kind: bytes) -> None:
    early, client = begun()
    answer(early, 200, kind, b"RIFF\xff", done=False)
    early.more(b"\x00\n\n", True, b"")
    assert (client.body, client.is_done) == (b"data: %b\n\n" % FAILURE, True)


@pytest.mark.parametrize("kind", [b"text/plain", b"application/json; charset=utf-8", b"application/problem+json"])
def test_texts_are_events(kind: bytes) -> None:
    early, client = begun()
    answer(early, 500, kind, b"oh", done=True)
    assert client.body == b"data: oh\n\n"


def test_a_stream_may_say_that_it_is_not_compressed() -> None:
    early, client = begun()
    block = b"\r\nContent-Type: text/event-stream\r\nContent-Encoding: identity\r\n"
    early.answer((200, b"OK", block, b"", None, b"data: 1\n\n", True, b""))
    assert client.body == b"data: 1\n\n"


def test_a_compressed_stream_cannot_be_read_and_is_reported() -> None:
    early, client = begun()
    block = b"\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\n"
    early.answer((200, b"OK", block, b"", None, b"\x1f", False, b""))
    early.more(b"\x8b", True, b"")
    assert (client.body, client.is_done) == (b"data: %b\n\n" % FAILURE, True)


@pytest.mark.parametrize("end", [b"data: 1\n\n", b"data: 1\r\n\r\n", b"", b": a comment\n\n"])
def test_a_break_between_two_events_is_reported_by_one(end: bytes) -> None:
    early, client = begun(b"error")
    answer(early, 200, b"text/event-stream", end, done=False)
    early.truncate()
    assert client.body == end + b"event: error\ndata: %b\n\n" % FAILURE
    assert (client.is_done, client.has_ended, client.is_broken) == (True, True, False)


@pytest.mark.parametrize("end", [b"data: 1", b"data: 1\n", b"data: 1\n\ndata"])
def test_a_break_inside_an_event_stays_one(end: bytes) -> None:
    early, client = begun()
    answer(early, 200, b"text/event-stream", end, done=False)
    early.truncate()
    assert (client.body, client.is_broken, client.is_done) == (end, True, False)


# --- over sockets ----------------------------------------------------------------------------------------------------

REQUEST = b"POST /v1/chat HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}"
SECOND = b"GET /again HTTP/1.1\r\nHost: a\r\n\r\n"


class Waiting(RelayApp):
    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Exchange] = []

    def start(self, ex: Exchange) -> None:
        super().start(ex)
        self.waiting.append(ex)


def saying(*pieces: bytes, gap_s: float = 0.01) -> Script:
    """A backend that answers with these pieces and closes after the last."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, _ = await read_request(reader)
        assert b"accept-encoding" not in head.lower()
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(gap_s)

    return script


@pytest.mark.live
@pytest.mark.parametrize("loop", sorted(LOOPS))
@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([EVENTS + b"Connection: close\r\n\r\n", b"data: 1\n\n", b"data: [DONE]\n\n"], b"data: 1\n\ndata: [DONE]\n\n"),
        ([EVENTS + b"Transfer-Encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n", b"0\r\n\r\n"], b"data: 1\n\n"),
        ([EVENTS + b"Transfer-Encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n"], b"data: 1\n\ndata: %b\n\n" % FAILURE),
        ([b"HTTP/1.1 400 Bad\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"], b"data: {}\n\n"),
    ],
    ids=["until close", "chunked", "breaks off", "refused"],
)
def test_the_clients_connection_lives_on(loop: str, pieces: list[bytes], expected: bytes) -> None:
    async def scene(relay: Relay) -> None:
        app = relay.app
        assert isinstance(app, Waiting)
        reader, writer = await relay.connect()
        writer.write(REQUEST)
        await until(lambda: len(app.waiting) == 1)
        ex = app.waiting[0]
        early = begin_stream(ex, b"x-request-id: 7\r\n", b"", FAILURE)
        early.send_comment(b"starting")
        assert relay.pool is not None
        ex.forward(relay.pool)
        head, body = await read_answer(reader)
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"content-type: text/event-stream\r\n" in head
        assert b"x-request-id: 7\r\n" in head
        assert body == b": starting\n\n" + expected
        writer.write(SECOND)
        await until(lambda: len(app.waiting) == 2)
        app.waiting[1].respond(204)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")

    play(loop, saying(*pieces), scene, app=Waiting(), forwards=False)


@pytest.mark.live
@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_its_deadline_and_its_client_are_watched_as_ever(loop: str) -> None:
    async def scene(relay: Relay) -> None:
        app = relay.app
        assert isinstance(app, Waiting)
        reader, writer = await relay.connect()
        writer.write(REQUEST)
        await until(lambda: len(app.waiting) == 1)
        begin_stream(app.waiting[0], b"", b"", FAILURE)
        app.waiting[0].set_deadline(0.0)
        _, body = await read_answer(reader)
        assert b"deadline_exceeded" in body
        assert body.endswith(b"\n\n")
        assert app.ended[0].status == 504
        writer.write(REQUEST)
        await until(lambda: len(app.waiting) == 2)
        begin_stream(app.waiting[1], b"", b"", FAILURE)
        writer.close()
        await until(lambda: len(app.ended) == 2)
        assert app.ended[1].status == 499

    play(loop, saying(), scene, app=Waiting(), forwards=False)
