"""Interfaces between an exchange and its client end, and between connections and the listener that owns them.

Arrows point one way. ``exchange.py`` stands below this file, the two kinds of exchange above it; connections and
streams implement the interfaces, and ``server.py`` stands on top. The upstream side (``aio/upstream``) stands below all
of them and declares by itself what it needs of an exchange.
"""

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from tidegate.aio.proxy.exchange import BodyBudget, Client, Exchange
from tidegate.wire.http1.events import Piece
from tidegate.wire.http1.request_head import RequestHead

if TYPE_CHECKING:
    from tidegate.aio.loop.services import LoopServices
    from tidegate.aio.loop.writes import Outbox
    from tidegate.aio.proxy.exchange import ProxyApp
    from tidegate.aio.proxy.forwarding import Forwarding
    from tidegate.aio.proxy.limits import Limits
    from tidegate.aio.proxy.tunnel import Tunnel
    from tidegate.aio.upstream.http1 import UpstreamConn
    from tidegate.wire.http1.request_head import HeadRules
    from tidegate.wire.http1.template import Templates
    from tidegate.wire.http2.block_memory import Blocks
    from tidegate.wire.http2.heads import CallHead
    from tidegate.wire.http2.streams import Stream

Answer = tuple[int, bytes, bytes, bytes, int | None, Piece, bool, bytes]
"""The beginning of an answer: (status, reason, block, extra, length, body, done, trailers).

The first five are the arguments of ``H1Server.respond``. ``body`` is the part that has arrived, ``done`` says whether
it is complete; ``trailers`` follow it then. A plain tuple costs 0.04 us more than eight arguments, a NamedTuple 0.3 us.
"""
BODY: Final = 5
"""Position of the body in an :data:`Answer`."""


class Requester(Client, Protocol):
    """The client's end of an exchange, as requests on its behalf need it."""

    def forwarding_lines(self, head: RequestHead) -> bytes:
        """Returns ``x-forwarded-*``, ``forwarded``, ``via``, and a ``traceparent`` if the request has none."""

    def date(self) -> bytes:
        """Returns the value of a ``date`` field."""


class ClientSide(Requester, Protocol):
    """The client's end of an HTTP exchange: a connection, an HTTP/2 stream, or a stand-in for one.

    It is the source of the request and the sink of the answer.
    """

    def carry(self, exchange: Exchange) -> None:
        """``exchange`` takes the place of the present one: a hedge that won."""

    def answer(self, answer: Answer) -> None:
        """Sends the final head and the body so far."""

    def more(self, data: Piece, done: bool, trailers: bytes, framed: bytes = b"") -> None:
        """Sends a further piece of the body; ``framed``: see ``Data``."""

    def sink(self) -> int | None:
        """Returns the socket that may take the rest of the body as it is, with nothing waiting to be written before it.

        Returns None if the bytes must be framed, encrypted or seen.
        """

    def last(self) -> None:
        """The connection ends after this answer."""

    def interim(self, status: int, reason: bytes, block: bytes) -> None:
        """Sends a 1xx answer (not to HTTP/1.0 clients)."""

    def truncate(self) -> None:
        """The answer will never be complete: ends it visibly for the client."""

    def ended(self) -> None:
        """The exchange has ended."""

    def pause(self, why: int) -> None:
        """Stops reading the request's body for one more reason (a bit)."""

    def resume(self, why: int) -> None:
        """Takes a reason back; reading goes on once none is left."""

    def switch(self, head: bytes, protocol: asyncio.Protocol) -> None:
        """Writes ``head`` (a 101) and gives the transport, and bytes already received, to ``protocol``."""

    def tunnel(self, head: bytes, upstream: "UpstreamConn") -> None:
        """Writes ``head`` (the upstream's 101) and joins both connections."""


class CallEngine(Protocol):
    """The part of an HTTP/2 engine that a gRPC call answers through (``H2Server``)."""

    def interim(self, stream: "Stream", block: bytes) -> None:
        """Sends a head of status 1xx before the final one."""

    def head(self, stream: "Stream", block: bytes, ends: bool) -> None:
        """Sends the final head."""

    def data(self, stream: "Stream", data: bytes, ends: bool) -> int:
        """Sends a piece of the answer; returns the number of bytes that have gone out."""

    def trailers(self, stream: "Stream", block: bytes) -> None:
        """Ends the answer with trailers."""

    def passed(self, stream: "Stream", size: int) -> None:
        """The client may send as many more bytes."""

    def reset(self, stream: "Stream", code: int) -> None:
        """Ends the stream with an error."""


class CallClient(Requester, Protocol):
    """The client's end of a gRPC call: an HTTP/2 connection, or a stand-in for one."""

    @property
    def engine(self) -> CallEngine: ...

    @property
    def is_gateway_peer(self) -> bool:
        """Whether the client has proven that it is a gateway of this deployment."""

    def mark_as_gateway(self) -> None:
        """A call has proven that the client is a gateway of this deployment."""

    def own_fields(self, head: "CallHead") -> bytes:
        """Returns the fields that are added to every call: client address, host, trace."""

    def touch(self) -> None:
        """The engine has something to send."""


class StreamConnection(CallClient, Protocol):
    """An HTTP/2 connection of a client, as its streams see it."""

    forwarding: "Forwarding"
    at_read_end: list[Callable[[], object]]
    """Called at the end of the present read."""


class PassingClient:
    """A client side that passes everything on to another one; subclasses override what they change."""

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
    def budget(self) -> BodyBudget:
        return self._client.budget

    def carry(self, exchange: Exchange) -> None:
        self._client.carry(exchange)

    def forwarding_lines(self, head: RequestHead) -> bytes:
        return self._client.forwarding_lines(head)

    def answer(self, answer: Answer) -> None:
        self._client.answer(answer)

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


class Connection(Protocol):
    """A client connection as the listener sees it."""

    transport: asyncio.Transport
    peer: bytes

    def data_received(self, data: bytes) -> None:
        """As ``asyncio.Protocol.data_received``."""

    def sweep(self, now: float) -> None:
        """Acts on the limits that have passed."""

    def close_if_idle(self, now: float) -> None:
        """While draining: ends the connection if it carries nothing."""

    def abort(self) -> None:
        """Ends the connection now."""


class FirstConnection(Connection, Protocol):
    """A connection whose protocol its first bytes decide."""

    trusted: bool


class ListeningSide(Protocol):
    """The listening side as its connections see it (``ProxyServer``)."""

    app: "ProxyApp"
    limits: "Limits"
    budget: BodyBudget
    services: "LoopServices"
    outbox: "Outbox"
    random: random.Random
    scheme: bytes
    draining: bool
    idle_timeout_s: float
    new_timeout_s: float
    response_timeout_s: float
    tunnels: "set[Tunnel]"

    def rules_for(self, trusted: bool) -> "tuple[HeadRules, int, Templates]":
        """Returns the arguments of an HTTP/1 engine for such peers."""

    def blocks_for(self, trusted: bool) -> "Blocks":
        """Returns the header blocks that HTTP/2 connections of such peers share."""

    def trusts(self, peer: bytes) -> bool:
        """Whether the peer's forwarding fields are kept."""

    def speaks_h2(self, connection: "FirstConnection") -> Connection:
        """Returns the HTTP/2 connection that takes the place of ``connection``."""

    def opened(self, connection: Connection) -> None:
        """A connection is there."""

    def closed(self, connection: Connection) -> None:
        """A connection has ended or its transport has another protocol now."""

    def tunnel_ended(self, tunnel: "Tunnel") -> None:
        """Both connections of a tunnel are gone."""
