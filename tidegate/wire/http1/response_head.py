"""Response heads of upstreams: one regular expression per head, then one look at the few fields that matter."""

from typing import final

from tidegate.wire.http1 import grammar
from tidegate.wire.http1.fields import (
    NEVER_LISTED,
    Fields,
    Rejected,
    connection_options,
    read_length,
    response_specials,
    without_fields,
    without_internal,
)

_PLAIN_RESPONSE = frozenset({b"content-length", b"connection", b"keep-alive"})
_response = grammar.RESPONSE.match


@final
class ResponseHead(Fields):
    """A parsed response head."""

    __slots__ = ("_end", "_kept", "chunked", "content_length", "keep_alive", "names_id", "reason", "status", "upgrade")
    _end: int
    """Position behind the head in the parsed bytes."""
    _kept: bytes
    """``_block`` before an app dropped fields: equal responses share a head."""

    status: int
    reason: bytes
    content_length: int | None
    chunked: bool
    keep_alive: bool
    """True if the upstream keeps the connection open."""
    upgrade: bytes | None
    names_id: bool
    """True if an ``x-request-id`` is among the fields."""

    @property
    def plain(self) -> bool:
        """True for most responses: 200, framed by length, keep-alive, without internal fields."""
        return (
            self.status == 200
            and self.content_length is not None
            and self.keep_alive
            and self._values is not None
            and self._values.keys() <= _PLAIN_RESPONSE
        )

    def restore(self) -> None:
        """Reverts ``drop``: the next equal response shares this head."""
        self._block = self._kept

    def __repr__(self) -> str:
        return f"<ResponseHead {self.status}>"


def parse_response(data: bytes, at: int, head_bytes: int = 64 * 1024) -> ResponseHead | Rejected | None:
    """Parses a response head of an upstream as :func:`request_head.parse_request` does a request. Every fault is a
    502."""
    match = _response(data, at)
    if match is None:
        return None
    minor, status, reason, block = match.groups()
    head = ResponseHead()
    head._end = match.end()
    if head._end - at > head_bytes:
        return Rejected(502, "response head too large")
    head.status = int(status)
    head.reason = reason or b""
    head.keep_alive = minor == b"1"
    head.content_length = None
    head.chunked = False
    head.upgrade = None
    head._block = head._original = block
    head._lower = lower = block.lower()
    head.names_id = lower.find(b"\nx-request-id:") >= 0
    found = response_specials(lower)
    head._values = dict(found)
    if len(found) == 1 and found[0][0] == b"content-length":
        head.content_length = length = read_length(found[0][1])
        if length is None:
            return Rejected(502, "invalid Content-Length")
    elif found:
        rejected = _check_specials(head, found, lower)
        if rejected is not None:
            return rejected
    head._kept = head._block
    return head


def _check_specials(head: ResponseHead, found: list[tuple[bytes, bytes]], lower: bytes) -> Rejected | None:
    head._values = values = dict(found)
    names = [name for name, _ in found]
    strip = set(values) - {b"content-length"}
    if (value := values.get(b"content-length")) is not None:
        head.content_length = length = read_length(value)
        if length is None or names.count(b"content-length") > 1:
            return Rejected(502, "invalid Content-Length")
    if (value := values.get(b"transfer-encoding")) is not None:
        if value.strip(b" \t") != b"chunked" or names.count(b"transfer-encoding") > 1:
            return Rejected(502, "transfer coding other than chunked")
        if head.content_length is not None:
            return Rejected(502, "Content-Length beside Transfer-Encoding")
        head.chunked = True
    if b"connection" in values:
        tokens = connection_options(found)
        head.keep_alive = b"close" not in tokens and (head.keep_alive or b"keep-alive" in tokens)
        strip.update(tokens - NEVER_LISTED)
        if b"upgrade" in tokens:
            head.upgrade = values.get(b"upgrade", b"").strip(b" \t") or None
    once = len(values) == len(found)
    head._block = (without_internal(head._block, strip) if once else None) or without_fields(head._block, lower, strip)
    return None
