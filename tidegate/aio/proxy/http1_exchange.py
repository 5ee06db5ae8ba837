"""An exchange over HTTP/1.1 towards its upstream; its client side may speak HTTP/1 or HTTP/2."""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Final

from tidegate.aio.proxy.contract import ClientSide
from tidegate.aio.proxy.exchange import (
    ANSWERING,
    CONNECTING,
    ENDED,
    KEPT_BYTES,
    SENT,
    STREAMING,
    WAITING,
    Exchange,
)
from tidegate.errors import Failure
from tidegate.wire.http1.chunked import chunk, last_chunk
from tidegate.wire.http1.events import REASONS, Data, Piece
from tidegate.wire.http1.request_head import RequestHead
from tidegate.wire.http1.response_head import ResponseHead

if TYPE_CHECKING:
    from tidegate.aio.proxy.limits import Limits
    from tidegate.aio.upstream.http1 import UpstreamConn
    from tidegate.aio.upstream.pool import UpstreamPool

JOIN_BYTES: Final = 64 * 1024
"""Head and body are one write below this, two above."""
BODY_KEPT, UPSTREAM_SLOW, BUDGET_SPENT = 1, 2, 4
"""Reasons for which reading from the client is paused; bits."""
_IDEMPOTENT: Final = frozenset({b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE"})


class HttpExchange(Exchange):
    """One HTTP request and its answer."""

    __slots__ = ()

    head: RequestHead
    _client: ClientSide
    _trailers: bytes
    _upstream: "UpstreamConn | None"

    # --- for applications -------------------------------------------------------------------------------------------

    def may_repeat(self, idempotent: bool) -> bool:
        """Whether it can be sent again and running it twice does no harm: the function declares so, or the method."""
        return self.replayable and (idempotent or self.head.method in _IDEMPOTENT)

    def read_ahead(self, size: int = KEPT_BYTES) -> None:
        self._replay = max(size, KEPT_BYTES)
        self._update_backpressure()
        self._settle_budget()

    def discard(self) -> None:
        super().discard()
        self._client.resume(BODY_KEPT | BUDGET_SPENT)

    def proceed(self) -> None:
        if self.head.expect_continue and not self._continued and not self.body_complete:
            self._continue()

    def respond(
        self,
        status: int,
        body: bytes = b"",
        *,
        content_type: bytes = b"application/json",
        extra: bytes = b"",
        close: bool = False,
    ) -> None:
        if self._state >= STREAMING:
            raise RuntimeError(f"respond to {self!r}")
        self._leave_upstream()
        kind = b"content-type: %b\r\n" % content_type if body else b""
        block = b"\r\n%bcontent-length: %d\r\ndate: %b\r\n" % (kind, len(body), self._client.date())
        if close:
            self._client.last()
        self.first_byte = monotonic()
        self.bytes_out = len(body)
        self._client.answer((status, REASONS.get(status, b"Status"), block, extra, len(body), body, True, b""))
        self._finish(status)
        self._client.ended()

    def _answer_failure(self, failure: Failure, extra: bytes) -> None:
        self.respond(failure.kind.status, failure.body(), extra=extra)

    def upgrade(self, factory: Callable[[], asyncio.Protocol], fields: bytes = b"") -> asyncio.Protocol:
        if self._state != WAITING or self.head.upgrade is None:
            raise RuntimeError(f"upgrade of {self!r}")
        protocol = factory()
        client = self._client
        self.first_byte = monotonic()
        self._finish(101)
        client.switch(
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: %b\r\n%b\r\n"
            % (self.head.upgrade, fields),
            protocol,
        )
        return protocol

    # --- towards the upstream ---------------------------------------------------------------------------------------

    def _dispatch(self, pool: "UpstreamPool") -> None:
        upstream = pool.take()
        if upstream is not None:
            self._send(upstream)
        else:
            self._state = CONNECTING
            pool.connect(self)

    def _send(self, upstream: "UpstreamConn") -> None:
        """Writes the request, as far as it is there, on a connection."""
        head = self.head
        self._state = SENT
        if self._budget is not None:
            self._settle_budget()
        self._upstream = upstream
        upstream.exchange = self
        method = head.method
        upstream.engine.request(method)
        body = self._early if self._parts is None else self.body
        upstream.request_complete = complete = self.body_complete
        framing = b"\r\n"
        if not complete or head.chunked or head.upgrade is not None:
            framing, body = self._framing(body)
        target = self._target
        if target is None:
            target = head.target
        lines = self._client.forwarding_lines(head)
        if complete and len(body) < JOIN_BYTES:
            parts = (method, b" ", target, b" HTTP/1.1", head._block, self._extra, lines, framing, body)
            upstream.pool.outbox.write(upstream.transport, b"".join(parts))
            return
        # The connection may have been given back by an answer that came before its request had left the outbox.
        upstream.pool.outbox.flush()
        if not complete:
            self._client.resume(UPSTREAM_SLOW)  # Another connection may have been slow, before it was lost.
        upstream.transport.write(
            b"".join((method, b" ", target, b" HTTP/1.1", head._block, self._extra, lines, framing))
        )
        upstream.transport.write(body)
        if not complete:
            self._update_backpressure()

    def _framing(self, body: bytes) -> tuple[bytes, bytes]:
        """Returns the last header lines, with the empty one, and the framed body, of a request that is chunked, not
        complete yet, or asks for an upgrade."""
        head = self.head
        lines = b""
        if head.chunked:
            if self.body_complete and not self._trailers:
                lines = b"content-length: %d\r\n" % len(body)
            else:
                lines = b"transfer-encoding: chunked\r\n"
                if body:
                    body = chunk(body)
                if self.body_complete:
                    body += last_chunk(self._trailers)
        if not self.body_complete and (self.holding or (head.expect_continue and not self._continued)):
            lines += b"expect: 100-continue\r\n"
        if head.upgrade is not None:
            lines += b"connection: upgrade\r\nupgrade: %b\r\n" % head.upgrade
        return lines + b"\r\n", body

    def connected(self, upstream: "UpstreamConn", attempt: int) -> bool:
        """A connection that was opened for ``attempt`` is there. Returns False if it is no longer wanted."""
        if self._state != CONNECTING or attempt != self.attempts:
            return False
        if upstream.transport.is_closing():
            self.connect_failed(attempt, "the upstream closed a new connection")
            return False
        self._send(upstream)
        return True

    def _part_from_upstream(self) -> None:
        upstream = self._upstream
        if upstream is not None:
            self._upstream = None
            if upstream.pool.hold_s and upstream.request_complete and not upstream.dead:
                upstream.hold(monotonic())
                self.held = upstream
            else:
                upstream.discard()

    def _give_answer_up(self) -> None:
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.release()

    def _settle_budget(self) -> None:
        """Charges the budget with what the waiting body takes now, and pauses or resumes reading accordingly.

        A body of more than the usual size is charged until it is not kept any more, also after it was sent.
        """
        waits = self._state < SENT
        is_large = self._kept > KEPT_BYTES and self._replay > 0 and self._state < STREAMING
        if self._charge(self._kept if waits or is_large else 0) and waits and not self.body_complete:
            if self._replay <= KEPT_BYTES:
                self._client.pause(BUDGET_SPENT)
        elif not waits:
            self._client.resume(BUDGET_SPENT)

    def _update_backpressure(self) -> None:
        if self._kept >= (self._replay if self._state < SENT else KEPT_BYTES) and (self._state < SENT or self.holding):
            self._client.pause(BODY_KEPT)
        else:
            self._client.resume(BODY_KEPT)

    # --- for the client side ----------------------------------------------------------------------------------------

    def client_data(self, event: Data, now: float) -> None:
        """A further piece of the request's body."""
        data = event.data
        self.heard = now
        self.bytes_in += len(data)
        if self.check is not None:
            self.check(self, data, event.done)
            if self._state == ENDED:
                return
        if event.done:
            self.body_complete = True
            self._trailers = event.trailers
        if self._replay:
            if self._kept + len(data) <= self._replay or self._state < SENT or self.holding:
                if data:
                    self._keep_piece(data)
            else:
                self._give_body_up()
        upstream = self._upstream
        if upstream is not None:
            if self.head.chunked:
                data = chunk(data) if data else b""
                if event.done:
                    data += last_chunk(event.trailers)
            if data:
                upstream.write(data)
            if event.done:
                upstream.request_complete = True
        if self._kept >= KEPT_BYTES:
            self._update_backpressure()
        self._body_continued()

    def sweep(self, now: float, limits: "Limits", *, is_paused: bool) -> bool:
        """Acts on the limits that have passed. Returns True if the rest of the body comes too slowly: the client side
        must refuse it. ``is_paused``: the client is not read from."""
        if self.answered:
            idle_s = now - max(self.heard, self.first_byte)
            if idle_s > limits.stream_idle_timeout_s or now - self.first_byte > limits.stream_total_s:
                self.truncate()
        elif now >= self.deadline:
            self.expire()
        else:
            # A client may hold its body back until it has seen a 100.
            is_due = not self.body_complete and (self._continued or not self.head.expect_continue)
            return is_due and not is_paused and self._is_slow(now, limits)
        return False

    def pause_upstream(self) -> None:
        """The client reads slowly."""
        if self._upstream is not None:
            self._upstream.pause_reading()

    def resume_upstream(self) -> None:
        """The client's buffer has drained."""
        if self._upstream is not None:
            self._upstream.resume_reading()

    # --- for the upstream side --------------------------------------------------------------------------------------

    def interim(self, head: ResponseHead) -> None:
        """A 1xx answer: 100 frees a held body; it is passed on if the client asked for it."""
        if head.status == 100:
            if self.holding:
                self.holding = False
                self._update_backpressure()
            if self.head.expect_continue and not self._continued:
                self._continue()
        elif self.head.version_minor:
            self._client.interim(head.status, head.reason, head._block)

    def _continue(self) -> None:
        self._continued = True
        self.resumed(monotonic())
        self._client.interim(100, REASONS[100], b"\r\n")

    def response(self, head: ResponseHead, body: Piece, complete: bool, trailers: bytes) -> None:
        """The final head of the answer, and what has come of its body."""
        self._state = ANSWERING
        extra = self.app.answering(self, head)
        block = head._block
        head._block = head._kept
        if self._state != ANSWERING:
            return  # The application answered by itself.
        if extra is None:
            self._take_back()
            return
        length = head.content_length
        if complete and length is None and not trailers and self._may_have_length(head.status):
            length = len(body)
            extra += b"content-length: %d\r\n" % length
        self.first_byte = monotonic()
        self.bytes_out = len(body)
        client = self._client
        client.answer((head.status, head.reason, block, extra, length, body, complete, trailers))
        if not complete:
            self.holding = False
            self._state = STREAMING
            self.status = head.status
            if self._kept > KEPT_BYTES:
                self._forget_body()  # It is not sent again; a stream may last for long.
                self._settle_budget()
            return
        upstream = self._upstream
        if upstream is not None:
            self._upstream = None
            upstream.release()
        # As _finish does, whose calls most answers save here.
        self._state = ENDED
        if self._kept > KEPT_BYTES:
            self._settle_budget()
        self.status = head.status
        self.ended = monotonic()  # writing takes part of the time that the client waits
        self._early = b""
        self._parts = None
        self.app.finished(self)
        self.context = self.on_body = self.check = None
        client.ended()

    def _may_have_length(self, status: int) -> bool:
        """Whether the length of the body is the length of the answer: False if there can be no body."""
        return status not in (204, 304) and self.head.method != b"HEAD"

    def response_data(self, event: Data, now: float) -> None:
        """A further piece of the answer."""
        self.heard = now
        self.bytes_out += len(event.data)
        self._client.more(event.data, event.done, event.trailers, event.framed)
        if event.done:
            upstream, self._upstream = self._upstream, None
            if upstream is not None:
                upstream.release()
            self._finish(self.status)
            self._client.ended()

    def sink(self) -> int | None:
        """See ``ClientSide.sink``."""
        return self._client.sink()

    def response_passed(self, size: int, done: bool, now: float) -> None:
        """A further piece of the answer has gone to :meth:`sink`."""
        self.bytes_out += size
        self.response_data(Data(b"", done), now)

    def upstream_lost(self, why: str) -> None:
        """The connection died before the answer was complete. It is already gone."""
        self._upstream = None
        if self._state == ENDED:
            return
        if self._state == STREAMING:
            self.truncate()
        else:
            self._return_to_app(True, why)

    def upstream_slow(self, slow: bool) -> None:
        """The upstream reads slower than the client sends, or has caught up."""
        if slow:
            self._client.pause(UPSTREAM_SLOW)
        else:
            self._client.resume(UPSTREAM_SLOW)

    def truncate(self) -> None:
        self._leave_upstream()
        self.truncated = True
        client = self._client
        self._finish(502)
        client.truncate()

    def tunnelled(self, head: ResponseHead, upstream: "UpstreamConn") -> None:
        """The upstream switched protocols: from here on bytes flow both ways until both sides have closed."""
        extra = self.app.answering(self, head)
        if self._state != SENT:
            return
        self.first_byte = monotonic()
        self._state = STREAMING
        self.status = 101
        data = b"HTTP/1.1 101 %b%bconnection: upgrade\r\nupgrade: %b\r\n%b\r\n" % (
            head.reason,
            head._block,
            self.head.upgrade or b"",
            extra or b"",
        )
        self._client.tunnel(data, upstream)

    def tunnel_closed(self, bytes_in: int, bytes_out: int) -> None:
        """A side of the tunnel has gone; the other one closes."""
        self._upstream = None
        self.bytes_in += bytes_in
        self.bytes_out += bytes_out
        self._finish(101)


def as_http(ex: Exchange) -> HttpExchange:
    """Returns ``ex`` as an HTTP exchange. Raises TypeError if it is a gRPC call."""
    if isinstance(ex, HttpExchange):
        return ex
    raise TypeError(f"{ex!r} is no HTTP exchange")
