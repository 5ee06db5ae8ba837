"""Records to JSON and back, checked: one codec for everything that crosses a process or is kept."""

from typing import TypeVar

import msgspec

T = TypeVar("T")


class CodecError(ValueError):
    """The bytes are not a valid record of the type; the message says where and why."""


def encode(record: object) -> bytes:
    """Compact JSON of a dataclass, enum, mapping, sequence or plain value."""
    return msgspec.json.encode(record)


def decode(data: bytes | str, kind: type[T]) -> T:
    """The record of ``kind`` that ``data`` describes; unknown keys are ignored (an older reader meets a newer writer).

    Raises CodecError with the path of the fault.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise CodecError(str(error)) from error
