"""Model and batch of a V2 inference, read from the beginning of its first message."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.wire.grpc.first_message import (
    Infer,
    call_batch,
    first_message_end,
    peek_batch,
    peek_infer,
    peek_usual,
)


def varint(value: int) -> bytes:
    done = bytearray()
    while value > 127:
        done.append(value & 127 | 128)
        value >>= 7
    return bytes((*done, value))


def part(number: int, value: bytes | int) -> bytes:
    """Returns one protobuf field."""
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
    """Packed, and empty: the bytes behind it in the tensor are not a dimension."""
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
    two = call(part(1, b"resnet"), part(7, bytes(4080)), part(1, b"other"))
    assert two.index(part(1, b"other")) == 4096
    assert peek_infer(two) == Infer(b"resnet", 0), "another name behind it changes nothing"
    assert peek_infer(b"\0\xff\xff\xff\xff" + INFER[5:]) == Infer(b"resnet", 8), "an impossible length"


@given(st.binary(max_size=200), st.booleans())
def test_anything_may_come(data: bytes, is_framed: bool) -> None:
    found = peek_infer(call(data) if is_framed else data)
    assert found is None or found.batch >= 0
    if is_framed:
        assert found is not None


@given(st.binary(max_size=200), st.sampled_from([b"", PACKED, SINGLE, part(2, b"FP32") + part(3, b"")]))
def test_the_batch_alone_is_the_same(data: bytes, tensor: bytes) -> None:
    for body in (
        data,
        call(data),
        call(part(1, b"resnet"), part(5, tensor), data),
        call(part(4, data), part(5, tensor)),
    ):
        found = peek_infer(body)
        assert peek_batch(body) == (None if found is None else found.batch)


def test_the_short_ways_know_no_less_and_nothing_else_at_any_length() -> None:
    for size in range(len(INFER) + 1):
        found = peek_infer(INFER[:size])
        assert peek_batch(INFER[:size]) == (None if found is None else 8)
        assert peek_usual(INFER[:size]) in (None, found)
    assert peek_usual(INFER) == Infer(b"resnet", 8)


def test_a_number_of_eight_bytes_may_look_like_a_tensor() -> None:
    number = varint(17 << 3 | 1) + b"\0" + part(5, part(3, b"\x09"))[:5] + b"\0\0"
    for body in (call(part(1, b"resnet"), number), call(number, part(1, b"resnet"))):
        assert peek_infer(body) == Infer(b"resnet", 0)
        assert peek_batch(body) == 0
        assert peek_usual(body) is None


def test_what_follows_the_first_message_is_none_of_it() -> None:
    for body in (call(), call(part(1, b"resnet"))):
        assert peek_batch(body + part(5, PACKED)) == 0
        assert peek_usual(body + part(5, PACKED)) is None


@pytest.mark.parametrize(
    ("data", "end"),
    [(b"", 0), (b"\0\0\0\0", 0), (b"\0\0\0\0\0", 5), (b"\1\0\0\1\2", 263), (b"\0\xff\xff\xff\xff?", 5 + 2**32 - 1)],
)
def test_a_message_ends_behind_its_length(data: bytes, end: int) -> None:
    assert first_message_end(data) == end


def named(size: int, batch: int = 9) -> bytes:
    """Returns a call whose model name has ``size`` bytes."""
    return call(part(1, b"m" * size), part(5, part(3, varint(batch))))


@pytest.mark.parametrize("size", range(1, 300))
def test_a_name_of_any_length_is_read(size: int) -> None:
    assert peek_infer(named(size)) == Infer(b"m" * size, 9)
    assert peek_batch(named(size)) == 9
    assert peek_usual(named(size)) == (Infer(b"m" * size, 9) if size <= 127 else None)


@pytest.mark.parametrize("batch", [1, 127, 128, 129, 300, 16_383, 16_384, 2**31 - 1, 2**31, 2**40])
def test_a_dimension_of_any_size_is_read(batch: int) -> None:
    found = batch if batch < 2**31 else 0
    body = call(part(1, b"m"), part(5, part(3, varint(batch) + varint(224))))
    assert peek_infer(body) == Infer(b"m", found)
    assert peek_batch(body) == found
    assert peek_usual(body) == (Infer(b"m", batch) if batch < 128 else None)


@pytest.mark.parametrize("pad", range(90, 140))
def test_a_tensor_of_any_length_is_read(pad: int) -> None:
    """The short ways read tensors of less than 128 bytes."""
    tensor = part(1, b"x" * pad) + part(3, varint(9))
    body = call(part(1, b"m"), part(5, tensor))
    assert peek_infer(body) == Infer(b"m", 9)
    assert peek_batch(body) == 9
    assert peek_usual(body) == (Infer(b"m", 9) if len(tensor) < 128 else None)


@pytest.mark.parametrize("front", range(100, 270))
def test_the_short_way_reads_inputs_that_begin_in_the_first_256_bytes(front: int) -> None:
    fields = [part(1, b"m"), part(3, b"i" * 60), part(3, b"i" * (front // 2 - 40))]
    fields.append(part(4, b"k" * (front - 2 - sum(map(len, fields)))))
    body = call(*fields, part(5, PACKED))
    assert body.index(part(5, PACKED)) == 5 + front
    assert peek_infer(body) == Infer(b"m", 8)
    assert peek_batch(body) == 8
    assert peek_usual(body) == (Infer(b"m", 8) if 5 + front < 255 else None)


@pytest.mark.parametrize("shape", [part(3, b"\x09"), part(3, 9), part(3, b"\x09\x80\x01")])
def test_a_shape_at_the_end_of_its_tensor_is_read(shape: bytes) -> None:
    for front in (b"", part(1, b"x"), part(2, b"FP32") + part(1, b"input")):
        body = call(part(1, b"m"), part(5, front + shape), part(5, part(3, b"\x07")))
        assert peek_infer(body) == Infer(b"m", 9)
        assert peek_batch(body) == 9
        assert peek_usual(body) in (None, Infer(b"m", 9))


def test_a_second_input_or_name_changes_only_what_a_server_reads_so() -> None:
    two = call(part(1, b"a"), part(1, b"bb"), part(5, PACKED), part(5, part(3, b"\x07")))
    assert peek_usual(two) == Infer(b"bb", 8), "the last value of a field that is not repeated"
    late = call(part(5, PACKED), part(5, part(3, b"\x07")), part(1, b"a"))
    assert (peek_infer(late), peek_batch(late), peek_usual(late)) == (Infer(b"a", 8), 8, None)


class Call:
    def __init__(self, batch: bytes | None = None, *, is_inference: bool = True) -> None:
        self.is_inference = is_inference
        self.batch = batch

    def get(self, name: bytes, /) -> bytes | None:
        return self.batch if name == b"x-batch" else None


@pytest.mark.parametrize(
    ("stated", "batch"),
    [(b"1", 1), (b"5", 5), (b"16", 16), (b"17", 16), (b"999999999", 16), (b"1000000000", 8), (b"0", 8), (b"-1", 8),
     (b"x", 8), (b"", 8), (b"007", 7), (None, 8)],
)  # fmt: skip
def test_the_batch_of_a_call_is_its_field_or_its_shape_up_to_the_limit(stated: bytes | None, batch: int) -> None:
    assert call_batch(Call(stated), INFER, b"x-batch", 16) == batch
    assert call_batch(Call(stated), INFER, None, 16) == 8
    assert call_batch(Call(stated), INFER, b"x-other", 16) == 8
    assert call_batch(Call(stated, is_inference=False), INFER, b"x-batch", 16) == (1 if batch == 8 else batch)


def test_the_batch_of_a_call_waits_for_the_shape_and_is_at_least_one() -> None:
    assert call_batch(Call(), INFER[:9], None, 16) is None
    assert call_batch(Call(), b"", None, 16) is None
    assert call_batch(Call(is_inference=False), b"", None, 16) == 1
    assert call_batch(Call(), call(part(1, b"m")), None, 16) == 1
    assert call_batch(Call(), INFER, None, 7) == 7
    assert call_batch(Call(), INFER, None, 8) == 8
    assert call_batch(Call(), named(3, 1), None, 8) == 1
