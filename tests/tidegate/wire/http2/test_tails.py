"""Blocks read in two parts have the same fields as blocks read as a whole, for any writer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.wire.http2.block_memory import REQUEST, Block, Blocks
from tidegate.wire.http2.header_blocks import LIST_BYTES, Reader
from tidegate.wire.http2.heads import CallHead, call_head, literals, request_drops
from tidegate.wire.http2.hpack import CompressionFault, literal, literal_name
from tidegate.wire.http2.tails import EXPECTATION, call_tail, read_call_tail

CALL = (
    literal(b":method", b"POST")
    + literal(b":scheme", b"http")
    + literal(b":path", b"/inference.GRPCInferenceService/ModelInfer")
    + literal(b":authority", b"m.localhost")
    + literal(b"content-type", b"application/grpc")
)
TRACE = literal(b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
LINES = (
    b"tidegate-token: secret\r\ntidegate-timeout-ms: 3000\r\ntidegate-batch-size: 8\r\ntidegate-credit: 1809307\r\n"
    b"tidegate-want: 7 1 5 1 0 30 1 0\r\nx-request-id: 5f1d\r\n"
)
TAIL = TRACE + literals(LINES) + literal(b"grpc-timeout", b"2999m") + EXPECTATION
TIMING = literal(b"tidegate-timing", b"queue=0.000,model=1.234")
ASKED = (
    *("authority", "content_length", "expect_continue", "has_timeout", "host", "internal", "is_inference", "is_usual"),
    *("method", "names_host", "names_proto", "outgoing", "path", "plain", "timeout_s", "traced"),
)
EMPTIED = b"\x20"
"""A table of size 0."""

pieces = st.sampled_from(
    (
        *(
            literal(b"x-a", b"1"),
            literal(b"x-a", TAIL[:90]),
            literal(b"x-bin", b"a" * 126),
            literal(b"x-b", b"b" * 300),
        ),
        *(literal(b"x-request-id", b"mine"), literal(b"tidegate-token", b"secret"), literal(b"tidegate-credit", b"5")),
        *(literal(b"traceparent", b"nonsense"), TRACE, literal(b"grpc-timeout", b"1S"), literal(b"te", b"trailers")),
        *(TAIL, literals(LINES), TIMING, TIMING + literal(b"tidegate-credit", b"keep"), EXPECTATION),
        *(literal(b"tidegate-credit", b"home"), literal(b"content-length", b"3"), literal(b":path", b"/"), b"\xbe"),
        *(b"\0\x0bx-short-one\x05abc", b"\0\x0etidegate-token", b"\x40\x03x-i\x01v"),
    )
)
blocks = st.lists(pieces, max_size=6).map(b"".join)


@st.composite
def spoilt(draw: st.DrawFn, front: bytes, tail: bytes) -> bytes:
    """Returns ``front`` and ``tail`` with bytes between them, and perhaps one byte of the result changed."""
    block = bytearray(front + draw(blocks) + tail)
    if draw(st.booleans()):
        block[draw(st.integers(0, len(block) - 1))] = draw(st.sampled_from((0, 1, 5, 10, 0x20, 0x3F, 0x7F, 0x82, 255)))
    return bytes(block)


def outcome(reader: Reader, block: bytes) -> Block | str:
    try:
        return reader.read(block)
    except CompressionFault as fault:
        return str(fault)


def pairs(block: Block) -> list[tuple[bytes, bytes]]:
    return [field[:2] for field in block.fields] + list((block.tail or {}).items())


def two() -> tuple[Reader, Reader]:
    """Returns a reader in two parts, and one of whole blocks; both after the peer has given up its table."""
    drops = request_drops(front_door=False, trusted=True)
    readers = Reader(Blocks(REQUEST, drops, read_call_tail)), Reader(Blocks(REQUEST, drops))
    for reader in readers:
        reader.read(EMPTIED + CALL)
    return readers


def same(one: Block | str, other: Block | str) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        assert one == other
        return False
    assert (one.fault, one.is_large) == (other.fault, other.is_large)
    if one.fault or one.is_large:
        return False
    assert pairs(one) == pairs(other)
    assert one.values() == other.values()
    for name in ("outgoing", "status", "grpc_status", "content_length", "is_call", "path", "authority", "host"):
        assert getattr(one, name) == getattr(other, name), name
    return True


@given(st.lists(spoilt(CALL, TAIL) | spoilt(CALL, literals(LINES)), min_size=1, max_size=4))
def test_calls_mean_the_same_in_two_parts_as_in_one(calls: list[bytes]) -> None:
    ours, plain = two()
    for block in calls * 3:
        one, other = outcome(ours, block), outcome(plain, block)
        if not same(one, other) or isinstance(one, str) or isinstance(other, str) or not one.is_call:
            continue
        head = call_head(one, front_door=False, trusted=True)
        expected = CallHead(other, front_door=False, trusted=True)
        for asked in ASKED:
            assert getattr(head, asked) == getattr(expected, asked), asked
        for name, _ in pairs(other):
            assert head.get(name) == expected.get(name)
        assert head.received_fields() == expected.received_fields()
        assert head.mentions(b"\ntidegate-token:s") == expected.mentions(b"\ntidegate-token:s")


def test_what_a_gateway_writes_is_read_in_two_parts() -> None:
    reader, _ = two()
    found = reader.read(CALL + TAIL)
    assert found.tail is not None and found.base is not None and found.base.outgoing == CALL
    head = call_head(found, front_door=False, trusted=False)
    assert head.internal == (b"secret", b"3000", b"8", b"1809307", b"7 1 5 1 0 30 1 0")
    kept = (b"tidegate-timeout-ms", b"3000"), (b"tidegate-batch-size", b"8"), (b"x-request-id", b"5f1d")
    assert head.outgoing == CALL + TRACE + b"".join(literal(*field) for field in kept)
    assert (head.traced, head.has_timeout, head.expect_continue) == (True, True, True)


@given(
    st.integers(1, 10**12 - 1), st.integers(1, 10**9 - 1), st.integers(0, 10**18 - 1), st.sampled_from(("", "a" * 126))
)
def test_a_gateways_lines_become_the_same_literals(ms: int, batch: int, credit: int, request_id: str) -> None:
    lines = b"tidegate-token: t\r\ntidegate-timeout-ms: %d\r\ntidegate-batch-size: %d\r\n" % (ms, batch)
    fields = literal(b"tidegate-token", b"t") + literal(b"tidegate-timeout-ms", b"%d" % ms)
    fields += literal(b"tidegate-batch-size", b"%d" % batch)
    if credit:
        lines += b"tidegate-credit: %d\r\n" % credit
        fields += literal(b"tidegate-credit", b"%d" % credit)
    if request_id:
        lines += b"x-request-id: %b\r\n" % request_id.encode()
        fields += literal(b"x-request-id", request_id.encode())
    assert literals(lines) == call_tail(lines) == fields


def test_other_lines_are_not_a_tail() -> None:
    assert call_tail(LINES + b"tidegate-shadow: true\r\n") is None
    assert literals(LINES + b"tidegate-shadow: true\r\n") == literals(LINES) + literal(b"tidegate-shadow", b"true")
    assert call_tail(LINES.replace(b"secret", b"s" * 127)) is None


@pytest.mark.parametrize("first", [b"", EMPTIED])
def test_a_list_that_the_front_door_lets_pass_is_taken_with_what_it_adds(first: bytes) -> None:
    """Also if it is the first on its connection, and is read as a whole."""
    front = CALL + literal(b"x-long", b"v" * (LIST_BYTES - _listed(CALL) - 38))
    forwarded = literal(b"x-forwarded-for", b"10.0.0.1") + literal(b"x-forwarded-host", b"h" * 255)

    def read(block: bytes) -> Block:
        return (Reader(Blocks(REQUEST, read_tail=read_call_tail)) if first else two()[0]).read(first + block)

    assert not read(front).is_large
    assert read(front + forwarded).is_large, "no proxy of this deployment sent it"
    found = read(front + forwarded + TAIL)
    assert not found.is_large and found.get(b"tidegate-token") == b"secret"
    assert read(front + literal(b"x-more", b"v" * 1600) + TAIL).is_large, "what we add has a bound, too"


def _listed(block: bytes) -> int:
    """Returns the share of a block in the limit."""
    return Reader(Blocks(REQUEST)).read(block).size


def test_only_calls_are_read_in_two_parts() -> None:
    """Gateways send nothing else over HTTP/2: in a foreign request such fields are fields like all others."""
    rest = CALL.replace(literal(b"content-type", b"application/grpc"), literal(b"content-type", b"application/json"))
    ours, plain = two()
    found = ours.read(rest + TAIL)
    assert found.tail is None and same(found, plain.read(rest + TAIL))
    assert dict(pairs(found))[b"traceparent"] == found.get(b"traceparent")


def test_tails_behind_each_other_are_not_taken_apart_one_by_one() -> None:
    reader, plain = two()
    block = CALL + literals(LINES) * 40
    assert same(reader.read(block), plain.read(block))
    assert reader.read(block).tail is None


def test_a_block_that_may_write_into_the_table_is_read_once() -> None:
    reader = Reader(Blocks(REQUEST, read_tail=read_call_tail))
    assert reader.read(CALL + b"\x40\x03x-i\x01v" + literals(LINES)).tail is None
    assert reader.read(CALL + b"\xbe").get(b"x-i") == b"v"


VALUES = (
    (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", True),
    (b"tidegate-token", b"secret", False),
    (b"tidegate-timeout-ms", b"3000", True),
    (b"tidegate-batch-size", b"8", True),
    (b"tidegate-credit", b"1809307", False),
    (b"tidegate-want", b"7 1 5", False),
    (b"x-request-id", b"5f1d", True),
    (b"grpc-timeout", b"2999m", False),
    (b"expect", b"100-continue", False),
)
ALWAYS = {b"tidegate-token", b"tidegate-timeout-ms", b"tidegate-batch-size"}


@pytest.mark.parametrize("front", [b"", b"x", CALL])
@pytest.mark.parametrize("present", range(64))
def test_each_field_of_a_tail_may_be_there_or_not(present: int, front: bytes) -> None:
    optional = [name for name, _, _ in VALUES if name not in ALWAYS]
    there = ALWAYS | {name for bit, name in enumerate(optional) if present >> bit & 1}
    fields = [(name, value, is_sent_on) for name, value, is_sent_on in VALUES if name in there]
    found = read_call_tail(front + b"".join(literal(name, value) for name, value, _ in fields))
    assert found is not None
    assert found.start == len(front)
    assert list(found.fields.items()) == [(name, value) for name, value, _ in fields]
    assert found.outgoing == b"".join(literal(name, value) for name, value, is_sent_on in fields if is_sent_on)
    ours = [(name, value) for name, value, _ in fields if name.startswith(b"tidegate-") or name == b"x-request-id"]
    lines = b"".join(b"%b: %b\r\n" % field for field in ours)
    assert call_tail(lines) == b"".join(literal(*field) for field in ours)


@pytest.mark.parametrize("name", [name for name, _, _ in VALUES if name not in (b"traceparent", b"expect")])
@pytest.mark.parametrize("change", [-1, 1, 100])
def test_a_tail_has_the_lengths_that_it_states(name: bytes, change: int) -> None:
    block = bytearray(b"".join(literal(each, value) for each, value, _ in VALUES))
    assert read_call_tail(bytes(block)) is not None
    block[block.index(literal_name(name)) + len(literal_name(name))] += change
    assert read_call_tail(bytes(block)) is None


def test_a_tail_is_at_the_end_and_whole() -> None:
    block = CALL + literals(LINES)
    assert read_call_tail(block) is not None
    assert read_call_tail(block + b"x") is None
    assert read_call_tail(block[:-1]) is None
    assert read_call_tail(CALL) is None
    found = read_call_tail(CALL + TRACE[1:] + literals(LINES))
    assert found is not None and (found.start, b"traceparent" in found.fields) == (len(CALL + TRACE) - 1, False)


@pytest.mark.parametrize(
    ("name", "most", "letter"),
    [
        (b"tidegate-token", 126, b"t"),
        (b"tidegate-timeout-ms", 12, b"1"),
        (b"tidegate-batch-size", 9, b"1"),
        (b"tidegate-credit", 18, b"1"),
        (b"tidegate-want", 126, b"1"),
        (b"x-request-id", 126, b"r"),
        (b"grpc-timeout", 9, b"1"),
    ],
)
def test_a_value_of_a_tail_has_its_length_at_most(name: bytes, most: int, letter: bytes) -> None:
    for size in (0, 1, 2, most - 1, most, most + 1):
        value = letter * (size - 1) + b"S" if name == b"grpc-timeout" and size else letter * size
        fields = [(each, value if each == name else other) for each, other, _ in VALUES]
        found = read_call_tail(b"".join(literal(*field) for field in fields))
        least = 2 if name in (b"grpc-timeout", b"tidegate-want") else 1
        assert (found is not None) == (least <= size <= most), size
        assert found is None or found.fields[name] == value
