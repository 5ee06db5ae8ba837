"""Equal heads of one upstream are parsed once, and only plain ones."""

import pytest

from tidegate.wire.head import ResponseHead
from tidegate.wire.head_memory import ResponseHeads

ANSWER = b"HTTP/1.1 200 OK\r\nX: y\r\nContent-Length: 2\r\n\r\n"


def test_equal_heads_are_parsed_once() -> None:
    memory = ResponseHeads()
    first = memory.parse(ANSWER + b"ok")
    assert memory.parse(ANSWER + b"no") is first


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTidegate-Credit: home\r\n\r\n",
    ],
)
def test_only_plain_heads_are_kept(answer: bytes) -> None:
    memory = ResponseHeads()
    assert memory.parse(answer) is not memory.parse(answer)


def test_an_upstream_whose_heads_all_differ_is_given_up() -> None:
    memory = ResponseHeads()
    for number in range(3000):
        memory.parse(b"HTTP/1.1 200 OK\r\nX: %d\r\nContent-Length: 2\r\n\r\n" % number)
    assert memory.parse(ANSWER) is not memory.parse(ANSWER)


def test_what_an_app_dropped_comes_back() -> None:
    memory = ResponseHeads()
    head = memory.parse(ANSWER)
    assert type(head) is ResponseHead
    head.drop(b"x")
    assert head.fields == b"Content-Length: 2\r\n"
    head.restore()
    assert head.fields == b"X: y\r\nContent-Length: 2\r\n"
