"""A copy of a request whose answer no client sees, and a tap on the answer that the client gets.

The copy is an exchange like any other without a client (``detached.py``), here with a tap: the answer's body is passed
to a callback piece by piece, without its framing. The tap on the first exchange stands between it and its client and
passes everything on.
"""

from collections.abc import Callable

from tidegate.aio.proxy.contract import BODY, Answer, ClientSide, PassingClient
from tidegate.aio.proxy.detached import DetachedClient, copy_for
from tidegate.aio.proxy.exchange import Exchange, ProxyApp
from tidegate.aio.proxy.http1_exchange import as_http
from tidegate.wire.http1.events import Piece

BodyTap = Callable[[Piece], object]
"""Called with a body, piece by piece."""


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


def shadow_copy(first: Exchange, app: ProxyApp, now: float, tap: BodyTap) -> Exchange | None:
    """Returns the same request for ``app``, as if it had arrived now, or None as :func:`copy_for` does."""
    return copy_for(first, lambda client: TapOnlyClient(client, tap), app, now)


def tap_response(ex: Exchange, tap: BodyTap) -> None:
    """Taps the answer that the client is about to get."""
    exchange = as_http(ex)
    exchange._client = TappedClient(exchange._client, tap)
