"""Heads of calls: their properties do not depend on how a block was read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate import headers
from tidegate.wire.http2.block_memory import REQUEST, RESPONSE, Block, Blocks
from tidegate.wire.http2.header_blocks import Reader
from tidegate.wire.http2.heads import CallHead, answer_head, call_head, literals, request_drops, with_path, without
from tidegate.wire.http2.hpack import literal

CALL = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/inference.GRPCInferenceService/ModelInfer"),
    (b":authority", b"M.localhost:8080"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)
TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
FIELDS = st.lists(
    st.sampled_from(
        (
            (b"traceparent", TRACE),
            (b"traceparent", b"nonsense"),
            (b"grpc-timeout", b"10S"),
            (b"grpc-timeout", b"soon"),
            (b"x-request-id", b"r"),
            (b"x-forwarded-for", b"1.2.3.4"),
            (b"x-forwarded-host", b"a"),
            (b"tidegate-timeout-ms", b"100"),
            (b"tidegate-token", b"t"),
            (b"expect", b"100-continue"),
            (b"content-type", b"text/plain"),
        )
    ),
    max_size=4,
)
ASKED = (
    "authority",
    "content_length",
    "expect_continue",
    "has_timeout",
    "host",
    "internal",
    "is_inference",
    "is_usual",
    "method",
    "names_host",
    "names_proto",
    "outgoing",
    "path",
    "plain",
    "target",
    "timeout_s",
    "traced",
)


def written(*fields: tuple[bytes, bytes]) -> bytes:
    return b"".join(literal(*field) for field in (*CALL, *fields))


def read(*fields: tuple[bytes, bytes]) -> Block:
    return Reader(Blocks(REQUEST)).read(written(*fields))


@given(st.lists(FIELDS, min_size=1, max_size=6), st.booleans(), st.booleans())
def test_heads_made_from_their_beginning_are_as_those_made_alone(
    calls: list[list[tuple[bytes, bytes]]], front_door: bool, trusted: bool
) -> None:
    drops = request_drops(front_door=front_door, trusted=trusted)
    reader = Reader(Blocks(REQUEST, drops))
    for number, fields in enumerate(calls * 4):
        block = written(*fields, (b"x-number", b"%d" % number))
        ours = reader.read(block)
        fresh = Reader(Blocks(REQUEST, drops)).read(block)
        assert (ours.fault == "", ours.is_call) == (fresh.fault == "", fresh.is_call)
        if ours.fault or not ours.is_call:
            continue
        one = call_head(ours, front_door=front_door, trusted=trusted)
        other = CallHead(fresh, front_door=front_door, trusted=trusted)
        for asked in ASKED:
            assert getattr(one, asked) == getattr(other, asked), asked
        for name, _ in fields:
            assert one.get(name) == other.get(name)
            assert one.mentions(b"\n" + name) == other.mentions(b"\n" + name)


def test_what_a_head_mentions_and_tells() -> None:
    head = CallHead(read((b"X-A".lower(), b"One"), (b"x-a", b"two")), front_door=True, trusted=False)
    assert head.get(b"x-a") == b"One"
    assert head.mentions(b"\nx-a:one")
    assert head.received_fields().endswith(b"x-a: One\r\nx-a: two\r\n")
    assert head.path == head.target == b"/inference.GRPCInferenceService/ModelInfer"
    assert (head.host, head.authority, head.is_inference) == (b"m.localhost", b"m.localhost:8080", True)


def test_a_head_that_is_the_whole_answer_counts_by_its_grpc_status() -> None:
    block = Reader(Blocks(RESPONSE)).read(literal(b":status", b"200") + literal(b"grpc-status", b"14"))
    for ends, status in ((False, 200), (True, 503), (False, 200)):
        head = answer_head(block, ends)
        assert head.status == status
        assert answer_head(block, ends) is head, "equal blocks share it"


def test_fields_are_taken_out_and_a_path_is_put_in() -> None:
    block = written((b"x-a", b"1"), (b"x-b", b"2"))
    assert without(block, REQUEST, (b"x-a",)) == written((b"x-b", b"2"))
    other = Reader(Blocks(REQUEST)).read(with_path(block, b"/a.B/C"))
    assert (other.path, other.authority, other.fault) == (b"/a.B/C", b"m.localhost:8080", "")


def test_lines_become_literals_of_any_length() -> None:
    long = b"v" * 300
    block = literals(b"x-a: 1\r\nx-long: %b\r\n" % long)
    fields = Reader(Blocks(REQUEST)).read(block, is_trailer=True).fields
    assert [field[:2] for field in fields] == [(b"x-a", b"1"), (b"x-long", long)]
    assert literals(b"") == b""


def test_a_head_mentions_names_by_themselves_and_text_anywhere() -> None:
    head = CallHead(read((b"x-a", b"One"), (b"x-bc", b"Two")), front_door=True, trusted=False)
    found = {text: head.mentions(text) for text in (b"\nx-a:", b"\nx-bc:", b"\nx-b:", b"\nx-:", b"\nx-bcd:", b"\n:")}
    assert found == {
        b"\nx-a:": True,
        b"\nx-bc:": True,
        b"\nx-b:": False,
        b"\nx-:": False,
        b"\nx-bcd:": False,
        b"\n:": False,
    }
    assert [head.mentions(text) for text in (b"\nx-b", b"a:one", b"c:two", b"one\nx-bc:", b"two\nx-a:", b"x-a:")] == [
        True, True, True, True, False, True
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "digits"), [(b"timeout-ms", 12), (b"batch-size", 9), (b"credit", 18)])
def test_the_numbers_of_a_gateway_have_a_length_and_nothing_but_digits(name: bytes, digits: int) -> None:
    def internal(value: bytes) -> object:
        sent = {b"token": b"t", b"timeout-ms": b"5", b"batch-size": b"1", b"credit": b"7"} | {name: value}
        block = read(*((b"tidegate-" + each, stated) for each, stated in sent.items()))
        return CallHead(block, front_door=False, trusted=True).internal

    for right in (b"0", b"1" * (digits - 1), b"9" * digits):
        found = internal(right)
        assert isinstance(found, tuple) and right in found and b"t" in found
    for wrong in (b"", b"x", b"-1", b"1" * (digits + 1)):
        assert internal(wrong) is None
    assert CallHead(read(), front_door=False, trusted=True).internal is None


@pytest.mark.parametrize("missing", [b"token", b"timeout-ms", b"batch-size"])
def test_a_gateways_fields_are_all_there_or_none_counts(missing: bytes) -> None:
    sent = [(b"tidegate-" + name, b"5") for name in (b"token", b"timeout-ms", b"batch-size") if name != missing]
    assert CallHead(read(*sent), front_door=False, trusted=True).internal is None
    whole = read(*sent, (b"tidegate-" + missing, b"5"))
    assert CallHead(whole, front_door=False, trusted=True).internal == (b"5", b"5", b"5", None, None)
    assert CallHead(whole, front_door=True, trusted=True).internal is None


@pytest.mark.parametrize(
    ("stated", "outcome", "ends", "status"),
    [
        (b"429", b"o", True, 429),
        (b"429", b"o", False, 200),
        (b"429", None, True, 503),
        (None, b"o", True, 503),
        (b"42", b"o", True, 503),
        (b"4290", b"o", True, 503),
        (b"x29", b"o", True, 503),
    ],
)
def test_the_stated_status_of_an_answer_counts_if_it_is_one(
    stated: bytes | None, outcome: bytes | None, ends: bool, status: int
) -> None:
    block = literal(b":status", b"200") + literal(b"grpc-status", b"14")
    for name, value in ((headers.STATUS, stated), (headers.OUTCOME, outcome)):
        if value is not None:
            block += literal(name, value)
    assert answer_head(Reader(Blocks(RESPONSE)).read(block), ends).status == status


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 128, 300])
def test_a_line_of_any_length_is_one_literal(size: int) -> None:
    assert literals(b"x-a: %b\r\nx-b: 1\r\nnothing\r\n" % (b"v" * size)) == literal(b"x-a", b"v" * size) + literal(
        b"x-b", b"1"
    )


def test_a_trace_is_taken_out_also_where_another_parent_is_to_be_named() -> None:
    for take in (CallHead.take_trace, lambda head: head.renew_parent(b"00f067aa0ba902b7-01")):
        head = CallHead(read((b"traceparent", TRACE)), front_door=True, trusted=False)
        assert (head.traced, head.is_changed) == (True, False)
        assert not take(head)
        assert (head.traced, head.is_changed) == (True, True)
        assert head.outgoing == written()


def test_a_copy_without_the_trace_leaves_the_head_to_other_calls() -> None:
    head = CallHead(read((b"traceparent", TRACE)), front_door=True, trusted=False)
    copied = head.without_trace()
    assert (copied.traced, copied.outgoing, copied.target) == (True, written(), head.target)
    assert not head.is_changed and head.outgoing == written((b"traceparent", TRACE))


def test_a_query_is_no_part_of_the_path() -> None:
    block = Reader(Blocks(REQUEST)).read(with_path(written(), b"/a.B/C?x=1?y"))
    head = CallHead(block, front_door=True, trusted=False)
    assert (head.target, head.path, head.is_inference) == (b"/a.B/C?x=1?y", b"/a.B/C", False)


def test_what_is_between_tidegates_processes_is_hidden_at_the_front_door() -> None:
    kept = sorted(headers.KEPT_FROM_CLIENTS)
    sent = [(name, b"1") for name in (*kept, b"tidegate-token", b"tidegate-credit", b"x-a")]
    for base in ((), ((b"x-a", b"0"),)):
        block = read(*base, *sent)
        outside = CallHead(block, front_door=True, trusted=False)
        inside = CallHead(block, front_door=False, trusted=False)
        assert [name for name, _ in sent if outside.get(name) is not None] == [*kept, b"x-a"]
        assert [name for name, _ in sent if inside.get(name) is not None] == [name for name, _ in sent]
        assert outside.control(b"x-a") == (b"0" if base else b"1")
        assert outside.control(b"x-none") is None


@pytest.mark.parametrize("front_door", [False, True])
@pytest.mark.parametrize("trusted", [False, True])
def test_a_field_is_dropped_by_where_it_comes_from(front_door: bool, trusted: bool) -> None:
    drops = request_drops(front_door=front_door, trusted=trusted)
    for name in (b"grpc-timeout", b"expect", b"tidegate-token", b"tidegate-credit"):
        assert drops(name)
    for name in (b"forwarded", b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"):
        assert drops(name) is not trusted
    for name in (headers.TIMEOUT_MS, headers.BATCH_SIZE, headers.SHADOW):
        assert drops(name) is front_door
    for name in (b"x-a", b"te", b"traceparent", b"x-forwarded-port"):
        assert not drops(name)


@pytest.mark.parametrize("trusted", [False, True])
def test_the_properties_of_a_head(trusted: bool) -> None:
    def head(*fields: tuple[bytes, bytes]) -> CallHead:
        return CallHead(read(*fields), front_door=False, trusted=trusted)

    bare = head()
    assert (bare.plain, bare.is_usual, bare.has_timeout, bare.timeout_s) == (True, True, False, None)
    assert (bare.names_host, bare.names_proto, bare.expect_continue, bare.traced) == (False, False, False, False)
    assert (bare.is_changed, bare.memo, bare.hides_internal) == (False, None, False)
    timed = head((b"grpc-timeout", b"10S"))
    assert (timed.plain, timed.is_usual, timed.has_timeout, timed.timeout_s) == (False, True, True, 10.0)
    wrong = head((b"grpc-timeout", b"soon"))
    assert (wrong.plain, wrong.is_usual, wrong.has_timeout, wrong.timeout_s) == (False, False, True, None)
    meant = head((b"grpc-timeout", b"10S"), (b"expect", b"100-continue"))
    assert (meant.plain, meant.is_usual, meant.timeout_s, meant.expect_continue) == (False, False, None, True)
    assert not head((b"expect", b"100")).expect_continue
    named = head((b"x-forwarded-host", b"a"))
    assert (named.names_host, named.names_proto) == (trusted, False)
    named = head((b"x-forwarded-proto", b"https"))
    assert (named.names_host, named.names_proto) == (False, trusted)
    for trace, is_traced in ((TRACE, True), (TRACE[:-1], False), (TRACE + b"0", False)):
        traced = head((b"traceparent", trace), (b"tracestate", b"a=b"))
        assert (traced.traced, traced.is_changed) == (is_traced, not is_traced)
        assert (traced.outgoing == written()) is not is_traced


def test_a_head_from_which_a_field_was_dropped_stands_for_no_other_answer() -> None:
    block = Reader(Blocks(RESPONSE)).read(literal(b":status", b"200") + literal(b"x-a", b"1") + literal(b"x-b", b"2"))
    head = answer_head(block, False)
    head.drop(b"x-c", b"x-d")
    assert answer_head(block, False) is head, "none of these was there"
    head.drop(b"x-c", b"x-a")
    assert head.outgoing == literal(b":status", b"200") + literal(b"x-b", b"2")
    other = answer_head(block, False)
    assert other is not head and other.outgoing == block.outgoing
    assert repr(other) == "<AnswerHead 200>"
