"""The cluster of a control process whose replicas are Pods: the connection, and the Lease by which one leads."""

import asyncio
import logging
import random
from base64 import b64decode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from tidegate.aio.loop.tasks import TaskOwner
from tidegate.clock import wall
from tidegate.control.remote.records import fingerprint
from tidegate.control.state.directory import StateDirectory
from tidegate.control.state.notices import Faults
from tidegate.control.state.ownership import Belonging
from tidegate.deploy.kubernetes.pods.template import LABEL, MANAGED_BY, label
from tidegate.deploy.kubernetes.process.api import NOT_FOUND, KubernetesApi, RefusedError
from tidegate.deploy.kubernetes.process.leadership import Leadership
from tidegate.deploy.kubernetes.process.lifecycle import epoch_of
from tidegate.deploy.kubernetes.resources.leases import Candidate
from tidegate.errors import TidegateError
from tidegate.settings import Settings

EMBEDDED: Final = "embedded"

_log = logging.getLogger("tidegate")


class DeposedError(TidegateError):
    """Another control process leads this deployment."""


@dataclass(frozen=True, slots=True)
class LedCluster:
    """The API server, and this process's leadership."""

    api: KubernetesApi
    namespace: str
    leadership: Leadership
    tasks: TaskOwner

    def keep(self) -> None:
        """Renews the Lease from now on, and bounds by it what this process writes."""
        self.api.fence = self.leadership
        self.tasks.spawn(self.leadership.keep(), name="keep")


@asynccontextmanager
async def open_cluster(
    settings: Settings, state: StateDirectory, faults: Faults, rng: random.Random
) -> AsyncGenerator[LedCluster | None, None]:
    """Connects to the cluster of the settings. Yields None where replicas are processes of this machine. Raises
    ClusterError."""
    wanted = settings.kubernetes
    if wanted.image is None:
        yield None
        return
    api = await KubernetesApi.connect(rng, context=wanted.context)
    tasks = TaskOwner("Lease", lambda name, error: faults.set(name, repr(error)))
    leadership = None
    try:
        namespace = wanted.namespace or api.namespace
        me = Candidate(identity=state.name, deployment=settings.store.name or state.name, lasts_s=round(wanted.lease_s))
        leadership = Leadership(api, namespace, me, stamp=_stamp, note=faults.note)
        yield LedCluster(api, namespace, leadership, tasks)
    finally:
        await tasks.close()
        if leadership is not None:
            await leadership.release()
        await api.close()


def belonging(cluster: LedCluster, token: str) -> Belonging:
    """Returns what the records of a deployment on a cluster are of: known by the token of its replicas, and by its
    Lease."""
    marks = (fingerprint(token), cluster.leadership.uid)
    return Belonging(place=f"namespace {cluster.namespace} of {cluster.api.host}", marks=tuple(filter(None, marks)))


def _stamp() -> str:
    return datetime.fromtimestamp(wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


async def lead(
    cluster: LedCluster, settings: Settings, state: StateDirectory, at_least: int, stop: asyncio.Event
) -> int:
    """Waits until no other control process leads, and takes the Lease. Returns the epoch, at least ``at_least`` and
    greater than that of any Pod; 0 if ``stop`` was set before. From then on, what this process writes is bounded by the
    Lease, and it uses the token that the replicas of this deployment know. Raises ClusterError."""
    seen: list[str] = []

    def waiting(holder: str) -> None:
        if holder not in seen:
            seen.append(holder)
            _log.warning("%s leads in namespace %s; this process stands by", holder, cluster.namespace)

    may_wait = settings.store.url != EMBEDDED
    stopped = cluster.tasks.spawn(stop.wait(), name="stop")
    leading = cluster.tasks.spawn(cluster.leadership.lead(at_least, waiting, may_wait=may_wait), name="lead")
    await asyncio.wait((stopped, leading), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not leading.done():
        leading.cancel()
        return 0
    epoch: int = leading.result()
    cluster.keep()
    await _take_token(cluster, settings, state)
    return max(epoch, await _last_epoch(cluster, settings.store.name or state.name) + 1)


async def _last_epoch(cluster: LedCluster, deployment: str) -> int:
    """Returns the greatest epoch on the deployment's Pods: a Lease that was deleted has forgotten it."""
    selector = f"{MANAGED_BY}=tidegate,{LABEL}deployment={label(deployment)}"
    listed = await cluster.api.get(f"/api/v1/namespaces/{cluster.namespace}/pods", labelSelector=selector)
    return max(map(epoch_of, listed.get("items") or ()), default=0)


async def _take_token(cluster: LedCluster, settings: Settings, state: StateDirectory) -> None:
    path = f"/api/v1/namespaces/{cluster.namespace}/secrets/{settings.kubernetes.token_secret}"
    try:
        secret = await cluster.api.get(path)
    except RefusedError as error:
        if error.status != NOT_FOUND:
            raise
        return
    token = secret.get("data", {}).get("token")
    if token:
        state.keep_link_token(b64decode(token).decode())
