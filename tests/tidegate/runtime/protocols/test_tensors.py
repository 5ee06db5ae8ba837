"""Tensors in JSON and in binary: what is accepted, what is refused, and that nothing changes on the way."""

import math
import struct
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.runtime.errors import RequestError
from tidegate.runtime.protocols import tensors
from tidegate.runtime.protocols.tensors import Tensor

SAMPLES: list[tuple[str, list[Any], str]] = [
    ("BOOL", [True, False, True], "bool"),
    ("UINT8", [0, 7, 255], "uint8"),
    ("UINT16", [0, 7, 65535], "uint16"),
    ("UINT32", [0, 7, 2**32 - 1], "uint32"),
    ("UINT64", [0, 7, 2**64 - 1], "uint64"),
    ("INT8", [-128, 0, 127], "int8"),
    ("INT16", [-32768, 0, 32767], "int16"),
    ("INT32", [-(2**31), 0, 2**31 - 1], "int32"),
    ("INT64", [-(2**63), 0, 2**63 - 1], "int64"),
    ("FP16", [-1.5, 0.0, 65504.0], "float16"),
    ("FP32", [-1.5, 0.0, 1e30], "float32"),
    ("FP64", [-1.5, 0.0, 1e300], "float64"),
]


@pytest.mark.parametrize(("datatype", "values", "dtype"), SAMPLES, ids=lambda value: str(value)[:12])
def test_json_becomes_the_contents_that_numpy_would_write(datatype: str, values: list[Any], dtype: str) -> None:
    tensor = tensors.from_json("x", datatype, (3,), values)
    assert tensors.to_binary(tensor) == numpy.array(values, dtype=dtype).tobytes()
    assert tensors.to_flat(tensor) == pytest.approx(values)


@pytest.mark.parametrize(("datatype", "values", "dtype"), SAMPLES, ids=lambda value: str(value)[:12])
def test_binary_contents_are_read_back_as_values(datatype: str, values: list[Any], dtype: str) -> None:
    raw = memoryview(numpy.array(values, dtype=dtype).tobytes())
    read, lost = tensors.to_json(tensors.from_binary("x", datatype, (3,), raw))
    assert read == pytest.approx(values)
    assert lost == 0


def test_bytes_are_utf8_in_json_and_length_prefixed_in_binary() -> None:
    tensor = tensors.from_json("x", "BYTES", (2,), ["é", ""])
    assert tensor.data == [b"\xc3\xa9", b""]
    raw = tensors.to_binary(tensor)
    assert raw == b"\x02\x00\x00\x00\xc3\xa9\x00\x00\x00\x00"
    assert tensors.from_binary("x", "BYTES", (2,), memoryview(raw)).data == tensor.data
    assert tensors.to_json(tensor) == (["é", ""], 0)


def test_bytes_that_are_not_text_only_travel_as_binary() -> None:
    with pytest.raises(RequestError, match="not UTF-8: ask for it with binary_data"):
        tensors.to_json(Tensor("y", "BYTES", (1,), [b"\xff"]))


def test_nested_data_must_have_exactly_the_shape() -> None:
    flat = tensors.from_json("x", "INT32", (2, 2), [1, 2, 3, 4])
    assert tensors.from_json("x", "INT32", (2, 2), [[1, 2], [3, 4]]).data == flat.data
    for data in ([[1, 2, 3, 4]], [[1, 2], [3]], [[1, 2], 3], [[[1, 2], [3, 4]]], [[1, 2], [3, [4]]]):
        with pytest.raises(RequestError):
            tensors.from_json("x", "INT32", (2, 2), data)


@pytest.mark.parametrize(
    ("datatype", "data", "says"),
    [
        ("INT32", [1.0], "1.0 is not a INT32 value"),
        ("INT32", [True], "True is not a INT32 value"),
        ("INT32", ["1"], "'1' is not a INT32 value"),
        ("FP32", [None], "null is not a FP32 value"),
        ("FP32", [False], "False is not a FP32 value"),
        ("FP32", [{}], "{} is not a FP32 value"),
        ("BOOL", [1], "1 is not a BOOL value"),
        ("BYTES", [1], "1 is not a BYTES value"),
        ("BYTES", ["\ud800"], "half of a surrogate pair"),
        ("UINT8", [256], "out of the range of UINT8"),
        ("INT8", [-129], "out of the range of INT8"),
        ("UINT64", [2**64], "out of the range of UINT64"),
        ("FP16", [65520.0], "out of the range of FP16"),
        ("FP16", [10**400], "out of the range of FP16"),
        ("BF16", [3.4e38], "out of the range of BF16"),
        ("FP32", [1e39], "out of the range of FP32"),
        ("FP32", [-1e39], "out of the range of FP32"),
        ("FP64", [10**400], "out of the range of FP64"),
        ("FP64", [math.inf], "out of the range of FP64"),
        ("FP32", "abc", "data must be a list"),
        ("FP32", [1.0, 2.0], "shape \\[1\\] takes 1 elements, got 2"),
        ("FP32", [], "shape \\[1\\] takes 1 elements, got 0"),
    ],
)
def test_a_wrong_value_is_named(datatype: str, data: object, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        tensors.from_json("x", datatype, (1,), data)


@pytest.mark.parametrize(
    ("datatype", "raw", "says"),
    [
        ("FP32", b"123", "takes 4 bytes, got 3"),
        ("BOOL", b"\x02", "BOOL elements are the bytes 0 and 1"),
        ("BYTES", b"\x01\x00\x00", "end inside a length"),
        ("BYTES", b"\x02\x00\x00\x00a", "end inside an element"),
        ("BYTES", b"", "shape holds 1 BYTES elements, got 0"),
        ("BYTES", b"\x00\x00\x00\x00" * 2, "shape holds 1 BYTES elements, got 2"),
    ],
)
def test_binary_contents_of_another_length_are_refused(datatype: str, raw: bytes, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        tensors.from_binary("x", datatype, (1,), memoryview(raw))


def test_what_json_cannot_carry_becomes_null_and_is_counted() -> None:
    raw = struct.pack("<4f", 1.0, math.nan, math.inf, -math.inf)
    assert tensors.to_json(Tensor("y", "FP32", (4,), raw)) == ([1.0, None, None, None], 3)


def test_a_sum_that_overflows_is_not_a_value_that_does() -> None:
    values = [1.7e308, 1.7e308]
    assert tensors.to_json(Tensor("y", "FP64", (2,), struct.pack("<2d", *values))) == (values, 0)


def test_bfloat16_is_the_upper_half_of_float32_rounded_to_even() -> None:
    # 1.00390625 lies halfway between 1.0 (even) and 1.0078125; 1.01171875 halfway between that and 1.015625 (even).
    tensor = tensors.from_json("x", "BF16", (4,), [1.0, 1.00390625, 1.01171875, -2.5])
    assert tensors.to_flat(tensor) == [1.0, 1.0, 1.015625, -2.5]
    assert math.isnan(tensors.to_flat(Tensor("x", "BF16", (1,), tensors.pack("BF16", [math.nan])))[0])


def test_nesting_follows_the_shape() -> None:
    assert tensors.nest([5], ()) == 5
    assert tensors.nest(list(range(6)), (2, 3)) == [[0, 1, 2], [3, 4, 5]]
    assert tensors.nest(list(range(4)), (2, 1, 2)) == [[[0, 1]], [[2, 3]]]
    assert tensors.nest([], (0,)) == []
    assert tensors.nest([], (2, 0)) == [[], []]
    assert tensors.nest([], (0, 2)) == []


def test_a_scalar_has_the_empty_shape_and_no_rows() -> None:
    tensor = tensors.from_json("x", "FP32", (), [2.0])
    assert (tensor.count, tensor.rows, repr(tensor)) == (1, None, "<Tensor x FP32 []>")


def test_only_text_and_bytes_become_bytes() -> None:
    assert tensors.pack("BYTES", ["a", b"b", bytearray(b"c")]) == [b"a", b"b", b"c"]
    with pytest.raises(TypeError, match="5 is neither str nor bytes"):
        tensors.pack("BYTES", [5])
    with pytest.raises(ValueError, match="required argument is not a float"):
        tensors.pack("FP16", ["a"])


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_floats_survive_the_round_trip(values: list[float]) -> None:
    tensor = tensors.from_json("x", "FP32", (len(values),), values)
    raw = memoryview(bytes(tensors.to_binary(tensor)))
    assert tensors.to_json(tensors.from_binary("x", "FP32", (len(values),), raw)) == (values, 0)


@given(st.lists(st.binary()))
def test_bytes_survive_the_round_trip(values: list[bytes]) -> None:
    raw = tensors.to_binary(Tensor("x", "BYTES", (len(values),), values))
    assert tensors.from_binary("x", "BYTES", (len(values),), memoryview(raw)).data == values
