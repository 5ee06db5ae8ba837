"""Fields of a multipart/form-data body (RFC 7578), found as it arrives; files are skipped.

Audio and image calls name their model in a form. :class:`FormScan` reads delimiters, part heads and the values of
chosen fields; of the rest it keeps only a possible beginning of a delimiter. Forms that servers read differently are
refused: a chosen field that occurs twice, as a file, under two names or in another charset; text before the first
delimiter or beside one; a delimiter behind half a line end, or behind none of its own; parts without a head, and heads
that HTTP would not allow.

Delimiters are searched with ``find``, so the work is linear; a part costs a few steps, and there are at most
``MAX_PARTS`` of them.
"""

import re
from collections.abc import Iterable
from typing import Final

from tidegate.wire.http1.fields import Rejected

MAX_PARTS: Final = 256
HEAD_BYTES: Final = 4096
"""Maximum size of the head of one part."""
VALUE_BYTES: Final = 1024
"""Maximum size of a chosen field."""

_START, _AFTER, _HEAD, _BODY, _END = range(5)
_is_boundary = re.compile(rb"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]").fullmatch
"""RFC 2046 section 5.1.1."""
_disposition = re.compile(rb"(?:^|\r\n)content-disposition[ \t]*:([^\r\n]*)", re.IGNORECASE).findall
_parameters = re.compile(rb";[ \t]*([^= \t;]+)[ \t]*=[ \t]*(\"(?:[^\"\\]|\\.)*\"|[^ \t;\"]*)[ \t]*").findall
_is_head = re.compile(rb"(?:[!-9;-~]++:[\t -~\x80-\xff]*+(?:\r\n|\Z))+").fullmatch
_STATED: Final = rb";[^0-9a-z_;=]*+%b(?![0-9a-z_])[^;=]*+=([^;]*+)"
"""Anything that some parser may take for a parameter of this name, if it knows RFC 2231 (``name*0="mo"; name*1="del"``)
or ends a quoted string elsewhere."""
_marks = re.compile(rb"[^0-9A-Za-z_]+").sub
_names = re.compile(_STATED % b"name", re.IGNORECASE).findall
_boundaries = re.compile(_STATED % b"boundary", re.IGNORECASE).findall
_encoded = re.compile(
    rb"(?:^|\r\n)content-(?:transfer-encoding:|type:[ \t]*multipart/)"
    rb"|charset[ \t]*=(?![ \t]*\"?(?:utf-?8|us-ascii)\b)",
    re.IGNORECASE,
).search


def boundary_of(content_type: bytes) -> bytes | None:
    """Returns the boundary in a Content-Type field of this kind. Returns None if it is of another kind, or has no
    boundary or two."""
    kind, _, rest = content_type.partition(b";")
    if kind.strip(b" \t").lower() != b"multipart/form-data":
        return None
    named = [value.strip(b'"') for key, value in _parameters(b";" + rest) if key.lower() == b"boundary"]
    is_plain = len(named) == len(_boundaries(b";" + rest)) == 1
    return named[0] if is_plain and _is_boundary(named[0]) else None


class FormScan:
    """Bytes in, fields out: ``feed`` every piece, then ``end``.

    START -> AFTER a delimiter -> HEAD -> BODY -> AFTER ... -> END. As in ``json_scan``, a field may be used early but
    is final only at the end.
    """

    __slots__ = ("_bad", "_delimiter", "_held", "_inside", "_name", "_parts", "_state", "_wanted", "fields")

    def __init__(self, boundary: bytes, wanted: Iterable[str]) -> None:
        self._delimiter = b"--" + boundary
        self._wanted = frozenset(wanted)
        self.fields: dict[str, str] = {}
        """Chosen fields found so far."""
        self._state = _START
        self._held = b""
        """Unread bytes."""
        self._name: str | None = None
        """The chosen field of the present value."""
        self._parts = self._inside = 0
        """Number of parts, and number of delimiters inside lines, which do not count."""
        self._bad: Rejected | None = None

    def __repr__(self) -> str:
        return f"<FormScan {self._parts} parts, {self._bad or self.fields}>"

    def feed(self, data: bytes) -> Rejected | None:
        """Reads the next piece; returns the verdict if there is one already."""
        if self._bad is None and self._state != _END:
            self._held = self._read(self._held + data)
        return self._bad

    def end(self) -> Rejected | None:
        """Ends the body and returns the verdict."""
        if self._bad is None and self._state != _END and (self._state != _AFTER or self._held != b"--"):
            self._refuse("ends before its last boundary")
        return self._bad

    def _read(self, data: bytes) -> bytes:
        """Returns the unread bytes for the next piece."""
        at = 0
        while self._bad is None and self._state != _END:
            state = self._state
            if state == _START:
                after = self._first(data)
            elif state == _AFTER:
                after = self._after(data, at)
            elif state == _HEAD:
                after = self._head(data, at)
            else:
                after = self._body(data, at)
            if after is None:
                break
            at = after
        if self._bad is not None or self._state == _END:
            return b""
        if self._state == _BODY and self._name is None:
            # These bytes are not wanted: only a beginning of the delimiter matters, and the two bytes before it.
            return data[max(at, len(data) - len(self._delimiter) - 1) :]
        return data[at:]

    def _first(self, data: bytes) -> int | None:
        """Finds the first delimiter, at most behind an empty line. A preamble, which no client writes, has lines: a
        parser that ends them by line feeds alone finds other delimiters in it."""
        at = 2 if data.startswith(b"\r\n") else 0
        front = data[at : at + len(self._delimiter)]
        if front == self._delimiter:
            self._state = _AFTER
            return at + len(front)
        if not self._delimiter.startswith(front) and data != b"\r":
            self._refuse("does not begin with its boundary")
        return None

    def _after(self, data: bytes, at: int) -> int | None:
        """Reads the end of the line behind a delimiter, or the end of the form."""
        mark = data[at : at + 4]
        if mark == b"--\r\n":
            self._state = _END
        elif mark.startswith(b"\r\n"):
            self._parts += 1
            if self._parts > MAX_PARTS:
                self._refuse(f"has more than {MAX_PARTS} parts")
            self._state = _HEAD
            return at + 2
        elif mark != b"\r" and not b"--\r\n".startswith(mark):
            self._refuse("has a malformed boundary")
        return None

    def _head(self, data: bytes, at: int) -> int | None:
        end = data.find(b"\r\n\r\n", at)
        # The last bytes may begin the empty line.
        if (end if end >= 0 else len(data) - 3) - at > HEAD_BYTES:
            self._refuse(f"has a part with a head of more than {HEAD_BYTES} bytes")
        if end < 0 or self._bad is not None:
            return None
        self._name = self._field(data[at:end])
        self._state = _BODY
        return end + 4

    def _body(self, data: bytes, at: int) -> int | None:
        end = data.find(self._delimiter, at)
        # Two bytes end its line, and the last ones may begin the delimiter.
        if (
            self._name is not None
            and (end if end >= 0 else len(data) + 1 - len(self._delimiter)) - at > VALUE_BYTES + 2
        ):
            self._refuse(f"has more than {VALUE_BYTES} bytes in {self._name!r}")
            return None
        if end < 0:
            return None
        before = data[max(at, end - 2) : end]
        if before == b"\r\n":
            if self._name is not None:
                self._keep(self._name, data[at : end - 2])
                self._name = None
            self._state = _AFTER
        else:
            self._inside += 1
            if self._name is not None or self._inside > MAX_PARTS or before[-1:] in (b"", b"\r", b"\n"):
                self._refuse("has a malformed boundary")
        return end + len(self._delimiter)

    def _keep(self, name: str, value: bytes) -> None:
        try:
            self.fields[name] = value.decode()
        except UnicodeDecodeError:
            self._refuse(f"is not UTF-8 in {name!r}")

    def _field(self, head: bytes) -> str | None:
        """Returns the part's name if it is chosen."""
        lines = _disposition(head)
        parameters = [(key.lower(), value) for line in lines for key, value in _parameters(line)]
        names = [value for key, value in parameters if key == b"name"]
        stated = [value for line in lines for value in _names(line)]
        chosen = [name for name in map(_unquoted, names) if name in self._wanted]
        is_plain = len(lines) == len(names) == 1 and b"\\" not in names[0]
        if _is_head(head) is None or len(names) != len(stated):
            self._refuse("has a part with a malformed head")
        if not chosen:
            if any(_marks(b"", value).decode() in self._wanted for value in stated):
                self._refuse("has a part with a malformed name")
            return None
        name = chosen[0]
        if not is_plain or any(key.startswith(b"filename") for key, _ in parameters):
            self._refuse(f"has an ambiguous part {name!r}")
        elif _encoded(head) is not None:
            self._refuse(f"has an encoding of its own in {name!r}")
        elif name in self.fields:
            self._refuse(f"has the field {name!r} twice")
        return name

    def _refuse(self, what: str) -> None:
        if self._bad is None:
            self._bad = Rejected(400, f"the form {what}")


def _unquoted(value: bytes) -> str:
    if value[:1] == b'"':
        value = re.sub(rb"\\(.)", rb"\1", value[1:-1], flags=re.DOTALL)
    return value.decode("utf-8", "replace")
