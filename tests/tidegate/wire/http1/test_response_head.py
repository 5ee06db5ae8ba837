"""Response heads: accepted and refused ones, and the fields that pass."""

import pytest

from tidegate.wire.http1.fields import Rejected
from tidegate.wire.http1.partial import check_partial_response
from tidegate.wire.http1.response_head import ResponseHead, parse_response


def response(text: str) -> ResponseHead:
    head = parse_response(text.replace("\n", "\r\n").encode("latin-1"), 0)
    assert type(head) is ResponseHead, head
    return head


def names(head: ResponseHead) -> list[str]:
    """Returns the names of the forwarded fields, as written."""
    return [line.partition(b":")[0].decode() for line in head.fields.split(b"\r\n") if line]


def test_a_response_head() -> None:
    head = response("HTTP/1.1 200 OK\nServer: x\nContent-Length: 2\nConnection: keep-alive\n\nok")
    assert (head.status, head.reason, head.content_length, head.keep_alive) == (200, b"OK", 2, True)
    assert names(head) == ["Server", "Content-Length"]


def test_internal_fields_of_an_answer_are_seen_but_never_passed_on() -> None:
    head = response("HTTP/1.1 200 OK\nContent-Length: 0\nTidegate-Credit: home\n\n")
    assert head.get(b"tidegate-credit") == b"home"
    assert head.get(b"tidegate-outcome") is None
    assert names(head) == ["Content-Length"]


@pytest.mark.parametrize(
    ("fields", "keeps"),
    [("", True), ("Connection: close\n", False), ("Connection: Close, x\n", False)],
)
def test_keep_alive_of_an_answer(fields: str, keeps: bool) -> None:
    assert response(f"HTTP/1.1 200 OK\n{fields}Content-Length: 0\n\n").keep_alive is keeps


def test_an_http_1_0_answer_closes_unless_it_says_otherwise() -> None:
    assert not response("HTTP/1.0 200 OK\nContent-Length: 0\n\n").keep_alive
    assert response("HTTP/1.0 200 OK\nContent-Length: 0\nConnection: keep-alive\n\n").keep_alive


@pytest.mark.parametrize(
    "text",
    [
        "HTTP/1.1 200 OK\nContent-Length: 2\nContent-Length: 2\n\n",
        "HTTP/1.1 200 OK\nContent-Length: 2\nTransfer-Encoding: chunked\n\n",
        "HTTP/1.1 200 OK\nTransfer-Encoding: gzip\n\n",
        "HTTP/1.1 200 OK\nContent-Length: x\n\n",
    ],
)
def test_ambiguous_framing_of_an_answer_is_a_502(text: str) -> None:
    rejected = parse_response(text.replace("\n", "\r\n").encode(), 0)
    assert type(rejected) is Rejected
    assert rejected.status == 502


@pytest.mark.parametrize(
    "data", [b"junk", b"HTTP/2", b"HTTP/1.1 2000 x\r\n", b"HTTP/1.1 200 OK\r\n bad\r\n\r\n", b"x" * 70000]
)
def test_junk_from_an_upstream(data: bytes) -> None:
    assert parse_response(data, 0) is None
    assert check_partial_response(data) is not None


def test_every_beginning_of_an_answer_is_accepted_as_one() -> None:
    whole = b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 2\r\n\r\n"
    for size in range(1, len(whole)):
        assert check_partial_response(whole[:size]) is None, whole[:size]


def test_a_head_may_have_64_kb_and_not_a_byte_more() -> None:
    head = b"HTTP/1.1 200 OK\r\nA: ".ljust(64 * 1024 - 4, b"x") + b"\r\n\r\n"
    assert isinstance(parse_response(head, 0), ResponseHead)
    longer = parse_response(head.replace(b"A: ", b"A: y"), 0)
    assert isinstance(longer, Rejected)
    assert (longer.status, longer.why) == (502, "response head too large")
