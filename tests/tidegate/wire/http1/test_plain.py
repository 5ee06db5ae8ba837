"""The pattern of plain request heads: on every match it agrees with the general parser."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.wire.http1.fields import Rejected
from tidegate.wire.http1.request_head import HeadRules, RequestHead, parse_any_request, parse_request

RULES = {
    "stranger": HeadRules(),
    "trusted at the front door": HeadRules(trusted=True),
    "stranger at a replica": HeadRules(front_door=False),
    "gateway at a replica": HeadRules(front_door=False, trusted=True),
}
TRACE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OURS = (
    b"tidegate-token: secret\r\ntidegate-timeout-ms: 300\r\ntidegate-batch-size: 2\r\ntidegate-credit: 77\r\n"
    b"tidegate-want: 3 0\r\nx-request-id: 1\r\nx-forwarded-for: 10.0.0.1\r\n"
    b'forwarded: for=10.0.0.1;host="a";proto=http\r\nvia: 1.1 tidegate\r\nx-forwarded-proto: http\r\n'
    b"x-forwarded-host: a\r\ntraceparent: " + TRACE + b"\r\n"
)
NAMES = [
    b"Host", b"host", b"Content-Length", b"content-length", b"CONTENT-LENGTH", b"Content-Type",
    b"Content-Encoding", b"Connection", b"connection", b"Transfer-Encoding", b"TE", b"Expect",
    b"Upgrade", b"upgrade-insecure-requests", b"traceparent", b"Traceparent", b"TraceParent", b"tracestate",
    b"X-Forwarded-For", b"x-forwarded-host", b"X-Real-Ip", b"Forwarded", b"Keep-Alive", b"Proxy-Connection",
    b"Pragma", b"Priority", b"User-Agent", b"user-agent", b"Accept", b"Authorization",
    b"Cookie", b"Cache-Control", b"If-Match", b"grpc-timeout", b"Inference-Header-Content-Length", b"tidegate-token",
    b"Tidegate-Batch-Size", b"tidegate-timeout-ms", b"tidegate-credit", b"K-Network-Probe", b"X A", b"HTTP2-Settings",
    b"Via", b"",
]  # fmt: skip
VALUES = [
    b"a", b"a.example:80", b"A.Example", b"a_b", b"[::1]:8", b"3", b"0", b"007", b"1234567890", b"3, 3", b"chunked",
    b"close", b"keep-alive", b"Keep-Alive", b"keep-alive, x-a", b"100-continue", b"websocket", b"text/plain", b"",
    b"\xe9", b" padded ", b"kube-probe/1.2", b"Knative-Activator-Probe", b"bench/1.0", b"\x0b", b"\x7f", TRACE,
    TRACE.upper(), b"00-" + b"0" * 32 + TRACE[35:], TRACE + b"-x", b"cc" + TRACE[2:],
]  # fmt: skip
LINES = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(NAMES),
            st.sampled_from([b": ", b": ", b": ", b":", b":\t", b" : "]),
            st.sampled_from(VALUES),
            st.sampled_from([b"\r\n"] * 9 + [b"\n", b"\r\n "]),
        ).map(b"".join),
        st.just(OURS),
        st.just(b"Content-Length: 5\r\n"),
        st.just(b"traceparent: " + TRACE + b"\r\n"),
        st.just(b"Connection: keep-alive\r\n"),
    ),
    max_size=7,
)
ASKED = [
    b"host", b"content-length", b"connection", b"traceparent", b"user-agent", b"x-real-ip", b"tidegate-token",
    b"tidegate-batch-size", b"tidegate-credit", b"tidegate-want", b"grpc-timeout", b"via", b"x-forwarded-host",
]  # fmt: skip


def facts(head: RequestHead | Rejected | None) -> object:
    """Returns all properties of a head."""
    if type(head) is not RequestHead:
        return None if head is None else head.status
    return (
        (head.method, head.target, head.path, head.authority, head.host, head.version_minor, head._end),
        (head.content_length, head.chunked, head.keep_alive, head.expect_continue, head.upgrade),
        (head.traced, head.names_host, head.names_proto),
        (head.fields, head.received_fields()),
        [head.get(name) for name in ASKED],
        [head.mentions(text) for text in (b"-probe", b"tidegate-", b"\nhost: a")],
    )


@settings(deadline=None)
@given(
    st.sampled_from(sorted(RULES)),
    st.sampled_from([b"GET", b"POST", b"TRACE", b"get"]),
    st.sampled_from([b"/", b"/a?b=%20", b"*", b"http://b/c", b"/#f"]),
    st.sampled_from([b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0"]),
    st.sampled_from([b"Host: a\r\n", b"host: A.b:8\r\n", b""]),
    LINES,
    LINES,
    st.binary(max_size=9),
)
def test_both_ways_agree(
    rules: str,
    method: bytes,
    target: bytes,
    version: bytes,
    host: bytes,
    before: list[bytes],
    lines: list[bytes],
    rest: bytes,
) -> None:
    data = b"".join((b"%b %b %b\r\n" % (method, target, version), *before, host, *lines, b"\r\n", rest))
    for at in (0, 7):
        head = parse_request(b"x" * at + data, at, RULES[rules])
        general = parse_any_request(b"x" * at + data, at, RULES[rules])
        assert facts(head) == facts(general)
        if type(head) is RequestHead and type(general) is RequestHead and general.plain:
            assert head.plain


@pytest.mark.parametrize(
    "lines",
    [
        b"Host: a\r\nUser-Agent: bench/1.0\r\nAccept: */*\r\n",
        b"Host: a\r\nContent-Length: 3\r\ntraceparent: " + TRACE + b"\r\nX-Request-Id: 1\r\n",
        b"host: a:80\r\ntraceparent: " + TRACE + b"\r\ncontent-type: x\r\ncontent-length: 3\r\n",
        b"Host: a\r\nConnection: keep-alive\r\nAccept: */*\r\n",
        b"Host: a\r\n" + b"X-A: b\r\n" * 25,
        b"Content-Type: x\r\nContent-Length: 3\r\nAccept: */*\r\nHost: a\r\nUser-Agent: node\r\n",
        b"traceparent: " + TRACE + b"\r\nConnection: keep-alive\r\ncontent-length: 3\r\nhost: a\r\nAccept: */*\r\n",
    ],
)
def test_usual_heads_go_the_short_way(lines: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.wire.http1.request_head.parse_any_request", lambda *_: pytest.fail("the general way"))
    head = parse_request(b"POST /a HTTP/1.1\r\n" + lines + b"\r\nabc", 0, HeadRules())
    assert type(head) is RequestHead
    assert head.plain
    assert b"onnection" not in head.fields


@pytest.mark.parametrize(
    "line",
    [
        b"Content-Length: 3\r\nX-A: 1\r\nContent-Length: 3\r\n",
        b"X-A: 1\r\nHost: a\r\n",
        b"traceparent: " + TRACE + b"\r\ntraceparent: " + TRACE + b"\r\n",
        b"User-Agent: kube-probe/1.29\r\n",
        b"user-agent:Knative-Autoscaling-Probe\r\n",
        b"grpc-timeout: 1S\r\n",
        b"tidegate-batch-size: 2\r\n",
    ],
)
def test_what_means_something_is_not_plain(line: bytes) -> None:
    for first in (b"Host: a\r\n" + line, line + b"Host: a\r\n"):
        head = parse_request(b"POST /a HTTP/1.1\r\n" + first + b"\r\n", 0, RULES["gateway at a replica"])
        assert type(head) is not RequestHead or not head.plain or b"traceparent" in line


def test_a_gateways_own_fields_are_read_and_cut_out() -> None:
    data = b"POST /a HTTP/1.1\r\nContent-Length: 0\r\nHost: a\r\n" + OURS + b"\r\n"
    head = parse_request(data, 0, RULES["gateway at a replica"])
    assert type(head) is RequestHead
    assert head.internal == (b"secret", b"300", b"2", b"77", b"3 0")
    assert head.fields.startswith(
        b"Content-Length: 0\r\nHost: a\r\ntidegate-timeout-ms: 300\r\ntidegate-batch-size: 2\r\n"
    )
    assert not any(text in head.fields for text in (b"token", b"credit", b"want"))
    for name in ("stranger", "trusted at the front door", "stranger at a replica"):
        other = parse_request(data, 0, RULES[name])
        assert type(other) is RequestHead
        assert other.internal is None
        assert b"tidegate-token" not in other.fields


def test_the_limit_of_headers_holds_on_the_short_way_too() -> None:
    for headers in (1, 13, 14, 20, 100):
        rules = HeadRules(headers=headers)
        for count in (headers - 1, headers):
            data = b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X-A: b\r\n" * count + b"\r\n"
            result = parse_request(data, 0, rules)
            assert (type(result) is RequestHead) is (count < headers), (headers, count)


def test_a_long_head_that_is_not_plain_costs_little_more() -> None:
    """There is no backtracking: a thousand lines and then an odd one are one pass, not a thousand."""
    rules = HeadRules(head_bytes=1 << 20, target_bytes=1 << 20, headers=20_000)
    data = b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X-A: b\r\n" * 9_000 + b"TE: x\r\n\r\n"
    begun = time.process_time()
    assert type(parse_request(data, 0, rules)) is RequestHead
    assert time.process_time() - begun < 0.2
