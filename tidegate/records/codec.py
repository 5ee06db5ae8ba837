"""Encodes records as JSON and decodes them with checks: one codec for everything that crosses a process or is kept."""

from typing import TypeVar

import msgspec

T = TypeVar("T")


class CodecError(ValueError):
    """The bytes are not a valid record of the type; the message states the place and the reason."""


def encode(record: object) -> bytes:
    """Returns a dataclass, enum, mapping, sequence or plain value as compact JSON."""
    return msgspec.json.encode(record)


def decode(data: bytes | str, kind: type[T]) -> T:
    """Returns the record of ``kind`` that ``data`` describes. Unknown keys are ignored (an older reader meets a newer
    writer).

    Raises CodecError with the path of the fault.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise CodecError(str(error)) from error


class Lines:
    """Splits a stream of JSON lines (newline-delimited JSON), received in pieces, into whole lines.

    A line ends at a line feed and nowhere else. ``str.splitlines``, and with it ``iter_lines`` of httpx, also ends a
    line at U+0085, U+2028 and five other characters, all of which occur unescaped inside JSON strings (RFC 8259,
    section 7).
    """

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def push(self, piece: bytes) -> list[bytes]:
        """Returns the lines that ``piece`` completes, without their line feeds; empty lines are left out."""
        *whole, self._rest = (self._rest + piece).split(b"\n")
        return [line for line in whole if line.strip()]

    def __repr__(self) -> str:
        return f"<Lines {len(self._rest)} bytes of the next>"
