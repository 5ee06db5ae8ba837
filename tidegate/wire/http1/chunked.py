"""Chunked transfer coding (RFC 9112 section 7.1): a strict incremental decoder, and the two lines of the encoder."""

from tidegate.headers import INTERNAL_PREFIX
from tidegate.wire.http1 import grammar
from tidegate.wire.http1.fields import Rejected

LINE_BYTES = 256
"""Maximum length of a chunk-size line with its extensions; extensions are dropped."""
TRAILER_BYTES = 4096

LAST_CHUNK = b"0\r\n\r\n"

_SIZE, _DATA, _DATA_END, _TRAILER, _DONE = range(5)
_size_line = grammar.CHUNK_SIZE.match
_size_start = grammar.CHUNK_SIZE_START.fullmatch

_FORBIDDEN_TRAILERS = frozenset(
    {
        b"authorization", b"cache-control", b"connection", b"content-encoding", b"content-length", b"content-range",
        b"content-type", b"cookie", b"expect", b"forwarded", b"host", b"http2-settings", b"keep-alive",
        b"max-forwards", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"range", b"set-cookie",
        b"te", b"traceparent", b"trailer", b"transfer-encoding", b"upgrade", b"via", b"www-authenticate",
        b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto",
    }
)  # fmt: skip
"""Framing, routing, authentication and hop-by-hop fields are not allowed in trailers (RFC 9110 section 6.5.1)."""


class ChunkDecoder:
    """Bytes in, payload out.

    SIZE -> DATA -> DATA_END -> SIZE ... -> TRAILER -> DONE; a fault is final.
    """

    __slots__ = ("_held", "_state", "_trailer_size", "done", "is_chunk", "left", "rest", "trailers")

    def __init__(self) -> None:
        self._state = _SIZE
        self.left = 0
        """Bytes that the present chunk has announced and that have not arrived."""
        self._held = b""
        self._trailer_size = 0
        self.done = self.is_chunk = False
        self.rest = b""
        """Bytes behind the end of the body, once done."""
        self.trailers = b""
        """Trailer lines that may be forwarded, each with its CRLF."""

    def feed(self, data: bytes) -> bytes | Rejected:
        """Returns the payload in ``data``. Afterwards ``done`` and ``rest`` state the end of the body, and ``is_chunk``
        states that ``data`` was one whole chunk without extensions."""
        if self._state == _SIZE and not self._held:
            match = _size_line(data)
            if match is not None:
                begin = match.end()
                size = len(data) - begin - 2
                if int(match[1], 16) == size > 0 and begin == match.end(1) + 2 and data[-2:] == b"\r\n":
                    self.is_chunk = True
                    return data[begin:-2]
        self.is_chunk = False
        if self._held:
            data = self._held + data
            self._held = b""
        pieces: list[bytes] = []
        at, size = 0, len(data)
        while at < size or self._state == _DATA:
            state = self._state
            if state == _DATA:
                end = at + self.left
                if end > size:
                    pieces.append(data[at:])
                    self.left = end - size
                    break
                pieces.append(data[at:end])
                at = end
                self.left = 0
                self._state = _DATA_END
            elif state == _SIZE:
                match = _size_line(data, at)
                if match is None:
                    if size - at > LINE_BYTES or not _size_start(data, at):
                        return Rejected(400, "malformed chunk size")
                    self._held = data[at:]
                    break
                if match.end() - at > LINE_BYTES:
                    return Rejected(400, "chunk line too long")
                at = match.end()
                self.left = int(match[1], 16)
                self._state = _DATA if self.left else _TRAILER
            elif state == _DATA_END:
                if data[at : at + 2] != b"\r\n":
                    if data[at:] != b"\r":
                        return Rejected(400, "chunk data without CRLF")
                    self._held = b"\r"
                    break
                at += 2
                self._state = _SIZE
            else:
                rejected = self._trailer(data, at)
                if rejected is not None:
                    return rejected
                break
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _trailer(self, data: bytes, at: int) -> Rejected | None:
        """Reads trailer lines up to the empty one."""
        while True:
            end = data.find(b"\r\n", at) + 2
            if end == 1:
                if not grammar.FIELD_START.fullmatch(data, at) or len(data) - at > TRAILER_BYTES:
                    return Rejected(400, "malformed trailer")
                self._held = data[at:]
                return None
            if end - at == 2:
                self.rest = data[end:]
                self._state = _DONE
                self.done = True
                return None
            self._trailer_size += end - at
            if self._trailer_size > TRAILER_BYTES or not grammar.FIELD_LINE.fullmatch(data, at, end):
                return Rejected(400, "malformed trailer")
            name = data[at : data.index(b":", at)].lower()
            if name not in _FORBIDDEN_TRAILERS and not name.startswith(INTERNAL_PREFIX):
                self.trailers += data[at:end]
            at = end


def chunk(data: bytes) -> bytes:
    """Returns ``data`` (not empty) as one chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def last_chunk(trailers: bytes = b"") -> bytes:
    """Returns the end of a chunked body."""
    return b"0\r\n%b\r\n" % trailers if trailers else LAST_CHUNK
