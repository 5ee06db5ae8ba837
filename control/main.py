"""The control process, ``tidegate up``: state directory, components, API, and their orderly end.

Start: take the directory, raise the epoch, find what an earlier control process left, adopt it, open the front door,
then the API; it is up when every gateway worker is linked. End (SIGINT, SIGTERM, or the API's shutdown): gateways stop
accepting and finish while the round still answers activations; then the round ends, so that nothing starts any more;
then replicas drain and stop; then the API ends. A second signal ends everything at once.
"""

import asyncio
import contextlib
import logging
import os
import random
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib.metadata import version as version_of
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidegate.aio.loop.run import loop_factory, quiet_collector
from tidegate.aio.loop.sockets import address_of, listen
from tidegate.aio.loop.tasks import TaskOwner
from tidegate.clock import LiveClock, wall
from tidegate.control.state.directory import DirectoryLock, Holder, StateDirectory
from tidegate.control.state.faults import Faults
from tidegate.errors import TidegateError
from tidegate.records.gateway_sample import GatewaySample
from tidegate.settings import LogFormat, Settings

if TYPE_CHECKING:
    import uvicorn

    from tidegate.control.api.deployment import Deployment
    from tidegate.control.rounds.round import Round
    from tidegate.control.views.views import ReplacedView
    from tidegate.control.workers.keys import KeySets
    from tidegate.control.workers.quotas import QuotaPool
    from tidegate.control.workers.reloading import Reloading
    from tidegate.control.workers.supervisor import Supervisor
    from tidegate.deploy.devices.discovered import Inventory
    from tidegate.deploy.local.backend import LocalBackend
    from tidegate.deploy.local.processes import ProcessTable
    from tidegate.records.tenants import KeySet, Tenant

GRACE_S: Final = 30.0
"""For work under way when everything ends."""
LINKED_S: Final = 5.0
"""Gateway workers that are not linked by then are no reason not to be up: the status shows them."""
STARTED_S: Final = 2.0
"""After which most of what the process keeps for good has been made."""
API_END_S: Final = 3.0
"""For answers of the API under way."""

_log = logging.getLogger("tidegate")

Ready = Callable[["Addresses"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where the deployment answers."""

    gateway: str
    api: str
    state: Path


class ListenError(TidegateError):
    """An address cannot be listened on."""


def run(
    settings: Settings,
    state: StateDirectory,
    environ: Mapping[str, str],
    ready: Ready,
    reread: Callable[[], Settings] | None = None,
    config: Path | None = None,
) -> None:
    """Runs the control process to its end. ``ready`` is called when everything answers; ``reread`` reads the settings
    anew for a reload and a hot restart (None: they stay), and raises InvalidInputError with their faults; ``config`` is
    their file, which is watched.

    Raises StateError when the directory is held or unusable, other TidegateErrors when a start fails.
    """
    _set_up_log(settings)
    state.prepare()
    lock = state.lock()
    try:
        control = ControlProcess(settings, state, lock, environ, reread or (lambda: settings), config)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            # A full collection over the samples of a thousand functions would stop the loop for a tenth of a second.
            runner.get_loop().call_later(STARTED_S, quiet_collector)
            runner.run(control.live(ready))
        state.clear()
    finally:
        lock.release()


class ControlProcess:
    """One run of the control process over a locked state directory."""

    def __init__(
        self,
        settings: Settings,
        state: StateDirectory,
        lock: DirectoryLock,
        environ: Mapping[str, str],
        reread: Callable[[], Settings],
        config: Path | None = None,
    ) -> None:
        self._settings = settings
        self._config = config
        self._reread = reread
        self._state = state
        self._lock = lock
        self._environ = environ
        self._clock = LiveClock()
        self._faults = Faults()
        self._epoch = state.next_epoch()
        self._since = datetime.fromtimestamp(self._clock.now()).astimezone().isoformat(sep=" ", timespec="seconds")
        self._stop = asyncio.Event()
        self._signals = 0
        lock.describe(Holder(pid=os.getpid(), since=self._since, epoch=self._epoch))

    async def live(self, ready: Ready) -> None:
        """From start to end."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled)
        from tidegate.store.opening import open_store

        place = self._settings.store
        async with (
            _closing(await open_store(place.url, self._state.database, place.name or self._state.name)) as store,
            _api_socket(self._settings) as api,
        ):
            await self._serve(store, api, ready)

    async def _serve(self, store: Any, api_socket: socket.socket, ready: Ready) -> None:
        from tidegate.control.api.app import build_app
        from tidegate.control.state.ownership import Ownership
        from tidegate.control.state.registry import Registry

        owned = Ownership(store, self._state.name, self._faults)
        await owned.claim(wall())
        registry = await Registry.load(store)
        parts = await self._build(store, registry)
        owner = TaskOwner("control", parts.report)
        deployment = parts.deployment
        deployment.api = f"http://{address_of(api_socket)}"
        names = {self._settings.control.listen.host}
        server = _uvicorn(build_app(deployment, token=self._state.token, version=parts.version, names=names))
        serving: asyncio.Task[Any] | None = None
        turning: asyncio.Task[Any] | None = None
        try:
            await parts.quotas.open()
            await parts.key_sets.load()
            await parts.gateways.start(parts.living, parts.world.begin())
            turning = owner.spawn(parts.world.run(), name="round")
            owner.spawn(parts.reloading.watch(), name="settings")
            owner.spawn(parts.key_sets.run(), name="keys")
            owner.spawn(owned.run(wall), name="owner")
            serving = owner.spawn(server.serve(sockets=[api_socket]), name="api")
            ends = (turning, serving, owner.spawn(self._stop.wait(), name="stop"))
            linked = owner.spawn(parts.gateways.linked(LINKED_S), name="linked")
            await asyncio.wait((linked, *ends), return_when=asyncio.FIRST_COMPLETED)
            if not any(task.done() for task in ends):
                self._say_ready(deployment, ready)
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await (self._let_go(parts) if turning is None else self._end(parts, turning))
            server.should_exit = True
            if serving is not None:
                await asyncio.wait((serving,), timeout=API_END_S)
            await owner.close()
            await owned.release()

    def _say_ready(self, deployment: "Deployment", ready: Ready) -> None:
        api, gateway = deployment.api, deployment.gateway
        self._lock.describe(
            Holder(
                pid=os.getpid(),
                since=self._since,
                epoch=self._epoch,
                api=api,
                gateway=gateway,
                certificate=deployment.certificate,
            )
        )
        ready(Addresses(gateway=gateway, api=api, state=self._state.root))

    async def _build(self, store: Any, registry: Any) -> "_Parts":
        from prometheus_client import CollectorRegistry

        from tidegate.autoscaler.live import LiveAutoscaler
        from tidegate.control.api import own_metrics
        from tidegate.control.api.deployment import Deployment
        from tidegate.control.rounds.profiles import LearnedProfiles
        from tidegate.control.rounds.round import Round
        from tidegate.control.state.pulse import ChangeSignal
        from tidegate.control.watch.cold_starts import ColdStarts
        from tidegate.control.watch.cpus import Cpus
        from tidegate.control.watch.gpus import Gpus
        from tidegate.control.watch.traffic import TrafficMeter
        from tidegate.control.workers.keys import KeySets, sources
        from tidegate.control.workers.quotas import QuotaPool, open_pool
        from tidegate.control.workers.reloading import Reloading
        from tidegate.control.workers.supervisor import Supervisor
        from tidegate.control.workers.tenants import Tenancy, tenants_of
        from tidegate.deploy.devices.usage import nvidia_use
        from tidegate.deploy.local.proc import cpu_seconds
        from tidegate.traffic.table import TableBuilder

        faults, pulse, own = self._faults, ChangeSignal(), CollectorRegistry()
        rng = random.Random(os.urandom(16))
        processes, backend, living = await self._backend(registry, rng)
        workers = self._settings.gateway.workers or max(1, (os.cpu_count() or 1) - 1)
        meter = TrafficMeter()
        tables = TableBuilder(self._epoch, workers, self._settings.gateway.domain)

        def put_tenants(tenants: "tuple[Tenant, ...]") -> None:
            tables.tenants = tenants

        def put_keys(found: "tuple[KeySet, ...]") -> None:
            tables.key_sets = found
            if world.table is not None:
                world.publish_soon()

        def lost(worker: str) -> None:
            meter.forget_worker(worker)
            tenancy.forget_worker(worker)

        tenancy = Tenancy(tenants_of(self._settings), put_tenants)
        key_sets = KeySets(
            wanted=lambda: sources(registry),
            changed=put_keys,
            store=store,
            faults=faults,
            clock=self._clock,
            wall=wall,
        )
        gateways = Supervisor(
            state=self._state,
            processes=processes,
            settings=_gateway_settings(self._settings, workers),
            clock=self._clock,
            environment=self._worker_environment(),
            activated=lambda activation: world.activated(activation),
            lost=lost,
            faults=faults,
        )

        def gateway_seen(sample: GatewaySample) -> None:
            gateways.seen(sample)
            world.gateway_seen(sample)
            tenancy.seen(sample)
            key_sets.met_unknown(sample.worker, sample.unknown_keys)

        world = Round(
            registry=registry,
            backend=backend,
            autoscaler=lambda context: LiveAutoscaler(
                self._clock,
                context,
                self._state.decisions,
                self._state.recordings,
                gateway_seen=gateway_seen,
                replica_seen=lambda sample: world.replica_seen(sample),
                wall=wall,
                max_replicas=self._settings.scaling.max_replicas,
            ),
            learning=lambda autoscaler: LearnedProfiles(
                autoscaler=autoscaler, backend=backend, clock=self._clock, store=store, epoch=self._epoch
            ),
            cpus=Cpus(cpu_seconds),
            gpus=Gpus(None if (devices := nvidia_use()) is None else devices.read),
            tables=tables,
            gateways=gateways,
            cold_starts=ColdStarts(self._state.cold_starts, own, faults),
            meter=meter,
            faults=faults,
            pulse=pulse,
            clock=self._clock,
            rng=rng,
            took=own_metrics.round_histogram(own).observe,
            aged=own_metrics.age_histogram(own).observe,
        )
        await world.learning.load()
        own_metrics.register(own, world, epoch=self._epoch, gateways=gateways.views, faults=lambda: len(faults.texts()))
        version = version_of("tidegate")

        def equip(found: "Inventory") -> None:
            backend.set_accelerators(found.accelerators, found.host_cores)
            world.soon()

        def admit(tenants: "tuple[Tenant, ...]") -> tuple[str, ...]:
            changes = tenancy.change(tenants)
            if changes:
                world.publish_soon()
            return changes

        reloading = Reloading(
            self._settings,
            reread=self._reread,
            config=self._config,
            accelerators=backend.devices,
            equip=equip,
            faults=faults,
            admit=admit,
        )
        deployment = Deployment(
            state=self._state,
            store=store,
            world=world,
            gateways=gateways,
            own_metrics=own,
            faults=faults,
            pulse=pulse,
            clock=self._clock,
            epoch=self._epoch,
            version=version,
            domain=self._settings.gateway.domain,
            stop=self._stop.set,
            renew=lambda: self._renew(gateways, reloading, workers),
            reload=reloading.reload,
            records_fault=lambda: processes.write_failure,
            tenants=tenancy.views,
        )
        return _Parts(
            processes=processes,
            backend=backend,
            gateways=gateways,
            world=world,
            deployment=deployment,
            reloading=reloading,
            quotas=QuotaPool(open_pool(self._settings.store.url, self._clock), self._state.quotas, faults),
            key_sets=key_sets,
            living=living,
            version=version,
            pulse=pulse,
            report=lambda name, error: faults.set(name, f"{type(error).__name__}: {error}"),
        )

    async def _renew(
        self, gateways: "Supervisor", reloading: "Reloading", workers: int
    ) -> "tuple[tuple[ReplacedView, ...], tuple[str, ...]]":
        from tidegate.control.workers.certificates import check
        from tidegate.control.workers.renewal import renewed

        read = await asyncio.to_thread(self._reread)
        check(read.gateway, self._clock.now())
        reloading.settings, needs_up = renewed(reloading.settings, read)
        return await gateways.restart(_gateway_settings(reloading.settings, workers)), needs_up

    async def _backend(self, registry: Any, rng: random.Random) -> "tuple[ProcessTable, LocalBackend, Any]":
        """The local backend with everything adopted that lives and is still deployed."""
        from tidegate.control.workers.reloading import inventory_of
        from tidegate.deploy.local.backend import LocalBackend
        from tidegate.deploy.local.processes import ProcessTable
        from tidegate.deploy.local.records import RecordStore
        from tidegate.deploy.local.replica import Places

        found = inventory_of(self._settings)
        processes = ProcessTable(RecordStore(self._state.processes), self._epoch, _log.warning)
        living = await processes.recover()
        backend = LocalBackend(
            table=processes,
            places=Places(run=self._state.run, logs=self._state.logs),
            host=self._host(),
            accelerators=found.accelerators,
            host_cores=found.host_cores,
            clock=self._clock,
            rng=rng,
            warn=_log.warning,
        )
        await backend.start(registry.kept(), living)
        return processes, backend, living

    def _host(self) -> Any:
        from tidegate.deploy.environment import Host

        return Host(
            python=sys.executable,
            source_root=_source_root(),
            token_file=str(self._state.link_token_file),
            epoch=self._epoch,
            inherited=self._environ,
            copies=str(self._state.copies),
            # Not how long a connection may be idle: between gateway and replica that is their own affair.
            limits={name: value for name, value in asdict(self._settings.limits).items() if name != "idle_timeout_s"},
        )

    def _worker_environment(self) -> dict[str, str]:
        from tidegate.deploy.environment import inherited

        root = _source_root()
        own = {"PYTHONUNBUFFERED": "1"}
        return inherited(self._environ) | own | ({} if root is None else {"PYTHONPATH": root})

    # --- the end ---

    def _signalled(self) -> None:
        self._signals += 1
        if self._signals == 1:
            _log.info("shutting down; a second signal ends everything at once")
            self._stop.set()
        else:
            self._kill_all()

    def _kill_all(self) -> None:
        """Ends every child without asking, then this process."""
        from tidegate.deploy.local.recovery import end_all

        end_all(self._state.processes, grace_s=0.0)
        os._exit(1)

    async def _let_go(self, parts: "_Parts") -> None:
        """The start failed: what was adopted goes on as it was found."""
        await parts.gateways.release()
        await parts.backend.close(stop_replicas=False)
        await parts.world.close()
        await parts.quotas.close()
        parts.processes.close()

    async def _end(self, parts: "_Parts", turning: "asyncio.Task[Any]") -> None:
        parts.deployment.leaving = True
        parts.processes.continue_stopped()
        await parts.gateways.drain(GRACE_S)
        await parts.quotas.close()
        # The round goes before the replicas do: it would replace them.
        turning.cancel()
        await asyncio.wait((turning,))
        await parts.world.close()
        await parts.backend.close(stop_replicas=True, grace_s=GRACE_S)
        parts.pulse.end()
        parts.processes.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    processes: "ProcessTable"
    backend: "LocalBackend"
    gateways: "Supervisor"
    world: "Round"
    deployment: "Deployment"
    reloading: "Reloading"
    quotas: "QuotaPool"
    key_sets: "KeySets"
    living: Any
    version: str
    pulse: Any
    report: Callable[[str, BaseException], None]


@asynccontextmanager
async def _closing(store: Any) -> AsyncGenerator[Any, None]:
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def _api_socket(settings: Settings) -> AsyncGenerator[socket.socket, None]:
    address = str(settings.control.listen)
    try:
        sock = listen(address)
    except OSError as error:
        raise ListenError(
            f"cannot listen on {address} for the API: {error.strerror}; choose another with --control-listen"
        ) from error
    with sock:
        yield sock


def _uvicorn(app: Any) -> "uvicorn.Server":
    import uvicorn

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Any:
            yield  # the control process has its own handlers

    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=2,
        timeout_keep_alive=30,
        server_header=False,
    )
    return Server(config)


def _gateway_settings(settings: Settings, workers: int) -> Any:
    from tidegate.control.workers.supervisor import GatewaySettings

    limits: dict[str, Any] = asdict(settings.limits)
    limits["trusted_proxies"] = list(settings.gateway.trusted_proxies)
    return GatewaySettings(
        listen=str(settings.gateway.listen),
        workers=workers,
        domain=settings.gateway.domain,
        limits=limits,
        tls_cert=settings.gateway.tls_cert,
        tls_key=settings.gateway.tls_key,
        log_format=settings.log.format.value,
        access_sampling=settings.log.access_sampling,
    )


def _source_root() -> str | None:
    """The folder of a checkout that is not installed into site-packages; None when it is."""
    import tidegate

    root = Path(tidegate.__file__).resolve().parent.parent
    return None if root.name in ("site-packages", "dist-packages") else str(root)


def _set_up_log(settings: Settings) -> None:
    level = settings.log.level.value.upper()
    if settings.log.format is LogFormat.JSON:
        form = '{"at": "%(asctime)s", "level": "%(levelname)s", "name": "%(name)s", "message": "%(message)s"}'
    else:
        form = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    logging.basicConfig(level=level, format=form, stream=sys.stderr)
    for noisy in ("httpx", "httpcore", "uvicorn.error"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
