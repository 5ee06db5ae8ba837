"""Events of the engines besides heads: few and coarse. A small complete message is one event."""

from typing import final

Piece = bytes | memoryview
"""A piece of a body."""
VIEW_BYTES = 64 * 1024
"""A body piece that came with a head and has at least this many bytes is a view of the read: it is copied when it is
written, not before."""


@final
class Data:
    """A piece of a body; ``done`` with its last piece, which may be empty."""

    __slots__ = ("data", "done", "framed", "trailers")

    def __init__(self, data: bytes, done: bool, trailers: bytes = b"", framed: bytes = b"") -> None:
        self.data = data
        self.done = done
        self.trailers = trailers
        """Trailer lines that may be forwarded, each with its CRLF."""
        self.framed = framed
        """The same bytes as one chunk, if they came as one and may be forwarded so; else b""."""

    def __repr__(self) -> str:
        return f"<Data {len(self.data)} bytes{', the end' if self.done else ''}>"


REASONS = {
    100: b"Continue",
    101: b"Switching Protocols",
    200: b"OK",
    201: b"Created",
    202: b"Accepted",
    204: b"No Content",
    304: b"Not Modified",
    400: b"Bad Request",
    401: b"Unauthorized",
    403: b"Forbidden",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    409: b"Conflict",
    411: b"Length Required",
    413: b"Content Too Large",
    414: b"URI Too Long",
    415: b"Unsupported Media Type",
    417: b"Expectation Failed",
    422: b"Unprocessable Content",
    426: b"Upgrade Required",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
    505: b"HTTP Version Not Supported",
}
"""Reason phrases of the statuses that Tidegate writes itself."""
