"""Both sides of a connection: conversations of one with the other, split at every byte."""

import json

import pytest

from tidegate.wire.http1.chunked import chunk, last_chunk
from tidegate.wire.http1.client import H1Client
from tidegate.wire.http1.events import Data
from tidegate.wire.http1.fields import Rejected
from tidegate.wire.http1.request_head import HeadRules, RequestHead
from tidegate.wire.http1.response_cache import ResponseHeads
from tidegate.wire.http1.response_head import ResponseHead
from tidegate.wire.http1.server import CLOSED, HELD_BYTES, H1Server

GET = b"GET /ready HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST /infer HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"POST /infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\nX-T: 1\r\n\r\n"
)


def server(body_bytes: int = 1 << 20) -> H1Server:
    return H1Server(HeadRules(), body_bytes)


class SeenRequests:
    """The events of a server that answers each request as soon as it is whole."""

    def __init__(self, engine: H1Server) -> None:
        self.engine = engine
        self.requests: list[tuple[bytes, bytes]] = []
        self.sent = b""
        self._body = b""

    def receive(self, data: bytes) -> None:
        event = self.engine.receive(data)
        while event is not None:
            assert not isinstance(event, Rejected), event
            self._body = self.engine.body if isinstance(event, RequestHead) else self._body + event.data
            if not self.engine.body_complete:
                return
            assert self.engine.head is not None
            self.requests.append((self.engine.head.target, self._body))
            self.sent += self.engine.respond(200, b"OK", b"\r\nContent-Length: 2\r\n", b"", 2) + b"ok"
            event = self.engine.next() if self.engine.keep_alive else None


@pytest.mark.parametrize("message", [GET, POST, CHUNKED], ids=["get", "length", "chunked"])
def test_a_request_is_the_same_however_it_is_cut(message: bytes) -> None:
    body = b"" if message is GET else b"hello"
    for cut in range(1, len(message)):
        seen = SeenRequests(server())
        seen.receive(message[:cut])
        seen.receive(message[cut:])
        assert [text for _, text in seen.requests] == [body], cut
    seen = SeenRequests(server())
    for byte in message:
        seen.receive(bytes([byte]))
    assert [text for _, text in seen.requests] == [body]


def test_a_small_complete_message_is_one_event() -> None:
    for message, body in ((GET, b""), (POST, b"hello"), (CHUNKED, b"hello")):
        engine = server()
        assert isinstance(engine.receive(message), RequestHead)
        assert (engine.body, engine.body_complete, engine.pending) == (body, True, 0)


def test_a_thousand_pipelined_requests_are_answered_in_order() -> None:
    seen = SeenRequests(server())
    seen.receive(b"".join(b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % number for number in range(1000)))
    assert [target for target, _ in seen.requests] == [b"/%d" % number for number in range(1000)]
    assert seen.engine.pending == 0


def test_the_next_request_waits_for_the_answer() -> None:
    engine = server()
    assert isinstance(engine.receive(POST + GET[:10]), RequestHead)
    assert engine.receive(GET[10:]) is None
    engine.respond(200, b"OK", b"\r\nContent-Length: 0\r\n", b"", 0)
    following = engine.next()
    assert isinstance(following, RequestHead)
    assert following.target == b"/ready"


def test_too_many_pipelined_bytes_end_the_connection_after_the_answer() -> None:
    engine = server()
    engine.receive(GET)
    engine.receive(b"x" * (HELD_BYTES + 1))
    engine.receive(GET)
    assert not engine.keep_alive
    assert engine.pending == 0, "what follows the hole is not kept"


@pytest.mark.parametrize("first", [POST[:-1], CHUNKED[:-1]])
def test_too_many_bytes_behind_the_end_of_a_body_end_the_connection_too(first: bytes) -> None:
    engine = server()
    engine.receive(first)
    event = engine.receive((POST if first == POST[:-1] else CHUNKED)[-1:] + b"x" * (HELD_BYTES + 1))
    assert isinstance(event, Data)
    assert event.done
    assert (engine.state, engine.keep_alive, engine.body_complete) == (CLOSED, False, True)


def test_empty_lines_before_a_request_are_skipped_up_to_four() -> None:
    engine = server()
    assert engine.receive(b"\r\n") is None
    assert engine.pending == 0, "an empty line does not start the head timer"
    assert engine.receive(b"\r") is None
    assert isinstance(engine.receive(b"\n\r\n\r\n" + GET), RequestHead)
    assert isinstance(server().receive(b"\r\n" * 5 + GET), Rejected)


def test_too_large_bodies_are_refused_before_and_while_they_come() -> None:
    event = server(4).receive(POST)
    assert isinstance(event, Rejected)
    assert event.status == 413
    event = server(4).receive(CHUNKED)
    assert isinstance(event, Rejected)
    assert event.status == 413
    engine = server(4)
    assert isinstance(engine.receive(CHUNKED[:70]), RequestHead)
    event = engine.receive(CHUNKED[70:])
    assert isinstance(event, Rejected)
    assert event.status == 413


def test_a_chunk_is_refused_when_it_is_announced_and_not_when_it_has_come() -> None:
    """Its sender learns the reason at once, not after the time limit of a body that it would never end."""
    head = CHUNKED[: CHUNKED.index(b"\r\n\r\n") + 4]
    event = server(10).receive(head + b"b\r\n")
    assert isinstance(event, Rejected)
    assert event.status == 413
    engine = server(10)
    assert isinstance(engine.receive(head + b"6\r\nabc"), RequestHead), "exactly ten bytes may follow"
    assert isinstance(engine.receive(b"def\r\n4\r\n"), Data)
    engine = server(10)
    assert isinstance(engine.receive(head + b"6\r\nabcdef\r\n"), RequestHead)
    event = engine.receive(b"5\r\n")
    assert isinstance(event, Rejected)
    assert event.status == 413
    engine = server(10)
    assert isinstance(engine.receive(head + b"a\r\n"), RequestHead)
    assert isinstance(engine.receive(b"0123456789\r\n0\r\n\r\n"), Data)
    assert engine.body_complete


def test_a_fault_behind_the_head_is_found_with_it() -> None:
    """No half of a faulty request is reported when all of it has arrived."""
    assert isinstance(server().receive(CHUNKED.replace(b"2\r\nlo", b"2\r\nloo")), Rejected)


def test_nothing_is_heard_after_a_refusal() -> None:
    engine = server()
    assert isinstance(engine.receive(b"BAD\0\r\n"), Rejected)
    assert engine.receive(GET) is None


# --- answers --------------------------------------------------------------------------------------------------------


def exchange(request: bytes, answer: bytes, *, step: int = 1 << 20) -> tuple[H1Server, bytes]:
    """Passes an upstream's ``answer`` through a client engine into a server engine; returns the bytes for the server's
    client."""
    front, back = server(), H1Client()
    head = front.receive(request)
    assert isinstance(head, RequestHead)
    back.request(head.method)
    sent = b""
    for at in range(0, len(answer), step):
        event = back.receive(answer[at : at + step])
        if isinstance(event, ResponseHead):
            sent += front.respond(event.status, event.reason, event._block, b"", event.content_length)
            sent += front.data(back.body) + (front.end(back.trailers) if back.complete else b"")
        elif isinstance(event, Data):
            sent += front.data(event.data) + (front.end(event.trailers) if event.done else b"")
        else:
            assert event is None, event
    if not back.complete:
        event = back.eof()
        assert isinstance(event, Data), event
        sent += front.data(event.data) + front.end()
    return front, sent


PLAIN = b"HTTP/1.1 200 OK\r\nX: y\r\nContent-Length: 5\r\n\r\nhello"
STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\nX-T: 1\r\n\r\n"
TO_THE_END = b"HTTP/1.0 200 OK\r\nX: y\r\n\r\nhello"


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1 << 20])
@pytest.mark.parametrize("answer", [PLAIN, STREAM, TO_THE_END], ids=["length", "chunked", "eof"])
def test_answers_reach_a_1_1_client_whole_and_framed(answer: bytes, step: int) -> None:
    front, sent = exchange(GET, answer, step=step)
    client = H1Client()
    client.request(b"GET")
    head = client.receive(sent)
    assert isinstance(head, ResponseHead)
    assert (client.body, client.complete, client.reusable) == (b"hello", True, True)
    assert front.keep_alive
    assert client.trailers == (b"X-T: 1\r\n" if answer is STREAM else b"")


def test_a_1_0_client_gets_plain_bytes_and_the_end() -> None:
    front, sent = exchange(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", STREAM)
    assert sent.endswith(b"\r\n\r\nhello")
    assert b"chunked" not in sent
    assert b"connection: close" in sent
    assert not front.keep_alive
    front, sent = exchange(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", PLAIN)
    assert b"connection: keep-alive" in sent
    assert front.keep_alive


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_no_body_where_none_may_be(status: bytes) -> None:
    _, sent = exchange(GET, b"HTTP/1.1 %b\r\nContent-Length: 5\r\n\r\n" % status)
    assert sent.endswith(b"\r\n\r\n")
    assert (b"Content-Length" in sent) is (status[:3] == b"304")


def test_the_answer_to_head_keeps_its_length_and_has_no_body() -> None:
    _, sent = exchange(GET.replace(b"GET", b"HEAD"), b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
    assert sent == b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"


def test_an_answer_that_overtakes_its_request_closes() -> None:
    engine = server()
    engine.receive(POST[:-2])
    assert b"connection: close" in engine.respond(413, b"", b"\r\n", b"", 0)
    assert not engine.keep_alive


# --- the client's half ----------------------------------------------------------------------------------------------


def asked(method: bytes = b"GET") -> H1Client:
    engine = H1Client()
    engine.request(method)
    return engine


def test_interim_answers_come_one_by_one() -> None:
    engine = asked()
    event = engine.receive(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + PLAIN)
    statuses = []
    while isinstance(event, ResponseHead) and event.status < 200:
        statuses.append(event.status)
        event = engine.next()
    assert statuses == [100, 103]
    assert isinstance(event, ResponseHead)
    assert engine.body == b"hello"


@pytest.mark.parametrize("answer", [PLAIN, STREAM], ids=["length", "chunked"])
def test_surplus_bytes_end_the_connection(answer: bytes) -> None:
    engine = asked()
    assert isinstance(engine.receive(answer + b"HTTP/1.1 200 OK\r\n"), ResponseHead)
    assert engine.complete
    assert not engine.reusable


@pytest.mark.parametrize("answer", [PLAIN, STREAM, TO_THE_END], ids=["length", "chunked", "eof"])
def test_an_answer_that_is_cut_off_is_never_complete(answer: bytes) -> None:
    for cut in range(1, len(answer)):
        engine = asked()
        event = engine.receive(answer[:cut])
        if answer is TO_THE_END and isinstance(event, ResponseHead):
            continue
        assert not engine.complete, cut
        assert isinstance(engine.eof(), Rejected), cut


@pytest.mark.parametrize("size", [1000, 200_000])
def test_the_beginning_of_a_large_answer_is_not_copied(size: int) -> None:
    client = H1Client()
    client.request(b"GET")
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n"
    assert type(client.receive(head + b"x" * size)) is ResponseHead
    assert type(client.body) is (memoryview if size > 64 * 1024 else bytes)
    assert b"".join((b"", client.body)) == b"x" * size
    rest = client.receive(b"y" * (300_000 - size))
    assert type(rest) is Data
    assert rest.done


def test_bytes_without_a_request() -> None:
    assert isinstance(H1Client().receive(PLAIN), Rejected)


def test_two_requests_at_once_are_a_mistake_of_ours() -> None:
    with pytest.raises(RuntimeError, match="HEAD"):
        asked().request(b"GET")


def test_a_malformed_chunk_is_a_fault_of_the_upstream() -> None:
    engine = asked()
    engine.receive(STREAM[:50])
    event = engine.receive(b"\r\nxyz\r\n")
    assert isinstance(event, Rejected)
    assert event.status == 502


def test_data_and_end_in_chunks() -> None:
    engine = asked()
    engine.receive(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    event = engine.receive(chunk(b"a") + chunk(b"b") + last_chunk())
    assert isinstance(event, Data)
    assert (event.data, event.done) == (b"ab", True)
    assert engine.reusable


@pytest.mark.parametrize(("status", "code"), [(413, "body_too_large"), (400, "bad_request"), (431, "bad_request")])
def test_a_refusal_has_the_shape_of_all_failures(status: int, code: str) -> None:
    head, _, body = H1Server(HeadRules(), 1024).refuse(Rejected(status, "so it is")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert f"content-length: {len(body)}".encode() in head
    error = json.loads(body)["error"]
    assert (error["code"], error["message"], error["executed"]) == (code, "so it is", "false")


def test_exactly_64_kb_of_pipelined_bytes_are_held() -> None:
    engine = server()
    engine.receive(GET)
    engine.receive(b"x" * (64 * 1024))
    assert (engine.pending, engine.keep_alive) == (64 * 1024, True)
    engine.receive(b"x")
    assert (engine.pending, engine.keep_alive, engine.state) == (0, False, CLOSED)


def test_a_known_head_without_a_body_is_a_whole_response() -> None:
    known = ResponseHeads()
    for answer in (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n"):
        for _ in range(3):
            engine = H1Client(known)
            engine.request(b"GET")
            assert isinstance(engine.receive(answer), ResponseHead)
            assert engine.complete is (b": 0" in answer)
            assert engine.body == b""
            assert engine.complete or engine.left == 3


def test_a_body_may_have_as_many_bytes_as_are_allowed() -> None:
    for whole in (POST, CHUNKED):
        engine = server(5)
        assert isinstance(engine.receive(whole), RequestHead)
        assert (engine.body, engine.received, engine.body_complete) == (b"hello", 5, True)


@pytest.mark.parametrize(
    ("status", "has_body"),
    [(200, True), (203, True), (205, True), (303, True), (305, True), (204, False), (304, False), (199, False)],
)
def test_a_204_and_a_304_and_interim_responses_have_no_body_and_their_neighbours_do(
    status: int, has_body: bool
) -> None:
    engine = server()
    engine.receive(GET)
    engine.respond(status, b"X", b"\r\nX: y\r\n", b"", None)
    assert engine.data(b"ab") == (b"2\r\nab\r\n" if has_body else b"")
    assert engine.end() == (b"0\r\n\r\n" if has_body else b"")
    engine.respond(status, b"X", b"\r\nContent-Length: 2\r\n", b"", 2)
    assert engine.data(b"ab") == (b"ab" if has_body else b"")
    back = H1Client()
    back.request(b"GET")
    if status >= 200:
        back.receive(b"HTTP/1.1 %d X\r\nContent-Length: 2\r\n\r\n" % status)
        assert back.complete is not has_body


@pytest.mark.parametrize("name", [b"Content-Length", b"content-length"])
def test_a_204_keeps_its_fields_but_for_the_length(name: bytes) -> None:
    engine = server()
    engine.receive(GET)
    block = b"\r\nX-A: 1\r\n%b: 0\r\nX-B: 2\r\n" % name
    assert engine.respond(204, b"No Content", block, b"", 0) == (b"HTTP/1.1 204 No Content\r\nX-A: 1\r\nX-B: 2\r\n\r\n")
