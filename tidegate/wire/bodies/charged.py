"""The number of inferences that a caller is charged for: of what its request states, the largest.

Apart from ``v2``, since the queue_proxy runs without packages and does not charge.
"""

import re
import zlib
from contextlib import suppress
from typing import Final

import msgspec

from tidegate.wire.bodies.v2 import JSON_LENGTH, MOST, positive
from tidegate.wire.message_heads import AnyRequestHead


class _Input(msgspec.Struct):
    shape: tuple[float, ...] = ()


class _Request(msgspec.Struct):
    inputs: list[_Input] = []


UNPACKED_BYTES: Final = 4 << 20
"""Most bytes that a coded body is unpacked to."""
_CODINGS: Final = frozenset((b"gzip", b"x-gzip", b"deflate"))
_ZLIB_OR_GZIP: Final = 32 + zlib.MAX_WBITS

_read = msgspec.json.Decoder(_Request).decode


def charged_batch(head: AnyRequestHead, body: bytes, header: bytes, *, is_whole: bool) -> int:
    """Returns the batch of a request whose caller is charged for it; 0 if neither header nor shape states one.

    It is the larger of the header and of the first dimension of the first input. ``body`` is what is kept of the body.
    Where its JSON is whole, it is read as a server reads it, so that no other "shape" hides that of the input; else the
    largest of all shapes in it counts.
    """
    value = head.get(header)
    stated = positive(value) if value is not None else 0
    if not body:
        return stated
    given, json = head.get(JSON_LENGTH), body
    if given is not None:
        length = positive(given)
        is_whole = is_whole or len(body) >= length
        json = body[:length]
    if is_whole:
        try:
            inputs = _read(json).inputs
            dimension = inputs[0].shape[0] if inputs and inputs[0].shape else 0.0
            return max(stated, int(min(dimension, MOST)))
        except (msgspec.DecodeError, RecursionError):
            pass  # Its server refuses it, reads more into it than JSON allows, or does not heed the stated length.
    return max(stated, largest_shape(body))


def unpacked(body: bytes, coding: bytes) -> bytes | None:
    """Returns the whole body that ``body`` is coded from (content-encoding, RFC 9110, section 8.4.1).

    Returns None if it cannot be read: another coding than gzip and deflate, several of them, malformed bytes, or more
    than 4 MB.
    """
    coding = coding.strip().lower()
    if coding in (b"", b"identity"):
        return body
    if coding not in _CODINGS:
        return None
    inflate = zlib.decompressobj(_ZLIB_OR_GZIP)
    try:
        text = inflate.decompress(body, UNPACKED_BYTES)
    except zlib.error:
        return None
    return text if inflate.eof and not inflate.unused_data else None


_DIMENSION: Final = rb"[ \t\r\n]*+:[ \t\r\n]*+\[[ \t\r\n]*+([0-9][-+.0-9eE]*+)[ \t\r\n]*+[],]"
_shapes = re.compile(rb'"shape"' + _DIMENSION).findall
_escaped_shapes = re.compile(
    rb'"(?:s|\\u0073)(?:h|\\u0068)(?:a|\\u0061)(?:p|\\u0070)(?:e|\\u0065)"' + _DIMENSION
).findall
"""Finds them also where a letter of the key is written as its escape."""
_unfinished = re.compile(
    rb'"[a-z\\u0-9]{0,30}(?:"[ \t\r\n]*+(?::[ \t\r\n]*+(?:\[[ \t\r\n]*+[-+.0-9eE]*+)?)?)?\Z'
).search
"""Matches an end of a piece that may be the beginning of a shape."""
_UNFINISHED_BYTES: Final = 64 * 1024
"""Bytes in which a shape must begin and end. No writer of JSON takes more."""


def largest_shape(text: bytes) -> int:
    """Returns the largest first dimension of all shapes in a part of a JSON text; 0 if there is none."""
    largest = 0
    for number in (_escaped_shapes if b"\\u00" in text else _shapes)(text):
        with suppress(ValueError):  # It is no number: its server refuses it.
            largest = max(largest, int(min(float(number), MOST)))
    return largest


class LaterShapes:
    """Finds the largest first dimension of all shapes in the rest of a JSON body, piece by piece."""

    __slots__ = ("_left", "_tail")

    def __init__(self, begun: bytes, length: int | None = None) -> None:
        """``begun``: what was read of the body before; ``length``: bytes of its JSON, if others follow them."""
        self._left = None if length is None else max(0, length - len(begun))
        """Bytes of JSON to come; None if all that comes is JSON."""
        self._tail = _tail(begun)

    def feed(self, piece: bytes) -> int:
        """Returns the largest first dimension in the next piece, what stood unfinished before it included; or 0."""
        if self._left is not None:
            piece = piece[: self._left]
            self._left -= len(piece)
        if not piece:
            return 0
        text = self._tail + piece
        self._tail = _tail(text)
        return largest_shape(text)

    def __repr__(self) -> str:
        return f"<LaterShapes {self._left} bytes left, {self._tail!r} unfinished>"


def _tail(text: bytes) -> bytes:
    """Returns the part of a text that may be the beginning of a shape; white space at its end has no meaning."""
    text = text.rstrip(b" \t\r\n")
    found = _unfinished(text, max(0, len(text) - _UNFINISHED_BYTES))
    return b"" if found is None else found[0]
