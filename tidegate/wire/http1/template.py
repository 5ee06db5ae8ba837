"""Templates of heads that differ from an earlier one in values only: the usual case under keep-alive.

A client sends the same fields with every request, and ids, traces and lengths have the same length as before. Such a
head is recognised by arithmetic on the whole of it as one number (its bytes, least significant first), without a look
at a line::

    number & fixed_mask == fixed      request line, Host, names, colons and line ends are unchanged
    number ^ fixed                    the remainder: the values, every other byte zero

All values must be printable ASCII, or a line could end inside of one. With every byte below 0x80 no sum carries into
its neighbour: ``byte + 0x60`` has the high bit for 0x20 and more, ``byte + 1`` for 0x7F alone.

A template is made of a plain head (``plain.py``) and returns for the next one exactly what the pattern would; a test
compares them.
"""

import re
from typing import Final, final

from tidegate.headers import BATCH_SIZE, CREDIT, INTERNAL_PREFIX, TIMEOUT_MS, TOKEN, WANT
from tidegate.wire.http1.grammar import SAMPLED, UNSAMPLED
from tidegate.wire.http1.request_head import Internal, RequestHead

_LINE: Final = re.compile(rb"\r\n([^:\r]+):([^\r]*)")
_FIXED: Final = frozenset({b"host", b"user-agent"})
"""Fields with values that must not change, because they have a meaning."""
_OURS: Final = (TOKEN, TIMEOUT_MS, BATCH_SIZE, CREDIT, WANT)
_SLOT_FIELDS: Final = frozenset({CREDIT, WANT})
_TRACE: Final = (
    rb"00-(?!00000000000000000000000000000000)[0-9a-f]{32}-(?!0000000000000000)[0-9a-f]{16}-[0-9a-f]"  # As plain.TRACE.
)
_FLAGGED: Final = {
    SAMPLED: re.compile(_TRACE + rb"[13579bdf]").fullmatch,
    UNSAMPLED: re.compile(_TRACE + rb"[02468ace]").fullmatch,
}
"""The patterns of a ``traceparent`` by ``RequestHead.traced``. Most clients send one kind, so the template's is tried
first: a match then says the flag, without a look at it."""
_MAX_TEMPLATES: Final = 256


@final
class Template:
    """The common parts of heads like one head."""

    __slots__ = (
        "_cuts",
        "_fixed",
        "_fixed_mask",
        "_head",
        "_high",
        "_length",
        "_one",
        "_ours",
        "_places",
        "_start",
        "_trace",
        "_x60",
        "size",
    )

    def __init__(self, data: bytes, at: int, head: RequestHead) -> None:
        """``head`` was read at ``data[at]``; it is plain and forwarded as received, or is a gateway's."""
        self.size = size = head._end - at
        text = data[at : at + size]
        self._head = head
        self._start = size - 2 - len(head._original)
        self._length = (0, 0)
        self._trace = (0, 0, _FLAGGED[UNSAMPLED], 0)
        """Where a ``traceparent`` is, its usual pattern, and what that says."""
        ours: dict[bytes, slice] = {}
        self._places: dict[bytes, slice] = {}
        token_from = token_to = cut_from = cut_to = 0
        free = bytearray(size)
        for line in _LINE.finditer(text, self._start, size - 2):
            name = line[1].lower()
            begin, end = line.span(2)
            begin += text[begin : begin + 1] == b" "
            self._places.setdefault(name, slice(begin - self._start, end - self._start))
            if name == b"content-length":
                self._length = (begin, end)
            elif name == b"traceparent":
                self._trace = (begin, end, _FLAGGED[head.traced], head.traced)
            if head.internal is not None and name.startswith(INTERNAL_PREFIX):
                ours[name] = slice(begin, end)
                if name == TOKEN:
                    token_from, token_to = line.start() + 2, end + 2
                elif name in _SLOT_FIELDS:
                    cut_from, cut_to = cut_from or line.start() + 2, end + 2
            if name not in _FIXED:
                free[begin:end] = b"\x01" * (end - begin)
        self._ours = tuple(ours.get(name) for name in _OURS) if ours else None
        """Places of the values of a gateway's own fields; None for all other peers."""
        cuts = (self._start, token_from, token_to, cut_from or token_to, cut_to or token_to, size - 2)
        self._cuts = slice(*cuts[:2]), slice(*cuts[2:4]), slice(*cuts[4:])
        """For a gateway's head: the parts around the line with the token, and around the lines of credit and want."""
        self._one = one = int.from_bytes(free, "little")
        self._x60 = one * 0x60
        self._high = one * 0x80
        self._fixed_mask = ((1 << 8 * size) - 1) ^ one * 0xFF
        self._fixed = int.from_bytes(text, "little") & self._fixed_mask

    @property
    def key(self) -> tuple[int, int]:
        """Equal for templates that match the same heads."""
        return self._fixed, self._one

    def read(self, data: bytes, at: int) -> RequestHead | None:
        """Returns the head at ``data[at]``, or None if it is incomplete or differs from the template."""
        end = at + self.size
        number = int.from_bytes(data[at:end], "little")
        fixed = self._fixed
        if number & self._fixed_mask != fixed:
            return None
        values = number ^ fixed
        high = self._high
        if values & high or (values + self._x60) & high != high or (values + self._one) & high:
            return None
        before = self._head
        head = RequestHead()
        start, stop = self._length
        if stop:
            length = data[at + start : at + stop]
            if not length.isdigit():
                return None
            head.content_length = int(length)
        else:
            head.content_length = None
        start, stop, usual, traced = self._trace
        if stop and usual(data, at + start, at + stop) is None:
            traced = SAMPLED if traced == UNSAMPLED else UNSAMPLED
            if _FLAGGED[traced](data, at + start, at + stop) is None:
                return None
        head.traced = traced
        head.method = before.method
        head.target = before.target
        head.authority = before.authority
        head.host = before.host
        head._end = end
        head._block = head._original = data[at + self._start : end - 2]
        head._places = self._places
        head._lower = head._values = head.upgrade = head.internal = None
        head.version_minor = 1
        head.keep_alive = head.plain = True
        head.chunked = head.expect_continue = head.names_host = head.names_proto = False
        return head if self._ours is None else self._with_ours(head, data[at:end], self._ours)

    def _with_ours(self, head: RequestHead, text: bytes, spans: tuple[slice | None, ...]) -> RequestHead | None:
        """Completes a gateway's head: its own fields, and the block without those that the model server may not see.
        Returns None if a value is malformed."""
        token_at, timeout_at, batch_at, credit_at, want_at = spans
        if token_at is None or timeout_at is None or batch_at is None:
            return None
        token, timeout_ms, batch_size = text[token_at], text[timeout_at], text[batch_at]
        if token.find(b" ") >= 0 or not (timeout_ms.isdigit() and batch_size.isdigit()):
            return None
        credit = want = None
        if credit_at is not None:
            credit = text[credit_at]
            if not credit.isdigit():
                return None
        if want_at is not None:
            want = text[want_at]
            if not want.replace(b" ", b"0").isdigit():
                return None
        head.plain = False
        head.internal = Internal(token, timeout_ms, batch_size, credit, want)
        head.names_host = self._head.names_host
        head.names_proto = self._head.names_proto
        first, second, third = self._cuts
        head._block = text[first] + text[second] + text[third]
        return head

    def __repr__(self) -> str:
        return f"<Template of {self.size} bytes like {self._head!r}>"


class Templates:
    """The templates of one process by kind of peer: a bounded number, shared by its connections."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], Template] = {}

    def learn(self, data: bytes, at: int, head: RequestHead) -> Template | None:
        """Builds a template from this head. Returns None if the head does not qualify."""
        is_usual = head.plain and head._block is head._original
        is_ours = head.internal is not None and head._original.find(b"onnection: ") < 0
        if not (is_usual or is_ours) or head._values is not None:
            return None
        made = Template(data, at, head)
        known = self._known.get(made.key)
        if known is None:
            if len(self._known) >= _MAX_TEMPLATES:
                self._known.clear()
            self._known[made.key] = known = made
        return known

    def __repr__(self) -> str:
        return f"<Templates: {len(self._known)}>"
