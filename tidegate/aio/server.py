"""The listening side of a proxy process."""

import socket
from dataclasses import dataclass

from tidegate.aio.exchange import ProxyApp
from tidegate.aio.sweeper import Sweeper


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
    """From head to the last response byte; aborts."""
    tunnel_idle_timeout_s: float = 3600.0
    trusted_proxies: tuple[str, ...] = ()
    """Networks (``10.0.0.0/8``) whose forwarding fields are kept and appended to; ``unix`` for unix sockets."""
    front_door: bool = True
    """True (gateway): ``tidegate-`` fields other than those of KEPT_FROM_CLIENTS are removed and invisible.
    False (queue_proxy): visible to ``head.get``; only timeout-ms and batch-size are forwarded."""
    upgrades: frozenset[bytes] = frozenset({b"websocket"})
    """Upgrade protocols that pass."""
    via: bytes = b"tidegate"


class ProxyServer:
    """A running listener and its connections."""

    connections: int
    """Open client connections."""

    def stop_accepting(self) -> None:
        """Closes the listener here (an inherited socket stays open in the parent); connections go on."""
        raise RuntimeError("not built yet")

    async def drain(self, grace_s: float) -> None:
        """Stops accepting, closes idle connections, waits for running exchanges at most ``grace_s``, aborts the rest."""
        raise RuntimeError("not built yet")

    def abort(self) -> None:
        """Ends every connection now."""
        raise RuntimeError("not built yet")


async def serve_proxy(app: ProxyApp, sock: socket.socket, limits: Limits, sweeper: Sweeper) -> ProxyServer:
    """Serves HTTP/1.1 on a listening socket (TCP or unix)."""
    raise RuntimeError("not built yet")
