"""Gateway workers: their listening sockets, their lives, the links to them.

The control process makes one listening socket per worker (SO_REUSEPORT: the kernel spreads connections over them),
hands it down and keeps it open. A worker that dies is started again on the same socket, so connections that wait in
it are served, not lost. A worker that an earlier control process started is adopted as it is; its socket lives only
in it, and should it die later a new socket on the same address takes over.
"""

import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from control.faults import Faults
from control.links import GatewayLink, LinkError
from control.state import StateDirectory, usable, write_atomically
from control.views import GatewayView
from tidegate.aio.sockets import address_of, host_port, listen
from tidegate.aio.tasks import TaskOwner
from tidegate.clock import Clock
from tidegate.codec import encode
from tidegate.errors import TidegateError
from tidegate.records import Activation, GatewaySample, RouteTable

if TYPE_CHECKING:
    from deploy.local.processes import Child, Exit, ProcessTable
    from deploy.local.records import ProcessRecord

BACKOFF_FIRST_S: Final = 0.1
BACKOFF_LAST_S: Final = 5.0
STEADY_S: Final = 30.0
"""A worker that lived this long starts its back-off afresh."""
LINK_RETRY_S: Final = 0.02
"""Between attempts to reach a worker that has been started and does not listen yet."""


class PortTakenError(TidegateError):
    """The front door's address belongs to somebody else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """How the workers are run; ``limits`` as the gateway's own settings name them."""

    listen: str
    workers: int
    domain: str
    limits: Mapping[str, float | int | str | list[str]]


class Worker:
    """One gateway worker: at most one process at a time."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.link = GatewayLink(name, f"unix:{address}")
        self.admin = address
        self.socket: socket.socket | None = None
        self.child: Child | None = None
        self.started_at = 0.0
        self.backoff_s = BACKOFF_FIRST_S
        self.restarts = 0
        self.is_linked = False
        """It answers: tables and pulls go to it."""
        self.linked = asyncio.Event()
        """It works from the newest table and its activations arrive."""
        self.sample: GatewaySample | None = None

    @property
    def state(self) -> str:
        if self.child is None:
            return "down"
        return "serving" if self.linked.is_set() else "starting"

    def unlink(self) -> None:
        self.is_linked = False
        self.linked.clear()

    def view(self) -> GatewayView:
        sample = self.sample
        return GatewayView(
            worker=self.name,
            pid=self.child.pid if self.child is not None else 0,
            state=self.state,
            restarts=self.restarts,
            table=None if sample is None else f"{sample.table_epoch}.{sample.table_number}",
            connections=None if sample is None else sample.connections,
        )


class Supervisor:
    """All workers. ``activated`` is called with each activation as it arrives, ``lost`` with a worker that died."""

    def __init__(
        self,
        *,
        state: StateDirectory,
        processes: "ProcessTable",
        settings: GatewaySettings,
        clock: Clock,
        environment: Mapping[str, str],
        activated: Callable[[Activation], None],
        lost: Callable[[str], None],
        faults: Faults,
    ) -> None:
        self._state = state
        self._processes = processes
        self._settings = settings
        self._clock = clock
        self._environment = environment
        self._activated = activated
        self._lost = lost
        self._faults = faults
        self._owner = TaskOwner("supervisor")
        self._workers: list[Worker] = []
        self._table: RouteTable | None = None
        self._leaving = False
        self.address = settings.listen

    def views(self) -> tuple[GatewayView, ...]:
        return tuple(worker.view() for worker in self._workers)

    async def start(self, living: "tuple[ProcessRecord, ...]", table: RouteTable) -> None:
        """Adopts the gateway workers among ``living`` and starts the missing ones.

        Raises PortTakenError when the address belongs to another program.
        """
        self._table = table
        self._write_table(table)
        adopted = await self._adopt(living)
        if adopted:
            self.address = adopted
        else:
            self._claim()
        for worker in self._workers:
            if worker.child is None:
                self._launch(worker)

    async def publish(self, table: RouteTable) -> None:
        """Writes the table for workers to come and hands it to those that are there."""
        self._table = table
        self._write_table(table)
        await asyncio.gather(*(self._apply(worker, table) for worker in self._workers if worker.is_linked))

    async def linked(self, limit_s: float) -> bool:
        """Waits until every worker that runs works from the newest table and tells its activations, at most ``limit_s``
        seconds; False when some are still missing. (One that is yet to be started again reads the table's file, and
        connections wait for it.)"""
        try:
            async with asyncio.timeout(limit_s):
                for worker in self._workers:
                    if worker.child is not None:
                        await worker.linked.wait()
        except TimeoutError:
            return False
        return True

    def sources(self) -> Mapping[str, Callable[[], Awaitable[bytes]]]:
        """``GET /sample`` of every worker that can be reached, by name."""
        return {worker.name: _sample_of(worker) for worker in self._workers if worker.is_linked}

    def seen(self, sample: GatewaySample) -> None:
        """One pull of a worker has arrived."""
        for worker in self._workers:
            if worker.name == sample.worker:
                worker.sample = sample

    def versions(self) -> tuple[tuple[int, int], ...]:
        """The route tables that the workers last said to work from."""
        known = (worker.sample for worker in self._workers if worker.is_linked)
        return tuple((0, 0) if each is None else (each.table_epoch, each.table_number) for each in known)

    async def expositions(self) -> list[str]:
        """The Prometheus texts of the workers that answer."""
        texts = await asyncio.gather(
            *(worker.link.get("/metrics") for worker in self._workers if worker.is_linked), return_exceptions=True
        )
        return [text.decode() for text in texts if isinstance(text, bytes)]

    async def drain(self, grace_s: float) -> None:
        """Workers stop accepting, finish what they have (at most ``grace_s`` seconds), and end."""
        self._leaving = True
        for worker in self._workers:
            if worker.socket is not None:
                worker.socket.close()
                worker.socket = None
        running = [worker.child for worker in self._workers if worker.child is not None]
        for child in running:
            child.mark_stopping()
        await asyncio.gather(*(child.stop(grace_s) for child in running))
        await self.release()

    async def release(self) -> None:
        """Lets go of the workers; those that live go on."""
        self._leaving = True
        await self._owner.close()
        for worker in self._workers:
            await worker.link.close()
            if worker.socket is not None:
                worker.socket.close()
                worker.socket = None

    # --- start ---

    async def _adopt(self, living: "tuple[ProcessRecord, ...]") -> str | None:
        """Takes over living workers; the address they serve, None when there are none."""
        from deploy.local.records import ProcessKind

        names = [f"g{index}" for index in range(self._settings.workers)]
        self._workers = [Worker(name, str(self._state.run / f"{name}.sock")) for name in names]
        by_name = {worker.name: worker for worker in self._workers}
        address: str | None = None
        for record in living:
            if record.kind is not ProcessKind.GATEWAY:
                continue
            worker = by_name.get(record.details.get("worker", ""))
            fits = self._fits(record) and address in (None, record.details.get("address"))
            if worker is None or record.stopping or not fits or (child := self._processes.adopt(record)) is None:
                await self._processes.end(record)
                continue
            address = record.details["address"]
            self._watch(worker, child)
        return address

    def _fits(self, record: "ProcessRecord") -> bool:
        """Whether the worker serves where the settings want it (port 0: anywhere on that host)."""
        host, port = host_port(self._settings.listen)
        try:
            there, served = host_port(record.details.get("address", ""))
        except ValueError:
            return False
        return there == host and port in (0, served)

    def _claim(self) -> None:
        """Makes sure that the address is free: with SO_REUSEPORT alone two programs would share it unnoticed."""
        try:
            with listen(self._settings.listen) as probe:
                self.address = address_of(probe)
        except OSError as error:
            raise PortTakenError(
                f"cannot listen on {self._settings.listen}: {error.strerror}; "
                f"choose another with `tidegate up --gateway-listen HOST:PORT`"
            ) from error

    def _launch(self, worker: Worker) -> None:
        """Raises StateError where its files cannot be written, PortTakenError, SpawnError."""
        if worker.socket is None:
            worker.socket = self._listen()
            worker.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config = self._state.root / f"gateway-{worker.name}.json"
        log = self._state.logs / f"gateway-{worker.name}.log"
        from deploy.local.records import ProcessKind

        with usable(self._state.root):
            write_atomically(config, self._config(worker, worker.socket.fileno()))
            child = self._processes.spawn(
                ProcessKind.GATEWAY,
                f"gateway-{worker.name}",
                (sys.executable, "-P", "-m", "gateway.main", "--config", str(config)),
                env=self._environment,
                log=log,
                cwd=str(self._state.root),
                fds=(worker.socket.fileno(),),
                details={"worker": worker.name, "address": self.address, "admin": worker.admin},
            )
        self._watch(worker, child)

    def _listen(self) -> socket.socket:
        try:
            return listen(self.address, reuse_port=True)
        except OSError as error:
            raise PortTakenError(f"cannot listen on {self.address}: {error.strerror}") from error

    def _config(self, worker: Worker, fd: int) -> bytes:
        return json.dumps(
            {
                "worker": worker.name,
                "listen_fd": fd,
                "admin": worker.admin,
                "table_file": str(self._state.routes),
                "token": self._state.link_token,
                "domain": self._settings.domain,
                "workers": self._settings.workers,
                "limits": dict(self._settings.limits),
                "log": None,
            }
        ).encode()

    # --- life ---

    def _watch(self, worker: Worker, child: "Child") -> None:
        worker.child = child
        worker.started_at = self._clock.now()
        child.on_exit(lambda how: self._ended(worker, child, how))
        self._owner.spawn(self._follow(worker, child), name=f"link-{worker.name}")

    def _ended(self, worker: Worker, child: "Child", how: "Exit") -> None:
        if self._leaving:
            return
        worker.child, worker.sample = None, None
        worker.unlink()
        lines = child.last_output(3)
        self._faults.set(f"gateway worker {worker.name}", f"{how}" + (f": {' | '.join(lines)}" if lines else ""))
        self._lost(worker.name)
        if self._clock.now() - worker.started_at >= STEADY_S:
            worker.backoff_s = BACKOFF_FIRST_S
        delay, worker.backoff_s = worker.backoff_s, min(worker.backoff_s * 2.0, BACKOFF_LAST_S)
        asyncio.get_running_loop().call_later(delay, self._restart, worker)

    def _restart(self, worker: Worker) -> None:
        if self._leaving or worker.child is not None:
            return
        worker.restarts += 1
        try:
            self._launch(worker)
        except TidegateError as error:
            self._faults.set(f"gateway worker {worker.name}", f"cannot be started: {error}")
            delay, worker.backoff_s = worker.backoff_s, min(worker.backoff_s * 2.0, BACKOFF_LAST_S)
            asyncio.get_running_loop().call_later(delay, self._restart, worker)

    async def _follow(self, worker: Worker, child: "Child") -> None:
        """Keeps the activation stream open for as long as the worker lives; a new link gets the newest table."""
        while child.exit is None:
            with contextlib.suppress(LinkError):
                await worker.link.get("/healthz")
                worker.is_linked = True
                self._faults.clear(f"gateway worker {worker.name}")
                if self._table is not None:
                    await self._apply(worker, self._table)
                async with worker.link.activations() as activations:
                    worker.linked.set()
                    async for activation in activations:
                        self._activated(activation)
            if worker.child is child:
                worker.unlink()
            await asyncio.sleep(LINK_RETRY_S)

    async def _apply(self, worker: Worker, table: RouteTable) -> None:
        # A worker that is away gets the newest table when its link is back.
        with contextlib.suppress(LinkError):
            await worker.link.apply(table)

    def _write_table(self, table: RouteTable) -> None:
        try:
            write_atomically(self._state.routes, encode(table), durable=False)
        except OSError as error:
            self._faults.set("route table file", f"{self._state.routes}: {error.strerror}")
        else:
            self._faults.clear("route table file")

    def __repr__(self) -> str:
        return f"<Supervisor {len(self._workers)} workers on {self.address}>"


def _sample_of(worker: Worker) -> Callable[[], Awaitable[bytes]]:
    return lambda: worker.link.get("/sample")
