"""The listening side of a proxy process: limits, listener, connections (``http1_connection.py``), drain."""

import asyncio
import ipaddress
import random
import socket
from time import monotonic
from typing import TYPE_CHECKING, Any

from tidegate.aio.loop import sockets
from tidegate.aio.loop.acceptor import Acceptor
from tidegate.aio.loop.places import Places, connection_limit, descriptors
from tidegate.aio.loop.services import LoopServices
from tidegate.aio.loop.tasks import TaskOwner
from tidegate.aio.proxy.exchange import BodyBudget, ProxyApp
from tidegate.aio.proxy.http1_connection import ServerConn
from tidegate.aio.proxy.limits import Limits
from tidegate.aio.proxy.tunnel import Tunnel
from tidegate.wire.http1.request_head import HeadRules
from tidegate.wire.http1.template import Templates
from tidegate.wire.http2.block_memory import REQUEST, Blocks
from tidegate.wire.http2.heads import request_drops
from tidegate.wire.http2.tails import read_call_tail

if TYPE_CHECKING:
    import ssl

    from tidegate.aio.proxy.contract import Connection, FirstConnection
    from tidegate.aio.proxy.http2_connection import H2Conn

__all__ = ["Limits", "ProxyServer", "ServerConn", "serve_proxy"]

SHUTDOWN_TIMEOUT_S = 60.0
"""TLS: the time for a closing connection to send the rest and to get the client's close_notify; the rest is lost then.
(An idle client is cut off sooner: ``http1_connection.FAREWELL_S``.)"""


class ProxyServer:
    """A running listener and its connections."""

    __slots__ = (
        "_backlog",
        "_blocks",
        "_connections",
        "_empty",
        "_ended",
        "_listener",
        "_networks",
        "_owner",
        "_rules",
        "_sock",
        "_tls",
        "_unregister",
        "app",
        "budget",
        "draining",
        "idle_timeout_s",
        "limits",
        "new_timeout_s",
        "outbox",
        "places",
        "random",
        "response_timeout_s",
        "scheme",
        "services",
        "tunnels",
    )

    def __init__(self, app: ProxyApp, limits: Limits, services: LoopServices, *, scheme: bytes = b"http") -> None:
        """``scheme``: the one by which clients reach it. Raises ValueError for a malformed trusted network."""
        self.app = app
        self.scheme = scheme
        self.limits = limits
        self.response_timeout_s = limits.response_timeout_s
        self.idle_timeout_s = limits.idle_timeout_s
        self.new_timeout_s = limits.head_timeout_s if limits.front_door else limits.idle_timeout_s
        """For the first byte of a connection. A gateway may open one to a queue_proxy in advance."""
        self.places: Places | None = None
        """The connections that the front door has room for; None if it is none: its clients are gateways."""
        if limits.front_door:
            most = connection_limit(limits.connections, descriptors())
            self.places = Places(most, limits.connections_per_client or max(1, most // 2))
        self.services = services
        self.outbox = services.outbox
        self._rules: dict[bool, tuple[HeadRules, int, Templates]] = {}
        self._blocks: dict[bool, Blocks] = {}
        self.random = random.Random()
        """For trace ids."""
        self.draining = False
        self.tunnels: set[Tunnel] = set()
        self._networks = [ipaddress.ip_network(network) for network in limits.trusted_proxies if network != "unix"]
        self._connections: set[Connection] = set()
        self._ended = False
        self.budget = BodyBudget(limits.waiting_body_bytes)
        """Budget for the bodies of waiting requests; its ``used`` is exported as a metric."""
        self._sock: socket.socket | None = None
        self._tls: ssl.SSLContext | None = None
        self._owner = TaskOwner("listener", services.report)
        self._backlog: asyncio.Task[None] | None = None
        """Accepts the connections that waited in the kernel's queue when the listener closed."""
        self._empty = asyncio.Event()
        self._empty.set()
        self._listener: asyncio.AbstractServer | Acceptor | None = None
        self._unregister = services.add(self._sweep)

    async def listen(self, sock: socket.socket, tls: "ssl.SSLContext | None" = None) -> None:
        """Accepts connections on a listening socket."""
        self._sock, self._tls = sock, tls
        loop = asyncio.get_running_loop()
        if tls is not None:
            sock.listen(sockets.BACKLOG)
            self._listener = Acceptor(loop, sock, self._accepted)
            return
        is_unix = sock.family == socket.AF_UNIX
        self._listener = await (loop.create_unix_server if is_unix else loop.create_server)(
            self._connect, sock=sock, backlog=sockets.BACKLOG
        )

    def _accepted(self, sock: socket.socket, address: object) -> None:
        """A connection that begins with a handshake: it takes its place now."""
        peer = address[0].encode() if isinstance(address, tuple) else b"unix"
        if self._takes_place(peer):
            self._owner.spawn(self._take(sock, peer), name="handshake")
        else:
            sock.close()

    def _takes_place(self, peer: bytes) -> bool:
        places = self.places
        return places is None or places.take(self._client(peer), len(self.tunnels))

    def _client(self, peer: bytes) -> bytes | None:
        """Returns the address by which a connection is counted; None for a peer that stands for many clients."""
        return None if peer == b"unix" or self.trusts(peer) else peer

    def _leaves_place(self, peer: bytes) -> None:
        if self.places is not None:
            self.places.leave(self._client(peer))

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

    def connections_now(self) -> "tuple[Connection, ...]":
        """The connections that are not tunnels, for the status page and tests."""
        return tuple(self._connections)

    def rules_for(self, trusted: bool) -> tuple[HeadRules, int, Templates]:
        """Returns the arguments of an HTTP/1 engine for such peers; made for the first of them (it takes some
        milliseconds)."""
        found = self._rules.get(trusted)
        if found is None:
            limits = self.limits
            self._rules[trusted] = found = (limits.rules(trusted=trusted), limits.body_bytes, Templates())
        return found

    def blocks_for(self, trusted: bool) -> Blocks:
        """Returns the header blocks that HTTP/2 connections of such peers share; made for the first of them."""
        found = self._blocks.get(trusted)
        if found is None:
            drops = request_drops(front_door=self.limits.front_door, trusted=trusted)
            # No client's block ends as a gateway's do: there is no peer to look for before the front door.
            self._blocks[trusted] = found = Blocks(REQUEST, drops, None if self.limits.front_door else read_call_tail)
        return found

    def speaks_h2(self, connection: "FirstConnection") -> "H2Conn":
        """A connection turns out to be one of HTTP/2: the object in its place, which gets its bytes."""
        from tidegate.aio.proxy.http2_connection import (
            H2Conn,  # milliseconds that processes without such clients do not spend
        )

        found = H2Conn(self, connection.transport, connection.peer, connection.trusted)
        if connection in self._connections:  # The place stays taken.
            self._connections.discard(connection)
            self._connections.add(found)
        connection.transport.set_protocol(found)
        return found

    def trusts(self, peer: bytes) -> bool:
        """Whether the peer's forwarding fields are kept."""
        if peer == b"unix":
            return "unix" in self.limits.trusted_proxies
        if not self._networks:
            return False
        address = ipaddress.ip_address(peer.decode())
        return any(address in network for network in self._networks)

    def opened(self, connection: "Connection") -> None:
        """A connection is there; one whose handshake outlived the server, or that has no place, ends at once."""
        has_place = self._tls is not None or self._takes_place(connection.peer)
        if self._ended or not has_place:
            if has_place:
                self._leaves_place(connection.peer)
            connection.transport.abort()
            return
        self._connections.add(connection)
        self._empty.clear()

    def closed(self, connection: "Connection") -> None:
        """A connection has ended, or its transport has another protocol now."""
        if connection in self._connections:
            self._connections.discard(connection)
            self._leaves_place(connection.peer)
        self._left()

    def tunnel_ended(self, tunnel: Tunnel) -> None:
        """Both connections of a tunnel are gone."""
        self.tunnels.discard(tunnel)
        self._left()

    def _left(self) -> None:
        """Wakes a drain when no connection is left."""
        if not self._connections and not self.tunnels and self._backlog is None:
            self._empty.set()

    def _sweep(self, now: float) -> None:
        for connection in tuple(self._connections):
            connection.sweep(now)
        for tunnel in tuple(self.tunnels):
            tunnel.sweep(now)
        if self.draining:
            self._close_idle()

    def _close_idle(self) -> None:
        now = monotonic()
        for connection in tuple(self._connections):
            connection.close_if_idle(now)

    def stop_accepting(self) -> None:
        """Closes the listener here (an inherited socket stays open in the parent); connections go on.

        Connections in the kernel's queue are accepted first: closing the last copy of a listening socket resets them.
        """
        if self._listener is None:
            return
        waiting = [] if self._ended or self._sock is None else sockets.accept_all(self._sock)
        if waiting:
            self._empty.clear()
            self._backlog = self._owner.spawn(self._take_in(waiting), name="take in")
        self._listener.close()
        self._listener = None

    async def _take_in(self, waiting: list[socket.socket]) -> None:
        await asyncio.gather(*map(self._take_late, waiting))  # A slow handshake makes none of the others wait.
        self._backlog = None
        self._left()

    async def _take_late(self, sock: socket.socket) -> None:
        """Takes in a connection that waited in the kernel when the listener closed."""
        peer = b"unix"
        if self._tls is not None:
            try:
                name = sock.getpeername()
            except OSError:
                sock.close()  # It has gone.
                return
            peer = name[0].encode() if isinstance(name, tuple) else peer
            if not self._takes_place(peer):
                sock.close()
                return
        await self._take(sock, peer)

    async def _take(self, sock: socket.socket, peer: bytes) -> None:
        """Makes an accepted socket a connection; with TLS its place is taken already, by its ``peer``."""
        loop = asyncio.get_running_loop()
        connection = self._connect()
        try:
            await loop.connect_accepted_socket(lambda: connection, sock, **self._tls_arguments(self._tls))
        except OSError:
            sock.close()  # It has gone, or its handshake failed.
        finally:
            if self._tls is not None and not connection.is_made:
                self._leaves_place(peer)

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
    services: LoopServices,
    *,
    tls: "ssl.SSLContext | None" = None,
) -> ProxyServer:
    """Serves HTTP/1.1 and HTTP/2 on a listening socket (TCP or unix); with ``tls`` HTTPS alone. A connection's first
    bytes decide which it is (RFC 9113 section 3.4), with ``tls`` as well: ALPN only asks the client to choose.

    ``tls``: a server-side context with its certificate loaded; the caller chooses versions and ciphers. Loading another
    certificate into the same context serves new connections with it from then on (test it in a context of its own
    before: a key that does not match leaves the context without one). A connection exists for the application, and is
    counted, when its handshake is done; a handshake that fails, or is slower than ``limits.handshake_timeout_s``, ends
    silently. Requests carry ``x-forwarded-proto: https`` and ``proto=https`` in ``forwarded``.
    """
    server = ProxyServer(app, limits, services, scheme=b"http" if tls is None else b"https")
    await server.listen(sock, tls)
    return server
