"""Header blocks: malformed ones, cached ones, and their forwarded form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.wire.http2.block_memory import REQUEST, RESPONSE, Block, Blocks
from tidegate.wire.http2.header_blocks import LIST_BYTES, Reader
from tidegate.wire.http2.hpack import literal

Fields = list[tuple[bytes, bytes]]

PSEUDO: Fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a.B/C"), (b":authority", b"A.example:80")]
CALL: Fields = [*PSEUDO, (b"te", b"trailers"), (b"content-type", b"application/grpc")]


def written(fields: Fields) -> bytes:
    return b"".join(literal(name, value) for name, value in fields)


def read(fields: Fields, kind: int = REQUEST, *, is_trailer: bool = False) -> Block:
    return Reader(Blocks(kind)).read(written(fields), is_trailer=is_trailer)


def test_a_call() -> None:
    block = read([*CALL, (b"x-a", b"1"), (b"x-a", b"2")])
    assert (block.fault, block.method, block.path, block.authority) == ("", b"POST", b"/a.B/C", b"a.example:80")
    assert block.host == b"a.example"
    assert (block.get(b"te"), block.get(b"x-a"), block.get(b":path"), block.content_length) == (
        *(b"trailers", b"1", None, None),
    )
    assert block.outgoing == written([*CALL, (b"x-a", b"1"), (b"x-a", b"2")])


@pytest.mark.parametrize(
    "fields",
    [
        PSEUDO[1:],
        [PSEUDO[0], *PSEUDO[2:]],
        [*PSEUDO[:2], PSEUDO[3]],
        PSEUDO[:3],
        [*PSEUDO, (b":path", b"/b")],
        [*PSEUDO, (b":status", b"200")],
        [*PSEUDO, (b":protocol", b"websocket")],
        [*PSEUDO[:3], (b"x-a", b"1"), PSEUDO[3]],
        [*PSEUDO[:2], (b":path", b""), PSEUDO[3]],
        [*PSEUDO[:2], (b":path", b"a"), PSEUDO[3]],
        [*PSEUDO[:2], (b":path", b"*"), PSEUDO[3]],
        [*PSEUDO[:2], (b":path", b"/a b"), PSEUDO[3]],
        [*PSEUDO[:2], (b":path", b"/a\r\nx: y"), PSEUDO[3]],
        [(b":method", b"PO ST"), *PSEUDO[1:]],
        [PSEUDO[0], (b":scheme", b"HT TP"), *PSEUDO[2:]],
        [*PSEUDO[:3], (b":authority", b"a@b")],
        [*PSEUDO, (b"host", b"other")],
        [*PSEUDO[:3], (b"host", b"a"), (b"host", b"a")],
        [*PSEUDO, (b"X-A", b"1")],
        [*PSEUDO, (b"", b"1")],
        [*PSEUDO, (b"x a", b"1")],
        [*PSEUDO, (b"x-\xff", b"1")],
        [*PSEUDO, (b"x-a", b"1\n")],
        [*PSEUDO, (b"x-a", b"\0")],
        [*PSEUDO, (b"x-a", b"\x7f")],
        [*PSEUDO, (b"x-a", b" 1")],
        [*PSEUDO, (b"x-a", b"1\t")],
        [*PSEUDO, (b"connection", b"close")],
        [*PSEUDO, (b"transfer-encoding", b"chunked")],
        [*PSEUDO, (b"upgrade", b"h2c")],
        [*PSEUDO, (b"te", b"gzip")],
        [*PSEUDO, (b"content-length", b"+1")],
        [*PSEUDO, (b"content-length", b"1" * 19)],
        [*PSEUDO, (b"content-length", b"1"), (b"content-length", b"1")],
    ],
    ids=lambda fields: repr(fields[-1]),
)
def test_malformed_requests(fields: Fields) -> None:
    assert read(fields).fault
    # The same behind a beginning that is known already: an engine may not be more generous then.
    reader = Reader(Blocks(REQUEST))
    for number in range(6):
        reader.read(written([*CALL, (b"x-id", b"%d" % number)]))
    for number in range(6):
        assert reader.read(written([*fields, (b"x-id", b"%d" % number)])).fault


def test_requests_that_are_legal() -> None:
    assert not read([(b":method", b"OPTIONS"), PSEUDO[1], (b":path", b"*"), PSEUDO[3]]).fault
    assert read([*PSEUDO[:3], (b"host", b"b.example")]).authority == b"b.example"
    assert not read([*PSEUDO, (b"host", b"a.EXAMPLE:80")]).fault
    assert read([*PSEUDO, (b"x-empty", b""), (b"x-high", b"\xc3\xa9 e")]).get(b"x-high") == b"\xc3\xa9 e"


@pytest.mark.parametrize("status", [b"", b"20", b"600", b"101", b"2000", b"2x0"])
def test_malformed_answers(status: bytes) -> None:
    assert read([(b":status", status)], RESPONSE).fault


def test_answers_and_trailers() -> None:
    assert read([(b":status", b"204")], RESPONSE).status == 204
    assert read([(b"grpc-status", b"7"), (b"grpc-message", b"no")], is_trailer=True).grpc_status == 7
    assert read([(b"grpc-status", b"x")], is_trailer=True).grpc_status is None
    assert read([(b":status", b"200"), (b"grpc-status", b"5")], RESPONSE).grpc_status == 5, "an answer of trailers only"
    for fields in ([(b":path", b"/")], [(b"content-length", b"3")], [(b"host", b"a")], [(b"X", b"y")]):
        assert read(fields, is_trailer=True).fault


SPACED = [(b"x-a", b" \ta b "), (b"x-none", b" "), (b"x-b", b"1")]
TRIMMED = [(b"x-a", b"a b"), (b"x-none", b""), (b"x-b", b"1")]


@pytest.mark.parametrize("times", [1, 5])
def test_whitespace_around_the_values_of_a_call_is_taken_off(times: int) -> None:
    """Also if the same bytes, or such a beginning, occur again."""
    reader, answers = Reader(Blocks(REQUEST)), Reader(Blocks(RESPONSE))
    head, encoded = [(b":status", b"200")], [(b"grpc-message", b"%09%20no key:%20")]
    for number in range(times):
        more = [(b"x-number", b"%d" % number)]
        found = reader.read(written([*CALL, *SPACED, *more]))
        assert (found.fault, found.is_call, found.get(b"x-a")) == ("", True, b"a b")
        assert found.outgoing == written([*CALL, *TRIMMED, *more])
        found = answers.read(written([*head, *SPACED, *more]))
        assert (found.fault, found.outgoing) == ("", written([*head, *TRIMMED, *more]))
        message = [(b"grpc-message", b"\t no key: ")]
        found = answers.read(written([*message, *SPACED, *more]), is_trailer=True)
        assert (found.fault, found.outgoing) == ("", written([*encoded, *TRIMMED, *more]))


@pytest.mark.parametrize(
    ("fields", "kind", "is_trailer"),
    [
        ([(b"content-type", b"application/json"), (b"x-a", b"a ")], REQUEST, False),
        ([(b"content-type", b"application/grpc "), (b"x-a", b"a")], REQUEST, False),
        ([(b"content-type", b"application/grpc"), (b"te", b" trailers")], REQUEST, False),
        ([(b"content-type", b"application/grpc"), (b"content-length", b"3 "), (b"x-a", b"a ")], REQUEST, False),
        ([(b"content-type", b"application/grpc"), (b"x-a", b"a\r\n")], REQUEST, False),
        ([(b"content-type", b"application/grpc"), (b"X-A", b"a ")], REQUEST, False),
        ([(b"content-type", b"application/grpc"), (b"connection", b"close ")], REQUEST, False),
        ([(b"x-a", b"a ")], REQUEST, True),
        ([(b"grpc-status", b"5 ")], RESPONSE, True),
        ([(b"x-a", b"a\n ")], RESPONSE, True),
    ],
)
def test_and_nothing_else_is_mended(fields: list[tuple[bytes, bytes]], kind: int, is_trailer: bool) -> None:
    head = [] if is_trailer else CALL[:4]
    assert read([*head, *fields], kind, is_trailer=is_trailer).fault


def test_no_pseudo_header_is_trimmed() -> None:
    spaced = [(name, value + b" " * (name == b":path")) for name, value in CALL]
    assert read([*spaced, (b"x-a", b"a ")]).fault


def test_a_list_over_the_limit() -> None:
    room = LIST_BYTES - sum(len(name) + len(value) + 32 for name, value in CALL) - 33
    assert not read([*CALL, (b"a", b"x" * room)]).is_large
    assert read([*CALL, (b"a", b"x" * (room + 1))]).is_large


def test_what_is_over_the_limit_is_followed_and_not_collected() -> None:
    """A few bytes refer to a long field of the table, again and again."""
    reader = Reader(Blocks(REQUEST))
    assert not reader.read(b"\x40\x01a" + b"\x7f\xa1\x1e" + b"x" * 4000, is_trailer=True).fault
    assert len(reader._walk(b"\xbe" * 10_000, None).fields) == LIST_BYTES // 4033
    assert reader.read(b"\xbe" * 10_000, is_trailer=True).is_large


def test_how_heads_begin_says_nothing_of_trailers() -> None:
    reader = Reader(Blocks(REQUEST))
    for number in range(9):
        block = written([*CALL, (b"x-id", b"%d" % number)])
        assert not reader.read(block).fault
        begun = reader._begun[0]
        assert (begun is not None and begun.count == len(CALL)) == (number > 1), "it is learnt, also by a fresh process"
        assert reader.read(block, is_trailer=True).fault


def test_dropped_fields_are_read_and_not_sent_on() -> None:
    reader = Reader(Blocks(REQUEST, lambda name: name == b"grpc-timeout"))
    for number in range(8):
        block = reader.read(written([*CALL, (b"grpc-timeout", b"%dm" % number), (b"x-a", b"1")]))
        assert block.get(b"grpc-timeout") == b"%dm" % number
        assert block.outgoing == written([*CALL, (b"x-a", b"1")])


def test_equal_blocks_are_one_block_from_the_second_on() -> None:
    blocks = Blocks(REQUEST)
    first, second, third = (Reader(blocks).read(written(CALL)) for _ in range(3))
    assert first is not second
    assert second is third, "another connection, the same block"
    assert Reader(blocks).read(b"\x20" + written(CALL)) is second


def test_a_block_that_writes_into_the_table_is_known_only_where_there_is_none() -> None:
    """Equal bytes, other headers: the second field is the present content of the table."""
    insert, again = b"\x40\x01a\x01b", b"\xbe"
    blocks = Blocks(REQUEST)
    without, using = Reader(blocks), Reader(blocks)
    without.capacity = 0
    for _ in range(3):
        assert without.read(insert, is_trailer=True).outgoing == b"\0\x01a\x01b"
    assert using.read(insert, is_trailer=True).outgoing == b"\0\x01a\x01b"
    assert using.read(again, is_trailer=True).outgoing == b"\0\x01a\x01b", "the memory has not kept it from the table"


def test_long_blocks_and_what_comes_once_are_not_kept() -> None:
    blocks = Blocks(REQUEST)
    reader = Reader(blocks)
    for number in range(5000):
        reader.read(written([*CALL, (b"x-id", b"%d" % number)]))
    assert not blocks.heads.known
    for _ in range(3):
        reader.read(written([*CALL, (b"x-long", b"x" * 400)]))
    assert not blocks.heads.known
    for _ in range(3):
        for number in range(3000):
            reader.read(written([*CALL, (b"x-id", b"%d" % number)]))
    assert len(blocks.heads.known) <= 1024
    assert len(blocks.fields.known) <= 1024


NAMES = st.sampled_from((b"x-a", b"te", b"grpc-status", b"content-length", b"host", b":path", b"Bad", b"x-b"))
VALUES = st.sampled_from((b"", b"1", b"2", b"trailers", b"a.example:80", b"/x", b"\n", b"0"))


@given(st.lists(st.lists(st.tuples(NAMES, VALUES), max_size=4), max_size=8), st.sampled_from((REQUEST, RESPONSE)))
def test_a_connection_with_a_past_reads_as_a_fresh_one(blocks: list[Fields], kind: int) -> None:
    start = CALL if kind == REQUEST else [(b":status", b"200"), (b"content-type", b"application/grpc")]
    reader = Reader(Blocks(kind))
    for fields in blocks * 5:
        for is_trailer in (False, True):
            block = written(fields if is_trailer else [*start, *fields])
            ours, fresh = (
                reader.read(block, is_trailer=is_trailer),
                Reader(Blocks(kind)).read(block, is_trailer=is_trailer),
            )
            assert bool(ours.fault) == bool(fresh.fault)
            if not ours.fault:
                for name in (
                    "authority",
                    "content_length",
                    "grpc_status",
                    "host",
                    "method",
                    "outgoing",
                    "path",
                    "status",
                ):
                    assert getattr(ours, name) == getattr(fresh, name), name
                assert ours.values() == fresh.values()
                assert [field[:2] for field in ours.fields] == [field[:2] for field in fresh.fields]
