"""The top-level members of a JSON object, read without building the rest of it.

:class:`ObjectScan` reads the outline of a body as it arrives: the keys on its first level, and the start and end of
their values. Strings and nested values are skipped with ``find`` and regular expressions, so that text inside a prompt
is never taken for a member, at any place and in any escaping. Between two pieces it keeps a few KB at most, the work is
linear in the bytes, and there is no recursion. :func:`read_object` returns the same for a whole body, in a fraction of
the time.

Checked are: UTF-8 everywhere; one object with only white space around it; members, commas and colons on the first
level; closed brackets and strings; no wanted key twice. Not checked is the inside of other values (``[1,}]``, a control
character in a prompt): the model server refuses those. A byte order mark and the other encodings of Unicode are
refused.

A value in ``chosen`` may be used before the end, but it is final only when :meth:`ObjectScan.end` has found no fault:
until then the key may occur a second time. A caller that forwards earlier must go on feeding, and must abort the
transfer before its last byte on :class:`~tidegate.wire.http1.fields.Rejected`.
"""

import codecs
import json
import re
from collections.abc import Callable, Iterable
from typing import Final, cast

import msgspec

from tidegate.wire.http1.fields import Rejected

VALUE_BYTES: Final = 4096
"""Maximum size of a wanted value, as written."""
BINARY_BYTES: Final = 4096
"""A longer string that begins as base64 (an image, a sound) counts as this many bytes of prompt. Our choice: as much as
some hundred tokens, whatever the picture's size."""

MAX_DEPTH: Final = 1000
"""Maximum depth of a body in a scan: each level is a step here, and a recursion in most model servers. The decoder of
whole bodies has a limit of its own, of this order."""
MAX_MEMBERS: Final = 1000
"""Maximum members on the first level."""
_FRONT: Final = 128
"""Length of the beginning that makes a string base64 or a URL: letters, digits and their marks, no space."""
_SHORT: Final = 64
_SLICE: Final = 65536
"""Maximum bytes for one match that repeats a group: each round takes some memory until it ends."""
_ESCAPED_SLICE: Final = 1024
_START, _KEY, _COLON, _VALUE, _SCALAR, _STRING, _NESTED, _NEXT, _END = range(9)
_QUOTE, _BACKSLASH, _BRACKET = b'"\\['
_ITEM = frozenset(b'"[{')
_OPENING, _CLOSING = frozenset(b"[{"), frozenset(b"]}")


def _compiled(pattern: bytes) -> Callable[..., re.Match[bytes]]:
    """Returns the match function of a pattern that matches everywhere, if only the empty string."""
    return cast("Callable[..., re.Match[bytes]]", re.compile(pattern, re.DOTALL).match)


_FLAT = rb'[^"\[\]{}]*+(?:"[^"\\]{0,%d}+"[^"\[\]{}]*+)*' % _SHORT
_ESCAPED = rb'[^"\[\]{}]*+(?:"[^"\\]{0,%d}+(?:\\.[^"\\]{0,%d}+){0,8}"[^"\[\]{}]*+)*' % (_SHORT, _SHORT)
_BINARY = rb"(?=[-A-Za-z0-9+/=:;,._\\]{%d})(?!.{0,%d}\\[^/])" % (_FRONT, _FRONT - 2)
"""The only escape is that of a slash, which PHP writes so."""
_space = _compiled(rb"[ \t\r\n]*+")
_scalar = _compiled(rb"[-+.0-9A-Za-z]*+")
_escapes = _compiled(rb'[^"\\]*+(?:\\.[^"\\]*+)*')
_flat = _compiled(_FLAT)
"""Matches anything except brackets and strings that are long or have escapes."""
_leaves = _compiled(rb"%b(?:[\[{]%b[\]}]%b)*" % (_ESCAPED, _ESCAPED, _ESCAPED))
"""Matches the same, and containers of nothing else, and strings with a few escapes: in nested JSON or in text with
lines the short strings are full of escapes."""
_member = re.compile(
    rb'[ \t\r\n]*+"([^"\\]{0,%d}+)"[ \t\r\n]*+:[ \t\r\n]*+'
    rb'(?:("[^"\\]{0,256}+"|[-+.0-9A-Za-z]{1,64}+)[ \t\r\n]*+([,}]))?' % _SHORT
).match
"""A key without escapes, its colon, and a short value with the byte behind it."""
_is_binary = re.compile(_BINARY).match
_has_binary = re.compile(b'"' + _BINARY).search
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Extent:
    """Place and size of the value of a measured key."""

    __slots__ = ("items", "size", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        """Offset of its first byte in the body."""
        self.size = 0
        """Bytes of the value; long strings of base64 count ``BINARY_BYTES`` at most."""
        self.items = 0
        """For a counted key: strings and containers on the first level of an array; 0 for an array of numbers and for
        other values."""

    def __repr__(self) -> str:
        return f"<Extent at {self.start}, {self.size} bytes, {self.items} items>"


class Keys:
    """Wanted keys: ``chosen`` for their values as written, ``measured`` for their extents, with counted items if they
    are in ``counted`` as well. A key that differs from one of ``exact`` by case alone is refused: servers written in Go
    would take it for the same."""

    __slots__ = ("chosen", "counted", "exact", "longest", "measured")

    def __init__(
        self,
        chosen: Iterable[str],
        measured: Iterable[str] = (),
        counted: Iterable[str] = (),
        exact: Iterable[str] = (),
    ) -> None:
        self.chosen = frozenset(chosen)
        self.measured = frozenset(measured)
        self.counted = frozenset(counted)
        self.exact = frozenset(exact)
        self.longest = 6 * max(map(len, (*self.chosen, *self.measured))) + 2
        """Bytes of the longest key with each of its letters as an escape, with its quotes."""


class FoundMembers:
    """The wanted keys of a body."""

    __slots__ = ("chosen", "extents")

    def __init__(self) -> None:
        self.chosen: dict[str, bytes] = {}
        """Values as written."""
        self.extents: dict[str, Extent] = {}

    def __repr__(self) -> str:
        return f"<FoundMembers {self.chosen}, {self.extents}>"


def read_object(body: bytes, keys: Keys) -> FoundMembers | Rejected:
    """Returns the result of :class:`ObjectScan` for a whole body."""
    found = _read_compact(body, keys)
    if found is not None:
        return found
    scan = ObjectScan(keys)
    scan.feed(body)
    return scan.end() or scan.found


def _read_compact(body: bytes, keys: Keys) -> FoundMembers | None:
    """Reads a body in the form of most clients with msgspec. Returns None if the scan must decide.

    The decoder keeps the last of equal keys. The length shows that there are none: keys, values and the punctuation
    between them, written without spaces, add up to the body only if it has nothing else. With a space after each colon
    and comma that sum would prove nothing (a second member may be as long as the missing spaces), so the members are
    written again and compared.
    """
    try:
        members = _members(body)
        if not body.isascii():
            body.decode()
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    count = len(members)
    values = members.values()
    spare = len(body) - sum(map(len, members)) - sum(map(len, values)) - 4 * count - 1
    if not 0 < count <= MAX_MEMBERS or (spare and spare != 2 * count - 1):
        return None
    if spare and body != b"{%b}" % b", ".join([b'"%b": %b' % (key.encode(), value) for key, value in members.items()]):
        return None
    found = FoundMembers()
    chosen, measured = keys.chosen, keys.measured
    at, colon, comma = 1, 4 if spare else 3, 2 if spare else 1
    for key, value in members.items():
        at += len(key) + colon
        size = len(value)
        if key in chosen:
            if size > VALUE_BYTES:
                return None
            found.chosen[key] = bytes(value)
        elif key in measured:
            if size > BINARY_BYTES and _has_binary(value) is not None:
                return None
            extent = found.extents[key] = Extent(at)
            extent.size = size
            if key in keys.counted and body[at] == _BRACKET:
                extent.items = _items(value)
        elif key.lower() in keys.exact:
            return None
        at += size + comma
    return found


def _items(value: msgspec.Raw) -> int:
    """Returns the number of strings and containers in an array."""
    return sum(memoryview(item)[0] in _ITEM for item in _elements(value))


class ObjectScan:
    """Bytes in, members out: ``feed`` every piece, then ``end``.

    START -> KEY -> COLON -> VALUE -> SCALAR, STRING or NESTED -> NEXT -> KEY ... -> END; keys, and strings in nested
    values, are STRING too. The first fault is final.
    """

    __slots__ = (
        "_bad",
        "_counts",
        "_cut",
        "_depth",
        "_escaped",
        "_extent",
        "_front",
        "_is_first",
        "_is_key",
        "_kept",
        "_keys",
        "_mark",
        "_members",
        "_name",
        "_offset",
        "_state",
        "_string",
        "found",
        "steps",
    )  # fmt: skip

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self.found = FoundMembers()
        """The wanted keys so far."""
        self.steps = 0
        """Iterations in Python so far: their small number bounds the time of hostile bodies."""
        self._state = _START
        self._bad: Rejected | None = None
        self._offset = 0
        self._cut = b""
        """The first bytes of an incomplete character."""
        self._name: str | None = None
        """The chosen key of the present value; None if the value is not kept."""
        self._kept: bytes | None = None
        """The part of the present key or chosen value in earlier pieces; None if it is not kept."""
        self._mark = 0
        """Position in the piece where the kept text begins or goes on."""
        self._extent: Extent | None = None
        self._is_key = self._is_first = self._counts = self._escaped = False
        self._depth = self._members = self._string = 0
        """Bytes of the present long string in earlier pieces."""
        self._front = b""

    def __repr__(self) -> str:
        return f"<ObjectScan {self._offset} bytes, {self._bad or self.found}>"

    def feed(self, data: bytes) -> Rejected | None:
        """Reads the next piece; returns the verdict if there is one already."""
        if self._bad is not None or not data:
            return self._bad
        if (self._cut or not data.isascii()) and not self._is_utf8(data):
            return self._refuse("is not UTF-8")
        self._read(data)
        return self._bad

    def _read(self, data: bytes) -> None:
        self._mark = 0
        at, size = 0, len(data)
        while at < size:
            self.steps += 1
            state = self._state
            if state == _NESTED:
                at = self._nested(data, at)
            elif state == _STRING:
                at = self._in_string(data, at)
            elif state == _SCALAR:
                at = self._in_scalar(data, at)
            elif state == _KEY and (match := _member(data, at)) is not None:
                at = self._whole_member(match)
            else:
                at = self._between(data, at)
            if self._bad is not None:
                return
        if self._kept is not None:
            self._kept += data[self._mark : self._mark + VALUE_BYTES + 1]
            if len(self._kept) > (self._keys.longest if self._is_key else VALUE_BYTES):
                self._drop()
        self._offset += size

    def end(self) -> Rejected | None:
        """Ends the body and returns the verdict."""
        if self._bad is None and self._state != _END:
            return self._refuse("is empty" if self._state == _START else "ends before its JSON object does")
        return self._bad

    # --- members ----------------------------------------------------------------------------------------------------

    def _whole_member(self, match: re.Match[bytes]) -> int:
        """Reads a key, and its value if that is short."""
        self._is_first = False
        key, value, after = match.groups()
        self._open_value(key)
        if value is None:
            self._state = _VALUE
            return match.end()
        if self._name is not None:
            self.found.chosen[self._name] = value
        elif self._extent is not None:
            self._extent.start = self._offset + match.start(2)
            self._extent.size = len(value)
        self._state = _KEY if after == b"," else _END
        return match.end()

    def _between(self, data: bytes, at: int) -> int:
        """Reads white space, then the one byte that may follow here."""
        at = _space(data, at).end()
        if at == len(data):
            return at
        state, byte = self._state, data[at : at + 1]
        if state == _KEY and byte == b'"':
            self._is_key, self._is_first = True, False
            self._begin_string(at)
        elif state == _VALUE:
            return self._begin_value(data, at)
        elif state == _COLON and byte == b":":
            self._state = _VALUE
        elif state == _NEXT and byte == b",":
            self._state = _KEY
        elif byte == b"}" and (state == _NEXT or (state == _KEY and self._is_first)):
            self._state = _END
        elif state == _START and byte == b"{":
            self._state, self._is_first = _KEY, True
        elif state == _START:
            is_mark = data.startswith(b"\xef", at) and not self._offset
            self._refuse("begins with a byte order mark" if is_mark else "is not a JSON object")
        else:
            self._refuse(f"is malformed JSON at byte {self._offset + at}")
        return at + 1

    def _open_value(self, key: bytes) -> None:
        """Decides how to treat the value of a key."""
        name = key.decode("utf-8", "replace")
        self._name = self._extent = None
        self._counts = False
        self._members += 1
        if self._members > MAX_MEMBERS:
            self._refuse(f"has more than {MAX_MEMBERS} members")
        elif name in self.found.chosen or name in self.found.extents:
            self._refuse(f"has the key {name!r} twice")
        elif name in self._keys.chosen:
            self._name = name
        elif name in self._keys.measured:
            self._extent = self.found.extents[name] = Extent(0)
            self._counts = name in self._keys.counted
        elif name.lower() in self._keys.exact:
            self._refuse(f"has the key {name!r}: write it {name.lower()!r}")

    def _begin_value(self, data: bytes, at: int) -> int:
        byte = data[at]
        if self._extent is not None:
            self._extent.start = self._offset + at
            self._counts = self._counts and byte == _BRACKET
        if byte == _QUOTE:
            self._begin_string(at)
            return at + 1
        self._kept, self._mark = (b"" if self._name is not None else None), at
        if byte in _OPENING:
            self._depth, self._state = 1, _NESTED
            return at + 1
        if _scalar(data, at).end() == at:
            self._refuse(f"is malformed JSON at byte {self._offset + at}")
        self._state = _SCALAR
        return at

    def _begin_string(self, at: int) -> None:
        """Begins a key or a value on the first level, with the quote at ``at``."""
        self._kept, self._mark = (b"" if self._is_key or self._name is not None else None), at
        self._depth = self._string = 0
        self._state = _STRING

    def _drop(self) -> None:
        """Drops kept text that is longer than any wanted key or value."""
        self._kept = None
        if not self._is_key:
            self._refuse(f"has more than {VALUE_BYTES} bytes in {self._name!r}")

    def _take(self, data: bytes, end: int) -> bytes | None:
        """Returns the kept text up to ``end``, or None without any."""
        if self._kept is None:
            return None
        taken = self._kept + data[self._mark : end]
        self._kept = None
        return taken

    def _close_value(self, data: bytes, end: int) -> None:
        value = self._take(data, end)
        if value is not None and self._name is not None:
            if len(value) > VALUE_BYTES:
                self._drop()
            self.found.chosen[self._name] = value
        elif self._extent is not None:
            self._extent.size += self._offset + end - self._extent.start
        self._state = _NEXT

    def _close_key(self, data: bytes, end: int) -> None:
        self._is_key = False
        key = self._take(data, end)
        if key is not None and len(key) > self._keys.longest:
            key = None
        if key is not None and b"\\" in key:
            try:
                key = b'"%b"' % json.loads(key).encode("utf-8", "surrogatepass")
            except ValueError:
                self._refuse(f"has a malformed key before byte {self._offset + end}")
        self._open_value(b"" if key is None else key[1:-1])
        self._state = _COLON

    # --- values -----------------------------------------------------------------------------------------------------

    def _in_scalar(self, data: bytes, at: int) -> int:
        end = _scalar(data, at).end()
        if end < len(data):
            self._close_value(data, end)
        return end

    def _in_string(self, data: bytes, at: int) -> int:
        """Reads the rest of a string that began in this piece or an earlier one."""
        quote = self._string_end(data, at)
        if self._depth:
            self._measure(data, at, quote if quote >= 0 else len(data))
        if quote < 0:
            return len(data)
        if self._depth:
            self._close_string()
            self._state = _NESTED
        elif self._is_key:
            self._close_key(data, quote + 1)
        else:
            self._close_value(data, quote + 1)
        return quote + 1

    def _nested(self, data: bytes, at: int) -> int:
        """Skips brackets and strings until the first level is reached again or the piece ends."""
        depth, size = self._depth, len(data)
        extent = self._extent if self._counts else None
        while True:
            self.steps += 1
            if extent is not None and depth == 1:
                end = _flat(data, at, at + _SLICE).end()
                extent.items += data.count(b'"', at, end) // 2
            elif depth == MAX_DEPTH:
                end = _flat(data, at, at + _SLICE).end()
            else:
                end = _leaves(data, at, at + _SLICE).end()
            if end == size:
                self._depth = depth
                return size
            byte = data[end]
            at = end + 1
            if byte == _QUOTE:
                if extent is not None and depth == 1:
                    extent.items += 1
                quote = self._string_end(data, at)
                if quote < 0 or quote - at > BINARY_BYTES:
                    self._depth, self._string = depth, 0
                    self._measure(data, at, quote if quote >= 0 else size)
                    if quote < 0:
                        self._state = _STRING
                        return size
                    self._close_string()
                at = quote + 1
            elif byte in _OPENING:
                if extent is not None and depth == 1:
                    extent.items += 1
                depth += 1
                if depth > MAX_DEPTH:
                    self._refuse(f"is nested deeper than {MAX_DEPTH} levels")
                    return size
            elif byte in _CLOSING:
                depth -= 1
                if not depth:
                    self._close_value(data, at)
                    return at
            else:
                at = end  # The slice ended here.

    def _string_end(self, data: bytes, at: int) -> int:
        """Returns the position of the closing quote of the string around ``at``; -1 if it is in a later piece."""
        size = len(data)
        if self._escaped:
            self._escaped = False
            at += 1
        while True:
            self.steps += 1
            quote = data.find(b'"', at)
            last = quote if quote >= 0 else size
            if last == at or data[last - 1] != _BACKSLASH:
                return quote
            if last - at >= _SHORT:  # A run of backslashes: an odd number escapes the next byte.
                run = last - at - len(data[at:last].rstrip(b"\\"))
                if quote < 0:
                    self._escaped = run % 2 == 1
                    return -1
                if run % 2 == 0:
                    return quote
                at = quote + 1
            else:  # Escapes are dense.
                at = _escapes(data, at, at + _ESCAPED_SLICE).end()
                if at == size:
                    return -1
                if data[at] == _BACKSLASH and at + 1 == size:
                    self._escaped = True
                    return -1

    def _measure(self, data: bytes, at: int, end: int) -> None:
        """Measures a part of a long string in a nested value."""
        if not self._string:
            self._front = b""
        if len(self._front) < _FRONT:
            self._front += data[at : min(end, at + _FRONT - len(self._front))]
        self._string += end - at

    def _close_string(self) -> None:
        extra = self._string - BINARY_BYTES
        if extra > 0 and self._extent is not None and _is_binary(self._front) is not None:
            self._extent.size -= extra
        self._string = 0

    # --- faults -----------------------------------------------------------------------------------------------------

    def _is_utf8(self, data: bytes) -> bool:
        text = self._cut + data
        try:
            _, used = codecs.utf_8_decode(text, "strict", False)
        except UnicodeDecodeError:
            return False
        self._cut = text[used:]
        return True

    def _refuse(self, what: str) -> Rejected:
        if self._bad is None:
            self._bad = Rejected(400, f"the body {what}")
        return self._bad
