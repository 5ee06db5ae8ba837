"""A node whose Pods are real processes of this machine, each Pod in a network namespace with an address of its own.

What it does of a kubelet's work: it registers a Node and renews its Lease, starts the native sidecar and then the
container of each Pod that is bound to it, follows their probes and ends, reports them as status, and ends Pods in the
order of a real one: ``preStop`` of all containers at once, SIGTERM to the containers, then to the sidecars. Volumes are
folders of this machine, whose paths replace those in commands and environments. No container is started again, and no
liveness is probed. Images are not pulled: a container runs its ``command`` with this interpreter's environment, and one
without a command is an image that cannot be pulled. It needs root and ``ip`` for the namespaces.
"""

import asyncio
import base64
import contextlib
import itertools
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.support.live.guard import guard_node
from tests.support.live.pod_files import (
    SERVICE,
    command,
    environment,
    fill_volumes,
    way_to_the_api_server,
    write_account,
)
from tidegate.aio.admin.client import FetchError, fetch
from tidegate.aio.loop.tasks import TaskOwner
from tidegate.deploy.kubernetes.process.api import ClusterError, KubernetesApi, Object, RefusedError

ROOT = Path(__file__).resolve().parents[3]
RENEW_S = 5.0
PROBE_S = 0.05
"""Interval of probes: a real kubelet's is whole seconds."""
LAST_LINES = 10
NODES, LEASES = "/api/v1/nodes", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


def _ip(*commands: str) -> None:
    """Runs commands of ``ip``, all in one process."""
    done = subprocess.run(["ip", "-batch", "-"], input="\n".join(commands), text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def processes_in(namespace: str) -> list[int]:
    """Processes in a network namespace; none if there is no such namespace."""
    found = subprocess.run(["ip", "netns", "pids", namespace], text=True, capture_output=True, check=False).stdout
    return [int(each) for each in found.split()]


def now_text() -> str:
    return datetime.fromtimestamp(_wall(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _wall() -> float:
    from tidegate.clock import wall

    return wall()


@dataclass(eq=False)
class _Container:
    """One container and its process."""

    spec: Object
    is_sidecar: bool
    log: Path
    process: asyncio.subprocess.Process | None = None
    is_ready: bool = False
    waiting: tuple[str, str] | None = ("PodInitializing", "")
    ended: Object | None = None

    @property
    def name(self) -> str:
        return str(self.spec["name"])

    def status(self) -> Object:
        if self.ended is not None:
            state: Object = {"terminated": self.ended}
        elif self.process is not None:
            state = {"running": {"startedAt": now_text()}}
        else:
            reason, message = self.waiting or ("", "")
            state = {"waiting": {"reason": reason, "message": message}}
        return {
            "name": self.name,
            "image": self.spec["image"],
            "imageID": "",
            "restartCount": 0,
            "ready": self.is_ready and self.ended is None,
            "started": self.process is not None,
            "state": state,
            "resources": self.spec.get("resources", {}),
        }

    def take_end(self) -> None:
        """Keeps how its process has ended."""
        if self.process is None or self.process.returncode is None or self.ended is not None:
            return
        code = self.process.returncode
        lines = self.log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        self.ended = {
            "exitCode": 128 - code if code < 0 else code,
            "reason": "Error" if code else "Completed",
            "startedAt": now_text(),
            "finishedAt": now_text(),
        }
        if code and self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            self.ended["message"] = "\n".join(lines)[-2000:]

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)


@dataclass(eq=False)
class FakePod:
    """One Pod on the node."""

    pod: Object
    namespace: str
    """Its network namespace."""
    address: str
    home: Path
    containers: list[_Container] = field(default_factory=list)
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)
    is_ending: bool = False
    refused: tuple[str, str] | None = None
    """Reason and message of a resize that the node does not do."""
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by what its end must not overtake."""
    reporting: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def path(self) -> str:
        meta = self.pod["metadata"]
        return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"

    def port(self, stated: int | str) -> int:
        """Number of a port that a probe states by number or name."""
        ports = (port for each in self.containers for port in each.spec.get("ports", []))
        return stated if isinstance(stated, int) else next(p["containerPort"] for p in ports if p["name"] == stated)

    def container(self, name: str) -> _Container:
        return next(each for each in self.containers if each.name == name)


class FakeKubelet:
    """One node. :func:`fake_node` starts and ends it."""

    _numbers = itertools.count(1)

    def __init__(self, cluster: KubernetesApi, name: str, subnet: str, home: Path) -> None:
        self.name = name
        self.pods: dict[str, FakePod] = {}
        """By the Pod's name."""
        self.faults: list[str] = []
        self.refuses_resize: tuple[str, str] | None = None
        """Reason (``Deferred``, ``Infeasible``) and message with which resizes are refused."""
        self._cluster = cluster
        self._subnet = subnet
        """The first three numbers of the Pods' addresses."""
        self._bridge = f"tgk{os.getpid() % 10_000}x{next(self._numbers)}"
        self._home = home
        self._addresses = itertools.count(2)
        self._ways = contextlib.AsyncExitStack()
        self._first_account = asyncio.Lock()
        self._api_port: int | None = None
        self._tasks = TaskOwner("fake kubelet", lambda name, error: self.faults.append(f"{name}: {error!r}"))

    @property
    def address(self) -> str:
        return f"{self._subnet}.1"

    async def start(self) -> None:
        guard_node(self._bridge)
        _ip(
            f"link add {self._bridge} type bridge",
            f"addr add {self._subnet}.1/24 dev {self._bridge}",
            f"link set {self._bridge} up",
        )
        room = {"cpu": "64", "memory": "64Gi", "pods": "500"}
        await self._cluster.create(NODES, {"kind": "Node", "apiVersion": "v1", "metadata": {"name": self.name}})
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "",
            "lastHeartbeatTime": now_text(),
        }
        status = {
            "capacity": room,
            "allocatable": room,
            "conditions": [ready | {"lastTransitionTime": now_text()}],
            "addresses": [{"type": "InternalIP", "address": f"{self._subnet}.1"}],
        }
        await self._cluster.patch(f"{NODES}/{self.name}/status", {"status": status})
        await self._cluster.patch(f"{NODES}/{self.name}", {"spec": {"taints": None}})
        self._tasks.spawn(self._renew(), name="lease")
        self._tasks.spawn(self._follow(), name="pods")

    async def lose(self) -> None:
        """Ends all that a kubelet does, drops every packet from and to the node, and lets the cluster notice at once:
        the controller manager would after forty seconds."""
        self._cut("-I")
        await self._tasks.close()
        unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "the test lost it"}
        moment = {"lastHeartbeatTime": now_text(), "lastTransitionTime": now_text()}
        await self._cluster.patch(f"{NODES}/{self.name}/status", {"status": {"conditions": [unknown | moment]}})

    def _cut(self, what: str) -> None:
        """Inserts (``-I``) or deletes (``-D``) the rules that drop the node's packets."""
        for end in ("-s", "-d"):
            for chain in ("INPUT", "OUTPUT"):
                rule = [what, chain, end, f"{self._subnet}.0/24", "!", "-i" if chain == "INPUT" else "-o", "lo"]
                subprocess.run(["iptables", "-w", *rule, "-j", "DROP"], check=False, capture_output=True)

    async def close(self) -> None:
        await self._tasks.close()
        await self._ways.aclose()
        self._cut("-D")
        for each in tuple(self.pods.values()):
            for container in each.containers:
                container.signal(signal.SIGKILL)
            self._remove_network(each)
        with contextlib.suppress(AssertionError):
            _ip(f"link del {self._bridge}")
        with contextlib.suppress(ClusterError):
            await self._cluster.delete(f"{NODES}/{self.name}")

    async def _renew(self) -> None:
        lease = {
            "kind": "Lease",
            "apiVersion": "coordination.k8s.io/v1",
            "metadata": {"name": self.name, "namespace": "kube-node-lease"},
        }
        while True:
            renewed = now_text().replace("Z", ".000000Z")
            spec = {"holderIdentity": self.name, "leaseDurationSeconds": 40, "renewTime": renewed}
            with contextlib.suppress(ClusterError):
                await self._cluster.apply(f"{LEASES}/{self.name}", lease | {"spec": spec}, "fake-kubelet")
            await asyncio.sleep(RENEW_S)

    async def _follow(self) -> None:
        async with contextlib.aclosing(self._cluster.follow("/api/v1/pods", "")) as events:
            async for kind, pod in events:
                if kind != "SYNCED" and pod["spec"].get("nodeName") == self.name:
                    await self._on_pod(kind, pod)

    async def _on_pod(self, kind: str, pod: Object) -> None:
        name = pod["metadata"]["name"]
        known = self.pods.get(name)
        if kind == "DELETED":
            if known is not None and not known.is_ending:  # By force.
                self._tasks.spawn(self._end(known, 0.0), name=f"end {name}")
        elif known is None and "deletionTimestamp" not in pod["metadata"]:
            self._tasks.spawn(self._run(pod), name=f"run {name}")
        elif known is not None and "deletionTimestamp" in pod["metadata"] and not known.is_ending:
            known.is_ending = True
            grace_s = float(pod["metadata"].get("deletionGracePeriodSeconds", 30))
            self._tasks.spawn(self._end(known, grace_s), name=f"end {name}")
        elif known is not None and "deletionTimestamp" not in pod["metadata"]:
            await self._resize(known, pod)
        elif known is None and pod["metadata"].get("deletionGracePeriodSeconds"):  # Deleted before it was started.
            await self._cluster.delete(self._path(pod), grace_s=0, uid=pod["metadata"]["uid"])

    async def _resize(self, known: FakePod, pod: Object) -> None:
        """Gives containers the resources that the Pod states now, or reports why not."""
        known.pod = pod
        stated = {each["name"]: each.get("resources", {}) for each in pod["spec"]["containers"]}
        mains = [each for each in known.containers if not each.is_sidecar]
        if all(each.spec.get("resources", {}) == stated[each.name] for each in mains):
            was_refused, known.refused = known.refused, None
            if was_refused is not None:
                await self._report(known)
            return
        known.refused = self.refuses_resize
        if known.refused is None:
            for each in mains:
                each.spec = each.spec | {"resources": stated[each.name]}
        await self._report(known)

    @staticmethod
    def _path(pod: Object) -> str:
        return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"

    # --- starting -------------------------------------------------------------------------------------------------

    async def _run(self, pod: Object) -> None:
        name, number = pod["metadata"]["name"], next(self._addresses)
        home = Path(tempfile.mkdtemp(dir=self._home))
        found = FakePod(pod, f"{self._bridge}-{number}", f"{self._subnet}.{number}", home)
        for spec in (*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]):
            is_sidecar = spec in pod["spec"].get("initContainers", [])
            found.containers.append(_Container(spec, is_sidecar, home / f"{spec['name']}.log"))
        self.pods[name] = found
        async with found.starting:
            await self._add_network(found, number)
        await fill_volumes(self._cluster, pod, home)
        for each in found.containers:
            async with found.starting:
                if found.is_ending:
                    return
                await self._start(found, each)
            if each.is_sidecar and not await self._probe_until(found, each, "startupProbe"):
                return
        await self._report(found)

    async def _add_network(self, pod: FakePod, number: int) -> None:
        there = f"{self._bridge}v{number}"
        await asyncio.to_thread(
            _ip,
            f"netns add {pod.namespace}",
            f"link add {there} type veth peer name eth0 netns {pod.namespace}",
            f"link set {there} master {self._bridge}",
            f"link set {there} up",
        )
        lines = "\n".join(
            (
                "link set lo up",
                f"addr add {pod.address}/24 dev eth0",
                "link set eth0 up",
                f"route add default via {self._subnet}.1",
            )
        )
        command = ["ip", "-n", pod.namespace, "-batch", "-"]
        done = await asyncio.to_thread(
            subprocess.run, command, input=lines, text=True, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr

    def _remove_network(self, pod: FakePod) -> None:
        """Ends what its containers have started and left, as the end of a container does, and then its network."""
        while pids := processes_in(pod.namespace):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        subprocess.run(["ip", "netns", "del", pod.namespace], check=False, capture_output=True)

    async def _start(self, pod: FakePod, container: _Container) -> None:
        if not container.spec.get("command"):
            container.waiting = ("ErrImagePull", f"there is no image {container.spec['image']} here")
            return
        env = await environment(self._cluster, pod.pod, container.spec, pod.home, pod.address)
        if pod.pod["spec"].get("automountServiceAccountToken"):
            env["KUBECONFIG"] = str(pod.home / "kubeconfig")
            await self._write_account(pod.pod, pod.home / "kubeconfig")
        with container.log.open("wb") as log:
            try:
                container.process = await asyncio.create_subprocess_exec(
                    *("ip", "netns", "exec", pod.namespace, *command(container.spec, env, pod.home)),
                    env=env,
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as error:
                container.waiting = ("CreateContainerConfigError", str(error))
                return
        pod.tasks.append(self._tasks.spawn(self._watch(pod, container), name=f"watch {container.name}"))
        pod.tasks.append(self._tasks.spawn(self._follow_readiness(pod, container), name=f"ready {container.name}"))
        await self._report(pod)

    async def _write_account(self, pod: Object, file: Path) -> None:
        """Lets the Pod's account call the API server, at an address that the node gets with the first such Pod."""
        async with self._first_account:
            if self._api_port is None:
                _ip(f"addr add {SERVICE}/32 dev {self._bridge}")
                self._api_port = await self._ways.enter_async_context(way_to_the_api_server(self._cluster))
        await write_account(self._cluster, pod, file, self._api_port)

    # --- following ------------------------------------------------------------------------------------------------

    async def _watch(self, pod: FakePod, container: _Container) -> None:
        """Waits for the end of a container; the end of the last one that is no sidecar ends the Pod."""
        assert container.process is not None
        await container.process.wait()
        container.take_end()
        if not container.is_sidecar:
            for each in pod.containers:
                if each.is_sidecar:
                    each.signal(signal.SIGTERM)
        await self._report(pod)

    async def _follow_readiness(self, pod: FakePod, container: _Container) -> None:
        probe = container.spec.get("readinessProbe")
        while container.ended is None:
            before = container.is_ready
            container.is_ready = probe is None or await self._answers(pod, probe)
            if container.is_ready is not before:
                await self._report(pod)
            await asyncio.sleep(PROBE_S)

    async def _probe_until(self, pod: FakePod, container: _Container, which: str) -> bool:
        probe = container.spec.get(which)
        while probe is not None and container.ended is None and not pod.is_ending:
            if await self._answers(pod, probe):
                return True
            await asyncio.sleep(PROBE_S)
        return probe is None

    async def _answers(self, pod: FakePod, probe: Object, timeout_s: float = 1.0) -> bool:
        get = probe.get("httpGet")
        port = pod.port((get or probe["tcpSocket"])["port"])
        try:
            if get is not None:
                return (
                    200 <= (await fetch(f"{pod.address}:{port}", "GET", get["path"], timeout_s=timeout_s)).status < 400
                )
            async with asyncio.timeout(timeout_s):
                _, writer = await asyncio.open_connection(pod.address, port)
            writer.close()
        except (FetchError, OSError):
            return False
        return True

    async def _report(self, pod: FakePod) -> None:
        """Writes the Pod's status; one write at a time, so that the last one is the newest."""
        async with pod.reporting:
            await self._write(pod)

    async def _write(self, pod: FakePod) -> None:
        mains = [each for each in pod.containers if not each.is_sidecar]
        is_ready = all(each.is_ready and each.ended is None for each in pod.containers)
        is_over = bool(mains) and all(each.ended is not None for each in mains)
        failed = any((each.ended or {}).get("exitCode") for each in mains)
        phase = ("Failed" if failed else "Succeeded") if is_over else "Running" if mains[0].process else "Pending"
        conditions = [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": now_text()},
            {"type": "Ready", "status": "True" if is_ready else "False", "lastTransitionTime": now_text()},
            {"type": "ContainersReady", "status": "True" if is_ready else "False", "lastTransitionTime": now_text()},
        ]
        if pod.refused is not None:
            pending = {"type": "PodResizePending", "status": "True", "reason": pod.refused[0]}
            seen = {"observedGeneration": pod.pod["metadata"]["generation"], "lastTransitionTime": now_text()}
            conditions.append(pending | {"message": pod.refused[1]} | seen)
        status = {
            "phase": phase,
            "podIP": pod.address,
            "podIPs": [{"ip": pod.address}],
            "hostIP": f"{self._subnet}.1",
            "conditions": conditions,
            "containerStatuses": [each.status() for each in mains],
            "initContainerStatuses": [each.status() for each in pod.containers if each.is_sidecar],
        }
        for _ in range(50):
            try:
                await self._cluster.patch(f"{pod.path}/status", {"status": status})
                return
            except RefusedError as error:
                if error.status == 404:
                    return
                self.faults.append(f"status of {pod.path}: {error}")
                return
            except ClusterError:
                await asyncio.sleep(0.2)

    # --- ending ---------------------------------------------------------------------------------------------------

    async def _end(self, pod: FakePod, grace_s: float) -> None:
        pod.is_ending = True
        async with pod.starting:
            pass  # What was begun is there to be ended.
        uid = pod.pod["metadata"]["uid"]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s or None if grace_s else 0.001):
                hooks = [each for each in pod.containers if each.process is not None and each.ended is None]
                await asyncio.gather(*(self._before_stop(pod, each, grace_s) for each in hooks))
                for is_sidecar in (False, True):
                    ending = [each for each in pod.containers if each.is_sidecar is is_sidecar and each.process]
                    for each in ending:
                        each.signal(signal.SIGTERM)
                    await asyncio.gather(*(each.process.wait() for each in ending if each.process is not None))
        for each in pod.containers:
            each.signal(signal.SIGKILL)
        for each in pod.containers:
            if each.process is not None:
                await each.process.wait()
        for task in pod.tasks:
            task.cancel()
        for each in pod.containers:
            each.take_end()
        await self._report(pod)  # Finalizers may keep the object, and it says then that nothing runs.
        await asyncio.to_thread(self._remove_network, pod)
        self.pods.pop(pod.pod["metadata"]["name"], None)
        await self._cluster.delete(pod.path, grace_s=0, uid=uid)

    async def _before_stop(self, pod: FakePod, container: _Container, grace_s: float) -> None:
        hook = container.spec.get("lifecycle", {}).get("preStop")
        if hook is not None and "sleep" in hook:
            await asyncio.sleep(hook["sleep"]["seconds"])
        elif hook is not None:
            await self._answers(pod, hook, grace_s)


def _free_subnet() -> str:
    """The first three numbers of addresses that no other test on this machine uses."""
    routes = subprocess.run(["ip", "route"], text=True, capture_output=True, check=True).stdout
    numbers = (os.getpid() + 8191 * step for step in range(64 * 256))
    subnets = (f"10.{128 + number // 256 % 64}.{number % 256}" for number in numbers)
    return next(each for each in subnets if f"{each}.0/24" not in routes)


@asynccontextmanager
async def fake_node(cluster: KubernetesApi, name: str = "fake-1") -> AsyncGenerator[FakeKubelet, None]:
    """A node for the time of a test."""
    with tempfile.TemporaryDirectory(prefix="tgn") as home:
        node = FakeKubelet(cluster, name, _free_subnet(), Path(home))
        try:
            await node.start()
            yield node
        finally:
            await node.close()


def secret(name: str, **values: str) -> dict[str, Any]:
    """A Secret of texts."""
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    return {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": name}, "data": data}
