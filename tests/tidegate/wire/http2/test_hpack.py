"""HPACK against python-hyper's, and blocks that must be refused."""

import pytest
from hpack import Decoder, Encoder
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.table import HeaderTable
from hypothesis import given
from hypothesis import strategies as st

from tidegate.wire.http2.block_memory import REQUEST, Blocks
from tidegate.wire.http2.header_blocks import Reader
from tidegate.wire.http2.hpack import STATIC, CompressionFault, huffman, integer, literal, literal_name

encode = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode
NAMES = st.sampled_from((b"x-a", b"accept", b"x-trace-id", b"content-type", b"user-agent", b"x-" + b"n" * 200))
VALUES = st.one_of(
    st.sampled_from((b"", b"one", b"application/grpc")), st.binary(max_size=300).map(lambda b: b.hex().encode())
)
FIELDS = st.lists(st.tuples(NAMES, VALUES), max_size=12)


def trailers(reader: Reader, block: bytes) -> list[tuple[bytes, bytes]]:
    """Returns the fields of a block of plain fields, read from its forwarded form."""
    found = reader.read(block, is_trailer=True)
    assert not found.fault
    assert not found.is_large
    return [(bytes(name), bytes(value)) for name, value in Decoder().decode(found.outgoing, raw=True)]


def test_the_static_table_is_that_of_the_rfc() -> None:
    assert STATIC[1:] == tuple(HeaderTable.STATIC_TABLE)


@given(st.binary(max_size=100))
def test_huffman_code_of_any_bytes(data: bytes) -> None:
    assert huffman(encode(data)) == data


@given(st.binary(max_size=30))
def test_any_bytes_as_huffman_code_end_in_a_string_or_a_fault(data: bytes) -> None:
    try:
        text = huffman(data)
    except CompressionFault:
        return
    assert encode(text) == data, "each string has one code"


@given(FIELDS)
def test_what_is_written_is_read_by_others(fields: list[tuple[bytes, bytes]]) -> None:
    block = b"\x20" + b"".join(literal(name, value) for name, value in fields)
    assert [(bytes(name), bytes(value)) for name, value in Decoder().decode(block, raw=True)] == fields


def test_a_name_alone_is_written_for_values_that_follow() -> None:
    assert literal_name(b"grpc-timeout") + b"\x021S" == literal(b"grpc-timeout", b"1S")
    assert literal_name(b"te") + b"\x01a" == b"\0\x02te\x01a"


@given(st.lists(st.tuples(FIELDS, st.booleans()), max_size=8), st.sampled_from((None, 0, 60, 200, 4096)))
def test_blocks_of_an_encoder_with_a_table(
    blocks: list[tuple[list[tuple[bytes, bytes]], bool]], size: int | None
) -> None:
    """With any cache, the forwarded blocks mean in any order what the received ones meant in theirs."""
    encoder, memory = Encoder(), Blocks(REQUEST)
    reader = Reader(memory)
    for number, (fields, coded) in enumerate(blocks):
        if size is not None and number == 2:
            encoder.header_table_size = size
        block = encoder.encode(fields, huffman=coded)
        assert trailers(reader, block) == fields


@given(st.lists(FIELDS, max_size=6))
def test_blocks_of_an_encoder_without_a_table_are_remembered(blocks: list[list[tuple[bytes, bytes]]]) -> None:
    encoder, memory = Encoder(), Blocks(REQUEST)
    encoder.header_table_size = 0
    reader = Reader(memory)
    for fields in blocks * 3:
        assert trailers(reader, encoder.encode(fields)) == fields


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # index 0
        b"\xbe",  # an entry of an empty table
        b"\xff\xff\xff\xff\xff\x7f",  # integer without end
        b"\xff",
        b"\0",
        b"\0\x03ab",
        b"\0\x01a",
        b"\0\x01a\x05b",
        b"\0\x01a\x7f\xff\xff\xff\xff\x0f",
        b"\x3f\xff\xff\x7f",  # a table over the limit
        b"\x82\x20",  # a table size update behind a field
        b"\0\x01a\x81\xff",  # nothing but padding: eight bits of it
        b"\0\x01a\x81\x18",  # padding of zeros
        b"\x7f\x00\x01a",  # a name of an empty table
    ],
    ids=repr,
)
def test_what_cannot_be_read_is_a_fault(block: bytes) -> None:
    with pytest.raises(CompressionFault):
        Reader(Blocks(REQUEST)).read(block)


def test_a_table_larger_than_the_acknowledged_one_is_a_fault() -> None:
    reader = Reader(Blocks(REQUEST))
    reader.read(b"\x3f\xe1\x1f", is_trailer=True)
    reader.limit = 0
    reader.read(b"\x20", is_trailer=True)
    with pytest.raises(CompressionFault):
        reader.read(b"\x3e", is_trailer=True)


@pytest.mark.parametrize("prefix", [15, 31, 63, 127])
@pytest.mark.parametrize(
    "value", [0, 1, 126, 127, 128, 129, 255, 16_383, 16_384, 2_097_151, 2_097_152, 2**28 - 1, 2**28]
)
def test_an_integer_behind_its_prefix(prefix: int, value: int) -> None:
    coded, rest = bytearray(), value
    while rest > 127:
        coded.append(rest & 127 | 128)
        rest >>= 7
    coded.append(rest)
    assert integer(b"ab" + bytes(coded) + b"next", 2, prefix) == (prefix + value, 2 + len(coded))
    with pytest.raises(IndexError):
        integer(bytes(coded)[:-1], 0, prefix)


def test_an_integer_has_five_bytes_at_most() -> None:
    assert integer(b"\x80\x80\x80\x80\x01", 0, 15) == (15 + 2**28, 5)
    with pytest.raises(CompressionFault):
        integer(b"\x80\x80\x80\x80\x80\x00", 0, 15)


@pytest.mark.parametrize("size", [0, 1, 14, 15, 16, 126, 127, 128, 254, 255, 256, 300, 16_509, 16_510, 16_511])
def test_names_and_values_of_any_length_are_written_for_others(size: int) -> None:
    fields = [
        (b"x-a", b"v" * size),
        (b"te", b"v" * size),
        (b"www-authenticate", b"v" * size),
        (b"n" * (size + 1), b"v"),
    ]
    block = b"".join(literal(*field) for field in fields)
    decoder = Decoder(max_header_list_size=1 << 20)
    assert [(bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)] == fields


@pytest.mark.parametrize("index", range(1, 62))
def test_each_entry_of_the_static_table_is_read_and_written_by_its_number(index: int) -> None:
    name, value = STATIC[index]
    assert literal(name, value) == bytes((0x80 | index,)) or STATIC.index((name, value)) < index
    by_name = min(number for number in range(1, 62) if STATIC[number][0] == name)
    assert literal_name(name) == (bytes((by_name,)) if by_name < 15 else bytes((15, by_name - 15)))
    named = bytes((index,)) if index < 15 else bytes((15, index - 15))
    for block in (named + b"\x01v", bytes((0x10 | named[0],)) + named[1:] + b"\x01v"):
        found = Reader(Blocks(REQUEST))._walk(block, None)
        assert [field[:2] for field in found.fields] == [(name, b"v")]
    (field,) = Reader(Blocks(REQUEST))._walk(bytes((0x80 | index,)), None).fields
    assert field[:2] == (name, value)
