"""A reader of tokens behind ``content-encoding: gzip`` or ``deflate`` (RFC 9110, section 8.4.1)."""

import zlib
from typing import Final

from tidegate.wire.bodies.openai import Usage
from tidegate.wire.bodies.tokens import BodyReader, StreamReader

CODINGS: Final = frozenset({b"gzip", b"x-gzip", b"deflate"})
SLICE_BYTES: Final = 64 * 1024
MOST_BYTES: Final = 4 << 20
"""Of one piece, unpacked: text packs twentyfold, a piece is some 64 KB. What unpacks to more is read no further."""
_ZLIB_OR_GZIP: Final = 32 + zlib.MAX_WBITS


class CodedReader:
    """Unpacks what passes and shows it to ``reader``. What cannot be unpacked tells nothing from there on."""

    __slots__ = ("_inflate", "_is_over", "_reader")

    def __init__(self, reader: StreamReader | BodyReader) -> None:
        self._reader = reader
        self._inflate = zlib.decompressobj(_ZLIB_OR_GZIP)
        self._is_over = False

    @property
    def outputs(self) -> int:
        """As of the reader."""
        return self._reader.outputs

    @property
    def is_done(self) -> bool:
        """As of the reader."""
        return self._reader.is_done

    def feed(self, data: bytes) -> int:
        """The next piece as it passes; how many events with output it has completed."""
        found, left = 0, MOST_BYTES
        while data and not self._is_over:
            try:
                piece = self._inflate.decompress(data, SLICE_BYTES)
            except zlib.error:
                self._is_over = True
                break
            left -= len(piece)
            data = self._inflate.unconsumed_tail
            self._is_over = self._inflate.eof or left < 0
            if piece:
                found += self._reader.feed(piece)
        return found

    def usage(self) -> Usage | None:
        """What was reported so far; None: nothing."""
        return self._reader.usage()

    def __repr__(self) -> str:
        return f"<CodedReader of {self._reader!r}>"
