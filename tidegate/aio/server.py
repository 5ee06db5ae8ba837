"""The listening side of a proxy process: limits, listener, connections, drain. ``connection.py`` is one of them."""

import asyncio
import ipaddress
import random
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.aio import sockets
from tidegate.aio.connection import ServerConn
from tidegate.aio.exchange import ProxyApp
from tidegate.aio.sweeper import Sweeper
from tidegate.aio.tunnel import Tunnel
from tidegate.wire.head import HeadRules

if TYPE_CHECKING:
    import ssl

SHUTDOWN_TIMEOUT_S = 5.0
"""TLS; how long a closing connection waits for the client's own close_notify."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the client side; bytes and seconds. A breach answers the status named and closes."""

    head_bytes: int = 16 * 1024
    """431."""
    headers: int = 100
    """431."""
    target_bytes: int = 8 * 1024
    """414."""
    body_bytes: int = 1 << 30
    """413."""
    head_timeout_s: float = 10.0
    """Absolute, from the first byte of a head; 408."""
    idle_timeout_s: float = 75.0
    """Keep-alive without a request; closes silently."""
    body_idle_timeout_s: float = 30.0
    """Moves with data; 408."""
    response_timeout_s: float = 300.0
    """First deadline of an exchange, which the app may move; 504."""
    stream_idle_timeout_s: float = 300.0
    """Between two pieces of a response; aborts."""
    stream_total_s: float = 3600.0
    """From the answer's head to its last byte; aborts."""
    tunnel_idle_timeout_s: float = 3600.0
    handshake_timeout_s: float = 10.0
    """TLS; a slower client is cut off, and counted nowhere."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks (``10.0.0.0/8``) whose forwarding fields are kept and appended to; ``unix`` for unix sockets."""
    front_door: bool = True
    """True (gateway): ``tidegate-`` fields other than those of KEPT_FROM_CLIENTS are removed and invisible.
    False (queue_proxy): visible to ``head.get``; only timeout-ms and batch-size are forwarded."""
    upgrades: frozenset[bytes] = frozenset({b"websocket"})
    """Upgrade protocols that pass."""
    via: bytes = b"tidegate"
    """Our name in ``via`` fields."""

    def rules(self, *, trusted: bool) -> HeadRules:
        """What the head grammar needs of these."""
        return HeadRules(
            head_bytes=self.head_bytes,
            headers=self.headers,
            target_bytes=self.target_bytes,
            front_door=self.front_door,
            trusted=trusted,
            upgrades=self.upgrades,
        )


class ProxyServer:
    """A running listener and its connections."""

    __slots__ = (
        "_connections",
        "_empty",
        "_ended",
        "_listener",
        "_networks",
        "_rules",
        "_unregister",
        "app",
        "draining",
        "idle_timeout_s",
        "limits",
        "outbox",
        "random",
        "response_timeout_s",
        "scheme",
        "sweeper",
        "tunnels",
    )

    def __init__(self, app: ProxyApp, limits: Limits, sweeper: Sweeper, *, scheme: bytes = b"http") -> None:
        """``scheme``: by which clients reach it. Raises ValueError for a trusted network that is none."""
        self.app = app
        self.scheme = scheme
        self.limits = limits
        self.response_timeout_s = limits.response_timeout_s
        self.idle_timeout_s = limits.idle_timeout_s
        self.sweeper = sweeper
        self.outbox = sweeper.outbox
        self._rules: dict[bool, HeadRules] = {}
        self.random = random.Random()
        """For trace ids."""
        self.draining = False
        self.tunnels: set[Tunnel] = set()
        self._networks = [ipaddress.ip_network(network) for network in limits.trusted_proxies if network != "unix"]
        self._connections: set[ServerConn] = set()
        self._ended = False
        self._empty = asyncio.Event()
        self._empty.set()
        self._listener: asyncio.AbstractServer | None = None
        self._unregister = sweeper.add(self._sweep)

    async def listen(self, sock: socket.socket, tls: "ssl.SSLContext | None" = None) -> None:
        """Accepts connections on a listening socket."""
        loop = asyncio.get_running_loop()
        is_unix = sock.family == socket.AF_UNIX
        self._listener = await (loop.create_unix_server if is_unix else loop.create_server)(
            self._connect, sock=sock, backlog=sockets.BACKLOG, **self._tls_arguments(tls)
        )

    def _tls_arguments(self, tls: "ssl.SSLContext | None") -> dict[str, Any]:
        """Both loops refuse the timeouts without a context."""
        if tls is None:
            return {}
        return {
            "ssl": tls,
            "ssl_handshake_timeout": self.limits.handshake_timeout_s,
            "ssl_shutdown_timeout": SHUTDOWN_TIMEOUT_S,
        }

    def _connect(self) -> ServerConn:
        return ServerConn(self)

    @property
    def connections(self) -> int:
        """Open client connections, tunnels included."""
        return len(self._connections) + len(self.tunnels)

    def connections_now(self) -> tuple[ServerConn, ...]:
        """The connections that are not tunnels, for the status page and tests."""
        return tuple(self._connections)

    def rules_for(self, trusted: bool) -> HeadRules:
        """The rules of heads of such peers; made when the first of them comes (it takes some milliseconds)."""
        rules = self._rules.get(trusted)
        if rules is None:
            self._rules[trusted] = rules = self.limits.rules(trusted=trusted)
        return rules

    def trusts(self, peer: bytes) -> bool:
        """Whether the peer's forwarding fields are kept."""
        if peer == b"unix":
            return "unix" in self.limits.trusted_proxies
        if not self._networks:
            return False
        address = ipaddress.ip_address(peer.decode())
        return any(address in network for network in self._networks)

    def opened(self, connection: ServerConn) -> None:
        """A connection is there; one whose handshake outlived the server ends at once."""
        if self._ended:
            connection.transport.abort()
            return
        self._connections.add(connection)
        self._empty.clear()

    def closed(self, connection: ServerConn) -> None:
        """A connection has ended or belongs to somebody else now."""
        self._connections.discard(connection)
        self.left()

    def left(self) -> None:
        """Wakes a drain when nobody is left."""
        if not self._connections and not self.tunnels:
            self._empty.set()

    def _sweep(self, now: float) -> None:
        for connection in tuple(self._connections):
            connection.sweep(now)
        for tunnel in tuple(self.tunnels):
            tunnel.sweep(now)
        if self.draining:
            self._close_idle()

    def _close_idle(self) -> None:
        for connection in tuple(self._connections):
            connection.close_if_idle()

    def stop_accepting(self) -> None:
        """Closes the listener here (an inherited socket stays open in the parent); connections go on."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def drain(self, grace_s: float) -> None:
        """Stops accepting, closes idle connections, waits for running exchanges at most ``grace_s``, aborts the rest.

        Answers carry ``connection: close`` from now on.
        """
        self.stop_accepting()
        self.draining = True
        self._close_idle()
        try:
            async with asyncio.timeout(grace_s):
                await self._empty.wait()
        except TimeoutError:
            pass
        finally:
            self.abort()

    def abort(self) -> None:
        """Ends every connection now."""
        self._ended = True
        self.stop_accepting()
        for connection in tuple(self._connections):
            connection.abort()
        for tunnel in tuple(self.tunnels):
            tunnel.abort()
        self._unregister()

    def __repr__(self) -> str:
        return f"<ProxyServer {self.connections} connections{', draining' if self.draining else ''}>"


async def serve_proxy(
    app: ProxyApp,
    sock: socket.socket,
    limits: Limits,
    sweeper: Sweeper,
    *,
    tls: "ssl.SSLContext | None" = None,
) -> ProxyServer:
    """Serves HTTP/1.1 on a listening socket (TCP or unix); with ``tls`` HTTPS alone.

    ``tls``: a server-side context with its certificate loaded; the caller chooses versions and ciphers. Loading another
    certificate into the same context serves new connections with it from then on (test it in a context of its own
    before: a key that does not match leaves the context without one). A connection exists for the application, and is
    counted, when its handshake is done; a handshake that fails, or is slower than ``limits.handshake_timeout_s``, ends
    silently. Requests carry ``x-forwarded-proto: https`` and ``proto=https`` in ``forwarded``.
    """
    server = ProxyServer(app, limits, sweeper, scheme=b"http" if tls is None else b"https")
    await server.listen(sock, tls)
    return server
