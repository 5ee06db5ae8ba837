"""After a 101: two linked protocols that pass bytes both ways, each half-close by itself."""

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from tidegate.aio.loop.writes import SMALL_BYTES, SmallWrites

if TYPE_CHECKING:
    from tidegate.aio.upstream.http1 import UpstreamConn


class Tunnelled(Protocol):
    """The exchange that a tunnel belongs to."""

    def tunnel_closed(self, bytes_in: int, bytes_out: int) -> None:
        """A side of the tunnel has gone."""


CLOSING_S = 60.0
"""For the one side to read what is left after the other one has ended. Our choice."""


class _Side(asyncio.Protocol):
    """Reads one transport, writes the other."""

    __slots__ = ("_is_full", "_small_writes", "_tunnel", "closed", "is_lost", "other", "transport")

    other: "_Side"

    def __init__(self, tunnel: "Tunnel", transport: asyncio.Transport, *, is_full: bool) -> None:
        self._tunnel = tunnel
        self.transport = transport
        self._is_full = is_full
        self._small_writes = SmallWrites()
        self.closed = False
        """No more bytes come from this side."""
        self.is_lost = False
        """Its connection is gone: asyncio's transports cannot be aborted any more then."""

    def data_received(self, data: bytes) -> None:
        self._tunnel.passed(self, len(data))
        self.other.write(data)

    def write(self, data: bytes) -> None:
        transport = self.transport
        if not transport.is_closing():
            if len(data) < SMALL_BYTES and not self._is_full:
                self._small_writes.note(transport)
            transport.write(data)

    def eof_received(self) -> bool:
        """Passes the half-close on. Returning True keeps this side open for bytes that still flow towards it. When the
        second EOF arrives, both are closed here, since the transports would stay open. TLS knows no half-close: either
        end ends both."""
        self.closed = True
        other = self.other
        if other.closed or not (other.transport.can_write_eof() and self.transport.can_write_eof()):
            self._tunnel.close()
            return False
        if not other.transport.is_closing():
            other.transport.write_eof()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = self.is_lost = True
        self._tunnel.lost()

    def let_go(self) -> None:
        """Both connections are gone: nothing is called any more."""
        del self.other, self._tunnel

    def pause_writing(self) -> None:
        self._is_full = True
        if not self.other.transport.is_closing():
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_full = False
        self._small_writes.forget(self.transport)
        if not self.other.transport.is_closing():
            self.other.transport.resume_reading()


class Tunnel:
    """Both sides and the exchange that they belong to."""

    __slots__ = ("_bytes_in", "_bytes_out", "_client", "_exchange", "_on_end", "_open", "_upstream", "heard", "idle_s")

    def __init__(
        self,
        exchange: Tunnelled,
        client: asyncio.Transport,
        upstream: asyncio.Transport,
        idle_s: float,
        on_end: Callable[["Tunnel"], None],
        *,
        is_client_full: bool = False,
        is_upstream_full: bool = False,
    ) -> None:
        """``is_client_full``, ``is_upstream_full``: that transport's last word was ``pause_writing``; it does not say
        so again, only when there is room."""
        self._exchange: Tunnelled | None = exchange
        self._open = 2
        """Sides whose connection is not gone yet."""
        self._client = _Side(self, client, is_full=is_client_full)
        self._upstream = _Side(self, upstream, is_full=is_upstream_full)
        self._client.other, self._upstream.other = self._upstream, self._client
        self._bytes_in = self._bytes_out = 0
        self._on_end: Callable[[Tunnel], None] | None = on_end
        """Called when both connections are gone."""
        self.heard = time.monotonic()
        """When a byte last passed."""
        self.idle_s = idle_s
        client.set_protocol(self._client)
        upstream.set_protocol(self._upstream)
        for transport, is_other_full in ((client, is_upstream_full), (upstream, is_client_full)):
            if transport.is_closing():
                continue
            if is_other_full:
                transport.pause_reading()
            else:
                transport.resume_reading()

    def feed(self, from_client: bytes, from_upstream: bytes) -> None:
        """Bytes that came before the tunnel was there."""
        if from_client:
            self._client.data_received(from_client)
        if from_upstream:
            self._upstream.data_received(from_upstream)

    def passed(self, side: _Side, size: int) -> None:
        """``size`` bytes came from ``side``."""
        self.heard = time.monotonic()
        if side is self._client:
            self._bytes_in += size
        else:
            self._bytes_out += size

    def close(self) -> None:
        """Closes both sides after the written bytes have gone out; a side that does not read them is cut off later."""
        self.heard, self.idle_s = time.monotonic(), min(self.idle_s, CLOSING_S)
        for side in (self._client, self._upstream):
            if not side.transport.is_closing():  # asyncio's TLS transports cannot be aborted after a second close
                side.transport.close()

    def abort(self) -> None:
        """Ends both sides now."""
        for side in (self._client, self._upstream):
            if not side.is_lost:
                side.transport.abort()

    def lost(self) -> None:
        """One side's connection is gone; the other one follows, and the exchange ends once."""
        self._open -= 1
        if self._open:
            self.close()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.tunnel_closed(self._bytes_in, self._bytes_out)
        on_end = self._on_end
        if not self._open and on_end is not None:
            self._on_end = None
            on_end(self)
            # Tunnel, sides and transports refer to each other: no circle is left to the collector.
            self._client.let_go()
            self._upstream.let_go()

    def sweep(self, now: float) -> None:
        """Closes a tunnel through which nothing has passed for too long."""
        if now - self.heard > self.idle_s:
            self.abort()

    def __repr__(self) -> str:
        return f"<Tunnel {self._bytes_in} bytes in, {self._bytes_out} out>"


def join(
    exchange: Tunnelled,
    client: asyncio.Transport,
    upstream: "UpstreamConn",
    from_client: bytes,
    idle_s: float,
    on_end: Callable[[Tunnel], None],
    *,
    is_client_full: bool,
) -> Tunnel:
    """Joins the client's transport and ``upstream``; ``from_client`` are bytes that came before the 101."""
    from_upstream = upstream.engine.leftover()
    upstream.give_away()
    tunnel = Tunnel(
        exchange,
        client,
        upstream.transport,
        idle_s,
        on_end,
        is_client_full=is_client_full,
        is_upstream_full=upstream.full,
    )
    tunnel.feed(from_client, from_upstream)
    return tunnel
