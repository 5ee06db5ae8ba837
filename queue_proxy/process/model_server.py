"""ModelServerCalls: the calls that a queue_proxy makes to its model server for itself, and for no client."""

import asyncio
import json
from pathlib import Path

from tidegate.aio.admin.client import FetchError, fetch
from tidegate.aio.loop.sockets import host_port, is_unix
from tidegate.queue_proxy.probes import LivenessProbe, liveness_answer, readiness_answer
from tidegate.queue_proxy.settings import DEFAULT_LIMIT, ProxySettings

CONNECT_TIMEOUT_S = 1.0
ALIVE_S, HOLD_S = 0.25, 0.02
"""Limits for a model server in doubt. It is busy, not dead, if it has not answered within ALIVE_S; a connection that
stays open for HOLD_S counts as accepted."""
DECLARED_PATH = "/tidegate/declared"
"""Path at which the shipped model server declares how many requests it takes at once."""
DECLARED_TIMEOUT_S = 1.0
RUNNING_PATH = "/tidegate/running"
"""Path at which the shipped model server reports the calls without a client that it goes on with."""
RUNNING_TIMEOUT_S = 1.0
MESSAGE_BYTES = 500
"""Bytes of a model server's answer that are quoted in a message."""


class ModelServerCalls:
    """Probes, warms up and queries the model server of one replica. Its faults are results, never exceptions."""

    __slots__ = ("_readiness_path", "_upstream", "_warmup_path")

    def __init__(self, settings: ProxySettings) -> None:
        self._upstream = settings.upstream
        self._readiness_path = settings.readiness_path
        self._warmup_path = settings.warmup_path

    # --- probes -----------------------------------------------------------------------------------------------------

    async def readiness_fault(self, timeout_s: float) -> str | None:
        """Makes one readiness attempt. Returns None if it passed, else the reason."""
        path = self._readiness_path
        if path is None:
            return await self._connect(min(timeout_s, CONNECT_TIMEOUT_S))
        try:
            reply = await fetch(self._upstream, "GET", path, timeout_s=timeout_s, body_bytes=1 << 20)
        except FetchError as error:
            return str(error)
        return readiness_answer(reply.status)

    async def liveness_fault(self, probe: LivenessProbe) -> str | None:
        """Makes one liveness attempt. Returns None if it passed, else the reason."""
        if probe.path is None:
            return await self._connect(probe.timeout_s)
        try:
            reply = await fetch(self._upstream, "GET", probe.path, timeout_s=probe.timeout_s, body_bytes=1 << 20)
        except FetchError as error:
            return str(error)
        return liveness_answer(reply.status)

    async def is_alive(self) -> bool:
        """Returns True if the server answers a readiness call, or accepts a connection and does not close it at
        once."""
        path = self._readiness_path
        try:
            async with asyncio.timeout(ALIVE_S):
                if path is not None:
                    await fetch(self._upstream, "GET", path, timeout_s=ALIVE_S * 2, body_bytes=1 << 20)
                    return True
                return await self._connect(ALIVE_S, hold_s=HOLD_S) is None
        except TimeoutError:
            return True
        except FetchError:
            return False

    async def _connect(self, timeout_s: float, *, hold_s: float = 0.0) -> str | None:
        """Opens a connection. Returns None if it was accepted and not closed by the server within ``hold_s``, else the
        reason."""
        loop = asyncio.get_running_loop()
        closed = asyncio.Event()
        upstream = self._upstream
        try:
            async with asyncio.timeout(timeout_s):
                if is_unix(upstream):
                    path = upstream.removeprefix("unix:")
                    transport, _ = await loop.create_unix_connection(lambda: _ClosedNote(closed), path)
                else:
                    transport, _ = await loop.create_connection(lambda: _ClosedNote(closed), *host_port(upstream))
        except TimeoutError:
            return f"no connection within {timeout_s:g} s"
        except OSError as error:
            return error.strerror or str(error)
        try:
            if hold_s:
                async with asyncio.timeout(hold_s):
                    await closed.wait()
                return "the connection was closed at once"
        except TimeoutError:
            pass  # It keeps the connection.
        finally:
            transport.close()
        return None

    # --- start and end of work --------------------------------------------------------------------------------------

    async def warm_up(self, file: str, timeout_s: float) -> str | None:
        """Sends the warm-up request. Returns None if the answer is 2xx, else the reason."""
        try:
            body = _content(file)
        except OSError as error:
            return f"warm-up file {file}: {error.strerror}"
        fields = [("content-type", "application/json")]
        try:
            reply = await fetch(self._upstream, "POST", self._warmup_path, body, fields, timeout_s=timeout_s)
        except FetchError as error:
            return f"warm-up request: {error}"
        if not 200 <= reply.status < 300:
            quoted = reply.body[:MESSAGE_BYTES].decode("utf-8", "replace")
            return f"warm-up request answered {reply.status}: {quoted}"
        return None

    async def declared(self) -> int:
        """Returns the slots that the model server declares, else the default."""
        try:
            reply = await fetch(self._upstream, "GET", DECLARED_PATH, timeout_s=DECLARED_TIMEOUT_S)
            declared = json.loads(reply.body)["concurrency"] if reply.status == 200 else None
        except (FetchError, ValueError, KeyError, TypeError):
            declared = None  # Most servers declare nothing: the default is documented.
        return declared if type(declared) is int and declared >= 0 else DEFAULT_LIMIT

    async def running(self) -> int | None:
        """Returns the calls without a client that the model server goes on with; None if it does not answer."""
        try:
            reply = await fetch(self._upstream, "GET", RUNNING_PATH, timeout_s=RUNNING_TIMEOUT_S)
            running = json.loads(reply.body)["abandoned"] if reply.status == 200 else 0
        except FetchError:
            return None
        except (ValueError, KeyError, TypeError):
            return 0  # Another program listens there: nothing is known of its calls.
        return running if type(running) is int else 0

    def __repr__(self) -> str:
        return f"<ModelServerCalls {self._upstream}>"


class _ClosedNote(asyncio.Protocol):
    """A connection that only notes when the other side closes it."""

    def __init__(self, closed: asyncio.Event) -> None:
        self._closed = closed

    def eof_received(self) -> bool:
        self._closed.set()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed.set()


def _content(file: str) -> bytes:
    return Path(file).read_bytes()
