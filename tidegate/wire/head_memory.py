"""A bounded memory of response heads: equal bytes mean an equal head."""

import re

from tidegate.wire.head import Bad, ResponseHead, parse_response

_ours = re.compile(rb"tidegate-timing: ([a-z0-9=.,]{1,64})\r\n(?:tidegate-credit: (keep|home)\r\n)?\r\n").match
"""How a queue_proxy of ours ends a head."""

_SHARED_HEADS = 256
SHARED_BYTES = 1024
"""No longer head is kept."""
_MISSES_ALLOWED = 1000


class ResponseHeads:
    """Heads of equal answers are parsed once: a bounded memory of what one upstream sends.

    It hits where heads repeat byte by byte within a second (the Date field), which is when load is high and answers
    have one size. Only plain heads are kept: 200, framed by length, keep-alive.
    """

    __slots__ = ("_misses", "hits", "known")

    def __init__(self) -> None:
        self.known: dict[bytes, ResponseHead] = {}
        """By their bytes, the empty line included; each of a 200 that is framed by its length."""
        self.hits = self._misses = 0

    def parse(self, data: bytes) -> ResponseHead | Bad | None:
        """As :func:`parse_response` at position 0; the head may be shared by later answers."""
        heads = self.known
        end = data.find(b"\r\n\r\n", 0, SHARED_BYTES) + 4
        head = heads.get(data[:end])
        if head is not None:
            self.hits += 1
            return head
        added = data.find(b"\r\ntidegate-timing: ", 0, end) + 2
        if added > 1:
            match = _ours(data, added, end)
            if match is not None and match.end() == end:
                before = self.parse(data[:added] + b"\r\n")
                if type(before) is ResponseHead and before.plain:
                    return _with_ours(before, data, end, match[1], match[2])
        parsed = parse_response(data, 0)
        if end > 4 and type(parsed) is ResponseHead and parsed.plain and self._pays():
            if len(heads) >= _SHARED_HEADS:
                heads.clear()
            heads[data[:end]] = parsed
        return parsed

    def _pays(self) -> bool:
        """An upstream whose heads are all different (ids, timings) is not worth the memory."""
        self._misses += 1
        return self._misses < _MISSES_ALLOWED or self.hits > self._misses

    def __repr__(self) -> str:
        return f"<ResponseHeads {len(self.known)} kept, {self.hits} hits, {self._misses} misses>"


def _with_ours(before: ResponseHead, data: bytes, end: int, timing: bytes, credit: bytes | None) -> ResponseHead:
    """The head ``data[:end]``, which is ``before`` and our own lines; they are seen, not passed on."""
    head = ResponseHead()
    head.status = before.status
    head.reason = before.reason
    head.content_length = before.content_length
    head.keep_alive = True
    head.chunked = False
    head.upgrade = None
    head._block = head._kept = before._kept
    head._end = end
    head._original = data[before._end - len(before._original) - 2 : end - 2]
    head._lower = None
    values = dict(before._values or {})
    values[b"tidegate-timing"] = timing
    if credit is not None:
        values[b"tidegate-credit"] = credit
    head._values = values
    return head
