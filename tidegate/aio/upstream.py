"""Connections to one upstream address: a LIFO list of idle ones, and connecting as the only coroutine of the path."""

from tidegate.aio.sweeper import Sweeper


class UpstreamPool:
    """Keep-alive connections to ``host:port`` or ``unix:/path``."""

    def __init__(
        self,
        address: str,
        sweeper: Sweeper,
        *,
        idle_timeout_s: float = 4.0,
        connect_timeout_s: float = 5.0,
        stream_idle_timeout_s: float = 300.0,
    ) -> None:
        """``idle_timeout_s`` must be below the upstream's keep-alive time (uvicorn: 5 s; a queue_proxy: 75 s)."""
        self.address = address

    def close(self) -> None:
        """Closes idle connections now and busy ones when their exchange ends."""
        raise RuntimeError("not built yet")
