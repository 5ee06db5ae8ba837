"""Launcher: the listening sockets of the gateway workers, and the processes that are started on them.

All sockets listen on one address with SO_REUSEPORT; a worker inherits the one of its seat. The socket of a worker that
an earlier control process started is handed over by that worker (``tidegate.aio.loop.handover``).
"""

import hashlib
import json
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidegate import __version__
from tidegate.aio.loop.handover import Inbox
from tidegate.aio.loop.sockets import address_of, host_port, listen
from tidegate.control.state.directory import StateDirectory, usable, write_atomically
from tidegate.control.state.notices import Faults
from tidegate.control.workers.links import LinkError
from tidegate.control.workers.seats import ADDRESS, ADMIN, SCHEME, SETTINGS, WORKER, Seat, Worker
from tidegate.deploy.local.processes import Child, ProcessTable
from tidegate.deploy.local.records import ProcessKind, ProcessRecord
from tidegate.errors import TidegateError


class PortTakenError(TidegateError):
    """The gateway's address belongs to another program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """The settings of the workers; ``limits`` as the gateway's own settings name them."""

    listen: str
    workers: int
    domain: str
    limits: Mapping[str, float | int | str | list[str]]
    tls_cert: str | None = None
    tls_key: str | None = None
    log_format: str = "text"
    access_sampling: float = 0.0
    http_server_metrics: bool = False
    tracing_endpoint: str | None = None
    tracing_ratio: float = 0.0
    cors: Mapping[str, Any] | None = None
    """As the gateway's ``CorsPolicy``; None if no origins are allowed."""
    jobs: Mapping[str, Any] | None = None
    """As the gateway's ``JobBounds``; None if there are no jobs."""
    among_machines: bool = False
    """Whether workers on other machines serve the same functions."""
    prefix: str = ""
    """Stands before the name of each worker where others see it: in samples, metrics and log lines."""
    listen_origin: str = "the default"
    """Where the address came from: a flag, a file, the default."""

    @property
    def scheme(self) -> str:
        return "http" if self.tls_cert is None else "https"


class Launcher:
    """Starts the workers of one gateway."""

    def __init__(
        self,
        *,
        state: StateDirectory,
        processes: ProcessTable,
        settings: GatewaySettings,
        environment: Mapping[str, str],
        faults: Faults,
    ) -> None:
        self._state = state
        self._processes = processes
        self._environment = environment
        self._faults = faults
        self.settings = settings
        """For the workers that are started from now on."""
        self.address = settings.listen
        """HOST:PORT that all workers serve; with port 0 in the settings, the real one once it is known."""

    def __repr__(self) -> str:
        return f"<Launcher on {self.address}>"

    def fits(self, record: ProcessRecord) -> bool:
        """Returns whether the worker's address and settings are those of the settings (port 0: any port of that
        host)."""
        host, port = host_port(self.settings.listen)
        try:
            there, served = host_port(record.details.get(ADDRESS, ""))
        except ValueError:
            return False
        return there == host and port in (0, served) and record.details.get(SCHEME, "http") == self.settings.scheme

    def claim(self) -> None:
        """Checks that the address is free: with SO_REUSEPORT alone two programs would share it unnoticed."""
        try:
            with listen(self.settings.listen) as probe:
                self.address = address_of(probe)
        except OSError as error:
            raise PortTakenError(
                f"cannot listen on {self.settings.listen} (gateway.listen, from {self.settings.listen_origin}): "
                f"{error.strerror}; "
                f"choose another with `tidegate up --gateway-listen HOST:PORT`"
            ) from error

    async def take_socket(self, seat: Seat) -> None:
        """Requests the listening socket of the seat's adopted worker."""
        worker = seat.worker
        subject = f"{worker.subject}: socket"
        try:
            with Inbox(self._state.run / f"{worker.name}.take") as inbox:
                await worker.link.post("/listener", os.fsencode(inbox.path))
                found = inbox.take()
        except (LinkError, OSError) as error:
            self._faults.set(subject, f"not handed over, connections that wait in it are lost if it dies: {error}")
            return
        if address_of(found) != self.address:
            found.close()
            self._faults.set(subject, f"is not one on {self.address}")
            return
        seat.socket = found
        self._faults.clear(subject)

    def launch(self, seat: Seat, worker: Worker) -> Child:
        """Starts a worker on the socket of a seat.

        Raises StateError if its files cannot be written, PortTakenError, SpawnError.
        """
        if seat.socket is None:
            seat.socket = self._listen()
            seat.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config = self._state.root / f"gateway-g{seat.number}.json"
        log = self._state.logs / f"gateway-g{seat.number}.log"
        with usable(self._state.root):
            write_atomically(config, self._config(worker, seat.socket.fileno()))
            return self._processes.spawn(
                ProcessKind.GATEWAY,
                f"gateway-{worker.name}",
                (sys.executable, "-P", "-m", "tidegate.gateway.main", "--config", str(config)),
                env=self._environment,
                log=log,
                cwd=str(self._state.root),
                fds=(seat.socket.fileno(),),
                details={
                    WORKER: worker.name,
                    ADDRESS: self.address,
                    ADMIN: worker.admin,
                    SCHEME: self.settings.scheme,
                    SETTINGS: self.fingerprint(),
                },
            )

    def _listen(self) -> socket.socket:
        try:
            return listen(self.address, reuse_port=True)
        except OSError as error:
            raise PortTakenError(f"cannot listen on {self.address}: {error.strerror}") from error

    def _config(self, worker: Worker, fd: int) -> bytes:
        own = {
            "worker": f"{self.settings.prefix}{worker.name}",
            "listen_fd": fd,
            "admin": worker.admin,
            "token": self._state.link_token,
        }
        return json.dumps(self._common_config() | own).encode()

    def _common_config(self) -> dict[str, Any]:
        """Returns the configuration that all workers share."""
        return {
            "table_file": str(self._state.routes),
            "domain": self.settings.domain,
            "workers": self.settings.workers,
            "limits": dict(self.settings.limits),
            "tls_cert": self.settings.tls_cert,
            "tls_key": self.settings.tls_key,
            "log_format": self.settings.log_format,
            "access_sampling": self.settings.access_sampling,
            "http_server_metrics": self.settings.http_server_metrics,
            "tracing_endpoint": self.settings.tracing_endpoint,
            "tracing_ratio": self.settings.tracing_ratio,
            "cors": self.settings.cors,
            "quotas": f"unix:{self._state.quotas}",
            "waiting": str(self._state.waiting),
            "among_machines": self.settings.among_machines,
            "jobs": self.settings.jobs,
            "jobs_folder": str(self._state.jobs),
            "payloads_folder": str(self._state.payloads),
            "log": None,
        }

    def fingerprint(self) -> str:
        """Returns the fingerprint of the settings and the version that a worker is started with."""
        text = json.dumps([__version__, self._common_config()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
