"""A second copy of a request that runs without a client, until it takes the first one's place.

The copy is an exchange like any other; its client side is :class:`DetachedClient`, who hears nothing. When its answer
comes first, :func:`hand_over` gives it the client, and the first copy ends as if its client had gone: its upstream
connection is aborted, its application is told, it is counted nowhere.
"""

import asyncio
from typing import TYPE_CHECKING, cast

from tidegate.aio.proxy.contract import ClientSide
from tidegate.aio.proxy.exchange import BodyBudget, Exchange, ProxyApp
from tidegate.wire.http1.events import Piece
from tidegate.wire.http1.request_head import RequestHead
from tidegate.wire.http1.server import H1Server

if TYPE_CHECKING:
    from tidegate.aio.upstream.pool import UpstreamConn


class DetachedClient:
    """The client side of an exchange that nobody waits for. A ``ClientSide``."""

    __slots__ = ("_client", "exchange", "peer", "trusted")

    def __init__(self, client: ClientSide) -> None:
        """``client``: on whose behalf."""
        self._client = client
        self.peer = client.peer
        self.trusted = client.trusted
        self.exchange: Exchange | None = None
        """Never set: nobody asks, and it would be a circle."""

    @property
    def budget(self) -> BodyBudget:
        return self._client.budget

    def forwarding_lines(self, head: RequestHead) -> bytes:
        return self._client.forwarding_lines(head)

    def date(self) -> bytes:
        return self._client.date()

    def answer(
        self,
        status: int,
        reason: bytes,
        block: bytes,
        extra: bytes,
        length: int | None,
        body: Piece,
        done: bool,
        trailers: bytes,
    ) -> None:
        """Nobody reads it."""

    def more(self, data: Piece, done: bool, trailers: bytes, framed: bytes = b"") -> None:
        """Nobody reads it."""

    def sink(self) -> int | None:
        return None

    def last(self) -> None:
        """There is no connection to end."""

    def interim(self, status: int, reason: bytes, block: bytes) -> None:
        """The first copy passes its own on."""

    def truncate(self) -> None:
        """Nobody sees it."""

    def ended(self) -> None:
        """Nobody waits for it."""

    def pause(self, why: int) -> None:
        """The request is complete: nothing is read."""

    def resume(self, why: int) -> None:
        """Nothing was paused."""

    def switch(self, head: bytes, protocol: asyncio.Protocol) -> None:
        raise RuntimeError("a request that asks for an upgrade has no second copy")

    def tunnel(self, head: bytes, upstream: "UpstreamConn") -> None:
        raise RuntimeError("a request that asks for an upgrade has no second copy")


class _Whole:
    """What an exchange asks of the engine that read its request: all of the body is there."""

    __slots__ = ("body", "body_complete", "trailers")

    def __init__(self, body: bytes, trailers: bytes) -> None:
        self.body = body
        self.body_complete = True
        self.trailers = trailers


def copy_for(first: Exchange, client: ClientSide, app: ProxyApp, received: float) -> Exchange | None:
    """Another exchange of the same request; None: it is not whole, not kept, a gRPC call, or asks for an
    upgrade."""
    if first.is_rpc or not (first.body_complete and first.replayable) or first.head.upgrade is not None:
        return None
    source = cast(H1Server, _Whole(first.body, first._trailers))
    copy = Exchange(client, app, first.head, source, received, first.deadline)
    copy.inferences = first.inferences
    return copy


def second_copy(first: Exchange) -> Exchange | None:
    """A second copy that answers to the same application; None: there can be none."""
    return copy_for(first, DetachedClient(first._client), first.app, first.received)


def hand_over(first: Exchange, copy: Exchange) -> None:
    """The copy answers the client from now on; the first one ends."""
    client, nobody = first._client, copy._client
    client.exchange = copy
    copy._client, first._client = client, nobody
    first.client_gone()
