"""Protocol buffers from tables: messages to dictionaries and back, and the descriptors for reflection.

Tidegate itself reads and writes only a few small messages of public protocols, so a table of fields per message
(``messages.py``) suffices; there is no compiler, no generated code and no dependency. The wire format is that of
https://protobuf.dev/programming-guides/encoding/: unknown fields are skipped, the last value of a repeated scalar
counts, numbers of a repeated field may be packed or not. An absent field is absent in the dictionary too.

``string`` is text, ``bytes`` a memoryview of the message, a map a dictionary, repeated ``float`` and ``double`` are
arrays: tensors are long. A ``oneof`` has a key of its own, with the name of the set field as its value.
"""

import struct
from array import array
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

DOUBLE, FLOAT, INT64, UINT64, INT32 = 1, 2, 3, 4, 5
BOOL, STRING, MESSAGE, BYTES, UINT32, ENUM = 8, 9, 11, 12, 13, 14
"""Types of fields, by the numbers of ``descriptor.proto``."""

_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_WIRE: Final = {DOUBLE: _FIXED64, FLOAT: _FIXED32, STRING: _DELIMITED, MESSAGE: _DELIMITED, BYTES: _DELIMITED}
_FLOATS: Final = {DOUBLE: (struct.Struct("<d"), "d"), FLOAT: (struct.Struct("<f"), "f")}
_FLOAT_WIRES: Final = {_FIXED64: 8, _FIXED32: 4}


class ProtobufError(ValueError):
    """The bytes are not a message of the expected type."""


class Enum(NamedTuple):
    """An enumeration; values by name."""

    name: str
    values: Mapping[str, int]


class Field(NamedTuple):
    """One field of a message."""

    number: int
    name: str
    kind: int
    of: "Message | Enum | None" = None
    """The type of a MESSAGE or ENUM field."""
    repeated: bool = False
    oneof: str = ""
    """At most one of the fields with the same non-empty ``oneof`` is set."""


class Message:
    """The table of one message. ``nested`` are the types declared inside it."""

    __slots__ = ("by_number", "enums", "fields", "is_map_entry", "name", "names", "nested")

    def __init__(
        self,
        name: str,
        *fields: Field,
        nested: Iterable["Message"] = (),
        enums: Iterable[Enum] = (),
        is_map_entry: bool = False,
    ) -> None:
        self.name = name
        """Full name."""
        self.fields = fields
        self.names = frozenset(field.name for field in fields) | {field.oneof for field in fields if field.oneof}
        self.by_number = {field.number: field for field in fields}
        self.nested = tuple(nested)
        self.enums = tuple(enums)
        self.is_map_entry = is_map_entry

    def decode(self, data: bytes) -> dict[str, Any]:
        """Returns the fields in ``data`` by name. Raises ProtobufError."""
        try:
            return _decode(self, data, memoryview(data), 0, len(data))
        except IndexError:
            raise ProtobufError(f"{self.name}: the message is truncated") from None
        except UnicodeDecodeError:
            raise ProtobufError(f"{self.name}: a string is not UTF-8") from None

    def encode(self, values: Mapping[str, Any]) -> bytes:
        """Returns the message with these fields; defaults are left out, except in a ``oneof``."""
        return b"".join(_encode(self, values))

    def __repr__(self) -> str:
        return f"<Message {self.name}>"


def map_entry(owner: str, name: str, key: Field, value: Field) -> Message:
    """Returns the type behind ``map<..> name`` of the message ``owner``."""
    title = "".join(part.capitalize() for part in name.split("_"))
    return Message(f"{owner}.{title}Entry", key, value, is_map_entry=True)


# --- reading ----------------------------------------------------------------------------------------------------------


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns the value of a varint and the position behind it. Raises IndexError if the data ends inside,
    ProtobufError beyond 64 bits."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
        if shift > 63:
            raise ProtobufError("an integer is longer than 64 bits")


def _decode(message: Message, data: bytes, view: memoryview, at: int, end: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    by_number = message.by_number
    while at < end:
        tag, at = varint(data, at)
        wire = tag & 7
        if wire == _DELIMITED:
            size, at = varint(data, at)
            start, at = at, at + size
        elif wire == _VARINT:
            start, at = at, varint(data, at)[1]
        elif wire in _FLOAT_WIRES:
            start, at = at, at + _FLOAT_WIRES[wire]
        else:
            raise ProtobufError(f"{message.name}: {wire} is not a wire type")
        if at > end:
            raise ProtobufError(f"{message.name}: the message is truncated")
        field = by_number.get(tag >> 3)
        if field is None:
            continue
        if wire == _WIRE.get(field.kind, _VARINT):
            _take(values, field, data, view, start, at)
        elif wire == _DELIMITED and field.repeated:
            _take_packed(values, field, data, start, at)
        else:
            raise ProtobufError(f"{message.name}.{field.name}: {wire} is not its wire type")
    return values


def _take(values: dict[str, Any], field: Field, data: bytes, view: memoryview, start: int, end: int) -> None:
    """Adds one value that is not packed."""
    kind = field.kind
    value: Any
    if kind == BYTES:
        value = view[start:end]
    elif kind == STRING:
        value = data[start:end].decode()
    elif kind == MESSAGE:
        of = _message(field)
        value = _decode(of, data, view, start, end)
        if of.is_map_entry:
            _take_entry(values.setdefault(field.name, {}), of, value)
            return
    elif kind in _FLOATS:
        packer, code = _FLOATS[kind]
        value = packer.unpack_from(data, start)[0]
        if field.repeated:
            values.setdefault(field.name, array(code)).append(value)
            return
    else:
        value = _number(kind, varint(data, start)[0])
    if field.repeated:
        values.setdefault(field.name, []).append(value)
        return
    if field.oneof:
        values.pop(values.get(field.oneof, ""), None)
        values[field.oneof] = field.name
    values[field.name] = value


def _take_entry(into: dict[Any, Any], entry: Message, pair: dict[str, Any]) -> None:
    key, value = entry.fields
    absent = {STRING: "", MESSAGE: {}, BYTES: b""}
    into[pair.get("key", absent.get(key.kind, 0))] = pair.get("value", absent.get(value.kind, 0))


def _take_packed(values: dict[str, Any], field: Field, data: bytes, start: int, end: int) -> None:
    kind = field.kind
    if kind in _FLOATS:
        packer, code = _FLOATS[kind]
        if (end - start) % packer.size:
            raise ProtobufError(f"{field.name}: packed numbers are truncated")
        values.setdefault(field.name, array(code)).frombytes(data[start:end])
        return
    if kind in (STRING, BYTES, MESSAGE):
        raise ProtobufError(f"{field.name} cannot be packed")
    numbers = values.setdefault(field.name, [])
    piece = data[start:end]
    if piece.isascii():  # Every byte is a number of its own.
        numbers.extend(piece if kind != BOOL else map(bool, piece))
        return
    at, size = 0, len(piece)
    while at < size:
        value, at = varint(piece, at)
        numbers.append(_number(kind, value))


def _number(kind: int, value: int) -> int | bool:
    """Interprets the 64 bits of a varint."""
    if kind == UINT64:
        return value
    if kind == BOOL:
        return value != 0
    if kind == UINT32:
        return value & 0xFFFFFFFF
    if kind == INT64:
        return value - (1 << 64) if value >> 63 else value
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _message(field: Field) -> Message:
    if not isinstance(field.of, Message):
        raise TypeError(f"{field.name} has no message type")
    return field.of


# --- writing ----------------------------------------------------------------------------------------------------------


def write_varint(value: int) -> bytes:
    """Returns ``value`` as a varint; negative ones as 64 bits."""
    if 0 <= value < 128:
        return bytes((value,))
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _encode(message: Message, values: Mapping[str, Any]) -> list[Any]:
    if not values.keys() <= message.names:
        raise KeyError(f"{message.name} has no {', '.join(sorted(values.keys() - message.names))}")
    out: list[Any] = []
    for field in message.fields:
        value = values.get(field.name)
        if value is None:
            continue
        if not field.repeated:
            if value or field.oneof or field.kind == MESSAGE:
                _write(out, field, value)
        elif field.kind == MESSAGE and _message(field).is_map_entry:
            for key, item in value.items():
                _write(out, field, {"key": key, "value": item})
        elif _WIRE.get(field.kind) == _DELIMITED:
            for item in value:
                _write(out, field, item)
        elif len(value):
            _write_packed(out, field, value)
    return out


def _write(out: list[Any], field: Field, value: Any) -> None:
    kind = field.kind
    out.append(write_varint(field.number << 3 | _WIRE.get(kind, _VARINT)))
    if kind in _FLOATS:
        out.append(_FLOATS[kind][0].pack(value))
        return
    if kind == STRING:
        value = value.encode()
    elif kind == MESSAGE:
        value = b"".join(_encode(_message(field), value))
    elif kind != BYTES:
        out.append(write_varint(int(value)))
        return
    out.append(write_varint(len(value)))
    out.append(value)


def _write_packed(out: list[Any], field: Field, value: Any) -> None:
    if field.kind in _FLOATS:
        code = _FLOATS[field.kind][1]
        packed = (value if isinstance(value, array) and value.typecode == code else array(code, value)).tobytes()
    else:
        packed = b"".join(map(write_varint, value))
    out += (write_varint(field.number << 3 | _DELIMITED), write_varint(len(packed)), packed)
