"""The webhook as a server: reviews over HTTPS, and certificates that are exchanged while it runs."""

import asyncio
import json
import ssl
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate.aio.admin.endpoint import Bounds, EndpointServer, Request, Response, serve_endpoint
from tidegate.aio.loop.tasks import TaskOwner
from tidegate.deploy.kubernetes.process.api import ClusterError
from tidegate.deploy.kubernetes.webhook.pods import WebhookSettings
from tidegate.deploy.kubernetes.webhook.reviews import UnreadableReviewError, answer
from tidegate.deploy.kubernetes.webhook.validity import Material, end_of

PATH: Final = "/mutate"
BODY_BYTES: Final = 2 << 20
"""The review of a creation has one object, and etcd takes 1.5 MiB."""
BOUNDS: Final = Bounds(connections=128, bytes_of_bodies=8 << 20)
"""All Pods of a cluster may connect: API servers have no address that a NetworkPolicy could name. With the worst body
that is read, the memory limit of the chart is kept."""

Look = Callable[[], Awaitable[Material]]
"""Returns the certificate and key that are to be served. Raises ClusterError or OSError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """What the server needs of its process."""

    look: Look
    look_every_s: float
    now: Callable[[], float]
    """Unix seconds."""
    note: Callable[[str], None]
    """Writes a line into the log."""


class WebhookServer:
    """One webhook. It serves nothing before it has a certificate."""

    def __init__(self, settings: WebhookSettings, effects: Effects) -> None:
        self._settings = settings
        self._effects = effects
        self._served = Material()
        self._trouble: str | None = None
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_2
        self._tasks = TaskOwner("webhook", self._task_failed)
        self._ended = asyncio.Event()

    async def serve(self, address: str) -> None:
        """Runs until :meth:`end`. Raises OSError if the address is taken."""
        server: EndpointServer = await serve_endpoint(
            self._handle, address, body_bytes=BODY_BYTES, tls=self._tls, bounds=BOUNDS
        )
        self._effects.note(f"the webhook listens on {server.address}")
        self._tasks.spawn(self._follow(), name="certificates")
        try:
            await self._ended.wait()
        finally:
            await self._tasks.close()
            await server.close()

    def end(self) -> None:
        """Ends the server; connections that are open get their answers."""
        self._ended.set()

    async def _follow(self) -> None:
        """Looks for certificates for ever; one that cannot be had leaves the one before it."""
        while True:
            try:
                self._load(await self._effects.look())
                self._report(None)
            except (ClusterError, OSError, ssl.SSLError) as error:
                self._report(f"certificates: {error}")
            left_s = end_of(self._served.certificate) - self._effects.now()
            if self._served.certificate and left_s <= 0.0:
                self._report(
                    f"certificates: that of this webhook has ended {-left_s:.0f} s ago: no API server trusts it"
                )
            await asyncio.sleep(self._effects.look_every_s)

    def _load(self, found: Material) -> None:
        if (found.certificate, found.key) == (self._served.certificate, self._served.key) or not found.certificate:
            return
        with tempfile.NamedTemporaryFile(suffix=".pem") as file:  # Of this user alone; a context reads files only.
            Path(file.name).write_bytes(found.certificate + b"\n" + found.key)
            # A context that refuses a key has no certificate from then on: the one that listens takes what is well.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(file.name)
            self._tls.load_cert_chain(file.name)
        self._served = found
        self._effects.note(
            f"certificates: the one served ends in {end_of(found.certificate) - self._effects.now():.0f} s"
        )

    def _report(self, trouble: str | None) -> None:
        """Notes a trouble once."""
        if trouble is not None and trouble != self._trouble:
            self._effects.note(trouble)
        self._trouble = trouble

    async def _handle(self, request: Request) -> Response:
        match request.method, request.path:
            case "POST", "/mutate":
                try:
                    return Response(body=answer(request.body, self._settings))
                except UnreadableReviewError as error:
                    return _error(400, str(error))
            case "GET", "/healthz":
                return Response(body=b"ok", content_type="text/plain")
            case "GET", "/ready":
                is_valid = self._effects.now() < end_of(self._served.certificate)
                return Response(200, b"ready", "text/plain") if is_valid else _error(503, "no valid certificate")
        return _error(404, f"no {request.method} {request.path} here")

    def _task_failed(self, name: str, error: BaseException) -> None:
        """Ends the process after an internal fault: it starts again."""
        self._effects.note(f"internal fault in {name}: {error!r}")
        self.end()


def _error(status: int, message: str) -> Response:
    return Response(status, json.dumps({"error": message}).encode())
