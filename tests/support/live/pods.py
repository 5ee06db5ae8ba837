"""The Kubernetes backend under test: a real control plane, a fake node, a namespace of its own."""

import asyncio
import contextlib
import itertools
import os
import random
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

from tests.support.deadline import Patience
from tests.support.live.backends import TWO_CORES, revision
from tests.support.live.control_plane import ControlPlane
from tests.support.live.fake_kubelet import FakeKubelet, fake_node, secret
from tidegate.clock import LiveClock
from tidegate.deploy.backend import Backend, ReplicaStatus
from tidegate.deploy.kubernetes.pods.template import MODEL_PORT, MODEL_SERVER, PodSettings
from tidegate.deploy.kubernetes.process.api import KubernetesApi, RefusedError
from tidegate.deploy.kubernetes.process.backend import KubernetesBackend
from tidegate.deploy.placement.ledger import Accelerator
from tidegate.function import Revision

TOKEN = "secret"
SETTINGS = PodSettings(image="tidegate:test", python=sys.executable)
_NUMBERS = itertools.count(1)


@asynccontextmanager
async def cluster_of(plane: ControlPlane) -> AsyncGenerator[KubernetesApi, None]:
    cluster = await KubernetesApi.connect(random.Random(1), config=str(plane.kubeconfig))
    try:
        yield cluster
    finally:
        await cluster.close()


async def make_namespace(cluster: KubernetesApi) -> str:
    """A namespace in which only restricted Pods may be, with the token of a deployment."""
    name = f"t-{os.getpid()}-{next(_NUMBERS)}"
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    body = {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name, "labels": level}}
    await cluster.create("/api/v1/namespaces", body)
    await cluster.create(f"/api/v1/namespaces/{name}/secrets", secret(SETTINGS.token_secret, token=TOKEN))
    patience = Patience(20.0)
    while True:  # Its account is made by the controller manager, and no Pod is accepted before.
        with contextlib.suppress(RefusedError):
            await cluster.get(f"/api/v1/namespaces/{name}/serviceaccounts/default")
            return name
        assert not patience.is_over, "no service account"
        await asyncio.sleep(0.05)


class PodBench:
    """A Kubernetes backend over a namespace of its own; :func:`pod_bench` makes and clears it."""

    def __init__(
        self, cluster: KubernetesApi, node: FakeKubelet, settings: PodSettings, kinds: Sequence[Accelerator]
    ) -> None:
        self.clock = LiveClock()
        self.complaints: list[str] = []
        self.cluster = cluster
        self.node = node
        self.settings = settings
        self.kubernetes = KubernetesBackend(
            api=cluster,
            settings=settings,
            token=TOKEN,
            accelerators=kinds,
            clock=self.clock,
            rng=random.Random(1),
            warn=self.complaints.append,
            note=self._noted,
        )
        self.backend: Backend = self.kubernetes
        self.seen: list[ReplicaStatus] = []
        self._changed = asyncio.Event()
        self._held: dict[str, asyncio.StreamWriter] = {}
        self.kubernetes.watch(self._note)

    def _noted(self, subject: str, text: str | None) -> None:
        if text is not None:
            self.complaints.append(f"{subject}: {text}")

    def _note(self, status: ReplicaStatus) -> None:
        self.seen.append(status)
        self._changed.set()

    def replica_table(self) -> tuple[object, str]:
        return self.kubernetes._registry, "present"

    def broken(self) -> Revision:
        return revision("broken", arguments=("--die-at-start", "no weights"))

    async def until(self, condition: Callable[[], bool], limit_s: float = 30.0) -> None:
        patience = Patience(limit_s)
        while not condition():
            what = f"never happened in {patience}: {self.seen[-3:]}, {self.complaints}, {self.node.faults}"
            assert not patience.is_over and not self.node.faults, what
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), 0.02)

    async def request(self, replica_id: str, line: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        address = next(each.address for each in self.backend.replicas() if each.id == replica_id)
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"{line} HTTP/1.1\r\nHost: m\r\n\r\n".encode())
        await writer.drain()
        return reader, writer

    async def hold(self, replica_id: str) -> None:
        _, self._held[replica_id] = await self.request(replica_id, "GET /hold")
        reader, writer = await self.request(replica_id, "GET /anything")  # the first one is surely there
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async def release(self, replica_id: str) -> None:
        # Past the queue_proxy: from inside the Pod, as the model server listens on its loopback address.
        pod = self.node.pods[replica_id]
        words = f"import urllib.request as r; r.urlopen(r.Request('http://127.0.0.1:{MODEL_PORT}/release', b''))"
        command = ("ip", "netns", "exec", pod.namespace, sys.executable, "-c", words)
        process = await asyncio.create_subprocess_exec(*command)
        assert await process.wait() == 0
        self._held.pop(replica_id).close()

    def crash(self, replica_id: str) -> None:
        self.node.pods[replica_id].container(MODEL_SERVER).signal(signal.SIGKILL)

    def now(self) -> float:
        return self.clock.now()

    async def close(self) -> None:
        for writer in self._held.values():
            writer.close()
        await self.kubernetes.close(stop_replicas=True, grace_s=3.0)


@asynccontextmanager
async def pod_bench(
    plane: ControlPlane, accelerators: Sequence[Accelerator] = (TWO_CORES,)
) -> AsyncGenerator[PodBench, None]:
    async with cluster_of(plane) as cluster, fake_node(cluster) as node:
        settings = PodSettings(
            image=SETTINGS.image, python=SETTINGS.python, namespace=await make_namespace(cluster), epoch=1
        )
        bench = PodBench(cluster, node, settings, accelerators)
        await bench.kubernetes.start({})
        try:
            yield bench
        finally:
            await bench.close()
