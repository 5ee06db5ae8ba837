"""Connections of the control API: limits of time and number, so that no client can take all descriptors of the process.

Each connection is in one of three phases. *Waiting*: no request is whole; a head has ``HEAD_S`` from the moment the
connection is there (or from its first byte, later). *Reading*: a head is there and its body comes, for ``BODY_S``
at most. *Answering*: an answer of which the client reads nothing for ``UNREAD_S`` is cut off. When all places are
taken, the connection that has waited longest makes room for a new one; without such a one the new one is closed.
"""

import asyncio
import logging
import resource
from collections.abc import Callable, Generator
from contextlib import contextmanager
from time import monotonic
from typing import Any, ClassVar, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S: Final = 10.0
BODY_S: Final = 60.0
UNREAD_S: Final = 30.0
BACKLOG: Final = 32
"""Connections that wait in the kernel: so many may be accepted at once, beyond the limit, before they are closed."""
MOST: Final = 256
LEAST: Final = 8
LOG_EVERY_S: Final = 60.0

_log = logging.getLogger("tidegate.api")


def connection_limit(descriptors: int) -> int:
    """Returns the connections that the API may have, of so many descriptors of the process: a quarter of them."""
    return max(LEAST, min(MOST, descriptors // 4))


class ConnectionPlaces:
    """The connections of one API, at most ``limit``."""

    def __init__(self, limit: int, clock: Callable[[], float] = monotonic) -> None:
        self.limit = limit
        self.closed = 0
        """Connections that were closed to stay within the limit."""
        self._clock = clock
        self._open: set[asyncio.Protocol] = set()
        self._waiting: dict[asyncio.Protocol, Callable[[], None]] = {}
        """Connections without a whole request, the oldest first, and what closes each."""
        self._logged_at = -LOG_EVERY_S

    def take(self, connection: asyncio.Protocol) -> bool:
        """Returns whether the connection may stay. May close the one that has waited longest."""
        if len(self._open) >= self.limit:
            self.closed += 1
            self._log()
            if not self._waiting:
                return False
            oldest = next(iter(self._waiting))
            close = self._waiting.pop(oldest)
            self._open.discard(oldest)
            close()
        self._open.add(connection)
        return True

    def waits(self, connection: asyncio.Protocol, close: Callable[[], None]) -> None:
        """The connection has no whole request: ``close`` makes room."""
        if connection in self._open:
            self._waiting.setdefault(connection, close)

    def works(self, connection: asyncio.Protocol) -> None:
        """The connection has a whole request, and is left alone until its answer has ended."""
        self._waiting.pop(connection, None)

    def leave(self, connection: asyncio.Protocol) -> None:
        self._open.discard(connection)
        self._waiting.pop(connection, None)

    def _log(self) -> None:
        now = self._clock()
        if now - self._logged_at >= LOG_EVERY_S:
            self._logged_at = now
            _log.warning("the API has %d connections, its limit: silent ones are closed", self.limit)

    def __repr__(self) -> str:
        return f"<Places {len(self._open)} of {self.limit}, {len(self._waiting)} wait>"


class ApiConnection(H11Protocol):
    """A connection of uvicorn's with the limits of time of this page, and a place among others."""

    places: ClassVar[ConnectionPlaces]
    """Set by a subclass (:func:`protocol`): uvicorn makes the connections, and gives them no argument of ours."""
    _timer: asyncio.TimerHandle | None = None
    _phase = ""
    """``reading`` a body or ``answering``; empty: waiting for a head."""
    _unread = 0
    _has_read = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        if self.places.take(self):
            self._look()
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.places.leave(self)
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def resume_writing(self) -> None:
        self._has_read = True
        super().resume_writing()

    def _look(self) -> None:
        """Sets the limit of the present phase."""
        state = self.conn.their_state
        if self.transport.is_closing():
            self._stop()
        elif state is h11.IDLE:
            self._phase = ""
            self.places.waits(self, self.transport.abort)
            if self.timeout_keep_alive_task is not None:
                self._stop()  # Between two requests uvicorn's own limit counts.
            elif self._timer is None:
                self._arm(HEAD_S, self.transport.abort)
        elif state is h11.SEND_BODY:
            self.places.waits(self, self.transport.abort)
            if self._phase != "reading":
                self._phase = "reading"
                self._stop()
                self._arm(BODY_S, self.transport.abort)
        elif self._phase != "answering":  # What a client sends meanwhile gives it no more time.
            self._phase = "answering"
            self.places.works(self)
            self._stop()
            self._unread = 0
            self._arm(UNREAD_S, self._look_at_unread)

    def _look_at_unread(self) -> None:
        unread = self.transport.get_write_buffer_size()
        if unread and unread >= self._unread > 0 and not self._has_read:
            self.transport.abort()
            return
        self._unread, self._has_read = unread, False
        self._arm(UNREAD_S / 2, self._look_at_unread)

    def _arm(self, seconds: float, act: Callable[[], Any]) -> None:
        self._timer = self.loop.call_later(seconds, act)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def protocol(places: ConnectionPlaces) -> type[ApiConnection]:
    """Returns the protocol of connections that share these places."""
    return type("PlacedConnection", (ApiConnection,), {"places": places})


class ApiServer(uvicorn.Server):
    """Serves the API without signal handlers: the control process has its own."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def api_server(app: Any) -> ApiServer:
    """Returns a server of an ASGI application, with the limits of this page."""
    places = ConnectionPlaces(connection_limit(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
    config = uvicorn.Config(
        app,
        http=protocol(places),
        ws="none",  # else it imports a library for them
        backlog=BACKLOG,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=2,
        timeout_keep_alive=30,
        server_header=False,
    )
    return ApiServer(config)
