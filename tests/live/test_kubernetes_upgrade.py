"""The chart on a real control plane, its Pods on a fake node: upgraded by Helm from the chart before under load, then
uninstalled. Gateways and control process are what their Pods' command lines start."""

import itertools
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import yaml

from tests.support.deadline import Patience
from tests.support.live.cluster import CHART, Node
from tests.support.live.control_plane import ControlPlane
from tests.support.live.fake_kubelet import secret
from tests.support.live.helm import helm
from tests.support.live.journaled import JournaledLoad, write_server
from tests.support.live.redis_server import RedisServer

pytestmark = [
    pytest.mark.live,
    pytest.mark.needs(tool="helm"),
    pytest.mark.needs(tool="cluster"),
    pytest.mark.needs(tool="redis"),
    pytest.mark.timeout(400),
]
Key = tuple[str, str, str]
"""Resource with its group, namespace (empty: of the cluster) and name of an object."""
SPACE: Final = "models"
GATEWAYS: Final = 3
NEWER_KEY: Final = "hedge-after"
FUNCTIONS: Final = f"/apis/tidegate.dev/v1alpha1/namespaces/{SPACE}/functions"
DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
KINDS: Final = ("functions", "pipelines", "functionrevisions", "functionscales")
OF_A_NAMESPACE: Final = ("serviceaccounts/default", "configmaps/kube-root-ca.crt")
"""What Kubernetes puts into each."""
FLAGS: Final = ("-n", SPACE, "--set", f"gateways.replicas={GATEWAYS}", "--set", "resources.requests.cpu=100m")


def chart_before(folder: Path) -> Path:
    """A chart as one before this one was: another version and image, other Pods of its Deployments, and Functions
    without a key of today."""
    found = folder / "before"
    shutil.copytree(CHART, found)

    def change(name: str, old: str, new: str) -> None:
        text = (found / name).read_text()
        assert text.count(old) == 1, name
        (found / name).write_text(text.replace(old, new))

    change("Chart.yaml", "version: 0.1.0", "version: 0.0.9")
    change("values.yaml", "image: tidegate:0.1", "image: tidegate:0.0")
    for name in ("templates/control.yaml", "templates/gateways.yaml"):
        change(name, "tidegate.dev/settings:", 'tidegate.dev/before: "yes"\n        tidegate.dev/settings:')
    functions = yaml.safe_load((found / "resources/functions.yaml").read_text())
    del keys(functions)[NEWER_KEY]
    (found / "resources/functions.yaml").write_text(yaml.safe_dump(functions, width=1000))
    return found


def keys(functions: dict[str, Any]) -> dict[str, Any]:
    """The keys that a Function may have, by its definition."""
    schema = functions["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    found: dict[str, Any] = schema["properties"]["spec"]["properties"]
    return found


class ServiceLoad(JournaledLoad):
    """Clients of a Service: each request goes to the next of its ready addresses; of those that refuse the connection,
    to the one after it, as clients that have several addresses of a name do."""

    def __init__(self, addresses: Callable[[], list[str]], folder: Path, **options: Any) -> None:
        super().__init__("", folder, **options)
        self._addresses = addresses
        self._turn = itertools.count()
        self.refused = 0

    def post(self, client: httpx.Client, body: object) -> httpx.Response:
        found, first = self._addresses(), next(self._turn)
        for step in range(len(found)):
            try:
                return client.post(f"http://{found[(first + step) % len(found)]}:8080/v2/models/echo/infer", json=body)
            except httpx.ConnectError:
                self.refused += 1
        raise httpx.ConnectError(f"none of {found} accepts a connection")


class Cluster:
    """What a test sees of the release's namespace."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.ready: list[str] = []
        """Ready addresses of the front door's Service, followed as kube-proxy does."""
        self.fewest = GATEWAYS

    def get(self, path: str) -> Any:
        patience = Patience(30.0)
        while (reply := self.client.get(path)).status_code == 429 and not patience.is_over:
            time.sleep(0.2)  # The storage of a definition that has changed is made anew.
        assert reply.status_code == 200, f"{path}: {reply.text}"
        return reply.json()

    def put(self, path: str, body: object) -> None:
        reply = self.client.post(path, json=body)
        assert reply.status_code == 201, reply.text

    def until(self, found: Callable[[], Any], limit_s: float, what: str) -> Any:
        patience = Patience(limit_s)
        while not (answer := found()):
            pods = [(each["metadata"]["name"], each["status"].get("phase")) for each in self.pods("")]
            assert not patience.is_over, f"waited {patience} for {what}: {pods}"
            time.sleep(0.2)
        return answer

    def pods(self, selector: str) -> list[dict[str, Any]]:
        reply = self.client.get(f"/api/v1/namespaces/{SPACE}/pods", params={"labelSelector": selector})
        found: list[dict[str, Any]] = reply.json()["items"]
        return found

    def uids(self, selector: str) -> set[str]:
        return {each["metadata"]["uid"] for each in self.pods(selector)}

    def is_rolled_out(self, name: str) -> bool:
        """Whether all Pods of a Deployment are of its newest template, ready, and no others are left."""
        found = self.get(f"/apis/apps/v1/namespaces/{SPACE}/deployments/{name}")
        status, count = found["status"], found["spec"]["replicas"]
        is_seen: bool = status.get("observedGeneration") == found["metadata"]["generation"]
        names = ("replicas", "updatedReplicas", "availableReplicas")
        return is_seen and [status.get(each, 0) for each in names] == [count] * 3 and len(self.of(name)) == count

    def has_replicas(self) -> bool:
        status = self.get(f"{FUNCTIONS}/echo").get("status", {})
        return bool(status.get("readyReplicas") == 2)

    def of(self, name: str) -> set[str]:
        """Uids of the Pods of a Deployment."""
        return self.uids(f"app.kubernetes.io/name={name}")

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Follows the front door's addresses."""
        end = threading.Event()

        def follow() -> None:
            while not end.wait(0.1):
                self.ready = self._addresses()
                self.fewest = min(self.fewest, len(self.ready))

        thread = threading.Thread(target=follow)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join(10.0)

    def _addresses(self) -> list[str]:
        path = f"/apis/discovery.k8s.io/v1/namespaces/{SPACE}/endpointslices"
        query = {"labelSelector": "kubernetes.io/service-name=tidegate"}
        slices = self.client.get(path, params=query).json()["items"]
        ends = [each for one in slices for each in one["endpoints"] or []]
        return sorted(address for each in ends if each["conditions"]["ready"] for address in each["addresses"])

    def everything(self) -> set[Key]:
        """Every object of the cluster that can be listed, but for events."""
        groups = {each["name"]: each["preferredVersion"]["groupVersion"] for each in self.get("/apis")["groups"]}
        paths = {"": "/api/v1", **{f".{name}": f"/apis/{version}" for name, version in groups.items()}}
        found: set[Key] = set()
        for group, path in paths.items():
            for kind in self.get(path)["resources"]:
                if "list" not in kind["verbs"] or kind["name"] == "events":
                    continue
                for each in self.get(f"{path}/{kind['name']}")["items"]:
                    meta = each["metadata"]
                    found.add((f"{kind['name']}{group}", meta.get("namespace", ""), meta["name"]))
        return found


@pytest.fixture
def cluster(plane: ControlPlane, node: Node, tmp_path: Path) -> Iterator[Cluster]:
    """A namespace with a Redis, as one has it before the chart is installed, and a volume for it."""
    (tmp_path / "redis").mkdir()
    (tmp_path / "volume").mkdir()
    redis = RedisServer(tmp_path / "redis", "--bind", "127.0.0.1", node.address, "--protected-mode", "no")
    try:
        with plane.client() as client:
            found = Cluster(client)
            level = {"pod-security.kubernetes.io/enforce": "restricted"}
            found.put("/api/v1/namespaces", {"metadata": {"name": SPACE, "labels": level}})
            url = f"redis://{node.address}:{redis.port}/0"
            found.put(f"/api/v1/namespaces/{SPACE}/secrets", secret("tidegate-redis", url=url))
            volume = {
                "capacity": {"storage": "4Gi"},
                "accessModes": ["ReadWriteOnce"],
                "hostPath": {"path": str(tmp_path / "volume")},
            }
            found.put("/api/v1/persistentvolumes", {"metadata": {"name": "volume"}, "spec": volume})
            there = [f"/api/v1/namespaces/{SPACE}/{each}" for each in OF_A_NAMESPACE]
            found.until(lambda: all(client.get(each).status_code == 200 for each in there), 20.0, "the namespace")
            yield found
    finally:
        redis.kill()


def test_an_upgrade_under_load_loses_nothing_and_an_uninstallation_leaves_what_it_says(
    cluster: Cluster, plane: ControlPlane, node: Node, tmp_path: Path
) -> None:
    config: dict[str, Any] = {"home": tmp_path, "kubeconfig": plane.kubeconfig}
    before = cluster.everything()
    helm("install", "tidegate", str(chart_before(tmp_path)), *FLAGS, **config)
    names = ("tidegate", "tidegate-gateway")
    for each in names:
        cluster.until(partial(cluster.is_rolled_out, each), 90.0, f"Pods of {each}")
    metadata = {"name": "echo", "annotations": {"tidegate.dev/min-scale": "2", "tidegate.dev/max-scale": "2"}}
    function = {"apiVersion": "tidegate.dev/v1alpha1", "kind": "Function", "metadata": metadata}
    cluster.put(FUNCTIONS, function | {"spec": {"server": {"handler": write_server(tmp_path)}}})
    cluster.until(cluster.has_replicas, 90.0, "two replicas")
    replicas = cluster.uids("tidegate.dev/function=echo")
    assert cluster.get(f"{FUNCTIONS}/echo")["status"]["url"] == f"http://tidegate.{SPACE}.svc/functions/echo/"
    older = {each: cluster.of(each) for each in names}
    assert NEWER_KEY not in keys(cluster.get(f"{DEFINITIONS}/functions.tidegate.dev"))
    with cluster.followed():
        cluster.until(lambda: len(cluster.ready) == GATEWAYS, 30.0, "addresses")
        load = ServiceLoad(lambda: cluster.ready, tmp_path, clients=6)
        with load.running():
            grows(cluster, load)
            began = time.monotonic()
            helm("upgrade", "tidegate", str(CHART), *FLAGS, **config)
            grows(cluster, load)
            for each in names:
                cluster.until(partial(cluster.is_rolled_out, each), 120.0, f"new Pods of {each}")
            took_s = time.monotonic() - began
            cluster.until(cluster.has_replicas, 60.0, "two replicas of the next control process")
            grows(cluster, load, 100)
    load.check()
    sys.stdout.write(
        f"\nupgraded in {took_s:.0f} s: {load.count()} answered, {len(load.lost)} lost, {load.refused} connections"
        f" refused and taken to another gateway, at least {cluster.fewest} of {GATEWAYS} gateways ready\n"
    )
    assert cluster.fewest == GATEWAYS, "the strategy states no unavailable gateway"
    assert not any(older[each] & cluster.of(each) for each in names), "every Pod of the Deployments is a new one"
    assert cluster.uids("tidegate.dev/function=echo") == replicas, "the replicas stay"
    assert NEWER_KEY in keys(cluster.get(f"{DEFINITIONS}/functions.tidegate.dev"))
    assert node.faults == []
    text = helm("uninstall", "tidegate", "-n", SPACE, **config)
    cluster.until(lambda: not cluster.pods(""), 60.0, "no Pod")
    kept = {
        ("persistentvolumeclaims", SPACE, "tidegate"),
        ("leases.coordination.k8s.io", SPACE, "tidegate"),
        *(("customresourcedefinitions.apiextensions.k8s.io", "", f"{each}.tidegate.dev") for each in KINDS),
        ("apiservices.apiregistration.k8s.io", "", "v1alpha1.tidegate.dev"),  # Kubernetes' own, of the definitions.
        ("functions.tidegate.dev", SPACE, "echo"),
    }
    patience = Patience(60.0)
    while (left := cluster.everything() - before) != kept:
        assert not patience.is_over, f"left: {sorted(left - kept)}; missing: {sorted(kept - left)}"
        time.sleep(1.0)
    sys.stdout.write("".join(f"left: {' '.join(filter(None, each))}\n" for each in sorted(left)))
    assert all(f"{each}.tidegate.dev" in text for each in KINDS), "Helm says what it keeps"


def grows(cluster: Cluster, load: ServiceLoad, more: int = 50) -> None:
    before = load.count()
    cluster.until(lambda: load.count() >= before + more, 60.0, f"{more} more answers; lost: {load.lost}")
