"""The fields of an HTTP/1.1 head: one validated block, searched by its lower-case copy and forwarded as a slice.

Request and response heads share this. Peer data never raises: a parser returns :class:`Rejected`.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import ClassVar, final

from tidegate.headers import INTERNAL_PREFIX
from tidegate.wire.http1 import grammar

FORWARDING = frozenset({b"forwarded", b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"})
NEVER_LISTED = FORWARDING | {
    b"host",
    b"content-length",
    b"transfer-encoding",
    b"authorization",
    b"via",
    b"traceparent",
}
"""Fields that are kept although a peer lists them in Connection."""

request_specials: Callable[[bytes], list[tuple[bytes, bytes]]] = re.compile(
    rb"\n(host|content-length|transfer-encoding|connection|expect|upgrade|traceparent|keep-alive|proxy-connection|te"
    rb"|http2-settings|forwarded|x-forwarded-(?:for|proto|host)|tidegate-[^:]*+|grpc-timeout"
    rb"|inference-header-content-length|k-network-(?:probe|hash)|prefer|user-agent(?=:[\t ]*+k)):[\t ]*+([^\r]*+)"
).findall
response_specials: Callable[[bytes], list[tuple[bytes, bytes]]] = re.compile(
    rb"\n(content-length|transfer-encoding|connection|keep-alive|proxy-connection|upgrade|te|tidegate-[^:]*+)"
    rb":[\t ]*+([^\r]*+)"
).findall


@lru_cache(maxsize=1024)
def _line_start(name: bytes) -> bytes:
    """Returns the beginning of a field's line. Most requests are searched for the same few names."""
    return b"\n%b:" % name


@final
class Rejected:
    """Refused bytes: the status to answer with (502 for a response) and the reason."""

    __slots__ = ("status", "why")

    def __init__(self, status: int, why: str) -> None:
        self.status = status
        self.why = why

    def __repr__(self) -> str:
        return f"<Rejected {self.status}: {self.why}>"


class Fields:
    """A validated header block: look-up and removal. Every line is preceded and followed by CRLF."""

    __slots__ = ("_block", "_lower", "_original", "_values")

    _looked_for: ClassVar[frozenset[bytes]] = frozenset()
    """Names that are always among the special fields if they are present."""
    _block: bytes
    """The fields to forward."""
    _original: bytes
    _lower: bytes | None
    """``_original`` in lower case; None before the first use."""
    _values: dict[bytes, bytes] | None
    """The special fields and every visible ``tidegate-`` field, values in lower case; None before the first use."""
    _places: Mapping[bytes, slice] | None
    """Places of the values in ``_original``, by name. Only of a request head, and None if no template has read it."""

    @property
    def fields(self) -> bytes:
        """Header lines to forward, each ``name: value CRLF``; hop-by-hop and stripped fields are removed."""
        return self._block[2:]

    def received_fields(self) -> bytes:
        """Returns all header lines as received, each ``name: value CRLF`` (the most common Connection line may be
        missing)."""
        return self._original[2:]

    def get(self, name: bytes) -> bytes | None:
        """Returns the value of the first field ``name`` (given in lower case) without surrounding white space, or None.

        Sees the head as received, including fields that are not forwarded.
        """
        values = self._values
        if values is None:  # A plain request head: all of its fields are visible.
            places = self._places
            if places is not None:
                place = places.get(name)
                return None if place is None else self._original[place].strip(b" \t")
            if name in self._looked_for:
                return None
        elif (value := values.get(name)) is None:
            if name in self._looked_for or name.startswith(INTERNAL_PREFIX):
                return None  # The result for most requests, in a third of the time.
        elif value.isdigit():
            return value  # As received: digits have no case.
        lower = self._lower
        if lower is None:
            self._lower = lower = self._original.lower()
        start = _line_start(name)
        at = lower.find(start)
        if at < 0:
            return None
        at += len(start)
        return self._original[at : lower.find(b"\r", at)].strip(b" \t")

    def control(self, name: bytes) -> bytes | None:
        """Returns the value of a ``tidegate-`` field in lower case, or None without it: :meth:`get` in a fifth of the
        time.

        Numbers and words of the protocol between Tidegate's own processes mean the same in lower case.
        """
        values = self._values
        if values is None:
            self._values = values = dict(reversed(request_specials(self._in_lower_case())))
        return values.get(name)

    def mentions(self, text: bytes) -> bool:
        """Returns whether ``text`` (in lower case) occurs anywhere in the fields: one quick no instead of several
        look-ups."""
        return self._in_lower_case().find(text) >= 0  # `in` first tries the bytes as a number: 0.2 us for an exception

    def _in_lower_case(self) -> bytes:
        lower = self._lower
        if lower is None:
            self._lower = lower = self._original.lower()
        return lower

    def drop(self, *names: bytes) -> None:
        """Removes fields (names in lower case) from the forwarded ones."""
        self._block = without_fields(self._block, self._block.lower(), names)


def without_fields(block: bytes, lower: bytes, names: tuple[bytes, ...] | set[bytes]) -> bytes:
    """Returns ``block`` without the fields ``names``; ``lower`` is its lower-case copy."""
    spans = []
    for name in names:
        key = b"\n%b:" % name
        at = lower.find(key)
        while at >= 0:
            end = lower.index(b"\n", at + 1)
            spans.append((at, end))
            at = lower.find(key, end)
    if not spans:
        return block
    spans.sort()
    pieces, position = [], 0
    for at, end in spans:
        pieces.append(block[position:at])
        position = end
    pieces.append(block[position:])
    return b"".join(pieces)


def read_length(value: bytes) -> int | None:
    """Returns a Content-Length of 1-18 ASCII digits as a number, or None for any other value."""
    value = value.strip(b" \t")
    return int(value) if value.isdigit() and len(value) <= 18 else None


def connection_options(found: list[tuple[bytes, bytes]]) -> set[bytes]:
    """Returns the options that all Connection fields list; values that are no token are ignored."""
    tokens = {token.strip(b" \t") for name, value in found if name == b"connection" for token in value.split(b",")}
    return {token for token in tokens if grammar.TOKEN.fullmatch(token)}


def without_internal(block: bytes, names: set[bytes]) -> bytes | None:
    """Returns ``block`` without the fields ``names``, each present once, if they are exactly the internal ones and in
    lower case, as a gateway writes them. Returns None if they are not."""
    if not all(map(_is_internal, names)):
        return None
    without, count = _internal_lines(b"", block)
    return without if count == len(names) else None


_internal_lines = re.compile(rb"\r\ntidegate-(?!timeout-ms:|batch-size:|priority:)[^\r]*+").subn


def _is_internal(name: bytes) -> bool:
    return name.startswith(INTERNAL_PREFIX)
