"""Conversion between tensors and the values that models use: numpy arrays with numpy, nested lists without.

This module never imports numpy. :class:`NumpyArrays` gets the module from a caller that needs it anyway.
"""

from array import array
from collections.abc import Sequence
from typing import Any, Protocol

from tidegate.runtime.errors import ModelError
from tidegate.runtime.protocols import tensors
from tidegate.runtime.protocols.tensors import BYTES, MAX_RANK, Tensor

_NUMPY_NAMES = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
}
_DATATYPE_OF = {name: datatype for datatype, name in _NUMPY_NAMES.items()}


class Arrays(Protocol):
    """A representation of tensors for a model."""

    def decode(self, tensor: Tensor) -> Any:
        """Returns the model's view of an input."""
        ...

    def encode(self, name: str, value: Any, datatype: str | None) -> Tensor:
        """Returns the tensor of a model's result. Without ``datatype`` it has that of the value. Raises ModelError."""
        ...


class PlainArrays:
    """Nested lists of Python numbers, booleans and ``bytes``."""

    def decode(self, tensor: Tensor) -> Any:
        return tensors.nest(tensors.to_flat(tensor), tensor.shape)

    def encode(self, name: str, value: Any, datatype: str | None) -> Tensor:
        shape, flat = _measure(name, _unpack(value))
        kind = datatype or _datatype_of(name, flat)
        try:
            return Tensor(name, kind, shape, tensors.pack(kind, flat))
        except (ValueError, TypeError, OverflowError) as error:
            raise ModelError(f"output '{name}' does not fit {kind}: {error}") from error


class NumpyArrays:
    """numpy arrays. BYTES are object arrays of ``bytes``, BF16 is widened to float32."""

    def __init__(self, numpy: Any, *, writable: bool) -> None:
        self._numpy = numpy
        self._writable = writable
        self._plain = PlainArrays()

    def decode(self, tensor: Tensor) -> Any:
        numpy, data = self._numpy, tensor.data
        if isinstance(data, list):
            items = numpy.empty(len(data), dtype=object)
            items[:] = data
            return items.reshape(tensor.shape)
        if tensor.datatype == "BF16":
            wide = numpy.frombuffer(data, dtype="<u2").astype("uint32") << 16
            return wide.view("float32").reshape(tensor.shape)
        flat = numpy.frombuffer(data, dtype=_NUMPY_NAMES[tensor.datatype])
        if self._writable or not flat.flags.aligned:
            flat = flat.copy()
        return flat.reshape(tensor.shape)

    def encode(self, name: str, value: Any, datatype: str | None) -> Tensor:
        if not _holds_arrays(value):
            return self._plain.encode(name, value, datatype)
        try:
            values = self._numpy.asarray(value)
        except ValueError as error:
            raise ModelError(f"output '{name}' is ragged: {error}") from error
        if values.dtype.kind in "OUS":
            return self._plain.encode(name, values.tolist(), datatype)
        if not values.dtype.isnative:
            values = values.astype(values.dtype.newbyteorder("="))
        kind = "BF16" if values.dtype.name == "bfloat16" else _DATATYPE_OF.get(values.dtype.name)
        if kind is None:
            raise ModelError(f"output '{name}' has the type {values.dtype}, which the protocol cannot carry")
        if datatype is not None and datatype != kind:
            values, kind = self._cast(name, values, datatype), datatype
        if kind == "BF16" and values.dtype.name != "bfloat16":
            return Tensor(name, kind, values.shape, tensors.pack(kind, values.ravel().tolist()))
        return Tensor(name, kind, values.shape, values.tobytes())

    def _cast(self, name: str, values: Any, datatype: str) -> Any:
        wanted = _NUMPY_NAMES.get(datatype, "float32" if datatype == "BF16" else "")
        if not wanted or not self._numpy.can_cast(values.dtype, wanted, casting="same_kind"):
            raise ModelError(f"output '{name}' is declared {datatype}, but predict returned {values.dtype}")
        return values.astype(wanted)


def _unpack(value: Any) -> Any:
    return value.tolist() if isinstance(value, array | memoryview) else value


def _holds_arrays(value: Any) -> bool:
    """Returns True if a value is an array or numpy scalar, or nested lists that contain one."""
    return hasattr(value, "__array__") or (_is_list(value) and any(map(_holds_arrays, value)))


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def _measure(name: str, value: Any) -> tuple[tuple[int, ...], list[Any]]:
    """Returns shape and elements of nested sequences. Raises ModelError if they are ragged."""
    shape: list[int] = []
    level = [value]
    while level and _is_list(level[0]):
        if len(shape) == MAX_RANK:
            raise ModelError(f"output '{name}' is nested more than {MAX_RANK} deep")
        size = len(level[0])
        if not all(_is_list(item) and len(item) == size for item in level):
            raise ModelError(f"output '{name}' is ragged: its lists differ in length")
        shape.append(size)
        level = [item for inner in level for item in inner]
    if any(map(_is_list, level)):
        raise ModelError(f"output '{name}' is ragged: it mixes lists and values")
    return tuple(shape), level


def _datatype_of(name: str, flat: list[Any]) -> str:
    kinds = set(map(type, flat))
    if kinds <= {str, bytes, bytearray} and kinds:
        return BYTES
    if kinds == {bool}:
        return "BOOL"
    if kinds == {int}:
        return "INT64"
    if kinds <= {int, float}:
        return "FP64"
    found = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise ModelError(f"output '{name}' holds {found}: a tensor holds numbers, booleans, or strings")
