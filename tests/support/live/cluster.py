"""A cluster with what the chart installs: its resources, its accounts, a fake node in a thread of its own."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from tests.support.deadline import Patience
from tests.support.live.control_plane import ControlPlane, write_kubeconfig
from tests.support.live.deployment import Deployment, deployment, places
from tests.support.live.fake_kubelet import FakeKubelet, FakePod, fake_node
from tests.support.live.pods import SETTINGS, cluster_of, make_namespace
from tidegate.deploy.kubernetes.process.api import KubernetesApi, Object, RefusedError
from tidegate.deploy.kubernetes.resources.chart import render
from tidegate.deploy.kubernetes.resources.main import files
from tidegate.manifest.spec import API_VERSION

CHART: Final = Path(__file__).resolve().parents[3] / "deploy" / "kubernetes" / "chart"
CONTROL: Final = "tidegate"
"""Account of the control process."""
T = TypeVar("T")


class Node:
    """A fake node in a thread of its own: the tests call commands and wait for them."""

    def __init__(self, plane: ControlPlane, name: str = "fake-1") -> None:
        self._plane = plane
        self._name = name
        self._loop = asyncio.new_event_loop()
        self._ready: Future[tuple[KubernetesApi, FakeKubelet]] = Future()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    async def _run(self) -> None:
        async with cluster_of(self._plane) as api, fake_node(api, self._name) as node:
            self._ready.set_result((api, node))
            await self._end.wait()

    def do(self, what: Callable[[KubernetesApi], Coroutine[Any, Any, T]]) -> T:
        """One call of the API server."""
        return asyncio.run_coroutine_threadsafe(what(self._ready.result(30)[0]), self._loop).result(30)

    @property
    def pods(self) -> list[str]:
        return list(self._ready.result(30)[1].pods)

    def found(self, name: str) -> FakePod:
        """A Pod that runs here."""
        return self._ready.result(30)[1].pods[name]

    @property
    def address(self) -> str:
        """Address of this machine in the Pods' network."""
        return self._ready.result(30)[1].address

    @property
    def faults(self) -> list[str]:
        return self._ready.result(30)[1].faults

    def cordon(self, is_cordoned: bool = True) -> None:
        """Lets no new Pod come here, or lets them again."""
        self.do(lambda api: api.patch(f"/api/v1/nodes/{self._name}", {"spec": {"unschedulable": is_cordoned}}))

    def clear(self, space: str) -> None:
        """Deletes a namespace, and ends its Pods at once: the next test finds none of them here."""
        path = f"/api/v1/namespaces/{space}"
        self.do(lambda api: _clear(api, path))
        patience = Patience(30.0)
        while left := [each.path for each in self.here() if each.path.startswith(f"{path}/")]:
            assert not patience.is_over, f"waited {patience} for the end of {left}"
            time.sleep(0.05)

    def here(self) -> list[FakePod]:
        return list(self._ready.result(30)[1].pods.values())

    def lose(self) -> None:
        """The node is gone with all that runs on it: no packet comes or goes, and its kubelet says nothing more."""
        node = self._ready.result(30)[1]
        asyncio.run_coroutine_threadsafe(node.lose(), self._loop).result(30)

    @contextmanager
    def running(self) -> Iterator["Node"]:
        self._thread.start()
        try:
            self._ready.result(30)
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join(30)
            self._loop.close()


async def _clear(api: KubernetesApi, path: str) -> None:
    await api.delete(path)
    for each in (await api.get(f"{path}/pods"))["items"]:
        await api.delete(f"{path}/pods/{each['metadata']['name']}", grace_s=0)


def path_of(each: Object, space: str | None = None) -> str:
    """Path of an object in the API server."""
    group = "api/v1" if each["apiVersion"] == "v1" else f"apis/{each['apiVersion']}"
    kind = each["kind"].lower()
    plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
    return f"/{group}/{'' if space is None else f'namespaces/{space}/'}{plural}/{each['metadata']['name']}"


async def install_resources(api: KubernetesApi) -> None:
    """Installs the custom resources and policies of the chart, and waits until they are served."""
    for text in files().values():
        for each in yaml.safe_load_all(text):
            await api.apply(path_of(each), each, "tests")
    patience = Patience(30.0)
    for kind in ("functions", "pipelines"):
        while True:
            try:
                await api.get(f"/apis/{API_VERSION}/{kind}")
                break
            except RefusedError:
                assert not patience.is_over, f"{kind} are not served"
                await asyncio.sleep(0.05)


async def install_account(api: KubernetesApi, space: str, account: str = CONTROL) -> str:
    """Makes the accounts of the chart with their rights; returns a token of one of them."""
    for each in yaml.safe_load_all(render(CHART, space)["account.yaml"]):
        await api.apply(path_of(each, space), each, "tests")
    wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    made = await api.create(f"/api/v1/namespaces/{space}/serviceaccounts/{account}/token", wanted)
    return str(made["status"]["token"])


@contextmanager
def control_process(plane: ControlPlane, node: Node, folder: Path) -> Iterator[Deployment]:
    """A deployment on a namespace of its own, with the chart's account as the kubeconfig in its folder. It is not
    started yet, and needs that file as ``KUBECONFIG``."""
    space = node.do(make_namespace)
    token = node.do(lambda api: install_account(api, space))
    write_kubeconfig(folder / "kubeconfig", plane.url, plane.authority, token=token)
    pods = ("--kubernetes-image", SETTINGS.image, "--kubernetes-namespace", space)
    runs = ("--kubernetes-service-account", "tidegate-replicas", "--kubernetes-python", SETTINGS.python)
    try:
        with deployment(folder, *pods, *runs, *places(folder, 2)) as found:
            yield found
    finally:
        node.clear(space)


def namespace_of(live: Deployment) -> str:
    """Namespace of a deployment of :func:`control_process`."""
    return live.flags[live.flags.index("--kubernetes-namespace") + 1]
