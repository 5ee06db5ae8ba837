"""Builds the control process from its settings and its state directory, in two halves.

The state side: the store, its owner, and the registry of what is deployed. The work side: backend, gateway workers,
control loop and API over that registry. Nothing here runs; ``tidegate.control.main`` starts and ends what is built.
"""

import asyncio
import logging
import os
import random
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Final

from tidegate.clock import LiveClock, wall
from tidegate.control.api.app import build_app
from tidegate.control.api.connections import ApiServer, api_server
from tidegate.control.api.deployment import Deployment, Renew
from tidegate.control.api.describe import views_of
from tidegate.control.api.sessions import Sessions
from tidegate.control.backends import ReplicaSide, Surroundings, replica_side
from tidegate.control.cluster import LedCluster, belonging
from tidegate.control.console.routes import Console
from tidegate.control.costs.live import Costs
from tidegate.control.metrics.listener import MetricsListener, TokenFile
from tidegate.control.metrics.own import OwnMetrics, Timings
from tidegate.control.metrics.scraping import Scrape
from tidegate.control.predictor.link import PredictorProcess
from tidegate.control.remote.everywhere import EveryGateway
from tidegate.control.remote.links import RemoteGateways
from tidegate.control.remote.records import fingerprint
from tidegate.control.resources.followed import FollowedResources
from tidegate.control.rounds.wiring import ControlLoop, DecisionSettings, build_loop
from tidegate.control.state.directory import StateDirectory
from tidegate.control.state.notices import ChangeSignal, Faults
from tidegate.control.state.ownership import Ownership
from tidegate.control.state.registry import Registry
from tidegate.control.views.deployment import ReplacedView
from tidegate.control.views.functions import FunctionView
from tidegate.control.watch.cold_starts import ColdStarts
from tidegate.control.watch.cpus import Cpus
from tidegate.control.watch.devices import DeviceWatch
from tidegate.control.watch.gpus import Gpus
from tidegate.control.watch.instruments import Instruments
from tidegate.control.watch.traffic import TrafficMeter
from tidegate.control.watch.units import UnitMeter
from tidegate.control.workers.certificates import check
from tidegate.control.workers.from_settings import gateway_settings, limits_of, source_root, worker_environment
from tidegate.control.workers.keys import KeySets, sources
from tidegate.control.workers.quotas import QuotaPool, open_pool, open_rooms
from tidegate.control.workers.reloading import Reloading, inventory_of, joined
from tidegate.control.workers.renewal import renewed
from tidegate.control.workers.supervisor import Supervisor
from tidegate.control.workers.tenants import Tenancy, reported_tenants
from tidegate.deploy.backend import Backend
from tidegate.deploy.devices.discovered import Inventory
from tidegate.deploy.devices.health import DeviceFault, NvidiaHealth
from tidegate.deploy.devices.mps import MpsDaemon
from tidegate.deploy.devices.rapl import Packages
from tidegate.deploy.devices.usage import NvidiaUse, nvml
from tidegate.deploy.environment import Host
from tidegate.deploy.kubernetes.resources.states import url_for_others
from tidegate.deploy.local.proc import cpu_seconds, start_time
from tidegate.deploy.local.processes import ProcessTable
from tidegate.deploy.local.records import ProcessKind, ProcessRecord, RecordStore
from tidegate.deploy.placement.interference import Interference
from tidegate.errors import InvalidInputError
from tidegate.records.gateway_sample import Activation, GatewaySample
from tidegate.records.tenants import KeySet, Tenant
from tidegate.settings import LogFormat, Settings
from tidegate.store.opening import START_S, open_store
from tidegate.store.records import Store, StoreFaultError
from tidegate.traffic.table import TableBuilder

_log = logging.getLogger("tidegate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The inputs of one run of the control process. ``reread`` reads the settings again; ``config`` is their file;
    ``stop`` ends the run."""

    settings: Settings
    state: StateDirectory
    environ: Mapping[str, str]
    reread: Callable[[], Settings]
    config: Path | None
    epoch: int
    clock: LiveClock
    faults: Faults
    stop: Callable[[], None]
    rng: random.Random
    cluster: LedCluster | None
    """The cluster that this process leads in. None where replicas are processes of this machine."""

    @property
    def workers(self) -> int:
        """The number of gateway workers here: as set, else one less than there are CPUs."""
        wanted = self.settings.gateway.workers
        return max(1, (os.cpu_count() or 1) - 1) if wanted is None else wanted

    @property
    def name(self) -> str:
        """The deployment's name in a store that several use."""
        return self.settings.store.name or self.state.name


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSide:
    """The store with the records of this deployment."""

    store: Store
    owner: Ownership
    registry: Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSide:
    """Everything that works on the registry."""

    processes: ProcessTable
    replicas: ReplicaSide
    mps: MpsDaemon
    gateways: Supervisor
    remote: RemoteGateways | None
    """Gateways on other machines. None with the embedded store."""
    loop: ControlLoop
    deployment: Deployment
    reloading: Reloading
    quotas: QuotaPool
    key_sets: KeySets
    resources: FollowedResources | None
    """The Functions of the cluster. None on one machine."""
    server: ApiServer
    """The API, which does not serve yet."""
    metrics_server: ApiServer | None
    """The listener that has metrics alone, which does not serve yet. None if there is none."""
    living: tuple[ProcessRecord, ...]
    """Processes that an earlier control process left."""

    @property
    def backend(self) -> Backend:
        return self.replicas.backend

    @property
    def needs_mps(self) -> bool:
        """True if a GPU is shared by MPS."""
        return any(each.mps and each.devices for each in self.backend.devices())

    @property
    def costs(self) -> Costs:
        return self.loop.instruments.costs


# --- the state side ---


async def above_remote(start: Start) -> Start:
    """Returns the inputs with an epoch above that of the table that remote gateways work from, if it has to be raised:
    they refuse an older one, and the state directory may be a new one. Raises StateError."""
    if start.settings.store.url == "embedded":
        return start
    from tidegate.store.redis_gateways import RedisGateways

    redis = RedisGateways(start.settings.store.url, start.name, start_s=START_S)
    try:
        there, _ = (await redis.meet()).version
    except StoreFaultError:
        return start  # The store reports it.
    finally:
        await redis.close()
    return start if there < start.epoch else replace(start, epoch=start.state.next_epoch(there + 1))


@asynccontextmanager
async def open_records(start: Start) -> AsyncGenerator[Store, None]:
    """Opens the store of the settings, and closes it at the end. Raises StoreError."""
    place = start.settings.store
    store = await open_store(place.url, start.state.database, start.name)
    try:
        yield store
    finally:
        await store.close()


async def claim_state(start: Start, store: Store) -> StateSide:
    """Claims the records in the store and reads them. Raises StoreError, OwnedError."""
    owner = Ownership(store, start.state.name, start.faults)
    of = None
    if start.cluster is not None and start.settings.store.url != "embedded":
        of = belonging(start.cluster, start.state.link_token)
    await owner.claim(wall(), of=of)
    return StateSide(store=store, owner=owner, registry=await Registry.load(store))


# --- the work side ---


async def build_work(start: Start, state: StateSide) -> WorkSide:
    """Builds the work side, with the replicas of an earlier control process adopted."""
    settings, faults = start.settings, start.faults
    rng = start.rng
    mps = MpsDaemon(
        start.state.run / "mps",
        start.environ,
        note=lambda text: faults.note("mps", text),
        is_alive=lambda pid: start_time(pid) is not None,
    )
    interference = Interference()
    processes = ProcessTable(RecordStore(start.state.processes), start.epoch, _log.warning)
    living = await processes.recover()
    replicas = await replica_side(
        Surroundings(
            settings=settings,
            state=start.state,
            host=_host(start, mps),
            processes=processes,
            living=living,
            revisions=state.registry.kept(),
            name=start.name,
            inventory=inventory_of(settings),
            interference=interference,
            clock=start.clock,
            rng=rng,
            note=faults.note,
            cluster=start.cluster,
        )
    )
    backend, device_faults = replicas.backend, replicas.device_faults
    timings, changes = Timings(), ChangeSignal()
    tables = TableBuilder(start.epoch, max(1, start.workers), settings.gateway.domain)
    traffic = TrafficMeter()
    tenancy = Tenancy(reported_tenants(settings, start.faults), lambda tenants: setattr(tables, "tenants", tenants))

    def put_keys(found: tuple[KeySet, ...]) -> None:
        tables.key_sets = found
        if loop.publisher.table is not None:
            loop.publisher.publish_soon()

    def lost(worker: str) -> None:
        traffic.forget_worker(worker)
        tenancy.forget_worker(worker)

    def gateway_seen(sample: GatewaySample) -> None:
        here.seen(sample)
        tenancy.seen(sample)
        key_sets.met_unknown(sample.worker, sample.unknown_keys)

    key_sets = KeySets(
        wanted=lambda: sources(state.registry),
        changed=put_keys,
        store=state.store,
        faults=faults,
        clock=start.clock,
        wall=wall,
    )
    here = Supervisor(
        state=start.state,
        processes=processes,
        settings=gateway_settings(settings, start.workers),
        clock=start.clock,
        environment=worker_environment(start.environ),
        activated=lambda activation: loop.round.activated(activation),
        lost=lost,
        faults=faults,
    )

    def remote_counted(workers: int) -> None:
        tables.workers = max(1, start.workers + workers)
        loop.publisher.publish_soon()

    remote = _remote(start, lambda activation: loop.round.activated(activation), lost, remote_counted)
    gateways = EveryGateway(here, remote)

    def devices_failed(failed: Mapping[str, DeviceFault]) -> None:
        if device_faults is not None:
            device_faults(failed)
            loop.round.soon()

    instruments = _instruments(start, traffic, timings, backend, devices_failed, is_here=device_faults is not None)
    backend.watch(lambda status: instruments.costs.changed(status, start.clock.now()))
    loop = build_loop(
        registry=state.registry,
        backend=backend,
        tables=tables,
        gateways=gateways,
        instruments=instruments,
        predictor=PredictorProcess(start.state.samples, worker_environment(start.environ), start.clock.now),
        faults=faults,
        changes=changes,
        clock=start.clock,
        rng=rng,
        settings=DecisionSettings(
            decisions=start.state.decisions,
            recordings=start.state.recordings,
            wall=wall,
            max_replicas=settings.scaling.max_replicas,
        ),
        store=state.store,
        epoch=start.epoch,
        interference=interference,
        gateway_seen=gateway_seen,
        reach=replicas.reach,
    )
    await loop.profiles.load()
    reloading = _reloading(start, replicas, tenancy, loop)
    deployment, server = _api(
        start,
        state,
        loop,
        gateways,
        tenancy,
        reloading,
        processes=processes,
        timings=timings,
        living=living,
        renew=lambda: _renew(start, here, reloading),
    )
    return WorkSide(
        processes=processes,
        replicas=replicas,
        mps=mps,
        gateways=here,
        remote=remote,
        loop=loop,
        deployment=deployment,
        reloading=reloading,
        quotas=QuotaPool(
            open_pool(settings.store.url, start.clock),
            start.state.quotas,
            faults,
            open_rooms(settings.store.url, start.clock, start.name),
        ),
        key_sets=key_sets,
        resources=_resources(start, replicas, deployment),
        server=server,
        metrics_server=_metrics_server(start, deployment),
        living=living,
    )


def _api(
    start: Start,
    state: StateSide,
    loop: ControlLoop,
    gateways: EveryGateway,
    tenancy: Tenancy,
    reloading: Reloading,
    *,
    processes: ProcessTable,
    timings: Timings,
    living: Sequence[ProcessRecord],
    renew: Renew,
) -> tuple[Deployment, ApiServer]:
    """Builds the deployment as the API sees it, and the server of the API."""
    settings, faults = start.settings, start.faults
    own = OwnMetrics(
        loop,
        views_of(loop),
        timings,
        epoch=start.epoch,
        gateways=gateways.views,
        faults=lambda: len(faults.texts()),
    )
    scrape = Scrape(
        own,
        lambda: _expositions(gateways, loop),
        functions=lambda: {each.name for each in state.registry.all()},
        kept=start.state.counted,
        goes_on=any(each.kind is ProcessKind.GATEWAY for each in living),
        faults=faults,
    )
    version = version_of("tidegate")
    sessions = Sessions(start.state.token, start.clock.now)
    deployment = Deployment(
        state=start.state,
        store=state.store,
        loop=loop,
        gateways=gateways,
        scrape=scrape.pieces,
        epoch=start.epoch,
        version=version,
        domain=settings.gateway.domain,
        stop=start.stop,
        renew=renew,
        reload=reloading.reload,
        records_fault=lambda: processes.write_failure,
        tenants=tenancy.views,
    )
    server = api_server(
        build_app(
            deployment,
            token=start.state.token,
            version=version,
            sessions=sessions,
            names={settings.control.listen.host},
            add_pages=Console(deployment, sessions, start.clock.now).add_to,
        )
    )
    return deployment, server


def _metrics_server(start: Start, deployment: Deployment) -> ApiServer | None:
    settings = start.settings.metrics
    if settings.listen is None:
        return None
    token = None if settings.token_file is None else TokenFile(Path(settings.token_file), start.clock.now)
    return api_server(MetricsListener(deployment.metrics, name=settings.listen.host, token=token, faults=start.faults))


def _resources(start: Start, replicas: ReplicaSide, deployment: Deployment) -> FollowedResources | None:
    if replicas.cluster is None:
        return None
    api, namespace = replicas.cluster

    def stamp() -> str:
        return datetime.fromtimestamp(wall(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def url(view: FunctionView) -> str | None:
        front, domain = start.settings.kubernetes.front_door, start.settings.gateway.domain
        return url_for_others(view.url, view.name, front=front, domain=domain, by_path=view.path_url is not None)

    return FollowedResources(
        api, namespace, deployment, faults=start.faults, clock=start.clock.now, stamp=stamp, url=url
    )


def _remote(
    start: Start,
    activated: Callable[[Activation], None],
    lost: Callable[[str], None],
    counted: Callable[[int], None],
) -> RemoteGateways | None:
    url = start.settings.store.url
    if url == "embedded":
        return None
    from tidegate.store.redis_gateways import RedisGateways  # the library is an extra, and loads for 250 ms

    return RemoteGateways(
        RedisGateways(url, start.name, mark=fingerprint(start.state.link_token)),
        token=start.state.link_token,
        activated=activated,
        lost=lost,
        counted=counted,
        faults=start.faults,
    )


async def _expositions(gateways: EveryGateway, loop: ControlLoop) -> dict[str, bytes | None]:
    workers, replicas = await asyncio.gather(gateways.expositions(), loop.sampling.expositions())
    return {**workers, **replicas}


def _instruments(
    start: Start,
    traffic: TrafficMeter,
    timings: Timings,
    backend: Backend,
    devices_failed: Callable[[Mapping[str, DeviceFault]], None],
    *,
    is_here: bool,
) -> Instruments:
    """``is_here``: whether the accelerators are those of this machine."""
    library = nvml() if is_here else None
    return Instruments(
        traffic=traffic,
        cold_starts=ColdStarts(start.state.cold_starts, start.faults),
        gpus=Gpus(None if library is None else NvidiaUse(library).read),
        devices=DeviceWatch(
            None if library is None else NvidiaHealth(library).read,
            devices=backend.devices,
            failed=devices_failed,
            faults=start.faults,
            clock=start.clock,
        ),
        cpus=Cpus(cpu_seconds),
        units=UnitMeter(Packages()) if is_here else None,
        costs=Costs(start.state.costs, start.faults, now=start.clock.now()),
        round_took=timings.rounds.record_s,
        sample_age=timings.ages.record_s,
    )


def _reloading(start: Start, replicas: ReplicaSide, tenancy: Tenancy, loop: ControlLoop) -> Reloading:
    def set_accelerators(found: Inventory) -> None:
        replicas.set_accelerators(found)
        loop.profiles.accelerators_changed()
        loop.round.soon()

    def set_tenants(tenants: tuple[Tenant, ...]) -> tuple[str, ...]:
        changes = tenancy.change(tenants)
        if changes:
            loop.publisher.publish_soon()
        return changes

    return Reloading(
        start.settings,
        reread=start.reread,
        config=start.config,
        accelerators=replicas.backend.devices,
        set_accelerators=set_accelerators,
        faults=start.faults,
        set_tenants=set_tenants,
    )


async def _renew(
    start: Start, gateways: Supervisor, reloading: Reloading
) -> tuple[tuple[ReplacedView, ...], tuple[str, ...]]:
    await reloading.reload()  # what it puts into force needs no other process
    read = await asyncio.to_thread(start.reread)
    try:
        check(read.gateway, start.clock.now())
    except InvalidInputError as error:
        raise joined((error,), read) from error
    reloading.settings, needs_up = renewed(reloading.settings, read)
    return await gateways.restart(gateway_settings(reloading.settings, start.workers)), needs_up


def _host(start: Start, mps: MpsDaemon) -> Host:
    return Host(
        python=sys.executable,
        source_root=source_root(),
        token_file=str(start.state.link_token_file),
        epoch=start.epoch,
        inherited=start.environ,
        copies=str(start.state.copies),
        hidden=(str(start.state.root), str(start.state.run)) if start.settings.servers.confine else (),
        fork_servers=start.settings.servers.fork,
        sleeps=start.settings.servers.sleep,
        json_logs=start.settings.log.format is LogFormat.JSON,
        mps_pipes=str(mps.pipes),
        limits={name: value for name, value in limits_of(start.settings).items() if name not in _AT_THE_DOOR},
    )


_AT_THE_DOOR: Final = frozenset(
    {"idle_timeout_s", "connections", "connections_per_client", "body_min_rate", "waiting_body_bytes"}
)
"""Limits that queue_proxies do not have: gateway and replica agree on the idle timeout of the connections between
them, and the gateway holds its clients to a rate."""
