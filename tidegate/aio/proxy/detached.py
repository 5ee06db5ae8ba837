"""Copies of a request that run without a client, and taps on answers.

A copy is an exchange like any other; its client side is a :class:`DetachedClient`, which discards the answer.

- A hedge (:func:`second_copy`) may take the first one's place. If its answer comes first, :func:`swap_clients` gives it
  the client, and the first copy ends as if its client had gone: its upstream connection is aborted, its application is
  informed, it is counted nowhere.
- A shadow (:func:`shadow_copy`) never gets a client, but a tap: its answer's body is passed to a callback piece by
  piece, without its framing. :func:`tap_response` puts such a tap between the first exchange and its client, which
  passes everything on.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidegate.aio.proxy.contract import BODY, Answer, ClientSide, PassingClient
from tidegate.aio.proxy.exchange import BodyBudget, Exchange, ProxyApp
from tidegate.aio.proxy.http1_exchange import HttpExchange, as_http
from tidegate.wire.http1.events import Piece
from tidegate.wire.http1.request_head import RequestHead

if TYPE_CHECKING:
    from tidegate.aio.upstream.http1 import UpstreamConn


BodyTap = Callable[[Piece], object]
"""Called with a body, piece by piece."""


class DetachedClient:
    """The client side of an exchange without a client. A ``ClientSide``."""

    __slots__ = ("_client", "peer", "trusted")

    def __init__(self, client: ClientSide) -> None:
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


def copy_for(
    first: Exchange, detach: Callable[[ClientSide], DetachedClient], app: ProxyApp, received: float
) -> HttpExchange | None:
    """Returns another exchange of the same request; ``detach`` makes its client side from the first one's.

    Returns None if the request is not complete or not kept, is a gRPC call, or asks for an upgrade.
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


def second_copy(first: Exchange) -> Exchange | None:
    """Returns a second copy for the same application, or None as :func:`copy_for` does."""
    return copy_for(first, DetachedClient, first.app, first.received)


def swap_clients(first: Exchange, copy: Exchange) -> None:
    """The copy answers the client from now on; the first one ends."""
    one, other = as_http(first), as_http(copy)
    client, detached = one._client, other._client
    client.carry(other)
    other._client, one._client = client, detached
    one.client_gone()


def shadow_copy(first: Exchange, app: ProxyApp, now: float, tap: BodyTap) -> Exchange | None:
    """Returns the same request for ``app``, as if it had arrived now, or None as :func:`copy_for` does."""
    return copy_for(first, lambda client: TapOnlyClient(client, tap), app, now)


def tap_response(ex: Exchange, tap: BodyTap) -> None:
    """Taps the answer that the client is about to get."""
    exchange = as_http(ex)
    exchange._client = TappedClient(exchange._client, tap)
