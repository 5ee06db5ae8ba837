"""The forwarding fields of one client connection: client address, requested host, scheme, and trace."""

import random
from binascii import hexlify
from typing import TYPE_CHECKING, Final

from tidegate.wire.http1.request_head import RequestHead
from tidegate.wire.http2.heads import literals
from tidegate.wire.http2.hpack import literal_name

if TYPE_CHECKING:
    from tidegate.wire.http2.heads import CallHead

_NOT_ZERO: Final = 1 << 64 | 1
"""An id of nothing but zeros is invalid, of a trace (128 bits) as of a span (64)."""
_TRACE: Final = literal_name(b"traceparent") + b"\x37" + b"00-"
"""A field of 55 bytes up to its ids."""


class Forwarding:
    """Makes ``x-forwarded-*``, ``forwarded``, ``via`` and a ``traceparent`` where none came: one that is not sampled.

    A stranger's own fields are gone by then (``HeadRules``); these lines stand behind what a trusted peer sent: several
    lines of one field are one list (RFC 9110 section 5.3). A trusted peer's ``x-forwarded-host`` and ``-proto`` are
    kept instead of ours: they name what the first client asked for.
    """

    __slots__ = (
        "_authority",
        "_fields",
        "_is_unix",
        "_lines",
        "_names_host",
        "_names_proto",
        "_node",
        "_random",
        "_scheme",
        "_version",
        "_via",
        "peer",
    )

    def __init__(self, peer: bytes, scheme: bytes, via: bytes, rng: random.Random, version: bytes = b"1.1") -> None:
        """``peer``: address without port, or ``unix``; ``rng`` makes trace ids; ``version``: of HTTP, as it came."""
        self.peer = peer
        self._is_unix = peer == b"unix"
        self._node = b'"[%b]"' % peer if b":" in peer else peer
        self._scheme = scheme
        self._via = via
        self._version = version
        self._random = rng
        self._authority: bytes | None = None
        self._names_host = self._names_proto = False
        self._lines = b""
        """Lines for requests for ``_authority`` for which ``_names_host`` and ``_names_proto`` hold."""
        self._fields: bytes | None = None
        """The same for HTTP/2."""

    def lines(self, head: RequestHead) -> bytes:
        """The lines to add to a request, each with its CRLF."""
        if (
            head.authority == self._authority
            and head.names_proto is self._names_proto
            and head.names_host is self._names_host
        ):
            lines = self._lines
        else:
            lines = self._lines_for(head)
        if head.traced:
            return lines
        ids = hexlify((self._random.getrandbits(192) | _NOT_ZERO).to_bytes(24, "big"))
        return b"".join((lines, b"traceparent: 00-", ids[:32], b"-", ids[32:], b"-00\r\n"))

    def fields(self, head: "CallHead") -> bytes:
        """The same for a call over HTTP/2: fields to be appended to its block."""
        fields = self._fields
        if (
            fields is None
            or head.authority != self._authority
            or head.names_proto is not self._names_proto
            or head.names_host is not self._names_host
        ):
            self._fields = fields = literals(self._lines_for(head))
        if head.traced:
            return fields
        ids = hexlify((self._random.getrandbits(192) | _NOT_ZERO).to_bytes(24, "big"))
        return b"".join((fields, _TRACE, ids[:32], b"-", ids[32:], b"-00"))

    def _lines_for(self, head: "RequestHead | CallHead") -> bytes:
        """Makes the lines of a request like this one, for it and those after it: most of a connection are alike."""
        authority, names_host, names_proto = head.authority, head.names_host, head.names_proto
        self._authority, self._names_host, self._names_proto = authority, names_host, names_proto
        lines = []
        if not self._is_unix:
            # An authority holds neither quote nor backslash (grammar.HOST): it needs no escapes.
            host = b'host="%b";' % authority if authority else b""
            lines.append(b"x-forwarded-for: %b\r\n" % self.peer)
            lines.append(b"forwarded: for=%b;%bproto=%b\r\n" % (self._node, host, self._scheme))
        lines.append(b"via: %b %b\r\n" % (self._version, self._via))
        if not names_proto:
            lines.append(b"x-forwarded-proto: %b\r\n" % self._scheme)
        if authority and not names_host:
            lines.append(b"x-forwarded-host: %b\r\n" % authority)
        self._lines = b"".join(lines)
        self._fields = None
        return self._lines

    def __repr__(self) -> str:
        return f"<Forwarding for {self.peer.decode()} by {self._scheme.decode()}>"
