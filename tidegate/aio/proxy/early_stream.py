"""An event stream whose head goes out before its upstream has answered, or before there is one.

:func:`begin_stream` answers 200 to a request that waits. From then on comments may be written
(``EarlyEventStream.send_comment``), which readers of event streams skip (WHATWG HTML, section 9.2.6). When the
upstream's stream begins, its bytes follow. An answer that is no event stream (a failure of ours, an upstream's 400)
cannot change the status any more: its body becomes one event if it is text. If it is not, or if a failure has no body,
the event says that the stream broke off. The exchange is not affected: it has a deadline until its upstream answers,
and may be taken back and sent again.
"""

import asyncio
import re
from typing import TYPE_CHECKING, Final

from tidegate.aio.proxy.contract import Answer, ClientSide, PassingClient
from tidegate.aio.proxy.exchange import Exchange
from tidegate.aio.proxy.http1_exchange import as_http
from tidegate.wire.http1.events import REASONS, Piece

if TYPE_CHECKING:
    from tidegate.aio.upstream.http1 import UpstreamConn

_FIELDS: Final = b"\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\ndate: %b\r\n"
_is_event_stream = re.compile(rb"\r\ncontent-type:[ \t]*text/event-stream", re.IGNORECASE).search
_is_coded = re.compile(rb"\r\ncontent-encoding:[ \t]*+(?!identity)", re.IGNORECASE).search
_is_other = re.compile(rb"\r\ncontent-type:[ \t]*+(?!text/|application/(?:[^;\r]*\+)?json)", re.IGNORECASE).search
_timing = re.compile(rb"(?:^|\n)server-timing: ([^\r]*)").search


class EarlyEventStream(PassingClient):
    """The client side of a stream that has begun early."""

    __slots__ = (
        "_event", "_failure", "_if_empty", "_is_document", "_is_muted", "_opening", "_tail", "is_answered",
    )  # fmt: skip

    def __init__(self, client: ClientSide, name: bytes, failure: bytes) -> None:
        """``name``: name of the error event; empty if it has none. ``failure``: JSON text of the error event that
        reports a broken stream."""
        super().__init__(client)
        self._event = b"event: %b\n" % name if name else b""
        self._failure = b"%bdata: %b\n\n" % (self._event, failure)
        """The complete error event."""
        self._opening = self._if_empty = b""
        """Bytes before a document until it has begun; bytes in place of a document without a body."""
        self._is_document = self._is_muted = False
        """The upstream's answer is no event stream and becomes one event; or it cannot be read and is dropped."""
        self._tail = b"\n\n"
        """The last bytes of the stream."""
        self.is_answered = False
        """The upstream has answered: nothing may be put between its bytes."""

    def send_comment(self, comment: bytes) -> None:
        """Writes a comment; not once the upstream has answered."""
        if not self.is_answered:
            self._client.more(b": %b\n\n" % comment, False, b"")

    # --- what the exchange says -------------------------------------------------------------------------------------

    def answer(self, answer: Answer) -> None:
        status, _, block, extra, _, body, done, _ = answer
        self.is_answered = True
        timing = _timing(extra)
        first = b"" if timing is None else b": %b\n\n" % timing[1]
        self._is_document = status != 200 or _is_event_stream(block) is None
        # A coding was not asked for, and the client does not know of it.
        if _is_coded(block) is not None or (self._is_document and _is_other(block) is not None):
            self._is_muted, self._is_document = True, False
            self._client.more(first + self._failure, done, b"")
            return
        if self._is_document:
            self._opening = self._event + b"data: " if status >= 400 else b"data: "
            self._if_empty = self._failure if status >= 300 else b""
        self._more(first, body, done)

    def more(self, data: Piece, done: bool, trailers: bytes, framed: bytes = b"") -> None:
        if self._is_muted:
            data, framed = b"", b""
        if self._is_document or self._is_muted:
            self._more(b"", data, done)
            return
        self._remember(data)
        self._client.more(data, done, b"", framed)

    def _more(self, first: bytes, data: Piece, done: bool) -> None:
        if self._is_document:
            data = bytes(data).replace(b"\r", b"").replace(b"\n", b"\ndata: ")
            if data:
                data, self._opening = self._opening + data, b""
            if done:
                data = self._if_empty if self._opening else data + b"\n\n"
        self._remember(data)
        self._client.more(first + bytes(data), done, b"")

    def _remember(self, data: Piece) -> None:
        self._tail = (self._tail + bytes(data[-4:]))[-4:]

    def truncate(self) -> None:
        """Ends a stream that broke off. Between two events an error event reports it; within an event the connection is
        aborted."""
        has_begun = self._is_document and not self._opening
        if has_begun or not self._tail.replace(b"\r\n", b"\n").endswith((b"\n\n", b"\r\r")):
            self._client.truncate()
            return
        self._client.more(b"" if self._is_muted else self._failure, True, b"")
        self._client.ended()

    def interim(self, status: int, reason: bytes, block: bytes) -> None:
        """The final head is out: nothing may follow it."""

    def switch(self, head: bytes, protocol: asyncio.Protocol) -> None:
        raise RuntimeError("a stream that has begun switches no protocol")

    def tunnel(self, head: bytes, upstream: "UpstreamConn") -> None:
        raise RuntimeError("a stream that has begun becomes no tunnel")


def begin_stream(ex: Exchange, extra: bytes, name: bytes, failure: bytes) -> EarlyEventStream:
    """Answers 200 and an event stream to a whole request that waits; ``extra``: header lines to add.

    The other arguments are those of :class:`EarlyEventStream`. The request's ``accept-encoding`` is removed: the
    upstream must not compress what follows.
    """
    exchange = as_http(ex)
    client = exchange._client
    exchange.head.drop(b"accept-encoding")
    client.answer((200, REASONS[200], _FIELDS % client.date(), extra, None, b"", False, b""))
    exchange._client = early = EarlyEventStream(client, name, failure)
    return early
