"""Every accepted head is read in the same way by an independent strict parser (h11)."""

import h11
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.wire.http1.request_head import HeadRules, RequestHead, parse_request
from tidegate.wire.http1.response_head import ResponseHead, parse_response

_NAMES = st.sampled_from(
    [b"Host", b"host", b"X-A", b"Content-Length", b"Transfer-Encoding", b"Connection", b"X A", b""]
)
_VALUES = st.one_of(
    st.sampled_from(
        [b"a", b"a.example:80", b"3", b"chunked", b"close", b"", b" x ", b"a b", b"\xe9", b"\x0b", b"3, 3"]
    ),
    st.binary(max_size=6),
)
_COLONS = st.sampled_from([b":", b": ", b":\t", b" : ", b""])
_ENDS = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b"\r\n "])
_LINES = st.lists(st.tuples(_NAMES, _COLONS, _VALUES, _ENDS).map(b"".join), max_size=5)
_TARGETS = st.sampled_from([b"/", b"/a?b", b"*", b"http://b/c", b"a", b"/#f", b"/a b", b"/\xff", b"//c"])
_METHODS = st.sampled_from([b"GET", b"POST", b"get", b"G T", b"OPTIONS", b""])
_VERSIONS = st.sampled_from([b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.1 "])


@settings(deadline=None)
@given(_METHODS, _TARGETS, _VERSIONS, _LINES)
def test_requests(method: bytes, target: bytes, version: bytes, lines: list[bytes]) -> None:
    data = b"%b %b %b\r\nHost: a\r\n%b\r\n" % (method, target, version, b"".join(lines))
    head = parse_request(data, 0, HeadRules())
    if type(head) is not RequestHead:
        return
    theirs = h11.Connection(h11.SERVER)
    theirs.receive_data(data)
    event = theirs.next_event()
    assert isinstance(event, h11.Request)
    assert (event.method, event.target) == (method, target)
    assert head._end == len(data) - len(theirs.trailing_data[0]) or head.content_length or head.chunked
    headers = dict(event.headers)
    assert headers.get(b"content-length") == (None if head.content_length is None else b"%d" % head.content_length)
    assert (b"transfer-encoding" in headers) is head.chunked
    passed = {line.partition(b":")[0].lower() for line in head.fields.split(b"\r\n") if line}
    assert passed <= set(headers) | {b"host"}


@settings(deadline=None)
@given(st.sampled_from([b"200 OK", b"204 ", b"404", b"99 x", b"2000 x", b"200\tOK"]), _LINES)
def test_responses(status: bytes, lines: list[bytes]) -> None:
    data = b"HTTP/1.1 %b\r\n%b\r\n" % (status, b"".join(lines))
    head = parse_response(data, 0)
    if type(head) is not ResponseHead:
        return
    theirs = h11.Connection(h11.CLIENT)
    theirs.send(h11.Request(method="GET", target="/", headers=[("host", "a")]))
    theirs.send(h11.EndOfMessage())
    theirs.receive_data(data)
    event = theirs.next_event()
    assert isinstance(event, h11.Response)
    assert event.status_code == head.status
    headers = dict(event.headers)
    assert (b"transfer-encoding" in headers) is head.chunked
