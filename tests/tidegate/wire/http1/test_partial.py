"""The beginning of a head: which one is refused, with which status, and where each limit lies."""

import pytest

from tidegate.wire.http1.fields import Rejected
from tidegate.wire.http1.partial import check_partial, check_partial_response
from tidegate.wire.http1.request_head import HeadRules

RULES = HeadRules(head_bytes=300, target_bytes=40)
START = b"GET / HTTP/1.1\r\n"


def refused(result: Rejected | int | None) -> tuple[int, str] | None:
    """Returns the refusal; None if the bytes may still become a head."""
    return (result.status, result.why) if isinstance(result, Rejected) else None


@pytest.mark.parametrize(
    ("data", "refusal"),
    [
        (b"\x16\x03\x01", (400, "not an HTTP request")),
        (b"GET  / HTTP/1.1\r\n", (400, "malformed request line")),
        (b"GET / HTTP/2.0\r\n", (505, "HTTP version not supported")),
        (b"GET / HTTP/0.9\r\n", (505, "HTTP version not supported")),
        (b"GET /" + b"x" * 40 + b" HTTP/1.1\r\n", (414, "target too long")),
        (START + b"A b\r\nC", (400, "malformed field")),
        (START + b"A: b\r\n\r\n", (400, "malformed field")),
        (START + b"A: b\r\n c", (400, "malformed field")),
        (START + b"A: " + b"x" * 300, (431, "head too large")),
    ],
)
def test_each_fault_has_its_status_and_reason(data: bytes, refusal: tuple[int, str]) -> None:
    assert refused(check_partial(data, 0, RULES)) == refusal


def test_a_target_and_a_head_of_exactly_the_limit_may_go_on() -> None:
    assert check_partial(b"GET /" + b"x" * 39 + b" HTTP/1.1\r\nA", 0, RULES) == 55
    assert check_partial(b"GET /" + b"x" * (40 + 64 - 5), 0, RULES) == 0
    assert refused(check_partial(b"GET /" + b"x" * (40 + 64 - 4), 0, RULES)) == (414, "target too long")
    head = START + b"A: " + b"x" * (300 - len(START) - 3)
    assert check_partial(head, 0, RULES) == len(START)
    assert refused(check_partial(head + b"x", 0, RULES)) == (431, "head too large")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"SSH-2.0", "not an HTTP response"),
        (b"HTTP/1.1 2000", "not an HTTP response"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "malformed response head"),
        (b"HTTP/1.1 200 OK\r\nA b\r\n\r\n", "malformed response head"),
        (b"HTTP/2.0 200 OK\r\nA", "malformed response head"),
    ],
)
def test_each_fault_of_an_upstream_is_a_502_with_its_reason(data: bytes, why: str) -> None:
    assert refused(check_partial_response(data)) == (502, why)


def test_a_response_head_of_64_kb_may_go_on_and_a_byte_more_is_refused() -> None:
    head = b"HTTP/1.1 200 OK\r\nA: ".ljust(64 * 1024, b"x")
    assert check_partial_response(head) is None
    assert refused(check_partial_response(head + b"x")) == (502, "response head too large")
