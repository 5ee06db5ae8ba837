"""FrontDoor: the listening socket of one gateway worker, its certificate and the connections of its clients."""

import asyncio
import socket
import sys
from typing import TYPE_CHECKING

from tidegate.aio.loop.certificate import Certificate
from tidegate.aio.loop.handover import give_listener
from tidegate.aio.loop.places import Places
from tidegate.aio.loop.services import LoopServices
from tidegate.aio.loop.tasks import TaskOwner
from tidegate.aio.proxy.server import Limits, ProxyServer, serve_proxy

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import ProxyApp

SHED_LOG_S = 60.0
"""Shortest time between two log lines about connections that were closed at once."""
LOOK_S = 2.0
"""Interval at which the certificate's files are checked."""


class FrontDoor:
    """Accepts the clients of one worker, once it is open."""

    __slots__ = ("_certificate", "_shed_logged", "_shed_logged_at", "_sock", "server")

    def __init__(self, certificate: Certificate | None) -> None:
        self._certificate = certificate
        self._sock: socket.socket | None = None
        self.server: ProxyServer | None = None
        """None before it is open."""
        self._shed_logged = 0
        self._shed_logged_at = -SHED_LOG_S

    async def open(
        self, app: "ProxyApp", sock: socket.socket, limits: Limits, services: LoopServices, tasks: TaskOwner
    ) -> ProxyServer:
        """Accepts connections for ``app`` from now on."""
        certificate = self._certificate
        self._sock = sock
        tls = None if certificate is None else certificate.context
        self.server = server = await serve_proxy(app, sock, limits, services, tls=tls)
        if certificate is not None:
            tasks.spawn(self._look_at(certificate), name="certificate")
        return server

    def give(self, path: str) -> str | None:
        """Sends the listening socket to the control process that adopted this worker. Returns why it cannot."""
        try:
            if self._sock is None:
                raise OSError("there is none yet")
            give_listener(self._sock, path)
        except (OSError, ValueError) as error:
            return f"the listening socket cannot be given: {error}"
        return None

    # --- certificate ------------------------------------------------------------------------------------------------

    async def _look_at(self, certificate: Certificate) -> None:
        """Reloads a changed certificate within seconds, for new handshakes; polling is the only method that works
        everywhere."""
        while True:
            await asyncio.sleep(LOOK_S)
            certificate.look()

    def reload(self) -> str:
        """Reloads the certificate. Returns why the pair in the files is not used, else ""."""
        if self._certificate is not None:
            self._certificate.reload()
        return self.certificate_fault or ""

    @property
    def certificate_fault(self) -> str | None:
        return None if self._certificate is None else self._certificate.fault

    # --- connections ------------------------------------------------------------------------------------------------

    @property
    def connections(self) -> int:
        return 0 if self.server is None else self.server.connections

    @property
    def places(self) -> Places | None:
        """The bounds of its connections and what they shed; None before it is open."""
        return None if self.server is None else self.server.places

    @property
    def body_bytes(self) -> int:
        """Bytes of bodies that are kept."""
        return 0 if self.server is None else self.server.budget.used

    @property
    def slow_bodies(self) -> int:
        """Bodies that were given up because they came too slowly."""
        return 0 if self.server is None else self.server.budget.slow

    def log_shed(self, now: float) -> None:
        """Writes a line about connections that were closed at once, at most once a minute."""
        places = self.places
        if places is None or now - self._shed_logged_at < SHED_LOG_S:
            return
        shed = places.shed_by_limit + places.shed_by_client
        if shed > self._shed_logged:
            sys.stderr.write(
                f"{shed - self._shed_logged} client connections closed at once: {places.used} are open of "
                f"{places.limit} (limits.connections), one address may have {places.per_client} "
                f"(limits.connections-per-client)\n"
            )
            sys.stderr.flush()
            self._shed_logged, self._shed_logged_at = shed, now

    def __repr__(self) -> str:
        return f"<FrontDoor {self.connections} connections>"
