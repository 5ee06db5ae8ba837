"""The forwarding fields that are added to a request."""

import random
import re

import pytest

from tidegate.aio.proxy.forwarding import Forwarding
from tidegate.wire.http1.grammar import TRACEPARENT
from tidegate.wire.http1.request_head import HeadRules, RequestHead, parse_request


def head(*lines: bytes, host: bytes = b"a") -> RequestHead:
    text = b"GET / HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (host, b"".join(line + b"\r\n" for line in lines))
    found = parse_request(text, 0, HeadRules(trusted=True))
    assert type(found) is RequestHead
    return found


def fields(lines: bytes) -> dict[bytes, bytes]:
    return dict(line.split(b": ", 1) for line in lines.split(b"\r\n") if line)


@pytest.mark.parametrize(("peer", "node"), [(b"10.0.0.1", b"10.0.0.1"), (b"::1", b'"[::1]"')])
def test_who_asked_for_which_host_by_which_scheme(peer: bytes, node: bytes) -> None:
    added = fields(Forwarding(peer, b"https", b"tidegate", random.Random(1)).lines(head(host=b"A.b:8")))
    assert added[b"x-forwarded-for"] == peer
    assert added[b"forwarded"] == b'for=%b;host="a.b:8";proto=https' % node
    assert added[b"x-forwarded-proto"] == b"https"
    assert added[b"x-forwarded-host"] == b"a.b:8"
    assert added[b"via"] == b"1.1 tidegate"


def test_a_unix_socket_has_no_address_to_tell() -> None:
    added = fields(Forwarding(b"unix", b"http", b"tidegate", random.Random(1)).lines(head()))
    assert b"x-forwarded-for" not in added
    assert b"forwarded" not in added
    assert added[b"x-forwarded-host"] == b"a"


def test_requests_of_one_connection_differ_in_what_they_name() -> None:
    """What is kept from one request to the next is only used for one that is alike."""
    made = Forwarding(b"10.0.0.1", b"http", b"tidegate", random.Random(1))
    variants = [head(), head(b"X-Forwarded-Host: x"), head(b"X-Forwarded-Proto: https"), head(host=b"b"), head()]
    for one in variants * 2:
        added = fields(made.lines(one))
        assert (b"x-forwarded-host" in added) is not one.names_host
        assert (b"x-forwarded-proto" in added) is not one.names_proto
        assert b'host="%b"' % one.authority in added[b"forwarded"]


def test_a_trace_is_made_where_none_came_and_never_twice_the_same() -> None:
    made = Forwarding(b"10.0.0.1", b"http", b"tidegate", random.Random(1))
    traces = [fields(made.lines(head()))[b"traceparent"] for _ in range(50)]
    assert len(set(traces)) == 50
    assert all(TRACEPARENT.fullmatch(trace) for trace in traces)
    assert all(re.fullmatch(rb"00-.*-00", trace) for trace in traces), "this process records none of them"
    traced = head(b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    assert b"traceparent" not in fields(made.lines(traced))


def test_ids_of_nothing_but_zeros_are_never_made() -> None:
    class Zero(random.Random):
        def getrandbits(self, k: int, /) -> int:
            return 0

    trace = fields(Forwarding(b"10.0.0.1", b"http", b"tidegate", Zero()).lines(head()))[b"traceparent"]
    assert TRACEPARENT.fullmatch(trace)
