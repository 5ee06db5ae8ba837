"""A bounded memory of response heads: equal bytes mean an equal head."""

import re

from tidegate.wire.http1.fields import Rejected
from tidegate.wire.http1.response_head import ResponseHead, parse_response

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

    __slots__ = ("_before_ours", "_misses", "hits", "known")

    def __init__(self) -> None:
        self.known: dict[bytes, ResponseHead] = {}
        """By their bytes, the empty line included; each of a 200 that is framed by its length."""
        self._before_ours: dict[bytes, ResponseHead] = {}
        """Such heads by what stands before a queue_proxy's own lines."""
        self.hits = self._misses = 0

    def parse(self, data: bytes) -> ResponseHead | Rejected | None:
        """As :func:`parse_response` at position 0; the head may be shared by later answers."""
        heads = self.known
        end = data.find(b"\r\n\r\n", 0, SHARED_BYTES) + 4
        head = heads.get(data[:end])
        if head is not None:
            self.hits += 1
            return head
        head = self.of_ours(data, end)
        if head is not None:
            return head
        parsed = parse_response(data, 0)
        if end > 4 and type(parsed) is ResponseHead and parsed.plain and self._pays():
            _keep(heads, data[:end], parsed)
        return parsed

    def of_ours(self, data: bytes, end: int) -> ResponseHead | None:
        """The head ``data[:end]`` if a queue_proxy of ours added its lines to a plain one, else None."""
        added = data.rfind(b"\r\ntidegate-timing: ", 0, end) + 2
        if added < 2 or end > SHARED_BYTES:
            return None
        match = _ours(data, added, end)
        if match is None or match.end() != end:
            return None
        start = data[:added]
        before = self._before_ours.get(start)
        if before is None:
            parsed = parse_response(start + b"\r\n", 0)
            if type(parsed) is not ResponseHead or not parsed.plain:
                return None
            before = parsed
            if self._pays():
                _keep(self._before_ours, start, before)
        else:
            self.hits += 1
        return _with_ours(before, data, end, match[1], match[2])

    def _pays(self) -> bool:
        """An upstream whose heads are all different (ids, timings) is not worth the memory."""
        self._misses += 1
        return self._misses < _MISSES_ALLOWED or self.hits > self._misses

    def __repr__(self) -> str:
        return f"<ResponseHeads {len(self.known)} kept, {self.hits} hits, {self._misses} misses>"


def _keep(heads: dict[bytes, ResponseHead], key: bytes, head: ResponseHead) -> None:
    if len(heads) >= _SHARED_HEADS:
        heads.clear()
    heads[key] = head


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
