"""A bounded cache of response heads: equal bytes mean an equal head."""

import re

from tidegate.wire.http1.fields import Rejected
from tidegate.wire.http1.response_head import ResponseHead, parse_response

_ours = re.compile(rb"tidegate-timing: ([a-z0-9=.,]{1,64})\r\n(?:tidegate-credit: (keep|home)\r\n)?\r\n").match
"""The end of a head with the lines that a queue_proxy adds."""

_MAX_HEADS = 256
SHARED_BYTES = 1024
"""Maximum size of a cached head."""
_MAX_MISSES = 1000


class ResponseHeads:
    """A bounded cache of the heads that one upstream sends: equal heads are parsed once.

    It hits if heads repeat byte by byte within a second (the Date field), as they do under high load with responses of
    one size. Only plain heads are cached: 200, framed by length, keep-alive.
    """

    __slots__ = ("_before_added", "_misses", "hits", "known")

    def __init__(self) -> None:
        self.known: dict[bytes, ResponseHead] = {}
        """Heads by their bytes, the empty line included; each is of a 200 that is framed by its length."""
        self._before_added: dict[bytes, ResponseHead] = {}
        """Such heads by the bytes before a queue_proxy's own lines."""
        self.hits = self._misses = 0

    def parse(self, data: bytes) -> ResponseHead | Rejected | None:
        """Parses as :func:`parse_response` at position 0; later responses may share the head."""
        heads = self.known
        end = data.find(b"\r\n\r\n", 0, SHARED_BYTES) + 4
        head = heads.get(data[:end])
        if head is not None:
            self.hits += 1
            return head
        head = self.of_queue_proxy(data, end)
        if head is not None:
            return head
        parsed = parse_response(data, 0)
        if end > 4 and type(parsed) is ResponseHead and parsed.plain and self._pays():
            _keep(heads, data[:end], parsed)
        return parsed

    def of_queue_proxy(self, data: bytes, end: int) -> ResponseHead | None:
        """Returns the head ``data[:end]`` if a queue_proxy added its lines to a plain one, else None."""
        added = data.rfind(b"\r\ntidegate-timing: ", 0, end) + 2
        if added < 2 or end > SHARED_BYTES:
            return None
        match = _ours(data, added, end)
        if match is None or match.end() != end:
            return None
        start = data[:added]
        before = self._before_added.get(start)
        if before is None:
            parsed = parse_response(start + b"\r\n", 0)
            if type(parsed) is not ResponseHead or not parsed.plain:
                return None
            before = parsed
            if self._pays():
                _keep(self._before_added, start, before)
        else:
            self.hits += 1
        return _with_ours(before, data, end, match[1], match[2])

    def _pays(self) -> bool:
        """Returns whether caching pays: an upstream with different heads every time (ids, timings) is not worth the
        memory."""
        self._misses += 1
        return self._misses < _MAX_MISSES or self.hits > self._misses

    def __repr__(self) -> str:
        return f"<ResponseHeads {len(self.known)} kept, {self.hits} hits, {self._misses} misses>"


def _keep(heads: dict[bytes, ResponseHead], key: bytes, head: ResponseHead) -> None:
    if len(heads) >= _MAX_HEADS:
        heads.clear()
    heads[key] = head


def _with_ours(before: ResponseHead, data: bytes, end: int, timing: bytes, credit: bytes | None) -> ResponseHead:
    """Returns the head ``data[:end]``, which is ``before`` with a queue_proxy's lines; these are visible, but not
    forwarded."""
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
    head.names_id = before.names_id
    values = dict(before._values or {})
    values[b"tidegate-timing"] = timing
    if credit is not None:
        values[b"tidegate-credit"] = credit
    head._values = values
    return head
