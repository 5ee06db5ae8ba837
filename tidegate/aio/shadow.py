"""A copy of a request whose answer nobody sees, and an ear on the answer that the client gets.

The copy is an exchange like any other whose client side is nobody (``hedge.py``), here with an ear: an answer's body
goes to it piece by piece, without its framing. The ear on the first one stands between the exchange and its client and
passes everything on.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidegate.aio.client_side import ClientSide
from tidegate.aio.exchange import Exchange, ProxyApp
from tidegate.aio.hedge import Nobody, copy_for
from tidegate.wire.events import Piece
from tidegate.wire.head import RequestHead

if TYPE_CHECKING:
    from tidegate.aio.upstream import UpstreamConn

Ear = Callable[[Piece], object]
"""Hears a body, piece by piece."""


class Listener(Nobody):
    """Nobody, with an ear."""

    __slots__ = ("_ear",)

    def __init__(self, client: ClientSide, ear: Ear) -> None:
        super().__init__(client)
        self._ear = ear

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
        self._ear(body)

    def more(self, data: Piece, done: bool, trailers: bytes, framed: bytes = b"") -> None:
        self._ear(data)


class Overheard:
    """The client side of an exchange whose answer is listened to. A ``ClientSide``."""

    __slots__ = ("_client", "_ear")

    def __init__(self, client: ClientSide, ear: Ear) -> None:
        self._client = client
        self._ear = ear

    @property
    def peer(self) -> bytes:
        return self._client.peer

    @peer.setter
    def peer(self, peer: bytes) -> None:
        self._client.peer = peer

    @property
    def trusted(self) -> bool:
        return self._client.trusted

    @trusted.setter
    def trusted(self, trusted: bool) -> None:
        self._client.trusted = trusted

    @property
    def exchange(self) -> Exchange | None:
        return self._client.exchange

    @exchange.setter
    def exchange(self, exchange: Exchange | None) -> None:
        self._client.exchange = exchange

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
        self._client.answer(status, reason, block, extra, length, body, done, trailers)
        self._ear(body)

    def more(self, data: Piece, done: bool, trailers: bytes, framed: bytes = b"") -> None:
        self._client.more(data, done, trailers, framed)
        self._ear(data)

    def last(self) -> None:
        self._client.last()

    def interim(self, status: int, reason: bytes, block: bytes) -> None:
        self._client.interim(status, reason, block)

    def truncate(self) -> None:
        self._client.truncate()

    def ended(self) -> None:
        self._client.ended()

    def pause(self, why: int) -> None:
        self._client.pause(why)

    def resume(self, why: int) -> None:
        self._client.resume(why)

    def switch(self, head: bytes, protocol: asyncio.Protocol) -> None:
        self._client.switch(head, protocol)

    def tunnel(self, head: bytes, upstream: "UpstreamConn") -> None:
        self._client.tunnel(head, upstream)


def shadow_copy(first: Exchange, app: ProxyApp, now: float, ear: Ear) -> Exchange | None:
    """The same request for ``app``, as if it had come now; None: it is not whole, not kept, or asks for an upgrade."""
    return copy_for(first, Listener(first._client, ear), app, now)


def overhear(ex: Exchange, ear: Ear) -> None:
    """Listens to the answer that the client is about to get."""
    ex._client = Overheard(ex._client, ear)
