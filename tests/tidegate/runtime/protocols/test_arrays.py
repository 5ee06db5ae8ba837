"""What a model sees of a tensor, and what becomes of what it returns."""

from array import array
from typing import Any

import ml_dtypes
import numpy
import pytest

from tidegate.runtime.errors import ModelError
from tidegate.runtime.protocols import tensors
from tidegate.runtime.protocols.arrays import Arrays, NumpyArrays, PlainArrays
from tidegate.runtime.protocols.tensors import Tensor

PLAIN = PlainArrays()
NUMPY = NumpyArrays(numpy, writable=True)
BOTH = pytest.mark.parametrize("arrays", [PLAIN, NUMPY], ids=["plain", "numpy"])


def values(tensor: Tensor) -> list[Any]:
    return tensors.to_flat(tensor)


@BOTH
@pytest.mark.parametrize(
    ("value", "datatype", "shape"),
    [
        ([1, 2], "INT64", (2,)),
        ([[1.5, 2], [3, 4]], "FP64", (2, 2)),
        ([True], "BOOL", (1,)),
        (["a", b"b"], "BYTES", (2,)),
        (3.5, "FP64", ()),
        ("word", "BYTES", ()),
        ((1, 2), "INT64", (2,)),
        ([], "FP64", (0,)),
        ([[], []], "FP64", (2, 0)),
        (array("i", [1, 2]), "INT64", (2,)),
        (b"raw", "BYTES", ()),
    ],
    ids=str,
)
def test_python_values_get_the_datatype_of_their_kind(
    arrays: Arrays, value: Any, datatype: str, shape: tuple[int, ...]
) -> None:
    tensor = arrays.encode("y", value, None)
    assert (tensor.datatype, tensor.shape) == (datatype, shape)


@BOTH
def test_a_declared_datatype_wins(arrays: Arrays) -> None:
    tensor = arrays.encode("y", [1, 2], "FP32")
    assert (tensor.datatype, values(tensor)) == ("FP32", [1.0, 2.0])
    assert values(arrays.encode("y", [1, 2], "BF16")) == [1.0, 2.0]


@BOTH
@pytest.mark.parametrize(
    ("value", "datatype", "says"),
    [
        ([[1], [1, 2]], None, "output 'y' is ragged: its lists differ in length"),
        ([1, [2]], None, "output 'y' is ragged: it mixes lists and values"),
        ([[1], 2], None, "output 'y' is ragged"),
        ([None], None, "output 'y' holds NoneType: a tensor holds numbers, booleans, or strings"),
        ([1, "a"], None, "output 'y' holds int, str"),
        ([300], "UINT8", "output 'y' does not fit UINT8: "),
        (["a"], "FP32", "output 'y' does not fit FP32: "),
        ([1], "BYTES", "output 'y' does not fit BYTES: 1 is neither str nor bytes"),
        ({"a": 1}, None, "output 'y' holds dict"),
    ],
    ids=str,
)
def test_what_is_no_tensor_is_named(arrays: Arrays, value: Any, datatype: str | None, says: str) -> None:
    with pytest.raises(ModelError) as caught:
        arrays.encode("y", value, datatype)
    assert says in str(caught.value)


def test_plain_inputs_are_nested_lists() -> None:
    assert PLAIN.decode(tensors.from_json("x", "INT16", (2, 2), [1, 2, 3, 4])) == [[1, 2], [3, 4]]
    assert PLAIN.decode(tensors.from_json("x", "BYTES", (1,), ["a"])) == [b"a"]


@pytest.mark.parametrize(
    "datatype",
    ["UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"],
)
def test_numpy_arrays_go_in_and_out_unchanged(datatype: str) -> None:
    tensor = tensors.from_json("x", datatype, (3, 1), [1, 2, 3])
    decoded = NUMPY.decode(tensor)
    assert decoded.shape == (3, 1)
    assert decoded.ravel().tolist() == [1, 2, 3]
    again = NUMPY.encode("x", decoded, None)
    assert (again.datatype, again.shape, again.data) == (datatype, (3, 1), tensor.data)


def test_numpy_booleans_and_strings() -> None:
    decoded = NUMPY.decode(tensors.from_json("x", "BOOL", (2,), [True, False]))
    assert decoded.dtype == numpy.bool_
    assert values(NUMPY.encode("y", decoded, None)) == [True, False]
    words = NUMPY.decode(Tensor("x", "BYTES", (2,), [b"a\x00", b""]))
    assert words.tolist() == [b"a\x00", b""]  # the zero at the end stays
    assert NUMPY.encode("y", words, None).data == [b"a\x00", b""]
    assert NUMPY.encode("y", numpy.array(["é"]), None).data == ["é".encode()]


def test_bfloat16_is_widened_on_the_way_in_and_rounded_on_the_way_out() -> None:
    tensor = tensors.from_json("x", "BF16", (2,), [1.5, -2.0])
    decoded = NUMPY.decode(tensor)
    assert decoded.dtype == numpy.float32
    assert decoded.tolist() == [1.5, -2.0]
    assert NUMPY.encode("y", decoded, "BF16").data == tensor.data
    assert NUMPY.encode("y", decoded.astype(ml_dtypes.bfloat16), None).data == tensor.data


def test_big_endian_and_strided_arrays_become_plain_contents() -> None:
    big = numpy.array([[1, 2], [3, 4]], dtype=">i4").T
    tensor = NUMPY.encode("y", big, None)
    assert (tensor.datatype, values(tensor)) == ("INT32", [1, 3, 2, 4])


def test_a_declared_datatype_converts_within_its_kind_only() -> None:
    assert NUMPY.encode("y", numpy.array([1.5]), "FP32").data == numpy.float32(1.5).tobytes()
    assert NUMPY.encode("y", numpy.array([1]), "FP64").datatype == "FP64"
    for array_, datatype in ((numpy.array([1.5]), "INT64"), (numpy.array([1]), "BYTES")):
        with pytest.raises(ModelError, match=f"output 'y' is declared {datatype}, but predict returned"):
            NUMPY.encode("y", array_, datatype)
    with pytest.raises(ModelError, match="has the type complex128, which the protocol cannot carry"):
        NUMPY.encode("y", numpy.array([1j]), None)


def test_a_handler_may_write_to_its_inputs_and_onnx_gets_no_copy() -> None:
    raw = memoryview(bytes(8))
    tensor = tensors.from_binary("x", "FP32", (2,), raw)
    NUMPY.decode(tensor)[0] = 1.0
    shared = NumpyArrays(numpy, writable=False)
    assert not shared.decode(tensor).flags.writeable


def test_contents_at_an_odd_place_are_moved_to_an_aligned_one() -> None:
    raw = memoryview(b"x" + numpy.array([1.0, 2.0]).tobytes())[1:]
    decoded = NumpyArrays(numpy, writable=False).decode(tensors.from_binary("x", "FP64", (2,), raw))
    assert decoded.flags.aligned
    assert decoded.tolist() == [1.0, 2.0]


def test_lists_of_numpy_values_are_what_a_handler_naturally_returns() -> None:
    one = numpy.float32(1.5)
    assert NUMPY.encode("y", [one, one], None).shape == (2,)
    assert NUMPY.encode("y", [one, one], None).datatype == "FP32"
    assert NUMPY.encode("y", [numpy.array([1, 2]), numpy.array([3, 4])], None).shape == (2, 2)
    with pytest.raises(ModelError, match="ragged"):
        NUMPY.encode("y", [numpy.array([1, 2]), numpy.array([3])], None)


def test_a_list_that_holds_itself_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(ModelError, match="nested more than 32 deep"):
        PlainArrays().encode("y", endless, None)
