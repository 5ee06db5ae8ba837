"""A node without processes: it sets the status of each Pod, and answers as its queue_proxy, so that hundreds fit.

Each Pod has an address of its own, which this machine takes as one of its own: that route needs root and ``ip``.
"""

import asyncio
import contextlib
import itertools
import os
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from tests.support.live.fake_kubelet import NODES, now_text
from tidegate.aio.loop.tasks import TaskOwner
from tidegate.deploy.kubernetes.pods.template import ADMIN_PORT
from tidegate.deploy.kubernetes.process.api import KubernetesApi, Object, RefusedError
from tidegate.deploy.local.admin_link import ProxyState
from tidegate.records.codec import encode
from tidegate.records.replica_state import ReplicaState

ROOM: Final = {"cpu": "2000", "memory": "2000Gi", "pods": "2000"}
END_S: Final = 1.0
"""Time that a Pod takes to end."""
_OK: Final = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"


@dataclass(eq=False)
class _BarePod:
    pod: Object
    address: str
    state: ReplicaState = ReplicaState.READY
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    server: asyncio.Server | None = None
    writers: set[asyncio.StreamWriter] = field(default_factory=set)
    is_ending: bool = False

    @property
    def path(self) -> str:
        meta = self.pod["metadata"]
        return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One call of the admin endpoint: ``GET /events`` is held, and an order to drain is done at once."""
        self.writers.add(writer)
        try:
            line = await reader.readline()
            while await reader.readline() not in (b"\r\n", b""):
                pass
            writer.write(_OK)
            if line.startswith(b"POST /drain"):
                self.state = ReplicaState.DRAINED
                self.changed.set()
            while line.startswith(b"GET /events"):
                self.changed.clear()
                writer.write(encode(ProxyState(state=self.state, limit=1)) + b"\n")
                await writer.drain()
                await self.changed.wait()
        except OSError:
            pass
        finally:
            self.writers.discard(writer)
            writer.close()


class BareNode:
    """One node. :func:`bare_node` starts and ends it."""

    def __init__(self, cluster: KubernetesApi, name: str, subnet: str) -> None:
        self.faults: list[str] = []
        self.made: dict[str, str] = {}
        """Names of all Pods that were ever here, by uid."""
        self.most = 0
        """The most Pods that were here at once."""
        self._pods: dict[str, _BarePod] = {}
        self._cluster, self._name, self._subnet = cluster, name, subnet
        self._numbers = itertools.count(1)
        self._tasks = TaskOwner("bare node", lambda name, error: self.faults.append(f"{name}: {error!r}"))

    @property
    def count(self) -> int:
        """Pods that are here now."""
        return len(self._pods)

    async def start(self) -> None:
        await self._cluster.create(NODES, {"kind": "Node", "apiVersion": "v1", "metadata": {"name": self._name}})
        moments = {"lastHeartbeatTime": now_text(), "lastTransitionTime": now_text()}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""} | moments
        status = {"capacity": ROOM, "allocatable": ROOM, "conditions": [ready]}
        await self._cluster.patch(f"{NODES}/{self._name}/status", {"status": status})
        await self._cluster.patch(f"{NODES}/{self._name}", {"spec": {"taints": None}})
        self._tasks.spawn(self._follow(), name="pods")

    async def close(self) -> None:
        await self._tasks.close()
        for each in self._pods.values():
            _shut(each)
        await self._cluster.delete(f"{NODES}/{self._name}")

    async def _follow(self) -> None:
        async with contextlib.aclosing(self._cluster.follow("/api/v1/pods", "")) as events:
            async for kind, pod in events:
                if kind != "SYNCED" and pod["spec"].get("nodeName") == self._name:
                    self._on_pod(kind, pod)

    def _on_pod(self, kind: str, pod: Object) -> None:
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        known = self._pods.get(uid)
        if kind == "DELETED":
            if known is not None:
                _shut(self._pods.pop(uid))
        elif known is None:
            number = next(self._numbers)
            known = self._pods[uid] = _BarePod(pod, f"{self._subnet}.{number // 250}.{number % 250 + 1}")
            self.made[uid], self.most = name, max(self.most, len(self._pods))
            self._tasks.spawn(self._run(known), name=f"run {name}")
        if kind != "DELETED" and known is not None and "deletionTimestamp" in pod["metadata"] and not known.is_ending:
            known.is_ending = True
            self._tasks.spawn(self._end(known), name=f"end {name}")

    async def _run(self, pod: _BarePod) -> None:
        pod.server = await asyncio.start_server(pod.answer, pod.address, ADMIN_PORT)
        running = [
            {"name": each["name"], "image": each["image"], "imageID": "", "restartCount": 0, "ready": True}
            | {"started": True, "state": {"running": {"startedAt": now_text()}}}
            for each in pod.pod["spec"]["containers"]
        ]
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": now_text()}
        status = {"phase": "Running", "podIP": pod.address, "podIPs": [{"ip": pod.address}], "conditions": [ready]}
        with contextlib.suppress(RefusedError):  # It is deleted already.
            await self._cluster.patch(f"{pod.path}/status", {"status": status | {"containerStatuses": running}})

    async def _end(self, pod: _BarePod) -> None:
        await asyncio.sleep(END_S)
        await self._cluster.delete(pod.path, grace_s=0, uid=pod.pod["metadata"]["uid"])


def _shut(pod: _BarePod) -> None:
    if pod.server is not None:
        pod.server.close()
    for writer in tuple(pod.writers):
        writer.close()
    pod.changed.set()


def _free_subnet() -> str:
    """The first two numbers of addresses that no other test on this machine uses."""
    command = ["ip", "route", "show", "table", "local"]
    routes = subprocess.run(command, text=True, capture_output=True, check=True).stdout
    subnets = (f"10.{192 + (os.getpid() + step) % 64}" for step in range(64))
    return next(each for each in subnets if f"{each}.0.0/16" not in routes)


@asynccontextmanager
async def bare_node(cluster: KubernetesApi, name: str = "bare-1") -> AsyncGenerator[BareNode, None]:
    """A node for the time of a test."""
    subnet = _free_subnet()
    route = ["local", f"{subnet}.0.0/16", "dev", "lo"]
    await asyncio.to_thread(subprocess.run, ["ip", "route", "add", *route], check=True)
    try:
        node = BareNode(cluster, name, subnet)
        await node.start()
        try:
            yield node
        finally:
            await node.close()
    finally:
        await asyncio.to_thread(subprocess.run, ["ip", "route", "del", *route], check=True)
