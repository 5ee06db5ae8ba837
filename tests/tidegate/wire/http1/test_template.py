"""Heads like the one before: the template agrees with the general parser, or returns None."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tidegate.wire.http1.test_plain import OURS, RULES, TRACE, facts
from tidegate.wire.http1.grammar import SAMPLED, UNSAMPLED
from tidegate.wire.http1.request_head import RequestHead, parse_any_request, parse_request
from tidegate.wire.http1.server import H1Server
from tidegate.wire.http1.template import Templates

FIRST = (
    b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a.b:80\r\nUser-Agent: bench\r\nX-Request-Id: 0123456789\r\n"
    b"traceparent: " + TRACE + b"\r\nAccept: */*\r\nContent-Length: 12\r\nOrigin:\r\n\r\n"
)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(FIRST) - 1), st.integers(0, 255)), min_size=1, max_size=3),
    st.sampled_from(sorted(RULES)),
)
def test_whatever_bytes_change_both_ways_agree(changes: list[tuple[int, int]], rules: str) -> None:
    changed = bytearray(FIRST)
    for at, byte in changes:
        changed[at] = byte
    _compare(bytes(changed), rules)


@settings(deadline=None)
@given(
    st.integers(0, len(FIRST) - 8),
    st.sampled_from([b"\r\nA: b", b"\r\n\r\n", b"\r\nTE: x", b"\n\nX:", b": ", b"\x80\xff"]),
)
def test_no_line_ends_inside_of_a_value(at: int, text: bytes) -> None:
    _compare(FIRST[:at] + text + FIRST[at + len(text) :], "stranger")


GATEWAYS = FIRST[:-2].replace(b"traceparent: " + TRACE + b"\r\n", b"") + OURS + b"\r\n"


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(GATEWAYS) - 1), st.integers(0, 255)), max_size=3))
def test_a_gateways_head_is_reported_too(changes: list[tuple[int, int]]) -> None:
    changed = bytearray(GATEWAYS)
    for at, byte in changes:
        changed[at] = byte
    _compare(bytes(changed), "gateway at a replica", GATEWAYS)


@pytest.mark.parametrize("less", [b"", b"tidegate-want: 3 0\r\n", b"tidegate-credit: 77\r\ntidegate-want: 3 0\r\n"])
def test_a_gateways_own_fields_are_read_and_cut_out(less: bytes) -> None:
    first = GATEWAYS.replace(less, b"")
    head = parse_request(first, 0, RULES["gateway at a replica"])
    assert type(head) is RequestHead
    template = Templates().learn(first, 0, head)
    assert template is not None
    text = first.replace(b"credit: 77", b"credit: 81").replace(b"ms: 300", b"ms: 299")
    found, general = template.read(text, 0), parse_request(text, 0, RULES["gateway at a replica"])
    assert found is not None
    assert type(general) is RequestHead
    assert found.internal == general.internal
    assert facts(found) == facts(general)


def _compare(data: bytes, rules: str, first: bytes = FIRST) -> None:
    head = parse_request(first, 0, RULES[rules])
    assert type(head) is RequestHead
    template = Templates().learn(first, 0, head)
    assert template is not None
    for at, rest in ((0, b""), (5, b"body")):
        text = b"x" * at + data + rest
        found = template.read(text, at)
        if found is not None:
            assert facts(found) == facts(parse_any_request(text, at, RULES[rules]))
            assert found.plain is head.plain


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"0123456789", b"9876543210"),
        (b"-Length: 12", b"-Length: 99"),
        (TRACE, TRACE[:-2] + b"00"),
        (TRACE, TRACE[:3] + b"0" * 16 + TRACE[19:]),
        (TRACE, TRACE[:3] + b"0" * 31 + TRACE[34:]),
        (b"*/*", b"a/b"),
    ],
)
def test_other_values_are_like_it(old: bytes, new: bytes) -> None:
    head = parse_request(FIRST, 0, RULES["stranger"])
    assert type(head) is RequestHead
    template = Templates().learn(FIRST, 0, head)
    assert template is not None
    for before in (b"", b"x" * 255):
        text = before + FIRST.replace(old, new) + b"more"
        found = template.read(text, len(before))
        assert found is not None
        assert facts(found) == facts(parse_any_request(text, len(before), RULES["stranger"]))


@pytest.mark.parametrize("name", [b"traceparent: ", b"Traceparent: ", b"tracestate: a\r\ntraceparent: "])
@pytest.mark.parametrize("dropped", [(), (b"origin",)])
def test_a_trace_is_taken_out_at_its_place_as_by_a_search(name: bytes, dropped: tuple[bytes, ...]) -> None:
    first = FIRST.replace(b"traceparent: ", name)
    head = parse_request(first, 0, RULES["stranger"])
    assert type(head) is RequestHead
    template = Templates().learn(first, 0, head)
    assert template is not None
    found, general = template.read(first, 0), parse_any_request(first, 0, RULES["stranger"])
    assert type(found) is type(general) is RequestHead
    for each in (found, general):
        each.drop(*dropped)
        each.take_trace()
    assert found._block == general._block
    assert TRACE not in found._block
    assert found.traced == UNSAMPLED


@pytest.mark.parametrize("name", [b"traceparent: ", b"Traceparent: ", b"tracestate: a\r\ntraceparent: "])
def test_another_parent_is_written_at_its_place_and_a_copy_has_no_trace(name: bytes) -> None:
    first = FIRST.replace(b"traceparent: ", name)
    learnt = parse_request(first, 0, RULES["stranger"])
    assert type(learnt) is RequestHead
    template = Templates().learn(first, 0, learnt)
    assert template is not None
    found, removed = template.read(first, 0), template.read(first, 0)
    assert type(found) is type(removed) is RequestHead
    received, parent = found._block, b"fedcba9876543210-03"
    assert found.renew_parent(parent)
    assert found._block == received.replace(TRACE, TRACE[:36] + parent)
    assert found.traced == SAMPLED, "the gateway adds no field of its own"
    removed.take_trace()
    assert (found.without_trace()._block, found._block) == (removed._block, received.replace(TRACE[36:], parent))


def test_where_no_place_is_known_the_trace_is_removed_in_place_of_another_parent() -> None:
    for data in (FIRST, FIRST.replace(b"traceparent", b"x-trace-value")):
        head, removed = (parse_any_request(data, 0, RULES["stranger"]) for _ in range(2))
        assert type(head) is type(removed) is RequestHead
        removed.take_trace()
        assert not head.renew_parent(b"fedcba9876543210-03")
        assert (head._block, head.traced) == (removed._block, UNSAMPLED)


def test_a_value_is_found_at_its_place_the_first_of_two_and_without_the_blanks_around_it() -> None:
    first = FIRST.replace(b"\r\n\r\n", b"\r\nX-Two: 1111\r\nx-two: 2222\r\n\r\n")
    head = parse_request(first, 0, RULES["stranger"])
    assert type(head) is RequestHead
    template = Templates().learn(first, 0, head)
    assert template is not None
    for before in (b"", b"x" * 9):
        text = before + first.replace(b"1111", b"  a ").replace(b"0123456789", b"     7    ")
        found, general = template.read(text, len(before)), parse_any_request(text, len(before), RULES["stranger"])
        assert found is not None
        assert type(general) is RequestHead
        for name in (b"x-two", b"x-request-id", b"host", b"origin", b"x-none", b"prefer", b"tidegate-tag"):
            assert found.get(name) == general.get(name), name
        assert (found.get(b"x-two"), found.get(b"x-request-id")) == (b"a", b"7")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"a.b:80", b"c.b:80"),
        (b"POST", b"PUTS"),
        (b"/infer", b"/inf#r"),
        (b"bench", b"kuber"),
        (b"Length: 12", b"Length: +2"),
        (TRACE, b"0" * len(TRACE)),
        (TRACE, b"01" + TRACE[2:]),
        (TRACE, TRACE[:3] + b"0" * 32 + TRACE[35:]),
        (TRACE, TRACE[:36] + b"0" * 16 + TRACE[52:]),
        (TRACE, TRACE[:10] + b"-" + TRACE[11:]),
        (TRACE, TRACE[:35] + b"a" + TRACE[36:]),
        (TRACE, TRACE[:20] + b"A" + TRACE[21:]),
        (TRACE, TRACE[:-1] + b"g"),
        (b"*/*", b"*\t*"),
        (b"*/*", b"*\r\n"),
        (b"Accept", b"Expect"),
        (b"\r\n\r\n", b"\r\nX:"),
    ],
)
def test_anything_else_is_not(old: bytes, new: bytes) -> None:
    head = parse_request(FIRST, 0, RULES["stranger"])
    assert type(head) is RequestHead
    template = Templates().learn(FIRST, 0, head)
    assert template is not None
    assert template.read(FIRST.replace(old, new), 0) is None
    assert template.read(FIRST[:-1], 0) is None, "not whole"


def test_a_connection_learns_from_two_heads_of_one_size_and_connections_share_it() -> None:
    shared = Templates()
    engines = [H1Server(RULES["stranger"], 1 << 20, shared) for _ in range(3)]
    for engine in engines:
        for number in range(5):
            head = engine.receive(FIRST.replace(b"0123456789", b"%010d" % number) + b"x" * 12)
            assert type(head) is RequestHead
            assert head.get(b"x-request-id") == b"%010d" % number
            assert engine.body == b"x" * 12
            engine.next()
    assert len({id(engine._template) for engine in engines}) == 1
    assert engines[0]._template is not None


def test_a_connection_whose_heads_all_differ_stops_learning() -> None:
    engine = H1Server(RULES["stranger"], 1 << 20)
    for number in range(50):
        assert type(engine.receive(b"GET /%02d HTTP/1.1\r\nHost: a\r\n\r\n" % number)) is RequestHead
        engine.next()
    assert engine._lessons == 0


@pytest.mark.parametrize(
    ("name", "malformed"),
    [
        (b"tidegate-token: ", b" "),
        (b"tidegate-timeout-ms: ", b"x"),
        (b"tidegate-batch-size: ", b"x"),
        (b"tidegate-credit: ", b"x"),
        (b"tidegate-want: ", b"x"),
    ],
)
def test_one_malformed_field_of_a_gateway_is_enough_to_differ(name: bytes, malformed: bytes) -> None:
    head = parse_request(GATEWAYS, 0, RULES["gateway at a replica"])
    assert type(head) is RequestHead
    template = Templates().learn(GATEWAYS, 0, head)
    assert template is not None
    assert template.read(GATEWAYS, 0) is not None
    at = GATEWAYS.index(name) + len(name)
    assert template.read(GATEWAYS[:at] + malformed + GATEWAYS[at + 1 :], 0) is None


def test_templates_are_forgotten_when_there_are_more_than_256_of_them() -> None:
    templates = Templates()
    for number in range(257):
        text = b"GET /%03d HTTP/1.1\r\nHost: a\r\n\r\n" % number
        head = parse_request(text, 0, RULES["stranger"])
        assert type(head) is RequestHead
        assert templates.learn(text, 0, head) is not None
        assert repr(templates) == f"<Templates: {number + 1 if number < 256 else 1}>"
