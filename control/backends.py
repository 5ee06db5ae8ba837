"""Builds the backend that the settings choose: processes on this machine, or Pods of a cluster."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

from tidegate.clock import LiveClock
from tidegate.control.cluster import LedCluster
from tidegate.control.rounds.sampling import Reach
from tidegate.control.state.directory import StateDirectory
from tidegate.control.workers.links import Link
from tidegate.deploy.backend import Backend
from tidegate.deploy.devices.discovered import Inventory
from tidegate.deploy.devices.health import DeviceFault
from tidegate.deploy.environment import Host
from tidegate.deploy.kubernetes.process.api import KubernetesApi
from tidegate.deploy.local.backend import LocalBackend
from tidegate.deploy.local.processes import ProcessTable
from tidegate.deploy.local.records import ProcessKind, ProcessRecord
from tidegate.deploy.local.replica import ReplicaPlaces
from tidegate.deploy.placement.interference import Interference
from tidegate.deploy.placement.strategies import strategy
from tidegate.function import Revision
from tidegate.settings import LogFormat, Settings

_log = logging.getLogger("tidegate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a backend is made in."""

    settings: Settings
    state: StateDirectory
    host: Host
    processes: ProcessTable
    living: tuple[ProcessRecord, ...]
    """Processes that an earlier control process left."""
    revisions: Mapping[str, Revision]
    """All deployed revisions by id."""
    name: str
    """Of the deployment."""
    inventory: Inventory
    interference: Interference
    clock: LiveClock
    rng: random.Random
    cluster: LedCluster | None
    note: Callable[[str, str | None], None]
    """Takes a subject and what lasts that is wrong with it; None: it works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSide:
    """A backend that has adopted what was there, and how the rest of the control process reaches it."""

    backend: Backend
    set_accelerators: Callable[[Inventory], None]
    reach: Reach
    """Opens a link to a replica's queue_proxy."""
    device_faults: Callable[[Mapping[str, DeviceFault]], None] | None
    """Takes the devices that have failed. None if they are not those of this machine."""
    end: Callable[[], Awaitable[None]]
    """Lets go of what the backend uses, once it is closed."""
    cluster: tuple[KubernetesApi, str] | None = None
    """The API server and the namespace of the replicas; None on one machine."""


async def _nothing() -> None:
    return


async def on_this_machine(around: Surroundings) -> ReplicaSide:
    """Builds the local backend; it adopts each living process of a deployed revision."""
    backend = LocalBackend(
        table=around.processes,
        places=ReplicaPlaces(run=around.state.run, logs=around.state.logs),
        host=around.host,
        accelerators=around.inventory.accelerators,
        host_cores=around.inventory.host_cores,
        strategy=strategy(around.settings.accelerators.placement),
        interference=around.interference,
        clock=around.clock,
        rng=around.rng,
        warn=_log.warning,
    )
    await backend.start(around.revisions, around.living)
    return ReplicaSide(
        backend=backend,
        set_accelerators=lambda found: backend.set_accelerators(found.accelerators, found.host_cores),
        reach=Link,
        device_faults=backend.set_device_faults,
        end=_nothing,
    )


async def on_kubernetes(around: Surroundings, cluster: LedCluster, image: str) -> ReplicaSide:
    """Builds the backend whose replicas are Pods. It adopts those of this deployment, and ends replicas that were
    processes of this machine. Raises ClusterError."""
    from tidegate.deploy.kubernetes.pods.template import PodSettings
    from tidegate.deploy.kubernetes.process.backend import KubernetesBackend
    from tidegate.deploy.kubernetes.process.owner import put_token

    wanted, api = around.settings.kubernetes, cluster.api
    settings = PodSettings(
        image=image,
        namespace=cluster.namespace,
        deployment=around.name,
        token_secret=wanted.token_secret,
        service_account=wanted.service_account,
        epoch=around.processes.epoch,
        python=wanted.python,
        json_logs=around.settings.log.format is LogFormat.JSON,
        limits=around.host.limits,
    )
    token = around.state.link_token
    await cluster.leadership.sure()  # What was done since it led may have taken long.
    settings = await put_token(api, settings, token)
    backend = KubernetesBackend(
        api=api,
        settings=settings,
        token=token,
        accelerators=around.inventory.accelerators,
        clock=around.clock,
        rng=around.rng,
        strategy=strategy(around.settings.accelerators.placement),
        warn=_log.warning,
        note=around.note,
    )
    await backend.start(around.revisions)
    replicas = [each for each in around.living if each.kind is not ProcessKind.GATEWAY]
    await asyncio.gather(*map(around.processes.end, replicas))
    return ReplicaSide(
        backend=backend,
        set_accelerators=lambda found: backend.set_accelerators(found.accelerators),
        reach=partial(Link, token=token),
        device_faults=None,
        end=_nothing,
        cluster=(api, settings.namespace),
    )


async def replica_side(around: Surroundings) -> ReplicaSide:
    """Builds the backend of the settings."""
    image, cluster = around.settings.kubernetes.image, around.cluster
    if image is None or cluster is None:
        return await on_this_machine(around)
    return await on_kubernetes(around, cluster, image)
