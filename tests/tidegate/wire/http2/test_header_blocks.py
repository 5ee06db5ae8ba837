"""Header blocks: malformed ones, cached ones, and their forwarded form."""

from itertools import pairwise

import pytest
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hypothesis import given
from hypothesis import strategies as st

from tidegate.wire.http2 import header_blocks
from tidegate.wire.http2.block_memory import LOOKED_AT, REQUEST, RESPONSE, Block, Blocks
from tidegate.wire.http2.header_blocks import LIST_BYTES, Reader
from tidegate.wire.http2.hpack import STATIC, CompressionFault, literal
from tidegate.wire.http2.tails import read_call_tail

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


# --- one below a limit, at it, and one above --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "limit"),
    [(REQUEST, 16_384), (RESPONSE, 16_384 + 2048)],
    ids=["a request", "an answer with our own fields"],
)
@pytest.mark.parametrize("is_trailer", [False, True])
def test_the_list_of_each_kind_has_its_limit(kind: int, limit: int, is_trailer: bool) -> None:
    start: Fields = [] if is_trailer else CALL if kind == REQUEST else [(b":status", b"200")]
    room = limit - sum(len(name) + len(value) + 32 for name, value in start) - 33
    for more in (-1, 0, 1):
        found = read([*start, (b"a", b"x" * (room + more))], kind, is_trailer=is_trailer)
        assert (found.is_large, found.size) == ((True, 0) if more > 0 else (False, limit + more))
        assert found.is_call == (kind == REQUEST and not is_trailer)


def test_a_list_behind_one_with_our_own_fields_has_the_usual_limit() -> None:
    tail = [(b"tidegate-token", b"t"), (b"tidegate-timeout-ms", b"5"), (b"tidegate-batch-size", b"1")]
    reader = Reader(Blocks(REQUEST, read_tail=read_call_tail))
    large = [*CALL, (b"a", b"x" * (LIST_BYTES - sum(len(name) + len(value) + 32 for name, value in CALL) - 32))]
    for _ in range(3):
        assert not reader.read(written([*large, *tail])).is_large
        assert reader.read(written(large)).is_large


def update(size: int) -> bytes:
    """Returns a table size update."""
    if size < 31:
        return bytes((0x20 | size,))
    size -= 31
    return b"\x3f" + (bytes((size,)) if size < 128 else bytes((size & 127 | 128, size >> 7)))


def insertion(name: bytes, value: bytes) -> bytes:
    return b"\x40" + literal(b"x-" + name, value)[1:]


def names(reader: Reader, block: bytes) -> list[bytes]:
    return [field[0] for field in reader.read(block, is_trailer=True).fields]


@pytest.mark.parametrize("size", [0, 1, 30, 31, 32, 33, 158, 159, 160, 4095, 4096])
def test_the_size_of_the_table_is_followed(size: int) -> None:
    reader = Reader(Blocks(REQUEST))
    reader.read(update(7) + update(size), is_trailer=True)
    assert reader.capacity == size
    reader.limit = size
    reader.read(update(size), is_trailer=True)
    with pytest.raises(CompressionFault, match="larger than allowed"):
        reader.read(update(size + 1), is_trailer=True)


@pytest.mark.parametrize(("size", "kept"), [(71, 1), (72, 2), (73, 2), (107, 2), (108, 3), (109, 3)])
def test_as_many_entries_are_in_the_table_as_its_size_allows(size: int, kept: int) -> None:
    """Each counts its name, its value and 32."""
    for late in (False, True):
        reader = Reader(Blocks(REQUEST))
        if not late:
            reader.read(update(size), is_trailer=True)
        reader.read(b"".join(insertion(b"%c" % letter, b"v") for letter in b"abcd"), is_trailer=True)
        if late:
            reader.read(update(size), is_trailer=True)
        indexes = b"".join(bytes((0x80 | 62 + number,)) for number in range(kept))
        assert names(reader, indexes) == [b"x-d", b"x-c", b"x-b"][:kept]
        assert repr(reader) == f"<Reader {kept} entries, {36 * kept} of {size} bytes>"
        with pytest.raises(CompressionFault, match="an index of no field"):
            reader.read(bytes((0x80 | 62 + kept,)), is_trailer=True)


def test_an_entry_that_is_larger_than_the_table_empties_it() -> None:
    for more, left in ((0, [b"x-b"]), (1, [])):
        reader = Reader(Blocks(REQUEST))
        reader.read(update(40) + insertion(b"a", b"v") + insertion(b"b", b"12345" + b"6" * more), is_trailer=True)
        assert [field[0] for field in reader._table] == left
        assert reader._size == 40 * len(left)


def test_names_and_fields_of_the_table_are_read_at_any_distance() -> None:
    reader = Reader(Blocks(REQUEST))
    letters = [b"%c%c" % (first, second) for first in b"abcdefghi" for second in b"abcdefghij"]
    reader.read(b"".join(insertion(each, b"v" + each) for each in letters), is_trailer=True)
    for distance, letter in enumerate(reversed(letters)):
        index = 62 + distance
        field = bytes((0x80 | index,)) if index < 127 else b"\xff" + bytes((index - 127,))
        found = reader.read(field, is_trailer=True)
        assert (found.get(b"x-" + letter), found.outgoing) == (b"v" + letter, literal(b"x-" + letter, b"v" + letter))
        for first in (0x0F, 0x1F):
            rest = index - 15
            named = bytes((first, rest)) if rest < 128 else bytes((first, rest - 128 | 128, 1))
            found = reader.read(named + b"\x01w", is_trailer=True)
            assert found.outgoing == literal(b"x-" + letter, b"w")


def test_two_heads_that_differ_in_a_dropped_field_are_two() -> None:
    """Also where the dynamic table is used, and the block is known by its fields, not by its bytes."""
    blocks = Blocks(REQUEST, lambda name: name.startswith(b"x-drop"))
    reader = Reader(blocks)
    reader.read(insertion(b"kept", b"1"), is_trailer=True)
    for _ in range(3):
        for number in range(3):
            fields = [(b"x-drop", b"%d" % number)] if number else []
            found = reader.read(b"\xbe" + written(fields), is_trailer=True)
            assert found.get(b"x-drop") == (b"%d" % number if number else None)
            assert (found.get(b"x-kept"), found.outgoing) == (b"1", literal(b"x-kept", b"1"))


@pytest.mark.parametrize(("size", "is_kept"), [(399, True), (400, True), (401, False)])
@pytest.mark.parametrize("is_quick", [False, True])
def test_blocks_of_up_to_400_bytes_are_kept(size: int, is_kept: bool, is_quick: bool) -> None:
    blocks = Blocks(REQUEST)
    reader = learnt(blocks)[0] if is_quick else Reader(blocks)
    block = written(CALL)
    while size - len(block) > 132:
        block += written([(b"x-id", b"v" * 100)])
    block += written([(b"x-id", b"v" * (size - len(block) - 7))])
    assert len(block) == size
    before = reader._quick
    found = [reader.read(block) for _ in range(4)]
    assert (block in blocks.heads.known) == is_kept
    assert (found[2] is found[3]) == is_kept, "also on a connection with a table"
    if is_quick:
        assert reader._quick == before + (2 if is_kept else 4)


@pytest.mark.parametrize(("size", "is_kept"), [(396, True), (397, True), (398, False)])
def test_values_of_up_to_400_bytes_are_kept_with_their_length(size: int, is_kept: bool) -> None:
    blocks = Blocks(REQUEST)
    field = literal(b"x-long", b"v" * size)
    for number in range(3):
        Reader(blocks).read(field + literal(b"x-id", b"%d" % number), is_trailer=True)
    assert (field in blocks.fields.known) == is_kept


@pytest.mark.parametrize(("size", "is_kept"), [(62, True), (63, True), (64, False), (200, False)])
def test_names_of_up_to_64_bytes_are_kept_with_their_length(size: int, is_kept: bool) -> None:
    blocks = Blocks(REQUEST)
    for number in range(3):
        found = Reader(blocks).read(literal(b"n" * size, b"%d" % number), is_trailer=True)
        assert found.get(b"n" * size) == b"%d" % number
    assert [named[0] for named in blocks.names.known.values()] == ([b"n" * size] if is_kept else [])


@pytest.mark.parametrize("first", range(0x20, 0x40))
def test_no_table_size_update_stands_behind_a_field(first: int) -> None:
    with pytest.raises(CompressionFault, match="a table size update behind a field"):
        Reader(Blocks(REQUEST)).read(bytes((0x82, first)) + b"\x01a\x01b\x01c", is_trailer=True)


# --- what is read quickly ---------------------------------------------------------------------------------------------


def learnt(blocks: Blocks) -> tuple[Reader, header_blocks._Beginning]:
    """Returns a reader that knows how the calls of its client begin."""
    reader = Reader(blocks)
    for number in range(4):
        reader.read(written([*CALL, (b"x-id", b"first %d" % number)]))
    begun = reader._begun[0]
    assert begun is not None and begun.block == written(CALL)
    return reader, begun


def agrees(found: Block, block: bytes, blocks: Blocks) -> None:
    """Asserts that what was read quickly is what a fresh connection reads."""
    whole = Reader(Blocks(blocks.kind, blocks.drops)).read(block)
    assert whole.fault == found.fault == ""
    assert [field[:4] for field in found.fields] == [field[:4] for field in whole.fields]
    assert (found.size, found.outgoing, found.values()) == (whole.size, whole.outgoing, whole.values())


@pytest.mark.parametrize("index", range(1, 62))
def test_short_fields_with_names_of_the_static_table_are_read_quickly(index: int) -> None:
    blocks = Blocks(REQUEST, lambda name: name == b"via")
    reader, begun = learnt(blocks)
    name = STATIC[index][0]
    field = (bytes((index,)) if index < 15 else bytes((15, index - 15))) + b"\x01v"
    for block in (written(CALL) + field, written([*CALL, (b"x-id", b"1")]) + field + literal(b"x-id", b"2")):
        found = reader._read_quick(block, begun)
        if name.startswith(b":") or name in LOOKED_AT or name == b"transfer-encoding":
            assert found is None, "it is looked at together with the others"
        else:
            assert found is not None
            agrees(found, block, blocks)
            assert found.get(name) == b"v"


@pytest.mark.parametrize(
    "more",
    [
        b"",
        *(b"\0\x04x-id" + bytes((size,)) + b"v" * size for size in (0, 1, 2, 125, 126)),
        b"\x10\x04x-id\x03abc",
        b"\0\x04x-id\x01a\x10\x04x-id\x02bc\x04\x01/",
        b"\0\x04x-id\x83\x1c\x64\x97",
        b"\x0f\x2e\x01v\0\x04x-id\x01a",
        b"\0\x04x-id\x03a b",
    ],
)
def test_short_fields_with_known_names_are_read_quickly(more: bytes) -> None:
    blocks = Blocks(REQUEST)
    reader, begun = learnt(blocks)
    block = written(CALL) + more
    if b"\x04\x01/" in more:
        assert reader._read_quick(block, begun) is None
        return
    found = reader._read_quick(block, begun)
    assert found is not None
    agrees(found, block, blocks)
    assert (found.base, found.is_call, found.path) == (begun.head, True, b"/a.B/C")
    for limit, is_read in ((found.size - 1, False), (found.size, True), (found.size + 1, True)):
        reader._max_list = limit
        assert (reader._read_quick(block, begun) is not None) == is_read


@pytest.mark.parametrize(
    "more",
    [
        b"\0\x04x-id\x7f\0" + b"v" * 127,
        b"\0\x04x-id\x02v",
        b"\0\x04x-id\x02 v",
        b"\0\x04x-id\x02v\n",
        b"\0\x04x-ie\x01v",
        b"\0\x05x-id2\x01v",
        b"\x40\x04x-id\x01v",
        b"\x11\x01v",
        b"\x1f\x2e\x01v",
        b"\x0f\x2f\x01v",
        b"\x0f\x30\x01v",
        b"\x82",
        b"\xbe",
        b"\x20",
    ],
)
def test_all_else_is_read_as_a_whole(more: bytes) -> None:
    reader, begun = learnt(Blocks(REQUEST))
    assert reader._read_quick(written(CALL) + more, begun) is None
    assert reader._read_quick(written([*CALL, (b"x-id", b"1")]) + more, begun) is None


def test_now_and_then_a_block_is_read_as_a_whole_to_learn_how_they_begin_by_now() -> None:
    reader, begun = learnt(Blocks(REQUEST))
    counts = []
    for number in range(70):
        reader.read(written([*CALL, (b"x-tenant", b"a"), (b"x-id", b"%d" % number)]))
        counts.append(reader._quick)
    assert max(counts) == header_blocks._QUICK and counts.count(0) >= 2
    assert all(after in (before + 1, 0) for before, after in pairwise(counts))
    now = reader._begun[0]
    assert now is not None and now.block == begun.block + literal(b"x-tenant", b"a")


@pytest.mark.parametrize("name", [b"x", b"x-id", b"x-request-number", b"x-" + b"n" * 60])
def test_names_in_the_huffman_code_are_read_quickly(name: bytes) -> None:
    blocks = Blocks(REQUEST)
    reader, begun = learnt(blocks)
    coded = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode(name)
    field = b"\0" + bytes((0x80 | len(coded),)) + coded
    assert reader._read_quick(written(CALL) + field + b"\x01v", begun) is None, "not known yet"
    for number in range(2):
        Reader(blocks).read(field + literal(b"te", b"%d" % number)[-2:], is_trailer=True)
    for block in (written(CALL) + field + b"\x02ab", written(CALL) + field + b"\x01v" + field + b"\x01w"):
        found = reader._read_quick(block, begun)
        assert found is not None
        agrees(found, block, blocks)
