"""Equal heads of one upstream are parsed once, and only plain ones."""

import pytest

from tidegate.wire.http1.response_cache import SHARED_BYTES, ResponseHeads
from tidegate.wire.http1.response_head import ResponseHead, parse_response

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


@pytest.mark.parametrize(
    "lines",
    [
        b"tidegate-timing: queue=0.000,model=1.5\r\ntidegate-credit: keep\r\n",
        b"tidegate-timing: queue=0.000,model=1.5\r\n",
        b"tidegate-timing: queue=0.000,model=1.5\r\ntidegate-credit: home\r\nconnection: close\r\n",
        b"tidegate-timing: queue=0.000,model=1.5\r\nTransfer-Encoding: chunked\r\n",
        b"tidegate-timing: queue=0.000,model=1.5\r\ntidegate-outcome: answered\r\n",
        b"tidegate-timing: \xff\r\ntidegate-credit: keep\r\n",
        b"X-B: 1\r\ntidegate-credit: keep\r\n",
    ],
)
@pytest.mark.parametrize(
    "start",
    [
        b"HTTP/1.1 200 OK\r\nX: y\r\nConnection: keep-alive\r\nContent-Length: 2\r\n",
        b"HTTP/1.1 200 OK\r\nX-Request-ID: a\r\nContent-Length: 2\r\n",
        b"HTTP/1.1 200\r\ncontent-length: 2\r\n",
        b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n",
        b"HTTP/1.1 200 OK\r\nX A: y\r\nContent-Length: 2\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n",
    ],
)
def test_an_answer_of_a_queue_proxy_is_read_as_any_other(start: bytes, lines: bytes) -> None:
    memory = ResponseHeads()
    for _ in range(2):
        data = start + lines + b"\r\nok"
        ours, theirs = memory.parse(data), parse_response(data, 0)
        assert type(ours) is type(theirs)
        if type(ours) is ResponseHead and type(theirs) is ResponseHead:
            for name in ResponseHead.__slots__:
                if name != "_kept":
                    assert getattr(ours, name) == getattr(theirs, name), name
            assert (ours.fields, ours.received_fields()) == (theirs.fields, theirs.received_fields())
            for field in (b"x", b"tidegate-timing", b"tidegate-credit", b"content-length", b"x-b"):
                assert ours.get(field) == theirs.get(field)
            assert ours.control(b"tidegate-credit") == theirs.control(b"tidegate-credit")


def test_the_head_before_a_queue_proxys_own_lines_is_parsed_once() -> None:
    memory = ResponseHeads()
    for number in range(50):
        head = memory.parse(ANSWER[:-2] + b"tidegate-timing: queue=0,model=%d\r\n\r\n" % number)
        assert type(head) is ResponseHead
        assert head.control(b"tidegate-timing") == b"queue=0,model=%d" % number
    assert memory.hits == 49


def test_an_answer_of_a_queue_proxy_is_searched_in_lower_case_with_its_own_lines() -> None:
    memory = ResponseHeads()
    start = b"HTTP/1.1 200 OK\r\nX-Request-ID: A\r\nContent-Length: 0\r\n"
    for model in (b"1", b"2"):
        head = memory.parse(start + b"tidegate-timing: queue=0,model=%b\r\ntidegate-credit: keep\r\n\r\n" % model)
        assert type(head) is ResponseHead
        assert head.mentions(b"\nx-request-id:") and head.mentions(b"\ntidegate-timing: queue=0,model=" + model)
        assert head.get(b"x-request-id") == b"A"


def test_a_head_of_1024_bytes_is_kept_and_a_longer_one_is_not() -> None:
    for size, is_kept in ((SHARED_BYTES, True), (SHARED_BYTES + 1, False)):
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: ".ljust(size - 4, b"x") + b"\r\n\r\n"
        memory = ResponseHeads()
        assert (memory.parse(head) is memory.parse(head)) is is_kept, size
    assert SHARED_BYTES == 1024


def test_257_heads_are_too_many_to_keep_and_begin_anew() -> None:
    memory = ResponseHeads()
    for number in range(257):
        memory.parse(b"HTTP/1.1 200 OK\r\nX: %d\r\nContent-Length: 2\r\n\r\n" % number)
        assert len(memory.known) == (number + 1 if number < 256 else 1)


def test_an_upstream_is_given_up_at_1000_heads_that_were_not_known_unless_more_were() -> None:
    def parsed(memory: ResponseHeads, count: int) -> bool:
        """Parses heads that all differ; returns whether the next one is kept."""
        for number in range(count):
            memory.parse(b"HTTP/1.1 200 OK\r\nX: %d\r\nContent-Length: 2\r\n\r\n" % number)
        return memory.parse(ANSWER) is memory.parse(ANSWER)

    assert parsed(ResponseHeads(), 998)
    assert not parsed(ResponseHeads(), 999)
    useful = ResponseHeads()
    useful.parse(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n")
    for _ in range(1100):
        useful.parse(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n")
    assert parsed(useful, 1050)


def test_a_head_of_a_queue_proxy_has_at_most_1024_bytes_too() -> None:
    end = b"\r\ntidegate-timing: 1,2\r\n\r\n"
    for size, is_read in ((SHARED_BYTES, True), (SHARED_BYTES + 1, False)):
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: ".ljust(size - len(end), b"x") + end
        assert (ResponseHeads().of_queue_proxy(head, size) is not None) is is_read, size
