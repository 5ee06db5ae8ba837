"""Tensors as the Open Inference Protocol V2 carries them, without numpy.

A tensor keeps its contents in the form of the binary extension: little-endian, row-major, no padding. ``BYTES``
elements are a list of ``bytes``. JSON numbers become such contents at once, through :mod:`array`, which checks the
range of every element in C: 2048 elements cost about 60 us.

FP16 and BF16 have no JSON form in the protocol. They are accepted and answered as numbers here (our choice: the
conversion to a Python float is exact).
"""

import math
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from tidegate.runtime.errors import RequestError

ITEM_SIZES: dict[str, int] = {
    "BOOL": 1,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "BF16": 2,
    "FP32": 4,
    "FP64": 8,
}
"""Bytes per element of every datatype except BYTES."""

MAX_RANK = 32
"""Most dimensions of a tensor. Our choice."""

BYTES = "BYTES"
DATATYPES = frozenset(ITEM_SIZES) | {BYTES}
FLOATS = frozenset({"FP16", "BF16", "FP32", "FP64"})
_ARRAY_CODES = {
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP32": "f",
    "FP64": "d",
}


@dataclass(slots=True)
class Tensor:
    """One input or output. ``data`` is little-endian contents, or a list of elements if ``datatype`` is BYTES."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | memoryview | list[bytes]

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def rows(self) -> int | None:
        """Length of the first dimension. None for a scalar."""
        return self.shape[0] if self.shape else None

    def __repr__(self) -> str:
        return f"<Tensor {self.name} {self.datatype} {list(self.shape)}>"


def from_json(name: str, datatype: str, shape: tuple[int, ...], data: object) -> Tensor:
    """Returns the tensor of a JSON ``data`` value: flat, or nested exactly as ``shape`` says.

    Raises RequestError with the fault.
    """
    if not isinstance(data, list):
        raise RequestError(f"input '{name}': data must be a list")
    flat = _flatten(name, shape, data)
    if datatype == BYTES:
        return Tensor(name, datatype, shape, _strings(name, flat))
    return Tensor(name, datatype, shape, _pack(name, datatype, flat))


def from_binary(name: str, datatype: str, shape: tuple[int, ...], raw: memoryview) -> Tensor:
    """Returns the tensor of ``raw`` contents of the binary extension. Raises RequestError if the length does not
    fit."""
    count = math.prod(shape)
    if datatype == BYTES:
        return Tensor(name, datatype, shape, _split_bytes(name, count, raw))
    wanted = count * ITEM_SIZES[datatype]
    if len(raw) != wanted:
        raise RequestError(f"input '{name}': {datatype} {list(shape)} takes {wanted} bytes, got {len(raw)}")
    if datatype == "BOOL" and raw.tobytes().strip(b"\x00\x01"):
        raise RequestError(f"input '{name}': BOOL elements are the bytes 0 and 1")
    return Tensor(name, datatype, shape, raw)


def to_binary(tensor: Tensor) -> bytes | memoryview:
    """Returns the contents in the form of the binary extension."""
    if isinstance(tensor.data, list):
        return b"".join(piece for item in tensor.data for piece in (struct.pack("<I", len(item)), item))
    return tensor.data


def to_flat(tensor: Tensor) -> list[Any]:
    """Returns all elements as Python values in row-major order."""
    raw = tensor.data
    if isinstance(raw, list):
        return raw
    kind = tensor.datatype
    if kind == "BOOL":
        return [item != 0 for item in bytes(raw)]
    if kind == "FP16":
        return list(struct.unpack(f"<{tensor.count}e", raw))
    if kind == "BF16":
        wide = array("f", array("I", [item << 16 for item in array("H", bytes(raw))]).tobytes())
        return wide.tolist()
    return array(_ARRAY_CODES[kind], bytes(raw)).tolist()


def to_json(tensor: Tensor) -> tuple[list[Any], int]:
    """Returns the elements for a JSON answer, and the number of them that JSON cannot carry.

    NaN and the infinities become null (our choice, as in JavaScript's JSON): the answer stays JSON for every client.
    Raises RequestError for BYTES that are not UTF-8: they can only be sent as binary.
    """
    values = to_flat(tensor)
    if tensor.datatype == BYTES:
        try:
            return [item.decode() for item in values], 0
        except UnicodeDecodeError:
            raise RequestError(
                f"output '{tensor.name}' holds bytes that are not UTF-8: ask for it with binary_data"
            ) from None
    if tensor.datatype in FLOATS and not math.isfinite(sum(map(abs, values))):
        finite = [value if math.isfinite(value) else None for value in values]
        return finite, finite.count(None)
    return values, 0


def nest(flat: Sequence[Any], shape: Sequence[int]) -> Any:
    """Returns row-major elements as nested lists, or a scalar for the empty shape."""
    if not shape:
        return flat[0]
    if 0 in shape:
        return _empty(shape)
    level = list(flat)
    for size in reversed(shape[1:]):
        level = [level[at : at + size] for at in range(0, len(level), size)]
    return level


def pack(datatype: str, flat: list[Any]) -> bytes | list[bytes]:
    """Returns the contents of a tensor from Python values. Raises ValueError, TypeError or OverflowError if they do not
    fit."""
    if datatype == BYTES:
        return [_as_bytes(item) for item in flat]
    return _pack_numbers(datatype, flat)


def _pack_numbers(datatype: str, flat: list[Any]) -> bytes:
    if datatype == "BOOL":
        return bytes(map(bool, flat))
    try:
        if datatype == "FP16":
            return struct.pack(f"<{len(flat)}e", *flat)
        if datatype == "BF16":
            return _bfloat16(array("f", flat))
        return array(_ARRAY_CODES[datatype], flat).tobytes()
    except struct.error as error:
        raise ValueError(str(error)) from None


def _as_bytes(item: Any) -> bytes:
    if isinstance(item, str):
        return item.encode()
    if isinstance(item, bytes | bytearray | memoryview):
        return bytes(item)
    raise TypeError(f"{_describe(item)} is neither str nor bytes")


def _bfloat16(values: "array[float]") -> bytes:
    """Returns the upper halves of float32, rounded to nearest even. NaN stays NaN."""
    out = array("H")
    for bits in array("I", values.tobytes()):
        if bits & 0x7FFFFFFF > 0x7F800000:
            out.append((bits >> 16) | 0x40)
        else:
            out.append(((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) & 0xFFFF)
    return out.tobytes()


def _empty(shape: Sequence[int]) -> list[Any]:
    return [] if len(shape) == 1 else [_empty(shape[1:]) for _ in range(shape[0])]


def _flatten(name: str, shape: tuple[int, ...], data: list[Any]) -> list[Any]:
    count = math.prod(shape)
    if list not in set(map(type, data)):
        if len(data) != count:
            raise RequestError(f"input '{name}': shape {list(shape)} takes {count} elements, got {len(data)}")
        return data
    level: list[Any] = [data]
    for size in shape:
        if not all(type(item) is list and len(item) == size for item in level):
            raise RequestError(f"input '{name}': nested data does not have the shape {list(shape)}")
        level = list(chain.from_iterable(level))
    return level


def _pack(name: str, datatype: str, flat: list[Any]) -> bytes:
    allowed = {bool} if datatype == "BOOL" else {int, float} if datatype in FLOATS else {int}
    if not set(map(type, flat)) <= allowed:
        wrong = next(item for item in flat if type(item) not in allowed)
        raise RequestError(f"input '{name}': {_describe(wrong)} is not a {datatype} value")
    try:
        raw = _pack_numbers(datatype, flat)
    except (OverflowError, ValueError):
        raise RequestError(f"input '{name}': a value is out of the range of {datatype}") from None
    if datatype in FLOATS and _has_infinity(datatype, raw):
        raise RequestError(f"input '{name}': a value is out of the range of {datatype}")
    return raw


def _has_infinity(datatype: str, raw: bytes) -> bool:
    """Returns True if the contents have an infinity: JSON has none, so a number was too large."""
    if datatype in ("FP32", "FP64"):
        values = array(_ARRAY_CODES[datatype], raw)
        return len(values) > 0 and (math.isinf(max(values)) or math.isinf(min(values)))
    exponent = 0x7C00 if datatype == "FP16" else 0x7F80
    return any(item & exponent == exponent for item in array("H", raw))


def _strings(name: str, flat: list[Any]) -> list[bytes]:
    out = []
    for item in flat:
        if not isinstance(item, str):
            raise RequestError(f"input '{name}': {_describe(item)} is not a BYTES value (a string)")
        try:
            out.append(item.encode())
        except UnicodeEncodeError:
            raise RequestError(f"input '{name}': a string holds half of a surrogate pair") from None
    return out


def _split_bytes(name: str, count: int, raw: memoryview) -> list[bytes]:
    items: list[bytes] = []
    at, end = 0, len(raw)
    while at < end:
        if at + 4 > end:
            raise RequestError(f"input '{name}': BYTES contents end inside a length")
        size = int.from_bytes(raw[at : at + 4], "little")
        at += 4
        if at + size > end:
            raise RequestError(f"input '{name}': BYTES contents end inside an element")
        items.append(bytes(raw[at : at + size]))
        at += size
    if len(items) != count:
        raise RequestError(f"input '{name}': shape holds {count} BYTES elements, got {len(items)}")
    return items


def _describe(item: object) -> str:
    text = "null" if item is None else repr(item)
    return text if len(text) <= 40 else text[:37] + "..."
