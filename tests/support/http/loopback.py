"""Processes' worth of proxy inside one test: a loop to run on, a free socket, an application that relays."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

from tests.support.deadline import Patience
from tests.support.http.backend import Script, ScriptedBackend, close_all
from tidegate.aio.loop import sockets
from tidegate.aio.loop.services import LoopServices
from tidegate.aio.proxy.exchange import Exchange
from tidegate.aio.proxy.server import Limits, ProxyServer, serve_proxy
from tidegate.aio.upstream.pool import UpstreamPool
from tidegate.errors import DEADLINE, REPLICA_BROKE, Executed
from tidegate.wire.message_heads import AnyResponseHead

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}


def run_on(loop: str, main: Coroutine[Any, Any, Any]) -> Any:
    """Runs ``main`` on the loop of that name."""
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(main)


class RelayApp:
    """Forwards everything to one pool and keeps what was reported to it, in order."""

    def __init__(self, pool: UpstreamPool | None = None) -> None:
        self.pool = pool
        self.log: list[str] = []
        self.ended: list[Exchange] = []
        self.running = 0

    def start(self, ex: Exchange) -> None:
        self.running += 1
        self.log.append("start")
        if self.pool is not None:
            ex.forward(self.pool)

    def abandoned(self, ex: Exchange) -> None:
        self.log.append("abandoned")

    def expired(self, ex: Exchange) -> None:
        self.log.append("expired")
        ex.fail(DEADLINE, "too late", executed=Executed.UNKNOWN)

    def answering(self, ex: Exchange, head: AnyResponseHead) -> bytes | None:
        self.log.append(f"answering {head.status}")
        return b""

    def upstream_failed(self, ex: Exchange, sent: bool, why: str) -> None:
        self.log.append(f"upstream failed, sent {sent}")
        if ex.may_retry(sent, idempotent=False) and self.pool is not None:
            ex.forward(self.pool)
        else:
            ex.fail(REPLICA_BROKE, why, executed=Executed.UNKNOWN if sent else Executed.FALSE)

    def finished(self, ex: Exchange) -> None:
        self.running -= 1
        self.ended.append(ex)
        self.log.append(f"finished {ex.status}")


class Relay:
    """A proxy on a free loopback port in front of one upstream address."""

    def __init__(
        self, server: ProxyServer, app: RelayApp, services: LoopServices, address: str, trust: ssl.SSLContext | None
    ) -> None:
        self.server = server
        self.app = app
        self.services = services
        self.address = address
        self.pool = app.pool
        self._trust = trust
        self._writers: list[asyncio.StreamWriter] = []
        self.host, self.port = sockets.host_port(address)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A client's connection."""
        reader, writer = await asyncio.open_connection(
            self.host,
            self.port,
            limit=1 << 20,
            ssl=self._trust,
            server_hostname=None if self._trust is None else "localhost",
        )
        self._writers.append(writer)
        return reader, writer

    def held_bytes(self) -> int:
        """Written by the proxy, not yet taken by the kernel."""
        transports = [connection.transport for connection in self.server.connections_now()]
        if self.pool is not None:
            transports += [connection.transport for connection in self.pool.connections_now()]
        return sum(transport.get_write_buffer_size() for transport in transports)

    async def close(self) -> None:
        self.server.abort()
        if self.app.pool is not None:
            self.app.pool.close()
        self.services.close()
        await close_all(self._writers)


async def start_relay(
    upstream: str | None,
    limits: Limits | None = None,
    *,
    app: RelayApp | None = None,
    sweep_s: float = 0.02,
    tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
    **pool: Any,
) -> Relay:
    """A relay in front of ``upstream``; None: requests wait until the test answers them.

    ``tls``: contexts of the server and of its clients.
    """
    services = LoopServices(asyncio.get_running_loop(), interval_s=sweep_s)
    app = app if app is not None else RelayApp()
    if upstream is not None:
        app.pool = UpstreamPool(upstream, services, **pool)
    sock: socket.socket = sockets.listen("127.0.0.1:0")
    keys, trust = tls if tls is not None else (None, None)
    server = await serve_proxy(app, sock, limits if limits is not None else Limits(), services, tls=keys)
    return Relay(server, app, services, sockets.address_of(sock), trust)


Scene = Callable[[Relay], Coroutine[Any, Any, None]]


def play(
    loop: str,
    script: Script,
    scene: Scene,
    limits: Limits | None = None,
    *,
    app: RelayApp | None = None,
    forwards: bool = True,
    limit_s: float = 20,
    **pool: Any,
) -> tuple[RelayApp, ScriptedBackend]:
    """Backend with ``script``, relay before it, then ``scene``; at the end every exchange must have ended once.

    ``forwards`` False: requests wait until the scene answers or forwards them (to ``relay.pool``).
    """
    backend = ScriptedBackend(script)
    app = app if app is not None else RelayApp()

    async def main() -> None:
        address = await backend.start()
        relay = await start_relay(address, limits, app=app, **pool)
        relay.pool = app.pool
        if not forwards:
            app.pool = None
        try:
            async with asyncio.timeout(limit_s):
                await scene(relay)
        finally:
            app.pool = relay.pool
            await relay.close()
            await backend.close()

    run_on(loop, main())
    assert app.running == 0, app.log
    assert len(app.ended) == len(set(map(id, app.ended)))
    return app, backend


async def until(condition: Callable[[], bool], within_s: float = 5.0) -> float:
    """Waits for what the other side of a socket does; the seconds it took."""
    patience = Patience(within_s)
    while not condition():
        if patience.is_over:
            raise AssertionError(f"not within {patience}")
        await asyncio.sleep(0.001)
    return patience.passed_s
