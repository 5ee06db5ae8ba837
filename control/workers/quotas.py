"""The pool of quotas for the gateway workers of this machine: in memory, or passed on to a Redis that several machines
share (ADR 0040).

Workers report to a unix socket here. What is in memory is lost with the control process and told anew by the workers'
next reports. While Redis is away the workers of this machine share their part of the quotas; the status says so.
"""

from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from tidegate.aio.admin.endpoint import EndpointServer, Request, Response, serve_endpoint
from tidegate.clock import Clock
from tidegate.control.state.notices import Faults
from tidegate.errors import TidegateError
from tidegate.flow.quota_message import decode_exchange, encode_answer
from tidegate.records.codec import CodecError
from tidegate.store.counters import EmbeddedPool, SharedPool

SUBJECT: Final = "quotas"
BODY_BYTES: Final = 1 << 20


class FallbackPool(SharedPool, Protocol):
    """One that always answers."""

    @property
    def fault(self) -> str | None:
        """Why its answers are only a part of the quotas; None: they are not."""
        ...


class PoolSocketError(TidegateError):
    """The socket cannot be had."""


def open_pool(url: str, clock: Clock) -> FallbackPool:
    """The pool that belongs to a store. Raises InvalidInputError for a URL that is none; does not look whether Redis is
    there."""
    if url == "embedded":
        return EmbeddedPool(clock)
    from tidegate.store.fallback_counters import FallbackPool
    from tidegate.store.redis_counters import RedisPool

    return FallbackPool(RedisPool(url), clock)


class QuotaPool:
    """Serves a pool to the workers."""

    def __init__(self, pool: FallbackPool, path: Path, faults: Faults) -> None:
        """``path``: of the socket."""
        self._pool = pool
        self._path = path
        self._faults = faults
        self._server: EndpointServer | None = None

    @property
    def address(self) -> str:
        return f"unix:{self._path}"

    async def open(self) -> None:
        """Raises PoolSocketError."""
        with suppress(OSError):
            self._path.unlink()  # one that was killed has left it
        try:
            self._server = await serve_endpoint(self._exchange, self.address, body_bytes=BODY_BYTES)
        except OSError as error:
            raise PoolSocketError(f"{self._path}: {error.strerror or error}") from error

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()
        await self._pool.close()
        with suppress(OSError):
            self._path.unlink()

    async def _exchange(self, request: Request) -> Response:
        if (request.method, request.path) != ("POST", "/exchange"):
            return Response(status=404, body=b"POST /exchange", content_type="text/plain")
        try:
            member, reports = decode_exchange(request.body)
        except CodecError as error:
            return Response(status=400, body=str(error).encode(), content_type="text/plain")
        answer = await self._pool.exchange(member, reports)
        if self._pool.fault is None:
            self._faults.clear(SUBJECT)
        else:
            self._faults.set(SUBJECT, f"the workers of this machine go by their part of them: {self._pool.fault}")
        return Response(body=encode_answer(answer))

    def __repr__(self) -> str:
        return f"<QuotaPool {self._pool!r} at {self._path}>"
