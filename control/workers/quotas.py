"""The pools of quotas and of waiting rooms for the gateway workers of this machine: in memory, or passed on to a Redis
that several machines share (ADR 0040, ADR 0137).

Workers report to a unix socket here. The counts in memory are lost with the control process; the workers' next reports
restore them. While Redis does not answer, the workers of this machine share their part, and the status reports it.
"""

import logging
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from tidegate.aio.admin.endpoint import EndpointServer, Request, Response, serve_endpoint
from tidegate.clock import Clock
from tidegate.control.state.directory import write_atomically
from tidegate.control.state.notices import Faults
from tidegate.errors import TidegateError
from tidegate.flow.quota_message import decode_exchange, encode_answer
from tidegate.records.codec import CodecError
from tidegate.store.counters import EmbeddedPool, SharedPool
from tidegate.store.fallback_counters import CommonPool, FallbackPool
from tidegate.store.parts import WHOLE

_log = logging.getLogger("tidegate")

SUBJECT: Final = "quotas"
ROOMS_SUBJECT: Final = "waiting rooms"
BODY_BYTES: Final = 1 << 20


class AnsweringPool(SharedPool, Protocol):
    """A pool that always answers."""

    @property
    def fault(self) -> str | None:
        """The reason why its answers are only a part of the quotas; None if they are whole."""
        ...

    @property
    def unlisted(self) -> str | None:
        """The reason why it does not know what others have taken; None if it does."""
        ...


class PoolSocketError(TidegateError):
    """The socket cannot be opened."""


class PartFile:
    """The file with the last part of the gateways of this machine: a process that starts while Redis is away goes on
    with it. A part that cannot be written is a fault until one has been."""

    def __init__(self, path: Path, faults: Faults) -> None:
        self._path = path
        self._faults = faults

    def read(self) -> int:
        """Returns the part, of ``WHOLE``; 0 if there is none."""
        try:
            return min(WHOLE, max(0, int(self._path.read_text(encoding="ascii"))))
        except FileNotFoundError:
            return 0
        except (OSError, ValueError) as error:
            _log.warning("%s cannot be read: %s; without Redis there is no part", self._path, error)
            return 0

    def write(self, part: int) -> bool:
        """Keeps a part. Returns whether it is kept."""
        try:
            write_atomically(self._path, f"{part}\n".encode(), durable=False)
        except OSError as error:
            why = f"{error.strerror}; without Redis the next process has no part, or an old one"
            self._faults.set(self._path.name, f"{self._path} cannot be written: {why}")
            return False
        self._faults.clear(self._path.name)
        return True

    def __repr__(self) -> str:
        return f"<PartFile {self._path}>"


def open_pool(url: str, clock: Clock, kept: PartFile | None = None) -> AnsweringPool:
    """Returns the pool that belongs to a store, without a look whether Redis answers. ``kept``: file of its part while
    Redis is away. Raises InvalidInputError for an invalid URL."""
    if url == "embedded":
        return EmbeddedPool(clock)
    from tidegate.store.redis_counters import RedisPool  # the library is an extra, and loads for 250 ms

    return _fallback(RedisPool(url), clock, kept)


def open_rooms(url: str, clock: Clock, name: str, kept: PartFile | None = None) -> AnsweringPool | None:
    """Returns the pool of the bounds of waiting rooms of the deployment ``name``; None with the embedded store: then
    there are no gateways on other machines. ``kept`` is as for :func:`open_pool`. Raises InvalidInputError for an
    invalid URL."""
    if url == "embedded":
        return None
    from tidegate.store.redis_counters import RedisPool

    return _fallback(RedisPool(url, f"tidegate:{name}:rooms:"), clock, kept)


def _fallback(pool: CommonPool, clock: Clock, kept: PartFile | None) -> FallbackPool:
    if kept is None:
        return FallbackPool(pool, clock)
    return FallbackPool(pool, clock, part=kept.read(), keep=kept.write)


class QuotaPool:
    """Serves the pools to the workers."""

    def __init__(self, pool: AnsweringPool, path: Path, faults: Faults, rooms: AnsweringPool | None = None) -> None:
        """``path``: path of the socket."""
        self._pools = {"/exchange": (pool, SUBJECT, "of them")}
        if rooms is not None:
            self._pools["/rooms"] = (rooms, ROOMS_SUBJECT, "of their bounds")
        self._path = path
        self._faults = faults
        self._server: EndpointServer | None = None

    @property
    def address(self) -> str:
        return f"unix:{self._path}"

    async def open(self) -> None:
        """Raises PoolSocketError."""
        with suppress(OSError):
            self._path.unlink()  # left by a process that was killed
        try:
            self._server = await serve_endpoint(self._exchange, self.address, body_bytes=BODY_BYTES)
        except OSError as error:
            raise PoolSocketError(f"{self._path}: {error.strerror or error}") from error

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()
        for pool, _, _ in self._pools.values():
            await pool.close()
        with suppress(OSError):
            self._path.unlink()

    async def _exchange(self, request: Request) -> Response:
        found = self._pools.get(request.path) if request.method == "POST" else None
        if found is None:
            allowed = ", ".join(f"POST {path}" for path in self._pools)
            return Response(status=404, body=allowed.encode(), content_type="text/plain")
        pool, subject, what = found
        try:
            member, reports = decode_exchange(request.body)
        except CodecError as error:
            return Response(status=400, body=str(error).encode(), content_type="text/plain")
        answer = await pool.exchange(member, reports)
        self._report(pool, subject, what)
        return Response(body=encode_answer(answer))

    def _report(self, pool: AnsweringPool, subject: str, what: str) -> None:
        """Keeps the faults of a pool up to date."""
        part = f"the workers of this machine have what they hold {what} and a part of what was free"
        elsewhere = f"its grants count, and it does not list what gateways elsewhere have taken {what}"
        self._faults.note(subject, None if pool.fault is None else f"{part}: {pool.fault}")
        self._faults.note(f"list of {subject}", None if pool.unlisted is None else f"{elsewhere}: {pool.unlisted}")

    def __repr__(self) -> str:
        return f"<QuotaPool {self._pools!r} at {self._path}>"
