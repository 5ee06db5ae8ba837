"""The link to one queue_proxy's admin endpoint: its state as a stream, commands with the epoch."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Final

import httpx

from tidegate.errors import TidegateError
from tidegate.function import Batching
from tidegate.headers import TOKEN
from tidegate.records.codec import CodecError, Lines, decode
from tidegate.records.replica_state import ColdStartPhases, FailureCause, ReplicaState

COMMAND_TIMEOUT_S: Final = 5.0
_FIRST_PAUSE_S: Final = 0.005
_MAX_PAUSE_S: Final = 0.1


class LinkError(TidegateError):
    """The queue_proxy does not answer, or refuses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyState:
    """One line of ``GET /events``."""

    state: ReplicaState
    phases: ColdStartPhases = field(default_factory=ColdStartPhases)
    limit: int | None = None
    message: str | None = None
    cause: FailureCause | None = None


@cache
def _no_tls() -> ssl.SSLContext:
    """Returns one context for all links. Making one per client costs 20 ms, and no link uses TLS."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def admin_client(address: str, timeout_s: float, token: str | None = None) -> httpx.AsyncClient:
    """Returns a client of an admin endpoint at ``unix:/path`` or ``host:port``. Orders need the ``token`` of the
    deployment where the endpoint can be reached from other machines."""
    path = address.removeprefix("unix:")
    is_unix = path != address
    return httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(uds=path if is_unix else None, verify=_no_tls()),
        base_url="http://localhost" if is_unix else f"http://{address}",
        timeout=timeout_s,
        headers={} if token is None else {TOKEN.decode(): token},
        trust_env=False,
    )


async def order_batching(upstream: str, batching: Batching, epoch: int) -> None:
    """Orders the shipped model server at ``unix:/path`` or ``host:port`` to form other batches. Raises LinkError."""
    order = {"max_batch": batching.max_size, "delay_s": batching.delay_s}
    try:
        async with admin_client(upstream, COMMAND_TIMEOUT_S) as client:
            reply = await client.post("/tidegate/batching", json=order, headers={"tidegate-epoch": str(epoch)})
    except httpx.HTTPError as error:
        raise LinkError(f"the model server does not answer: {error!r}") from error
    if not reply.is_success:
        raise LinkError(f"the model server refuses: {reply.status_code} {reply.text[:200]}")


class ProxyLink:
    """A client of an admin endpoint. Both methods raise LinkError if the other side cannot be reached."""

    def __init__(self, admin: str, token: str | None = None) -> None:
        self.admin = admin
        self._token = token

    @cached_property
    def _client(self) -> httpx.AsyncClient:
        """The client, made at first use, which is after the spawn."""
        return admin_client(self.admin, COMMAND_TIMEOUT_S, self._token)

    async def states(self) -> AsyncIterator[ProxyState]:
        """Yields the present state, then each change, without end: a broken stream is opened again.

        Before the queue_proxy has made its socket, only polling helps: every 5 ms at first, every 100 ms later. The
        reader cancels it when the process is known to have ended.
        """
        pause = _FIRST_PAUSE_S
        while True:
            try:
                async with self._client.stream(
                    "GET", "/events", timeout=httpx.Timeout(COMMAND_TIMEOUT_S, read=None)
                ) as reply:
                    lines = Lines()
                    async for piece in reply.aiter_bytes():
                        for line in lines.push(piece):
                            yield decode(line, ProxyState)
                            pause = _FIRST_PAUSE_S
            except CodecError as error:
                raise LinkError(f"the queue_proxy sends an unreadable state: {error}") from error
            except httpx.TransportError:
                pass  # Not there yet, or just gone. Its process is watched elsewhere.
            await asyncio.sleep(pause)
            pause = min(_MAX_PAUSE_S, pause * 1.5)

    async def command(self, name: str, body: dict[str, int]) -> None:
        """Sends ``POST /<name>``. Raises LinkError unless the answer is 2xx."""
        try:
            reply = await self._client.post(f"/{name}", json=body)
        except httpx.HTTPError as error:
            raise LinkError(f"the queue_proxy does not answer {name}: {error!r}") from error
        if not reply.is_success:
            raise LinkError(f"the queue_proxy refuses {name}: {reply.status_code} {reply.text[:200]}")

    async def close(self) -> None:
        await self._client.aclose()

    def __repr__(self) -> str:
        return f"<ProxyLink {self.admin}>"
