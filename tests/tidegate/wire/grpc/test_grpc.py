"""What a proxy knows of gRPC."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.timeout import read_timeout_s
from tidegate.wire.grpc import grpc
from tidegate.wire.grpc.grpc import Infer, peek_infer, peek_usual
from tidegate.wire.http2.header_blocks import RESPONSE, Blocks, Reader


def varint(value: int) -> bytes:
    done = bytearray()
    while value > 127:
        done.append(value & 127 | 128)
        value >>= 7
    return bytes((*done, value))


def part(number: int, value: bytes | int) -> bytes:
    """One protobuf field."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def call(*fields: bytes) -> bytes:
    message = b"".join(fields)
    return b"\0" + len(message).to_bytes(4, "big") + message


PACKED = part(1, b"input") + part(2, b"FP32") + part(3, varint(8) + varint(224))
SINGLE = part(3, 8) + part(3, 224) + part(1, b"input")
INFER = call(
    part(1, b"resnet"),
    part(3, b"id-1"),
    part(4, part(1, b"k")),
    part(5, PACKED),
    part(5, part(3, b"\x01")),
    part(7, b"\0" * 64),
)


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        (b"/a.B/C", (b"a.B", b"C")),
        (b"/a.B/C/d", None),
        (b"/a.B", None),
        (b"//C", None),
        (b"/a/", None),
        (b"*", None),
    ],
)
def test_path(path: bytes, parts: tuple[bytes, bytes] | None) -> None:
    assert grpc.split_path(path) == parts


def test_content_type() -> None:
    for yes in (b"application/grpc", b"application/grpc+proto", b"Application/gRPC;a=b"):
        assert grpc.is_grpc(yes)
    for no in (None, b"application/json", b"application/grpc-web", b"application/grp"):
        assert not grpc.is_grpc(no)


@pytest.mark.parametrize(("ms", "field"), [(0, b"0m"), (-3, b"0m"), (1500, b"1500m"), (10**12, b"99999999m")])
def test_timeout(ms: int, field: bytes) -> None:
    block = Reader(Blocks(RESPONSE)).read(grpc.timeout(ms), is_trailer=True)
    assert block.get(b"grpc-timeout") == field
    assert read_timeout_s(None, field) is not None


@given(st.text())
def test_messages_are_printable_ascii_and_come_back(text: str) -> None:
    coded = grpc.encode_message(text)
    assert all(0x20 <= byte <= 0x7E for byte in coded)
    assert grpc.decode_message(coded) == text


def test_a_message_as_the_protocol_shows_it() -> None:
    assert grpc.encode_message("caf\u00e9 100% \n\r end") == b"caf%C3%A9 100%25 %0A%0D end"
    assert grpc.decode_message(b"%zz %41%") == "%zz A%"


@pytest.mark.parametrize("letter", ["x", "%", "\u00e9", "\u6f22", "\U0001f600", "\n"])
@pytest.mark.parametrize("before", ["", "a", "ab", "a\u00e9", "abcd"])
def test_a_long_message_is_cut_between_two_characters(letter: str, before: str) -> None:
    """Clients of gRPC take 8 KB of metadata for sure, and report another status where there is more."""
    coded = grpc.encode_message(before + letter * 9000)
    assert 4080 <= len(coded) <= 4096
    told = grpc.decode_message(coded)
    assert told == before + letter * (len(told) - len(before) - 3) + "..."


def test_a_message_that_is_no_text_is_told_as_far_as_it_is() -> None:
    assert grpc.encode_message("no file \udce9") == b"no file ?"


def test_an_answer_that_is_only_a_status() -> None:
    block = Reader(Blocks(RESPONSE)).read(grpc.trailers_only(grpc.RESOURCE_EXHAUSTED, "queue full: 10 wait"))
    assert (block.fault, block.status, block.grpc_status) == ("", 200, 8)
    assert block.get(b"content-type") == b"application/grpc"
    assert block.get(b"grpc-message") == b"queue full: 10 wait"
    block = Reader(Blocks(RESPONSE)).read(grpc.trailers(grpc.UNAVAILABLE, ""), is_trailer=True)
    assert (block.grpc_status, block.get(b"grpc-message")) == (14, None)


def test_a_message_with_spaces_at_its_ends_is_a_field_of_http2() -> None:
    for text in ("no key: ", "  both  ", " ", "\tcafé "):
        block = Reader(Blocks(RESPONSE)).read(grpc.trailers_only(5, text))
        told = block.get(b"grpc-message")
        assert told is not None and told == told.strip()
        assert grpc.decode_message(told) == text


def test_model_and_batch() -> None:
    assert peek_infer(INFER) == Infer(b"resnet", 8)
    assert peek_infer(call(part(5, SINGLE), part(1, b"resnet"))) == Infer(b"resnet", 8), "any order, dimensions alone"
    assert peek_infer(call(part(1, b"resnet"))) == Infer(b"resnet", 0)
    assert peek_infer(call()) == Infer(b"", 0)
    assert peek_infer(b"\x01" + INFER[1:]) == Infer(b"", 0), "compressed"
    assert peek_infer(call(part(5, part(3, varint((1 << 64) - 1))))) == Infer(b"", 0), "a dimension of -1"
    long = part(5, part(3, varint(1 << 64 | 8)))
    assert peek_infer(call(long)) == Infer(b"", 8), "as servers read it, which drop what is beyond 64 bits"
    assert peek_infer(call(part(5, part(3, b"\x88")), part(1, b"resnet"))) == Infer(b"resnet", 0), "it breaks off"


@pytest.mark.parametrize("read", [peek_infer, peek_usual])
def test_a_shape_without_dimensions_has_no_first(read: Callable[[bytes], Infer | None]) -> None:
    """Packed, and empty: what follows it in the tensor is no dimension."""
    empty = part(1, b"x") + part(3, b"") + part(2, b"FP32")
    assert read(call(part(1, b"resnet"), part(5, empty))) in (None, Infer(b"resnet", 0))
    assert read(call(part(1, b"resnet"), part(5, empty + part(3, b"\x05")))) in (None, Infer(b"resnet", 5))


def test_more_is_asked_for_only_while_it_can_tell() -> None:
    known = next(size for size in range(len(INFER) + 1) if peek_infer(INFER[:size]) is not None)
    assert known < INFER.index(b"FP32") + 10
    for size in range(known):
        assert peek_infer(INFER[:size]) is None
    for size in range(known, len(INFER) + 1):
        assert peek_infer(INFER[:size]) == Infer(b"resnet", 8)


def test_only_the_beginning_is_looked_at() -> None:
    late = call(part(7, bytes(5000)), part(1, b"resnet"))
    assert peek_infer(late[:4000]) is None
    assert peek_infer(late[:4096]) == Infer(b"", 0)
    assert peek_infer(late) == Infer(b"", 0)
    assert peek_infer(call(part(7, bytes(4084)), part(1, b"resnet"))) == Infer(b"", 0), "half a name is none"
    assert peek_infer(b"\0\xff\xff\xff\xff" + INFER[5:]) == Infer(b"resnet", 8), "a length that nobody will send"


@given(st.binary(max_size=200), st.booleans())
def test_anything_may_come(data: bytes, is_framed: bool) -> None:
    found = peek_infer(call(data) if is_framed else data)
    assert found is None or found.batch >= 0
    if is_framed:
        assert found is not None
