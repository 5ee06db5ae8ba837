"""Conversion of a request from HTTP/2 to HTTP/1.1, and of a response from HTTP/1.1 to HTTP/2.

The converted fields are written out and read again by the strict parser of ``http1.request_head``: bytes that would
have another meaning there (line breaks, framing, a second Host) are refused (RFC 9113 section 10.3).
"""

from tidegate.wire.http1.fields import Rejected
from tidegate.wire.http1.request_head import HeadRules, RequestHead, parse_request
from tidegate.wire.http2.block_memory import Block
from tidegate.wire.http2.hpack import literal

_CONNECTION_FIELDS = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"))


def request_head(block: Block, ends: bool, rules: HeadRules) -> RequestHead | Rejected:
    """Returns the head of a request; ``ends``: it has no body."""
    lines = [b"%b %b HTTP/1.1\r\nhost: %b\r\n" % (block.method, block.path, block.authority)]
    cookies = []
    for name, value, _, _, _ in block.fields:
        if name == b"cookie":
            cookies.append(value)  # One field may be split (RFC 9113 section 8.2.3).
        elif name[:1] != b":" and name != b"host":
            lines.append(b"%b: %b\r\n" % (name, value))
    if cookies:
        lines.append(b"cookie: %b\r\n" % b"; ".join(cookies))
    if not ends and block.content_length is None:
        lines.append(b"transfer-encoding: chunked\r\n")
    lines.append(b"\r\n")
    data = b"".join(lines)
    head = parse_request(data, 0, rules)
    if type(head) is RequestHead and head._end == len(data):
        return head
    return head if type(head) is Rejected else Rejected(400, "not a request of HTTP/1.1")


def answer_block(status: int, lines: bytes) -> bytes:
    """Returns the block of a response head; ``lines`` are its HTTP/1.1 fields, with CRLF between them."""
    return literal(b":status", b"%d" % status) + field_block(lines)


def field_block(lines: bytes) -> bytes:
    """Returns fields or trailers of HTTP/1.1 as a block, without those of its connection."""
    fields = []
    for line in lines.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        name = name.lower()
        if colon and name not in _CONNECTION_FIELDS:
            fields.append(literal(name, value.strip(b" \t")))
    return b"".join(fields)


def trailer_lines(block: Block) -> bytes:
    """Returns a request's trailers as HTTP/1.1 lines, without those that could have another meaning there."""
    return b"".join(
        [
            b"%b: %b\r\n" % (name, value)
            for name, value, is_sound, _, _ in block.fields
            if is_sound and name not in _NO_TRAILERS and not name.startswith((b"tidegate-", b"x-forwarded-"))
        ]
    )


_NO_TRAILERS = _CONNECTION_FIELDS | {
    b"authorization",
    b"cache-control",
    b"content-encoding",
    b"content-length",
    b"content-type",
    b"cookie",
    b"expect",
    b"forwarded",
    b"host",
    b"te",
    b"trailer",
    b"traceparent",
    b"via",
    b"x-request-id",
}
"""RFC 9110 section 6.5.1: framing, routing, authentication, and fields that change the meaning of a request."""
