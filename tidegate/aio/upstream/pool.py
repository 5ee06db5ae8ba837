"""Connections to one upstream address: a LIFO list of idle ones, and connecting as the only coroutine of the path."""

import asyncio
from typing import TYPE_CHECKING

from tidegate.aio.loop.services import LoopServices
from tidegate.aio.loop.sockets import UNIX, host_port, is_unix
from tidegate.aio.loop.tasks import TaskOwner
from tidegate.aio.upstream.http1 import Forwarded, UpstreamConn
from tidegate.wire.http1.response_cache import ResponseHeads

if TYPE_CHECKING:
    from tidegate.aio.upstream.http2 import H2Pool, H2Upstream


class UpstreamPool:
    """Keep-alive connections to ``host:port`` or ``unix:/path``."""

    __slots__ = (
        "_calls",
        "_connect_timeout_s",
        "_idle_timeout_s",
        "_open",
        "_owner",
        "_unregister",
        "address",
        "heads",
        "held",
        "hold_s",
        "idle",
        "is_closed",
        "outbox",
        "services",
    )

    def __init__(
        self,
        address: str,
        services: LoopServices,
        *,
        idle_timeout_s: float = 4.0,
        connect_timeout_s: float = 5.0,
        hold_s: float = 0.0,
    ) -> None:
        """``idle_timeout_s`` must be below the upstream's keep-alive time (uvicorn: 5 s; a queue_proxy: 75 s).

        ``hold_s``: the time for which the connection of an abandoned request is held for an upstream that works on
        regardless; 0: it is aborted at once.

        Raises ValueError for an address of another shape.
        """
        if not is_unix(address):
            host_port(address)
        self.address = address
        self.services = services
        self.outbox = services.outbox
        self._idle_timeout_s = idle_timeout_s
        self._connect_timeout_s = connect_timeout_s
        self.idle: list[UpstreamConn] = []
        """Oldest first."""
        self._open: set[UpstreamConn] = set()
        self._owner = TaskOwner(f"connect to {address}", services.report)
        self.is_closed = False
        self.heads = ResponseHeads()
        self.hold_s = hold_s
        self.held: set[UpstreamConn] = set()
        self._calls: H2Pool | None = None
        self._unregister = services.add(self._sweep)

    def for_calls(self) -> "H2Pool":
        """The HTTP/2 connections to the same address, for gRPC calls; made when the first one is forwarded."""
        calls = self._calls
        if calls is None:
            from tidegate.aio.upstream.http2 import H2Pool  # a millisecond that processes without calls do not spend

            calls = self._calls = H2Pool(self.address, self.services, self._connect_timeout_s, self.hold_s)
            if self.is_closed:
                calls.close()
        return calls

    def take(self) -> UpstreamConn | None:
        """The idle connection that was used last, if any."""
        idle = self.idle
        while idle:
            upstream = idle.pop()
            if not upstream.dead and not upstream.transport.is_closing():
                return upstream
        return None

    def put(self, upstream: UpstreamConn) -> None:
        """Takes a connection that has carried nothing yet."""
        if self.is_closed:
            upstream.close()
            return
        upstream.idle_since = self.services.now
        self.idle.append(upstream)

    def connect(self, exchange: Forwarded) -> None:
        """Opens a connection for ``exchange``."""
        self._owner.spawn(self._connect(exchange, exchange.attempts), name="connect")

    async def _connect(self, exchange: Forwarded, attempt: int) -> None:
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                upstream = await self._open_connection()
        except TimeoutError:
            exchange.connect_failed(attempt, f"no connection to {self.address} within {self._connect_timeout_s} s")
            return
        except OSError as error:
            exchange.connect_failed(attempt, f"no connection to {self.address}: {error.strerror or error}")
            return
        if not upstream.dead:
            # Not sooner: uvloop does not tell of the end of one whose connect is given up in the turn of its making.
            self._open.add(upstream)
        if not exchange.connected(upstream, attempt):
            self.put(upstream)

    async def _open_connection(self) -> UpstreamConn:
        loop = asyncio.get_running_loop()
        if is_unix(self.address):
            path = self.address.removeprefix(UNIX)
            _, upstream = await loop.create_unix_connection(lambda: UpstreamConn(self), path)
        else:
            host, port = host_port(self.address)
            _, upstream = await loop.create_connection(lambda: UpstreamConn(self), host, port)
        return upstream

    def closed(self, upstream: UpstreamConn) -> None:
        self._open.discard(upstream)

    def report(self, name: str, error: BaseException) -> None:
        """Reports an error that no caller can get."""
        self.services.report(name, error)

    def _sweep(self, now: float) -> None:
        """Closes what has been idle for too long; the list is ordered, oldest first."""
        idle, limit, count = self.idle, now - self._idle_timeout_s, 0
        while count < len(idle) and (idle[count].dead or idle[count].idle_since < limit):
            count += 1
        for upstream in idle[:count]:
            if not upstream.dead:
                upstream.close()
        del idle[:count]
        for upstream in [each for each in self.held if each.held_until < now]:
            upstream.discard()

    @property
    def connections(self) -> int:
        """Open connections, idle and busy."""
        return len(self.connections_now())

    def connections_now(self) -> "tuple[UpstreamConn | H2Upstream, ...]":
        """The open connections, for the status page and tests."""
        return (*self._open, *(() if self._calls is None else self._calls.open_connections))

    def close(self) -> None:
        """Closes idle connections now and busy ones when their exchange ends. A pool that closed forwards no more."""
        self.is_closed = True
        self._unregister()
        for upstream in self.idle:
            if not upstream.dead:
                upstream.close()
        self.idle.clear()
        if self._calls is not None:
            self._calls.close()

    def __repr__(self) -> str:
        return f"<UpstreamPool {self.address}: {len(self.idle)} idle of {len(self._open)}>"
