"""The server side of an HTTP/1.1 connection: bytes in, events out; responses in, bytes out.

States of one request after the other::

    HEAD ──head──> BODY ──last byte──> WAIT ──response ended, next()──> HEAD
      │             │                   │
      └── refused ──┴── too much held ──┴──> CLOSED

One request at a time: bytes that follow it are held (64 KB at most) until :meth:`H1Server.next`. A head that comes with
all of its body is one event.
"""

from tidegate.errors import BAD_REQUEST, TOO_LARGE, error_body
from tidegate.wire.http1.chunked import ChunkDecoder, chunk, last_chunk
from tidegate.wire.http1.events import REASONS, Data, Piece
from tidegate.wire.http1.fields import Rejected
from tidegate.wire.http1.partial import check_partial
from tidegate.wire.http1.request_head import HeadRules, RequestHead, parse_request
from tidegate.wire.http1.template import Template, Templates

HEAD, BODY, WAIT, CLOSED = range(4)
NO_BODY, LENGTH, CHUNKED, UNTIL_CLOSE = range(4)

HELD_BYTES = 64 * 1024
"""Maximum pipelined bytes. A client that sends more loses the connection after the present response, or instead of a
101."""
MAX_LESSONS = 8
"""Maximum templates made for one connection; more would cost more than they save."""
EMPTY_LINES = 4
"""Maximum leading empty lines that are skipped (old clients send one after a POST)."""

Event = RequestHead | Data | Rejected


def too_large(body_bytes: int, whose: str = "limits.body-bytes of the deployment's settings") -> Rejected:
    """Returns the refusal of a body beyond a limit of bytes; ``whose`` names the limit and what raises it."""
    return Rejected(413, f"the body is larger than {body_bytes} bytes: {whose}")


class H1Server:
    """One connection from a client."""

    __slots__ = (
        "_at",
        "_buffer",
        "_decoder",
        "_left",
        "_lessons",
        "_line",
        "_rules",
        "_size",
        "_skipped",
        "_template",
        "_templates",
        "body",
        "body_bytes",
        "body_complete",
        "coding",
        "head",
        "keep_alive",
        "received",
        "state",
        "trailers",
    )

    def __init__(self, rules: HeadRules, body_bytes: int, templates: Templates | None = None) -> None:
        """``templates`` is shared by the connections with these rules."""
        self._rules = rules
        self._templates = templates if templates is not None else Templates()
        self._template: Template | None = None
        self._lessons = MAX_LESSONS
        self._size = 0
        """Size of the last head that was parsed in full."""
        self.body_bytes = body_bytes
        """Maximum bytes of a body."""
        self.state = HEAD
        self._buffer = b""
        self._at = 0
        self._line = 0
        self._skipped = 0
        self._left = 0
        self._decoder: ChunkDecoder | None = None
        self.head: RequestHead | None = None
        self.body = b""
        """The part of the body that came with the head."""
        self.trailers = b""
        self.received = 0
        """Body bytes of the present request so far."""
        self.body_complete = True
        self.keep_alive = True
        self.coding = NO_BODY
        """Framing of the present response."""

    @property
    def pending(self) -> int:
        """Held bytes: an unfinished head, or bytes behind the present request."""
        return len(self._buffer) - self._at

    @property
    def is_chunked(self) -> bool:
        """True while a chunked body is being read."""
        return self._decoder is not None

    # --- requests ---------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> Event | None:
        """Returns the event in ``data``, or None if it completes none."""
        state = self.state
        if state == HEAD:
            if self._buffer:
                data = self._buffer[self._at :] + data
                self._buffer, self._at = b"", 0
            return self._head(data, 0)
        if state == BODY:
            return self._body(data)
        if state == WAIT:
            self._hold(data)
        return None

    def rest(self) -> bool:
        """Waits for the next request; call it after the response has ended and if ``keep_alive``. Returns whether bytes
        of it have arrived already, see :meth:`next`."""
        self.state = HEAD
        self.body = b""
        self._line = self._skipped = 0
        return self._buffer != b""

    def next(self) -> Event | None:
        """Returns the event in the bytes of the next request so far, after :meth:`rest` or instead of it."""
        if not self.rest():
            return None
        buffer, at = self._buffer, self._at
        self._buffer, self._at = b"", 0
        return self._head(buffer, at)

    def _head(self, data: bytes, at: int) -> Event | None:
        template = self._template
        head = None if template is None else template.read(data, at)
        if head is None:
            parsed = parse_request(data, at, self._rules)
            if parsed is None:
                return self._partial(data, at)
            if type(parsed) is Rejected:
                self.state = CLOSED
                return parsed
            head = parsed
            self._learn(data, at, head)
        end = head._end
        self.head = head
        self.keep_alive = head.keep_alive
        self.trailers = b""
        size = len(data)
        if head.chunked:
            return self._begin_chunked(head, data[end:])
        length = head.content_length
        if not length:
            self.state = WAIT
            self.body = b""
            self.received = 0
            self.body_complete = True
            if end != size:
                self._buffer, self._at = data, end
            return head
        if length > self.body_bytes:
            self.state = CLOSED
            return too_large(self.body_bytes)
        stop = end + length
        if stop > size:
            self.state = BODY
            self._left = stop - size
            self._decoder = None
            self.body = data[end:]
            self.received = size - end
            self.body_complete = False
            return head
        self.state = WAIT
        self.body = data[end:stop]
        self.received = length
        self.body_complete = True
        if stop != size:
            self._buffer, self._at = data, stop
        return head

    def _learn(self, data: bytes, at: int, head: RequestHead) -> None:
        """Makes a template after two heads of one size in a row: the next ones may be alike. A connection tries it a
        few times."""
        size = head._end - at
        if size == self._size and self._lessons:
            self._lessons -= 1
            self._template = self._templates.learn(data, at, head)
        self._size = size

    def _begin_chunked(self, head: RequestHead, data: bytes) -> Event:
        self.state = BODY
        self._decoder = ChunkDecoder()
        self.received = 0
        self.body_complete = False
        event = self._body(data)
        if type(event) is Rejected:
            return event
        self.body = event.data
        return head

    def _partial(self, data: bytes, at: int) -> Event | None:
        """Handles an incomplete head: skips empty lines, refuses bytes that can never become a head, keeps the rest."""
        while self._skipped < EMPTY_LINES and data.startswith(b"\r\n", at):
            at += 2
            self._skipped += 1
            self._line = 0
            result = parse_request(data, at, self._rules)
            if result is not None:
                return self._head(data, at)
        data = data[at:]
        if data in (b"", b"\r"):
            self._buffer = data
            return None
        checked = check_partial(data, self._line, self._rules)
        if type(checked) is Rejected:
            self.state = CLOSED
            return checked
        self._line = checked
        self._buffer = data
        return None

    def _body(self, data: bytes) -> Data | Rejected:
        decoder = self._decoder
        if decoder is None:
            left = self._left - len(data)
            if left > 0:
                self._left = left
                self.received += len(data)
                return Data(data, False)
            self._complete()
            if left < 0:
                self._hold(data[left:])
                data = data[:left]
            self.received += len(data)
            return Data(data, True)
        payload = decoder.feed(data)
        if type(payload) is Rejected:
            self.state = CLOSED
            return payload
        self.received += len(payload)
        if self.received + decoder.left > self.body_bytes:
            # Also a chunk that is only announced: its sender gets the reason now, not after the body's time limit.
            self.state = CLOSED
            return too_large(self.body_bytes)
        if not decoder.done:
            return Data(payload, False)
        self.trailers = decoder.trailers
        self._complete()
        self._hold(decoder.rest)
        return Data(payload, True, decoder.trailers)

    def _complete(self) -> None:
        self.state = WAIT
        self._decoder = None
        self.body_complete = True

    def _hold(self, data: bytes) -> None:
        """Keeps bytes behind the present request. Never pauses reading: a vanished client would go unnoticed."""
        self._buffer = self._buffer[self._at :] + data
        self._at = 0
        if len(self._buffer) > HELD_BYTES:
            self._buffer = b""
            self.keep_alive = False
            self.state = CLOSED  # The bytes that follow have a gap.

    def leftover(self) -> bytes:
        """Returns and removes the held bytes (after an upgrade they belong to the next protocol)."""
        data = self._buffer[self._at :]
        self._buffer, self._at = b"", 0
        return data

    # --- answers ----------------------------------------------------------------------------------------------------

    def respond(self, status: int, reason: bytes, block: bytes, extra: bytes, length: int | None) -> bytes:
        """Returns the head of the final response, and sets :attr:`coding` to the framing of its body.

        ``block``: fields with a CRLF before the first and after each, including a ``content-length`` of ``length``;
        ``extra``: further lines, each with its CRLF. ``length`` None stands for an unknown length.
        """
        head = self.head
        if (
            status == 200
            and length is not None
            and self.keep_alive
            and self.body_complete
            and head is not None
            and head.version_minor
            and head.method != b"HEAD"
        ):
            # Most responses: the general way below has the same result for them.
            self.coding = LENGTH
            return b"".join((b"HTTP/1.1 200 ", reason, block, extra, b"\r\n"))
        if not self.body_complete:
            # The response overtakes the request: the rest of the request must not be taken for the next one.
            self.keep_alive = False
        if status < 200 or status == 204 or status == 304 or (head is not None and head.method == b"HEAD"):
            self.coding = NO_BODY
            if status == 204 and length is not None:
                block = _without_length(block)
        elif length is not None:
            self.coding = LENGTH
        elif head is not None and head.version_minor:
            self.coding = CHUNKED
            extra += b"transfer-encoding: chunked\r\n"
        else:
            self.coding = UNTIL_CLOSE
            self.keep_alive = False
        if not self.keep_alive:
            extra += b"connection: close\r\n"
        elif head is not None and not head.version_minor:
            extra += b"connection: keep-alive\r\n"
        return b"HTTP/1.1 %d %b%b%b\r\n" % (status, reason, block, extra)

    def data(self, data: Piece) -> bytes:
        """Returns a piece of the response body, framed."""
        if self.coding == CHUNKED:
            return chunk(bytes(data)) if data else b""
        return b"" if self.coding == NO_BODY else bytes(data)

    def end(self, trailers: bytes = b"") -> bytes:
        """Returns the end of the response body."""
        return last_chunk(trailers) if self.coding == CHUNKED else b""

    def refuse(self, rejected: Rejected, extra: bytes = b"") -> bytes:
        """Returns a whole response to bytes that :meth:`receive` refused, in the shape of all failures; the connection
        ends after it."""
        self.state = CLOSED
        self.keep_alive = False
        body = error_body(TOO_LARGE if rejected.status == TOO_LARGE.status else BAD_REQUEST, rejected.why)
        return (
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%bconnection: close\r\n\r\n%b"
            % (
                rejected.status,
                REASONS.get(rejected.status, b"Error"),
                len(body),
                extra,
                body,
            )
        )

    def __repr__(self) -> str:
        return f"<H1Server {('HEAD', 'BODY', 'WAIT', 'CLOSED')[self.state]}, {self.pending} bytes held>"


def _without_length(block: bytes) -> bytes:
    """Removes the content-length, which a 204 must not have (RFC 9110 section 8.6)."""
    lines = block[2:].split(b"\r\n")
    return b"\r\n" + b"".join(
        line + b"\r\n" for line in lines if line and not line.lower().startswith(b"content-length:")
    )
