"""Heads between stages: the client's fields pass, those of one hop do not."""

import pytest

from tests.support.worlds.fake_exchange import request
from tidegate.gateway.pipelines.heads import field, kept_lines, stage_head, timing_of
from tidegate.wire.http1.request_head import RequestHead

CLIENT = request(
    "POST /functions/p/x HTTP/1.1\r\nHost: p.example:80\r\nContent-Length: 3\r\nContent-Type: text/a\r\n"
    "Accept-Encoding: gzip\r\nPrefer: wait=1\r\ntidegate-timeout-ms: 5\r\nx-request-id: r\r\nx-mine: 1\r\n"
    "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\r\n"
)


def made(target: bytes = b"/v2", json_bytes: int | None = None) -> RequestHead:
    return stage_head(
        CLIENT, target=target, content_type=b"b/c", coding=None, json_bytes=json_bytes, length=9, trusted=False
    )


def test_a_stage_has_its_own_framing_and_the_fields_of_the_client() -> None:
    head = made(json_bytes=7)
    assert (head.target, head.content_length, head.authority) == (b"/v2", 9, b"p.example:80")
    assert head.get(b"content-type") == b"b/c" and head.get(b"x-mine") == b"1" and head.traced
    assert head.get(b"inference-header-content-length") == b"7"
    for name in (b"accept-encoding", b"prefer", b"tidegate-timeout-ms", b"x-request-id"):
        assert head.get(name) is None, name


def test_a_target_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="no target"):
        made(b"no target")


def test_the_answer_keeps_its_fields_but_for_those_of_one_stage() -> None:
    block = b"Content-Type: a/b\r\ncontent-length: 3\r\nX-Own: 2\r\nserver-timing: wait;dur=1.000, model;dur=2.000\r\n"
    assert field(block, b"content-type") == b"a/b" and field(block, b"absent") is None
    assert kept_lines(block) == b"X-Own: 2\r\n"
    assert timing_of(b"s", block, 0.004) == b"s;dur=4.000, s-wait;dur=1.000, s-model;dur=2.000"
    assert timing_of(b"s", b"", 0.004) == b"s;dur=4.000"
