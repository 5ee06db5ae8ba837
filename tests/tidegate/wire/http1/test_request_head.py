"""Request heads: accepted and refused ones with their status, and the fields that pass."""

import pytest

from tidegate.wire.http1.fields import Rejected
from tidegate.wire.http1.grammar import SAMPLED, UNSAMPLED
from tidegate.wire.http1.partial import check_partial
from tidegate.wire.http1.request_head import HeadRules, RequestHead, parse_request

FRONT = HeadRules()
TRUSTING = HeadRules(trusted=True)
SIDECAR = HeadRules(front_door=False, trusted=True)


def request(text: str, rules: HeadRules = FRONT) -> RequestHead:
    """Returns the head of ``text``, line ends written as ``\\n``."""
    head = parse_request(text.replace("\n", "\r\n").encode("latin-1"), 0, rules)
    assert type(head) is RequestHead, head
    return head


def refused(text: str, rules: HeadRules = FRONT) -> int:
    """Returns the status with which a complete head is refused, by either of the two checks."""
    data = text.replace("\n", "\r\n").encode("latin-1")
    result = parse_request(data, 0, rules)
    if result is None:
        partial = check_partial(data, 0, rules)
        assert type(partial) is Rejected, f"{data!r} would hang"
        return partial.status
    assert type(result) is Rejected, result
    return result.status


def names(head: RequestHead) -> list[str]:
    """Returns the names of the forwarded fields, as written."""
    return [line.partition(b":")[0].decode() for line in head.fields.split(b"\r\n") if line]


def test_a_plain_head_is_read_and_forwarded_unchanged() -> None:
    text = "POST /v2/models/m/infer?a=%20b HTTP/1.1\nHost: A.example:8080\nX-A: b\nContent-Length: 3\n\nabc"
    head = request(text)
    assert (head.method, head.target, head.path) == (b"POST", b"/v2/models/m/infer?a=%20b", b"/v2/models/m/infer")
    assert (head.host, head.authority) == (b"a.example", b"a.example:8080")
    assert (head.content_length, head.chunked, head.keep_alive, head.version_minor) == (3, False, True, 1)
    assert head.fields == b"Host: A.example:8080\r\nX-A: b\r\nContent-Length: 3\r\n"


def test_get_finds_the_first_field_in_any_case_and_without_white_space() -> None:
    head = request("GET / HTTP/1.1\nHost: a\nX-Thing: \t One Two \t\nx-thing: other\nMy-X-B: no\n\n")
    assert head.get(b"x-thing") == b"One Two"
    assert head.get(b"x-b") is None
    assert head.get(b"tidegate-timeout-ms") is None
    twice = request("GET / HTTP/1.1\nHost: a\nTidegate-Timeout-Ms: 5\ntidegate-timeout-ms: 7\n\n")
    assert twice.get(b"tidegate-timeout-ms") == b"5"


def test_drop_removes_every_field_of_a_name() -> None:
    head = request("GET / HTTP/1.1\nHost: a\nX-A: 1\nX-B: 2\nx-a: 3\n\n")
    head.drop(b"x-a", b"absent")
    assert names(head) == ["Host", "X-B"]


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("GET / HTTP/1.1\n\n", 400),  # no Host
        ("GET / HTTP/1.1\nHost: a\nHost: a\n\n", 400),
        ("GET / HTTP/1.1\nHost: a b\n\n", 400),
        ("GET / HTTP/1.1\nHost: u@a\n\n", 400),
        ("GET / HTTP/1.1\nHost: a:80x\n\n", 400),
        ("GET / HTTP/2.0\nHost: a\n\n", 505),
        ("GET / HTTP/1.10\nHost: a\n\n", 400),
        ("GET /#f HTTP/1.1\nHost: a\n\n", 400),
        ("GET * HTTP/1.1\nHost: a\n\n", 400),
        ("GET a/b HTTP/1.1\nHost: a\n\n", 400),
        ("GET ftp://a/b HTTP/1.1\nHost: a\n\n", 400),
        ("GET http://u@a/b HTTP/1.1\nHost: a\n\n", 400),
        ("CONNECT a:443 HTTP/1.1\nHost: a\n\n", 405),
        ("TRACE / HTTP/1.1\nHost: a\n\n", 405),
        ("GET  / HTTP/1.1\nHost: a\n\n", 400),
        ("GET / HTTP/1.1\nHost : a\n\n", 400),
        ("GET / HTTP/1.1\nHost: a\n X-A: b\n\n", 400),  # obs-fold
        ("GET / HTTP/1.1\nHost: a\nX-A: b\0\n\n", 400),
        ("GET / HTTP/1.1\nHost: a\nX A: b\n\n", 400),
        ("GET / HTTP/1.1\nHost: a\n: b\n\n", 400),
        ("GET / HTTP/1.1\nHost: a\nno colon\n\n", 400),
        ("POST / HTTP/1.1\nHost: a\nContent-Length: +3\n\n", 400),
        ("POST / HTTP/1.1\nHost: a\nContent-Length: 1_0\n\n", 400),
        ("POST / HTTP/1.1\nHost: a\nContent-Length: \xb3\n\n", 400),
        ("POST / HTTP/1.1\nHost: a\nContent-Length:\n\n", 400),
        ("POST / HTTP/1.1\nHost: a\nContent-Length: 3\nContent-Length: 3\n\n", 400),
        ("POST / HTTP/1.1\nHost: a\nContent-Length: 3, 3\n\n", 400),
        ("POST / HTTP/1.1\nHost: a\nContent-Length: " + "9" * 19 + "\n\n", 400),
        ("POST / HTTP/1.1\nHost: a\nContent-Length: 3\nTransfer-Encoding: chunked\n\n", 400),
        ("POST / HTTP/1.1\nHost: a\nTransfer-Encoding: chunked, chunked\n\n", 400),
        ("POST / HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\nTransfer-Encoding: chunked\n\n", 400),
        ("POST / HTTP/1.1\nHost: a\nTransfer-Encoding: gzip, chunked\n\n", 501),
        ("POST / HTTP/1.0\nHost: a\nTransfer-Encoding: chunked\n\n", 400),
        ("POST / HTTP/1.0\nTransfer-Encoding: chunked\n\n", 400),  # no Host: the usual count of fields is off by one
        ("POST / HTTP/1.1\nTransfer-Encoding: chunked\n\n", 400),
        ("POST / HTTP/1.1\nHost: a\nExpect: tea\nContent-Length: 1\n\n", 417),
        ("A" * 33 + " / HTTP/1.1\nHost: a\n\n", 400),
        ("GET /" + "a" * 9000 + " HTTP/1.1\nHost: a\n\n", 414),
        ("GET / HTTP/1.1\nHost: a\nX-A: " + "v" * 20000 + "\n\n", 431),
        ("GET / HTTP/1.1\nHost: a\n" + "X: y\n" * 100 + "\n", 431),
        ("GET / HTTP/1.1\nHost: a\n" + "X:\n" * 100 + "\n", 431),
    ],
)
def test_refused(text: str, status: int) -> None:
    assert refused(text) == status


def test_exactly_as_many_fields_as_allowed_pass() -> None:
    assert len(names(request("GET / HTTP/1.1\nHost: a\n" + "X: y\n" * 99 + "\n"))) == 100


@pytest.mark.parametrize("host", ["a", "a.example:8080", "[::1]:80", "[::1]", "127.0.0.1", "a:"])
def test_accepted_hosts(host: str) -> None:
    assert request(f"GET / HTTP/1.1\nHost: {host}\n\n").authority == host.encode()


def test_absolute_form_replaces_host_and_goes_on_as_origin_form() -> None:
    head = request("GET http://B.example:81/x?y HTTP/1.1\nHost: a.example\nX-A: 1\n\n")
    assert (head.target, head.host) == (b"/x?y", b"b.example")
    assert head.fields == b"host: b.example:81\r\nX-A: 1\r\n"
    assert request("GET http://a HTTP/1.1\nHost: a\n\n").target == b"/"
    assert request("GET http://a?q HTTP/1.1\nHost: a\n\n").target == b"/?q"


def test_absolute_form_beside_hop_by_hop_fields() -> None:
    head = request("GET http://b/x HTTP/1.1\nConnection: X-A\nHost: abcdefgh\nX-A: 1\nX-B: 2\n\n")
    assert head.fields == b"host: b\r\nX-B: 2\r\n"


def test_http_1_0_may_omit_host_and_closes_unless_asked() -> None:
    head = request("GET / HTTP/1.0\n\n")
    assert (head.version_minor, head.keep_alive, head.host, head.fields) == (0, False, b"", b"host: localhost\r\n")
    assert request("GET / HTTP/1.0\nConnection: Keep-Alive\n\n").keep_alive


def test_http_1_2_is_handled_as_1_1() -> None:
    head = request("GET / HTTP/1.2\nHost: a\n\n")
    assert (head.version_minor, head.keep_alive) == (1, True)


def test_hop_by_hop_fields_and_what_connection_lists_are_removed() -> None:
    head = request(
        "GET / HTTP/1.1\nHost: a\nConnection: X-Foo, close, host, authorization\nX-Foo: 1\nX-Bar: 2\nTE: trailers\n"
        "Keep-Alive: 5\nProxy-Connection: keep-alive\nUpgrade: h2c\nHTTP2-Settings: x\nAuthorization: t\n\n"
    )
    assert names(head) == ["Host", "X-Bar", "Authorization"]
    assert not head.keep_alive
    assert head.upgrade is None


def test_the_commonest_connection_field_is_removed() -> None:
    for value in ("keep-alive", "Keep-Alive"):
        head = request(f"GET / HTTP/1.1\nHost: a\nConnection: {value}\nX-A: 1\n\n")
        assert names(head) == ["Host", "X-A"]
        assert head.keep_alive


def test_two_connection_fields_are_one_list() -> None:
    head = request("GET / HTTP/1.1\nHost: a\nConnection: close\nConnection: keep-alive\n\n")
    assert not head.keep_alive


def test_forwarding_fields_pass_from_trusted_peers_only() -> None:
    text = (
        "GET / HTTP/1.1\nHost: a\nX-Forwarded-For: 6.6.6.6\nX-Forwarded-Proto: https\nX-Forwarded-Host: e\n"
        "Forwarded: for=6.6.6.6\nVia: 1.1 x\n\n"
    )
    assert names(request(text)) == ["Host", "Via"]
    head = request(text, TRUSTING)
    assert names(head) == ["Host", "X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "Forwarded", "Via"]
    assert head.names_host
    assert head.names_proto


def test_internal_fields_are_invisible_at_the_front_door() -> None:
    text = "GET / HTTP/1.1\nHost: a\nTidegate-Token: Secret\nTidegate-Timeout-Ms: 50\nTidegate-Priority: 1\n\n"
    front = request(text)
    assert front.get(b"tidegate-token") is None
    assert front.get(b"tidegate-timeout-ms") == b"50"
    assert names(front) == ["Host", "Tidegate-Timeout-Ms", "Tidegate-Priority"]
    sidecar = request(text, SIDECAR)
    assert sidecar.get(b"tidegate-token") == b"Secret"
    assert names(sidecar) == ["Host", "Tidegate-Timeout-Ms"]


@pytest.mark.parametrize("rules", [FRONT, SIDECAR], ids=["front", "sidecar"])
@pytest.mark.parametrize(
    "lines",
    [
        "tidegate-token: a\ntidegate-credit: 1\ntidegate-want: 0\n",
        "tidegate-token: a\nX-A: 1\ntidegate-credit: 1\n",
        "tidegate-token: a\ntidegate-token: b\nX-A: 1\ntidegate-credit: 5\n",
        "tidegate-token: a\nTidegate-Credit: 5\n",
        "Connection: x-a\nX-A: 1\ntidegate-token: a\n",
        "tidegate-token:\n",
        "tidegate-: 1\n",
    ],
)
def test_no_internal_field_slips_through(rules: HeadRules, lines: str) -> None:
    head = request(f"GET / HTTP/1.1\nHost: a\n{lines}tidegate-timeout-ms: 7\nX-Z: tidegate-token: no\n\n", rules)
    passed = [name.lower() for name in names(head)]
    assert [name for name in passed if name.startswith("tidegate-")] == ["tidegate-timeout-ms"]
    assert passed[-1] == "x-z"


TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("value", "valid"),
    [
        (TRACE, True),
        (f" \t{TRACE} \t", True),
        ("cc" + TRACE[2:] + "-more", True),
        (TRACE + "-more", False),
        ("ff" + TRACE[2:], False),
        (TRACE.replace("b", "B", 1), False),
        ("00-" + "0" * 32 + TRACE[35:], False),
        (TRACE[:36] + "0" * 16 + "-01", False),
        ("nonsense", False),
        ("", False),
    ],
)
def test_an_invalid_traceparent_is_removed(value: str, valid: bool) -> None:
    head = request(f"GET / HTTP/1.1\nHost: a\ntraceparent: {value}\n\n")
    assert bool(head.traced) is valid
    assert (b"traceparent" in head.fields) is valid


@pytest.mark.parametrize("front", ["", "Transfer-Encoding: chunked\n"])
@pytest.mark.parametrize(
    ("flags", "sampled"), [("00", False), ("01", True), ("0a", False), ("0b", True), ("fe", False), ("ff", True)]
)
def test_the_last_digit_of_the_flags_says_whether_a_trace_is_sampled(front: str, flags: str, sampled: bool) -> None:
    for value in (f"{TRACE[:-2]}{flags}", f"cc{TRACE[2:-2]}{flags}", f"cc{TRACE[2:-2]}{flags}-12"):
        head = request(f"GET / HTTP/1.1\nHost: a\n{front}traceparent: {value}\n\n")
        assert head.traced == (SAMPLED if sampled else UNSAMPLED)
        head.take_trace()
        assert head.traced == UNSAMPLED


@pytest.mark.parametrize("second", [TRACE, "nonsense", TRACE.replace("4", "5")])
def test_several_traceparents_are_none(second: str) -> None:
    head = request(f"GET / HTTP/1.1\nHost: a\ntraceparent: {TRACE}\nX-A: 1\ntraceparent: {second}\n\n")
    assert not head.traced
    assert names(head) == ["Host", "X-A"]


def test_expect_counts_only_with_a_body_and_in_1_1() -> None:
    assert request("POST / HTTP/1.1\nHost: a\nExpect: 100-Continue\nContent-Length: 1\n\n").expect_continue
    assert not request("POST / HTTP/1.1\nHost: a\nExpect: 100-continue\nContent-Length: 0\n\n").expect_continue
    head = request("POST / HTTP/1.0\nHost: a\nExpect: 100-continue\nContent-Length: 1\n\n")
    assert not head.expect_continue
    assert names(head) == ["Host", "Content-Length"]


@pytest.mark.parametrize(
    ("text", "upgrade"),
    [
        ("GET / HTTP/1.1\nHost: a\nConnection: keep-alive, Upgrade\nUpgrade: WebSocket\n\n", b"websocket"),
        ("GET / HTTP/1.1\nHost: a\nUpgrade: websocket\n\n", None),
        ("GET / HTTP/1.0\nHost: a\nConnection: upgrade\nUpgrade: websocket\n\n", None),
        ("POST / HTTP/1.1\nHost: a\nConnection: upgrade\nUpgrade: websocket\n\n", None),
        ("GET / HTTP/1.1\nHost: a\nConnection: upgrade\nUpgrade: websocket, h2c\n\n", None),
        ("GET / HTTP/1.1\nHost: a\nConnection: upgrade\nUpgrade: websocket\nContent-Length: 1\n\n", None),
    ],
)
def test_upgrade(text: str, upgrade: bytes | None) -> None:
    head = request(text)
    assert head.upgrade == upgrade
    assert b"pgrade" not in head.fields


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x00",
        b"SSH-2.0-x\r\n",
        b"PRI * HTTP/2.0\r\n",
        b"\x05\x01",
        b"GET / HTTP/1.1\nHost",
        b"GET / HTTP/1.1\r\nX A",
        b"GET / HTTP/1.1\r\nA: b\r\n c",
        b"HTTP/1.1 200 OK\r\n",
        b"GET / http/1.1\r\n",
        b" GET",
        b"A" * 33,
    ],
)
def test_garbage_is_refused_before_the_head_is_whole(data: bytes) -> None:
    assert type(check_partial(data, 0, FRONT)) is Rejected


def test_every_beginning_of_a_head_is_accepted_as_one() -> None:
    whole = b"GET /a?b HTTP/1.1\r\nHost: a\r\nX-A: b c\r\nEmpty:\r\n\r\n"
    for size in range(1, len(whole)):
        assert parse_request(whole[:size], 0, FRONT) is None
        assert type(check_partial(whole[:size], 0, FRONT)) is int, whole[:size]


def test_checking_goes_on_where_it_stopped() -> None:
    first = b"GET / HTTP/1.1\r\nHost: a\r\nX-"
    line = check_partial(first, 0, FRONT)
    assert line == first.index(b"X-")
    assert type(check_partial(first + b"A b\r\n", line, FRONT)) is Rejected


def test_a_target_of_8_kb_a_head_of_16_kb_and_100_fields_are_the_limits() -> None:
    rules = HeadRules()

    def status(text: bytes) -> int | None:
        parsed = parse_request(text + b"\r\n\r\n", 0, rules)
        return parsed.status if isinstance(parsed, Rejected) else None

    host = b" HTTP/1.1\r\nHost: a"
    for start, unusual in ((b"GET /", b""), (b"GET /", b"\r\nTransfer-Encoding: chunked"), (b"MKCOL /", b"")):
        target = start + b"x" * (8 * 1024 - 1)
        assert status(target + host + unusual) is None
        assert status(target + b"x" + host + unusual) == 414
        head = (start + host + unusual + b"\r\nX-A: ").ljust(16 * 1024 - 4, b"x")
        assert status(head) is None
        assert status(head + b"x") == 431
        fields = start + host + unusual
        lines = b"".join(b"\r\nX-A%d: b" % number for number in range(99 - (unusual != b"")))
        assert status(fields + lines) is None
        assert status(fields + lines + b"\r\nX-B: c") == 431
