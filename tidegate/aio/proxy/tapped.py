"""A copy of a request whose answer nobody sees, and an ear on the answer that the client gets.

The copy is an exchange like any other whose client side is nobody (``hedge.py``), here with an ear: an answer's body
goes to it piece by piece, without its framing. The ear on the first one stands between the exchange and its client and
passes everything on.
"""

from collections.abc import Callable

from tidegate.aio.proxy.contract import ClientSide, Passing
from tidegate.aio.proxy.detached import DetachedClient, copy_for
from tidegate.aio.proxy.exchange import Exchange, ProxyApp
from tidegate.wire.http1.events import Piece

BodyTap = Callable[[Piece], object]
"""Hears a body, piece by piece."""


class TapOnlyClient(DetachedClient):
    """Nobody, with an ear."""

    __slots__ = ("_ear",)

    def __init__(self, client: ClientSide, ear: BodyTap) -> None:
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


class TappedClient(Passing):
    """The client side of an exchange whose answer is listened to."""

    __slots__ = ("_ear",)

    def __init__(self, client: ClientSide, ear: BodyTap) -> None:
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
        super().answer(status, reason, block, extra, length, body, done, trailers)
        self._ear(body)

    def more(self, data: Piece, done: bool, trailers: bytes, framed: bytes = b"") -> None:
        super().more(data, done, trailers, framed)
        self._ear(data)


def shadow_copy(first: Exchange, app: ProxyApp, now: float, ear: BodyTap) -> Exchange | None:
    """The same request for ``app``, as if it had come now; None: it is not whole, not kept, or asks for an upgrade."""
    return copy_for(first, TapOnlyClient(first._client, ear), app, now)


def overhear(ex: Exchange, ear: BodyTap) -> None:
    """Listens to the answer that the client is about to get."""
    ex._client = TappedClient(ex._client, ear)
