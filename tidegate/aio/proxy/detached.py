"""Copies of a request that run without a client, and taps on answers.

A copy is an exchange like any other; its client side discards the answer: a :class:`DetachedClient`, of a gRPC call a
:class:`CallStandIn` with a :class:`DetachedEngine`.

- A hedge (:func:`second_copy`) may take the first one's place. If its answer comes first, :func:`swap_clients` gives it
  the client, and the first copy ends as if its client had gone: its upstream connection is aborted, its application is
  informed, it is counted nowhere.
- A stage of a pipeline (:func:`next_exchange`) is a request of its own for another function. Its answer goes to a sink.
- A job's request goes on without its client: a :class:`DeferredClient` stands before the client until that has left,
  and passes the answer to a sink from then on.
- A shadow (:func:`shadow_copy`) never gets a client, but a tap: its answer's body is passed to a callback piece by
  piece, without its framing. :func:`tap_response` puts such a tap between the first exchange and its client, which
  passes everything on.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from tidegate.aio.proxy.contract import BODY, Answer, CallClient, CallEngine, ClientSide, PassingClient, Requester
from tidegate.aio.proxy.exchange import BodyBudget, Exchange, ProxyApp
from tidegate.aio.proxy.http1_exchange import HttpExchange, as_http
from tidegate.aio.proxy.kinds import as_call
from tidegate.wire.http1.events import REASONS, Piece
from tidegate.wire.http1.request_head import RequestHead
from tidegate.wire.http2.heads import CallHead
from tidegate.wire.http2.streams import Stream

if TYPE_CHECKING:
    from tidegate.aio.proxy.grpc_call import GrpcCall
    from tidegate.aio.upstream.http1 import UpstreamConn


BodyTap = Callable[[Piece], object]
"""Called with a body, piece by piece."""


class DetachedClient:
    """The client side of an exchange without a client. A ``ClientSide``."""

    __slots__ = ("_client", "peer", "trusted")

    def __init__(self, client: Requester) -> None:
        """``client``: the one on whose behalf the exchange runs."""
        self._client = client
        self.peer = client.peer
        self.trusted = client.trusted

    @property
    def budget(self) -> BodyBudget:
        return self._client.budget

    def carry(self, exchange: Exchange) -> None:
        """Does nothing: the exchange is never asked for here, and keeping it would create a reference cycle."""

    def forwarding_lines(self, head: RequestHead) -> bytes:
        return self._client.forwarding_lines(head)

    def date(self) -> bytes:
        return self._client.date()

    def answer(self, answer: Answer) -> None:
        """Discards it."""

    def more(self, data: Piece, done: bool, trailers: bytes, framed: bytes = b"") -> None:
        """Discards it."""

    def sink(self) -> int | None:
        return None

    def last(self) -> None:
        """Does nothing: there is no connection to end."""

    def interim(self, status: int, reason: bytes, block: bytes) -> None:
        """Discards it: the first copy passes its own on."""

    def truncate(self) -> None:
        """Does nothing: no client sees it."""

    def ended(self) -> None:
        """Does nothing: no client waits for it."""

    def pause(self, why: int) -> None:
        """Does nothing: the request is complete."""

    def resume(self, why: int) -> None:
        """Does nothing: reading was not paused."""

    def switch(self, head: bytes, protocol: asyncio.Protocol) -> None:
        raise RuntimeError("a request that asks for an upgrade has no second copy")

    def tunnel(self, head: bytes, upstream: "UpstreamConn") -> None:
        raise RuntimeError("a request that asks for an upgrade has no second copy")


class DetachedEngine:
    """Discards the answer of a gRPC call without a client. A ``CallEngine``."""

    __slots__ = ()

    def interim(self, stream: Stream, block: bytes) -> None:
        """Discards it."""

    def head(self, stream: Stream, block: bytes, ends: bool) -> None:
        """Discards it."""

    def data(self, stream: Stream, data: bytes, ends: bool) -> int:
        return len(data)

    def trailers(self, stream: Stream, block: bytes) -> None:
        """Discards it."""

    def passed(self, stream: Stream, size: int) -> None:
        """Does nothing: the request is complete."""

    def reset(self, stream: Stream, code: int) -> None:
        """Does nothing: no client sees it."""


class TapOnlyEngine(DetachedEngine):
    """Discards the answer of a gRPC call, but passes its messages to a callback."""

    __slots__ = ("_tap",)

    def __init__(self, tap: BodyTap) -> None:
        self._tap = tap

    def data(self, stream: Stream, data: bytes, ends: bool) -> int:
        self._tap(data)
        return len(data)


class TappedEngine:
    """Passes the answer of a gRPC call to the client's engine, and its messages also to a callback."""

    __slots__ = ("_tap", "head", "inner", "interim", "passed", "reset", "trailers")

    def __init__(self, inner: CallEngine, tap: BodyTap) -> None:
        self._tap = tap
        self.inner = inner
        self.interim, self.head, self.trailers = inner.interim, inner.head, inner.trailers
        self.passed, self.reset = inner.passed, inner.reset

    def data(self, stream: Stream, data: bytes, ends: bool) -> int:
        self._tap(data)
        return self.inner.data(stream, data, ends)


class CallStandIn:
    """The client side of a gRPC call behind another engine than its connection's. A ``CallClient``."""

    __slots__ = ("_client", "_is_detached", "engine", "is_gateway_peer", "peer", "trusted")

    def __init__(self, client: CallClient, engine: CallEngine, *, is_detached: bool) -> None:
        """``client``: the one on whose behalf the call runs; ``is_detached``: it gets nothing of the answer."""
        self._client = client
        self._is_detached = is_detached
        self.engine = engine
        self.is_gateway_peer = client.is_gateway_peer
        self.peer = client.peer
        self.trusted = client.trusted

    @property
    def budget(self) -> BodyBudget:
        return self._client.budget

    def mark_as_gateway(self) -> None:
        """Does nothing: the call has been accepted before."""

    def own_fields(self, head: CallHead) -> bytes:
        return self._client.own_fields(head)

    def forwarding_lines(self, head: RequestHead) -> bytes:
        return self._client.forwarding_lines(head)

    def date(self) -> bytes:
        return self._client.date()

    def touch(self) -> None:
        if not self._is_detached:
            self._client.touch()


class TapOnlyClient(DetachedClient):
    """Discards the answer, but passes its body to a callback."""

    __slots__ = ("_tap",)

    def __init__(self, client: ClientSide, tap: BodyTap) -> None:
        super().__init__(client)
        self._tap = tap

    def answer(self, answer: Answer) -> None:
        self._tap(answer[BODY])

    def more(self, data: Piece, done: bool, trailers: bytes, framed: bytes = b"") -> None:
        self._tap(data)


class TappedClient(PassingClient):
    """Passes the answer to the client, and its body also to a callback."""

    __slots__ = ("_tap",)

    def __init__(self, client: ClientSide, tap: BodyTap) -> None:
        super().__init__(client)
        self._tap = tap

    def answer(self, answer: Answer) -> None:
        super().answer(answer)
        self._tap(answer[BODY])

    def more(self, data: Piece, done: bool, trailers: bytes, framed: bytes = b"") -> None:
        super().more(data, done, trailers, framed)
        self._tap(data)


class AddingClient(PassingClient):
    """Passes everything on to the client and adds header lines to the final head."""

    __slots__ = ("_lines",)

    def __init__(self, client: ClientSide, lines: bytes) -> None:
        super().__init__(client)
        self._lines = lines

    def answer(self, answer: Answer) -> None:
        status, reason, block, extra, length, body, done, trailers = answer
        super().answer((status, reason, block, extra + self._lines, length, body, done, trailers))

    def sink(self) -> int | None:
        return self._client.sink()


class AnswerSink(Protocol):
    """Receives an answer that no client waits for, and learns how its exchange ends."""

    def carried(self, exchange: Exchange) -> None:
        """``exchange`` takes the place of the present one: a hedge that won."""

    def begins(self, status: int, block: bytes) -> None:
        """The final head; ``block``: header lines, each with its CRLF."""

    def body(self, data: Piece) -> None:
        """A piece of the body."""

    def ended(self) -> None:
        """The answer was complete. Also called if it went to the client."""

    def broke_off(self) -> None:
        """The answer will never be complete. Also called if it went to the client."""


class DeferredClient(PassingClient):
    """Passes everything on to the client until :meth:`part`; the answer goes to a sink from then on."""

    __slots__ = ("_sink", "is_parted")

    def __init__(self, client: ClientSide, sink: AnswerSink) -> None:
        super().__init__(client)
        self._sink = sink
        self.is_parted = False
        """The client has got another answer and has left."""

    def part(self, status: int, body: bytes, lines: bytes) -> None:
        """Answers the client with a JSON document; the exchange goes on without it."""
        self.is_parted = True
        client, size = self._client, len(body)
        block = b"\r\ncontent-type: application/json\r\ncontent-length: %d\r\ndate: %b\r\n" % (size, client.date())
        client.answer((status, REASONS[status], block, lines, size, body, True, b""))
        client.ended()

    def carry(self, exchange: Exchange) -> None:
        if not self.is_parted:
            self._client.carry(exchange)
        self._sink.carried(exchange)

    def answer(self, answer: Answer) -> None:
        if self.is_parted:
            status, _, block, extra, _, body, _, _ = answer
            self._sink.begins(status, block[2:] + extra)
            self._sink.body(body)
        else:
            self._client.answer(answer)

    def more(self, data: Piece, done: bool, trailers: bytes, framed: bytes = b"") -> None:
        if self.is_parted:
            self._sink.body(data)
        else:
            self._client.more(data, done, trailers, framed)

    def truncate(self) -> None:
        if not self.is_parted:
            self._client.truncate()
        self._sink.broke_off()

    def ended(self) -> None:
        if not self.is_parted:
            self._client.ended()
        self._sink.ended()

    def last(self) -> None:
        if not self.is_parted:
            self._client.last()

    def interim(self, status: int, reason: bytes, block: bytes) -> None:
        if not self.is_parted:
            self._client.interim(status, reason, block)

    def pause(self, why: int) -> None:
        if not self.is_parted:
            self._client.pause(why)

    def resume(self, why: int) -> None:
        if not self.is_parted:
            self._client.resume(why)


class StageClient(DetachedClient):
    """The client side of a pipeline's stage: its answer goes to a sink, which makes the next stage's request of it."""

    __slots__ = ("_sink",)

    def __init__(self, client: Requester, sink: AnswerSink) -> None:
        super().__init__(client)
        self._sink = sink

    def carry(self, exchange: Exchange) -> None:
        self._sink.carried(exchange)

    def answer(self, answer: Answer) -> None:
        status, _, block, extra, _, body, _, _ = answer
        self._sink.begins(status, block[2:] + extra)
        self._sink.body(body)

    def more(self, data: Piece, done: bool, trailers: bytes, framed: bytes = b"") -> None:
        self._sink.body(data)

    def truncate(self) -> None:
        self._sink.broke_off()

    def ended(self) -> None:
        self._sink.ended()


def next_exchange(
    first: Exchange, app: ProxyApp, sink: AnswerSink, head: RequestHead, body: bytes, now: float
) -> HttpExchange:
    """Returns the exchange of a pipeline's stage on behalf of the client of ``first``, with the same deadline."""
    client = StageClient(as_call(first)._client if first.is_rpc else as_http(first)._client, sink)
    stage = HttpExchange(client, app, head, body, True, b"", now, first.deadline)
    stage.keep(len(body))
    return stage


def defer_client(ex: Exchange, sink: AnswerSink) -> DeferredClient:
    """Puts a :class:`DeferredClient` between an HTTP exchange, whose request is complete, and its client."""
    exchange = as_http(ex)
    exchange._client = deferred = DeferredClient(exchange._client, sink)
    return deferred


def copy_for(
    first: Exchange, detach: Callable[[ClientSide], DetachedClient], app: ProxyApp, received: float
) -> HttpExchange | None:
    """Returns another exchange of the same HTTP request; ``detach`` makes its client side from the first one's.

    Returns None if the request asks for an upgrade, or is not complete or not kept.
    """
    if not isinstance(first, HttpExchange) or not (first.body_complete and first.replayable):
        return None
    head = first.head
    if head.upgrade is not None:
        return None
    client = detach(first._client)
    copy = HttpExchange(client, app, head, first.body, True, first._trailers, received, first.deadline)
    copy.inferences = first.inferences
    return copy


def copy_of_call(first: "GrpcCall", engine: CallEngine, app: ProxyApp, received: float) -> "GrpcCall | None":
    """Returns the same gRPC call without a client; ``engine`` takes its answer.

    Returns None if its request is not complete or not kept, as that of a stream of messages that goes on, or if it is
    answered here.
    """
    is_answered_here = first._stream.owner is not first
    if is_answered_here or not (first.body_complete and first.replayable):
        return None
    client = CallStandIn(first._client, engine, is_detached=True)
    stream = Stream(0, 0, 0, None)
    copy = type(first)(client, app, stream, first.head, first.body, True, received, first.deadline)
    copy._trailers = first._trailers
    copy.inferences = first.inferences
    stream.owner = copy
    return copy


def second_copy(first: Exchange) -> Exchange | None:
    """Returns a second copy for the same application, or None as :func:`copy_for` and :func:`copy_of_call` do."""
    if first.is_rpc:
        return copy_of_call(as_call(first), DetachedEngine(), first.app, first.received)
    return copy_for(first, DetachedClient, first.app, first.received)


def swap_clients(first: Exchange, copy: Exchange) -> None:
    """The copy answers the client from now on; the first one ends."""
    if first.is_rpc:
        call, hedge = as_call(first), as_call(copy)
        call._client, hedge._client = hedge._client, call._client
        call._stream, hedge._stream = hedge._stream, call._stream
        call._stream.owner, hedge._stream.owner = call, hedge
        call.client_gone()
        return
    one, other = as_http(first), as_http(copy)
    client, detached = one._client, other._client
    client.carry(other)
    other._client, one._client = client, detached
    one.client_gone()


def shadow_copy(first: Exchange, app: ProxyApp, now: float, tap: BodyTap) -> Exchange | None:
    """Returns the same request for ``app``, as if it had arrived now, or None as :func:`second_copy` does."""
    if first.is_rpc:
        return copy_of_call(as_call(first), TapOnlyEngine(tap), app, now)
    return copy_for(first, lambda client: TapOnlyClient(client, tap), app, now)


def add_to_answer(ex: Exchange, lines: bytes) -> None:
    """Adds header lines to the answer of an HTTP exchange that has not begun, also of one that is answered here."""
    exchange = as_http(ex)
    exchange._client = AddingClient(exchange._client, lines)


def tap_response(ex: Exchange, tap: BodyTap) -> None:
    """Taps the answer that the client is about to get; of a gRPC call its messages as they are framed."""
    if ex.is_rpc:
        call = as_call(ex)
        client = call._client
        call._client = CallStandIn(client, TappedEngine(client.engine, tap), is_detached=False)
        return
    exchange = as_http(ex)
    exchange._client = TappedClient(exchange._client, tap)
