"""Requests of HTTP/2 written as HTTP/1.1 and read again, and responses on their way back."""

import pytest

from tidegate.wire.http1.fields import Rejected
from tidegate.wire.http1.request_head import HeadRules, RequestHead
from tidegate.wire.http2.block_memory import REQUEST, RESPONSE, Block, Blocks
from tidegate.wire.http2.header_blocks import Reader
from tidegate.wire.http2.hpack import literal
from tidegate.wire.http2.to_http1 import answer_block, field_block, request_head, trailer_lines

RULES = HeadRules()


def fields_of(written: bytes) -> list[tuple[bytes, bytes]]:
    kind = RESPONSE if written.startswith(b"\x88") else None
    return [field[:2] for field in Reader(Blocks(RESPONSE)).read(written, is_trailer=kind is None).fields]


def block(*more: tuple[bytes, bytes], **pseudo: bytes) -> Block:
    fields = {"method": b"GET", "scheme": b"https", "path": b"/v2/x?y=1", "authority": b"F.localhost:8080"} | pseudo
    written = b"".join(literal(b":" + name.encode(), value) for name, value in fields.items())
    return Reader(Blocks(REQUEST)).read(written + b"".join(literal(*field) for field in more))


def head_of(*more: tuple[bytes, bytes], ends: bool = True, **pseudo: bytes) -> RequestHead:
    found = request_head(block(*more, **pseudo), ends, RULES)
    assert type(found) is RequestHead, found
    return found


def test_a_request_keeps_its_fields_and_order() -> None:
    head = head_of((b"x-a", b"1"), (b"accept", b"*/*"), (b"x-a", b"2"))
    assert (head.method, head.target, head.authority, head.host) == (
        b"GET",
        b"/v2/x?y=1",
        b"f.localhost:8080",
        b"f.localhost",
    )
    assert head.fields == b"host: f.localhost:8080\r\nx-a: 1\r\naccept: */*\r\nx-a: 2\r\n"


def test_a_body_of_unknown_length_is_chunked() -> None:
    assert head_of(ends=False, method=b"POST").chunked
    known = head_of((b"content-length", b"5"), ends=False, method=b"POST")
    assert (known.chunked, known.content_length) == (False, 5)
    assert head_of().content_length is None


def test_crumbs_of_a_cookie_are_one_field() -> None:
    assert head_of((b"cookie", b"a=1"), (b"x", b"y"), (b"cookie", b"b=2")).get(b"cookie") == b"a=1; b=2"


def test_a_host_that_agrees_is_there_once() -> None:
    assert head_of((b"host", b"f.localhost:8080")).fields == b"host: f.localhost:8080\r\n"


@pytest.mark.parametrize("method", [b"CONNECT", b"TRACE"])
def test_methods_that_are_refused(method: bytes) -> None:
    found = request_head(block(method=method), True, RULES)
    assert type(found) is Rejected
    assert found.status == 405


def test_a_head_beyond_the_limits_is_refused_as_in_http1() -> None:
    found = request_head(block((b"x", b"y" * 15_000), (b"z", b"y" * 1000)), True, HeadRules(head_bytes=8000))
    assert type(found) is Rejected
    assert found.status == 431
    found = request_head(block(path=b"/" + b"p" * 9000), True, RULES)
    assert type(found) is Rejected
    assert found.status == 414


def test_what_would_mean_something_else_in_http1_never_gets_there() -> None:
    for field in (
        (b"x", b"a\r\nhost: evil"),
        (b"transfer-encoding", b"chunked"),
        (b"x y", b"z"),
        (b"connection", b"x"),
    ):
        assert block(field).fault
    assert block(path=b"/a b").fault
    assert block(path=b"/a\r\nx: y").fault
    assert block(authority=b"a b").fault


def test_an_answer_in_lower_case_without_what_concerns_a_connection() -> None:
    lines = b"\r\nContent-Type: text/plain\r\nContent-Length: 3\r\nConnection: close\r\nX-A:  b \r\nKeep-Alive: 5\r\n"
    assert fields_of(answer_block(200, lines)) == [
        (b":status", b"200"),
        (b"content-type", b"text/plain"),
        (b"content-length", b"3"),
        (b"x-a", b"b"),
    ]


def test_trailers_both_ways() -> None:
    assert fields_of(field_block(b"X-Sum: 1\r\n")) == [(b"x-sum", b"1")]
    read = Reader(Blocks(REQUEST)).read(
        literal(b"x-sum", b"1") + literal(b"authorization", b"x") + literal(b"tidegate-credit", b"1"), is_trailer=True
    )
    assert trailer_lines(read) == b"x-sum: 1\r\n"
