"""The client's end of an exchange as an interface: a source of the request, a sink of the answer, a way to cancel."""

import asyncio
from typing import TYPE_CHECKING, Protocol

from tidegate.wire.http1.events import Piece
from tidegate.wire.http1.request_head import RequestHead

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import BodyBudget, Exchange
    from tidegate.aio.upstream.pool import UpstreamConn


class ClientSide(Protocol):
    """Where a request comes from and its answer goes: a connection, an HTTP/2 stream, a hedge."""

    peer: bytes
    trusted: bool
    exchange: "Exchange | None"
    """The one that it carries; a hedge that wins takes the place of the first."""

    @property
    def budget(self) -> "BodyBudget":
        """Where a body counts while its request waits."""

    def forwarding_lines(self, head: RequestHead) -> bytes:
        """``x-forwarded-*``, ``forwarded``, ``via`` and a ``traceparent`` where none came."""

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
        """The final head and the body so far; see ``H1Server.respond``."""

    def more(self, data: Piece, done: bool, trailers: bytes, framed: bytes = b"") -> None:
        """A further piece of the body; ``framed``: see ``Data``."""

    def sink(self) -> int | None:
        """The socket that takes the rest of an answer's body as it is: nothing waits to be written before it.

        None: its bytes must be framed, be encrypted or be seen.
        """

    def last(self) -> None:
        """The connection ends after this answer."""

    def interim(self, status: int, reason: bytes, block: bytes) -> None:
        """A 1xx answer (not to HTTP/1.0 clients)."""

    def truncate(self) -> None:
        """The answer will never be complete: the client must see that."""

    def ended(self) -> None:
        """The exchange has ended."""

    def pause(self, why: int) -> None:
        """Stops reading the request's body for one more reason."""

    def resume(self, why: int) -> None:
        """Takes a reason back; reading goes on when none is left."""

    def switch(self, head: bytes, protocol: asyncio.Protocol) -> None:
        """Writes ``head`` (a 101) and gives the transport, and bytes already received, to ``protocol``."""

    def tunnel(self, head: bytes, upstream: "UpstreamConn") -> None:
        """Writes ``head`` (the upstream's 101) and joins both connections."""

    def date(self) -> bytes:
        """Value of a ``date`` field."""


class Passing:
    """A client side that passes everything on to another one; what stands between the two overrides what it changes."""

    __slots__ = ("_client",)

    def __init__(self, client: ClientSide) -> None:
        self._client = client

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
    def exchange(self) -> "Exchange | None":
        return self._client.exchange

    @exchange.setter
    def exchange(self, exchange: "Exchange | None") -> None:
        self._client.exchange = exchange

    @property
    def budget(self) -> "BodyBudget":
        return self._client.budget

    def forwarding_lines(self, head: RequestHead) -> bytes:
        return self._client.forwarding_lines(head)

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

    def more(self, data: Piece, done: bool, trailers: bytes, framed: bytes = b"") -> None:
        self._client.more(data, done, trailers, framed)

    def sink(self) -> int | None:
        return None

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

    def date(self) -> bytes:
        return self._client.date()
