"""The cache of blocks: what occurs twice is kept, in bounded memory."""

import pytest

from tidegate.wire.http2.block_memory import LOOKED_AT, REQUEST, RESPONSE, Block, Blocks, Memory, fill, read_field
from tidegate.wire.http2.tails import Tail


def test_an_entry_is_kept_from_its_second_occurrence_on() -> None:
    memory: Memory[int] = Memory()
    memory.keep(b"a", 1)
    assert memory.known == {}
    memory.keep(b"a", 2)
    memory.keep(b"b", 3)
    assert memory.known == {b"a": 2}
    assert repr(memory) == "<Memory 1 kept>"


def test_a_thousand_and_some_entries_are_kept_and_then_none() -> None:
    memory: Memory[int] = Memory()
    for number in range(1024):
        for _ in range(2):
            memory.keep(b"%d" % number, number)
    assert len(memory.known) == 1024
    memory.keep(b"0", 0)
    assert len(memory.known) == 1, "one more begins again"


def test_unique_entries_evict_nothing_and_their_marks_are_bounded() -> None:
    memory: Memory[int] = Memory()
    for _ in range(2):
        memory.keep(b"kept", 1)
    for number in range(4095):
        memory.keep(b"%d" % number, number)
    assert len(memory._once) == 4096
    memory.keep(b"another", 1)
    assert len(memory._once) == 1
    for number in range(20_000):
        memory.keep(b"%d" % number, number)
        assert len(memory._once) <= 4096
    assert memory.known == {b"kept": 1}


def test_a_block_begins_without_anything() -> None:
    made = Block()
    assert (made.method, made.scheme, made.path, made.authority, made.host, made.outgoing) == (b"",) * 6
    assert (made.status, made.size, made.content_length, made.grpc_status) == (0, 0, None, None)
    assert (made.is_call, made.is_large, made.writes, made.fault) == (False, False, False, "")
    assert (made.fields, made.tail, made.memo, made.base, made.first, made.own) == ([], None, None, None, None, {})
    assert repr(made) == "<Block trailers, 0 fields>"


def block(kind: int | None, *fields: tuple[bytes, bytes]) -> Block:
    blocks, made = Blocks(REQUEST), Block()
    made.fault = fill(made, [read_field(blocks.name(name), value, b"r") for name, value in fields], kind)
    return made


GET = ((b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/a"), (b":authority", b"H:80"))


@pytest.mark.parametrize(
    ("value", "length"),
    [(b"0", 0), (b"007", 7), (b"9" * 18, 10**18 - 1), (b"1" * 19, None), (b"", None), (b"-1", None), (b"1,1", None)],
)
def test_a_length_has_18_digits_at_most(value: bytes, length: int | None) -> None:
    for made in (block(REQUEST, *GET, (b"content-length", value)), block(RESPONSE, OK, (b"content-length", value))):
        assert (made.content_length, made.fault == "") == (length, length is not None)


@pytest.mark.parametrize(
    ("value", "status"),
    [(b"0", 0), (b"16", 16), (b"999", 999), (b"0001", None), (b"1000", None), (b"", None), (b"-1", None)],
)
def test_a_grpc_status_has_three_digits_at_most(value: bytes, status: int | None) -> None:
    for made in (block(None, (b"grpc-status", value)), block(RESPONSE, OK, (b"grpc-status", value))):
        assert (made.grpc_status, made.fault) == (status, "")


OK = (b":status", b"200")


@pytest.mark.parametrize(
    ("status", "is_legal"),
    [(b"099", False), (b"100", True), (b"101", False), (b"102", True), (b"599", True), (b"600", False)],
)
def test_a_status_is_between_100_and_599_and_switches_no_protocol(status: bytes, is_legal: bool) -> None:
    made = block(RESPONSE, (b":status", status))
    assert (made.fault == "", made.status) == (is_legal, int(status) if is_legal else 0)


@pytest.mark.parametrize(
    ("fields", "is_legal"),
    [
        (GET, True),
        (((b":method", b"G"), *GET[1:]), True),
        (((b":method", b""), *GET[1:]), False),
        ((GET[0], (b":scheme", b"h" * 32), *GET[2:]), True),
        ((GET[0], (b":scheme", b"h" * 33), *GET[2:]), False),
        ((GET[0], (b":scheme", b"1h"), *GET[2:]), False),
        ((*GET[:2], (b":path", b"*"), GET[3]), False),
        (((b":method", b"OPTIONS"), GET[1], (b":path", b"*"), GET[3]), True),
        (((b":method", b"OPTIONS"), GET[1], (b":path", b"a"), GET[3]), False),
        ((*GET, (b"host", b"h:80")), True),
        ((*GET, (b"host", b"h")), False),
        ((*GET[:3], (b"host", b"h")), True),
        (GET[:3], False),
        ((*GET, GET[0]), False),
        ((*GET[:3], (b"x", b"y"), GET[3]), False),
        ((*GET, (b"x", b"1"), (b"x", b"2")), True),
        ((*GET, (b"host", b"h:80"), (b"host", b"h:80")), False),
    ],
)
def test_a_request_is_what_its_pseudo_headers_make_of_it(
    fields: tuple[tuple[bytes, bytes], ...], is_legal: bool
) -> None:
    made = block(REQUEST, *fields)
    assert (made.fault == "") == is_legal
    if is_legal:
        assert made.host == b"h" and made.authority in (b"h", b"h:80")
        assert made.values() == dict(reversed([field for field in fields if not field[0].startswith(b":")]))


@pytest.mark.parametrize(
    ("method", "content_type", "is_call"),
    [
        (b"POST", b"application/grpc", True),
        (b"POST", b"application/grpc+proto", True),
        (b"POST", b"application/grpcx", False),
        (b"POST", b"application/json", False),
        (b"POST", None, False),
        (b"GET", b"application/grpc", False),
    ],
)
def test_a_call_is_a_post_of_grpc(method: bytes, content_type: bytes | None, is_call: bool) -> None:
    more = () if content_type is None else ((b"content-type", content_type),)
    assert block(REQUEST, (b":method", method), *GET[1:], *more).is_call == is_call


def test_more_fields_stand_behind_those_of_the_beginning() -> None:
    blocks = Blocks(REQUEST)
    begun = block(REQUEST, *GET, (b"x-a", b"1"), (b"te", b"trailers"))

    def more(*fields: tuple[bytes, bytes]) -> Block | None:
        return begun.with_more([read_field(blocks.name(name), value, b"r") for name, value in fields])

    made = more((b"x-a", b"2"), (b"x-b", b"3"), (b"x-b", b"4"))
    assert made is not None
    assert (made.get(b"x-a"), made.get(b"x-b"), made.get(b"x-c")) == (b"1", b"3", None)
    assert made.values() == {b"x-a": b"1", b"te": b"trailers", b"x-b": b"3"}
    assert (made.base, made.first, made.own) == (begun, begun.own, {b"x-b": b"3"})
    assert (made.method, made.scheme, made.path, made.authority, made.host) == (b"GET", b"http", b"/a", b"h:80", b"h")
    found = {name: made.lacks(frozenset({name, b"x-z"})) for name in (b"x-a", b"x-b", b"x-c")}
    assert found == {b"x-a": False, b"x-b": False, b"x-c": True}
    assert (begun.lacks(frozenset({b"x-a"})), begun.lacks(frozenset({b"x-b"}))) == (False, True)
    for name in LOOKED_AT:
        assert more((b"x-b", b"1"), (name, b"1")) is None
    for name, value in ((b"X", b"1"), (b"x-b", b" 1"), (b"connection", b"close"), (b":path", b"/")):
        assert more((name, value)) is None
    begun.fault = "a fault"
    assert more((b"x-b", b"1")) is None


@pytest.mark.parametrize(("inside", "is_joined"), [(b"x-a", False), (b"x-b", False), (b"x-c", True)])
def test_a_tail_joins_what_has_none_of_its_fields(inside: bytes, is_joined: bool) -> None:
    tail = Tail(5, {inside: b"t"}, b"out")
    begun = block(REQUEST, *GET, (b"x-a", b"1"))
    whole = begun.with_more([read_field(Blocks(REQUEST).name(b"x-b"), b"2", b"r")])
    assert whole is not None
    made = whole.with_tail(tail)
    assert (made is not None) == is_joined
    if made is not None:
        assert made.values() == {b"x-a": b"1", b"x-b": b"2", b"x-c": b"t"}
        assert (made.base, made.tail, made.outgoing) == (whole, tail.fields, whole.outgoing + b"out")
    alone = begun.with_tail(tail)
    assert (alone is not None) == (inside != b"x-a")
    begun.is_large = True
    assert begun.with_tail(tail) is None


def test_blocks_show_what_they_are() -> None:
    assert repr(block(REQUEST, *GET, (b"x", b"y"))) == "<Block GET b'/a', 1 fields>"
    assert repr(block(RESPONSE, OK)) == "<Block 200, 0 fields>"
    assert repr(block(RESPONSE)) == "<Block a malformed status, 0 fields>"
    assert repr(Blocks(REQUEST)) == "<Blocks 0 heads, 0 trailers>"
