"""The client side of an HTTP/1.1 connection: requests in, bytes out; bytes in, events out.

States::

    IDLE ──request──> HEAD ──final head──> LENGTH | CHUNKED | UNTIL_EOF ──last byte──> IDLE
                       │ 1xx: stays         │
                       └──── fault or surplus bytes ────> DEAD
"""

from tidegate.wire.http1.chunked import ChunkDecoder
from tidegate.wire.http1.events import VIEW_BYTES, Data, Piece
from tidegate.wire.http1.fields import Rejected
from tidegate.wire.http1.partial import check_partial_response
from tidegate.wire.http1.response_cache import ResponseHeads
from tidegate.wire.http1.response_head import ResponseHead

IDLE, HEAD, LENGTH, CHUNKED, UNTIL_EOF, DEAD = range(6)

Event = ResponseHead | Data | Rejected


class H1Client:
    """One connection to an upstream."""

    __slots__ = (
        "_buffer",
        "_decoder",
        "_heads",
        "_method",
        "body",
        "complete",
        "left",
        "reusable",
        "state",
        "trailers",
    )

    def __init__(self, heads: ResponseHeads | None = None) -> None:
        """``heads`` is shared by the connections to one upstream."""
        self._heads = heads if heads is not None else ResponseHeads()
        self.state = IDLE
        self._buffer = b""
        self._method = b""
        self.left = 0
        """Remaining bytes of the body; in LENGTH only."""
        self._decoder: ChunkDecoder | None = None
        self.body: Piece = b""
        """The part of the body that came with the head."""
        self.trailers = b""
        """Trailer lines of the present response that may be forwarded."""
        self.complete = False
        """True if the present response has ended."""
        self.reusable = True
        """True if another request may follow, once ``complete``."""

    def request(self, method: bytes) -> None:
        """Notes that a request of ``method`` is being sent; only in IDLE."""
        if self.state != IDLE:
            raise RuntimeError(f"a request in state {self!r}")
        self._method = method
        self.state = HEAD
        self.trailers = b""
        self.complete = False

    def receive(self, data: bytes) -> Event | None:
        """Returns the event in ``data``, or None if it completes none. After a 1xx head call :meth:`next`."""
        state = self.state
        if state == HEAD:
            if self._buffer:
                data = self._buffer + data
                self._buffer = b""
            else:
                # Most responses under load: a cached head, and all of the body with it.
                end = data.find(b"\r\n\r\n") + 4
                heads = self._heads
                head = heads.known.get(data[:end]) if heads.known else None
                if head is None:
                    head = heads.of_queue_proxy(data, end)
                else:
                    heads.hits += 1
                if head is not None and end + (head.content_length or 0) == len(data) and self._method != b"HEAD":
                    self.body = data[end:]
                    self.complete = True
                    self.state = IDLE
                    return head
            return self._head(data)
        if state == LENGTH:
            left = self.left - len(data)
            if left > 0:
                self.left = left
                return Data(data, False)
            self._end(surplus=left < 0)
            return Data(data[:left] if left else data, True)
        if state == CHUNKED:
            return self._chunked(data)
        if state == UNTIL_EOF:
            return Data(data, False)
        self.state = DEAD
        self.reusable = False
        return Rejected(502, "bytes without a request")

    def passed(self, size: int, *, surplus: bool) -> bool:
        """Notes that ``size`` bytes of the body, at most :attr:`left`, bypassed the engine; only in LENGTH. Returns
        whether they were the last ones.

        ``surplus``: more bytes have arrived behind those.
        """
        self.left -= size
        if not self.left:
            self._end(surplus=surplus)
        return not self.left

    def next(self) -> Event | None:
        """Returns the event behind an interim response."""
        data, self._buffer = self._buffer, b""
        return self._head(data) if data else None

    def eof(self) -> Event | None:
        """Handles the end of the connection by the upstream. Returns ``Data(done)`` at the end of a body until EOF,
        Rejected in the middle of a response."""
        state, self.state = self.state, DEAD
        self.reusable = False
        if state == UNTIL_EOF:
            self.complete = True
            return Data(b"", True)
        return None if state in (IDLE, DEAD) else Rejected(502, "the upstream closed the connection")

    def leftover(self) -> bytes:
        """Returns the bytes behind a 101: they belong to the next protocol."""
        data, self._buffer = self._buffer, b""
        return data

    def _head(self, data: bytes) -> Event | None:
        head = self._heads.parse(data)
        if head is None:
            rejected = check_partial_response(data)
            if rejected is not None:
                return self._dead(rejected)
            self._buffer = data
            return None
        if type(head) is Rejected:
            return self._dead(head)
        end = head._end
        status = head.status
        length = head.content_length
        if status < 200:
            self._buffer = data[end:]
            return head
        if not head.keep_alive:
            self.reusable = False
        if status == 204 or status == 304 or self._method == b"HEAD":
            self.body = b""
            self._end(surplus=end != len(data))
        elif head.chunked:
            self.state = CHUNKED
            self._decoder = ChunkDecoder()
            event = self._chunked(data[end:])
            if type(event) is Rejected:
                return event
            self.body = event.data
        elif length is not None:
            left = end + length - len(data)
            if left > 0:
                self.body = data[end:] if len(data) < VIEW_BYTES else memoryview(data)[end:]
                self.state = LENGTH
                self.left = left
            else:
                self.body = data[end : end + length]
                self._end(surplus=left < 0)
        else:
            self.body = data[end:]
            self.state = UNTIL_EOF
            self.reusable = False
        return head

    def _chunked(self, data: bytes) -> Data | Rejected:
        decoder = self._decoder
        if decoder is None:
            raise RuntimeError("no decoder in state CHUNKED")
        payload = decoder.feed(data)
        if type(payload) is Rejected:
            return self._dead(Rejected(502, payload.why))
        if decoder.is_chunk:
            return Data(payload, False, b"", data)
        if not decoder.done:
            return Data(payload, False)
        self._decoder = None
        self.trailers = decoder.trailers
        self._end(surplus=bool(decoder.rest))
        return Data(payload, True, decoder.trailers)

    def _end(self, *, surplus: bool) -> None:
        self.complete = True
        self.state = IDLE
        if surplus:
            self.state, self.reusable = DEAD, False  # Bytes after the end of the response.

    def _dead(self, rejected: Rejected) -> Rejected:
        self.state = DEAD
        self.reusable = False
        return rejected

    def __repr__(self) -> str:
        return f"<H1Client {('IDLE', 'HEAD', 'LENGTH', 'CHUNKED', 'UNTIL_EOF', 'DEAD')[self.state]}>"
