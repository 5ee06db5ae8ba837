"""Pods that others make and that ask for a queue_proxy: the webhook as a process, with the chart's account and its
configuration, called by a real API server; the Pods run on a fake node."""

import asyncio
import base64
import contextlib
import http.client
import json
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.deadline import Patience
from tests.support.live.backends import MODEL
from tests.support.live.cluster import CHART, Node, install_resources, path_of
from tests.support.live.control_plane import ControlPlane, write_kubeconfig
from tests.support.live.pods import SETTINGS, make_namespace
from tests.support.live.redis_server import _free_port as free_port
from tidegate.clock import wall
from tidegate.deploy.kubernetes.process.api import KubernetesApi, Object, RefusedError
from tidegate.deploy.kubernetes.process.survey import Answer, Surveyed
from tidegate.deploy.kubernetes.resources.chart import render
from tidegate.deploy.kubernetes.webhook.process.rotation import (
    CONFIGURATIONS,
    WEBHOOK_NAME,
    Rotation,
    bundle_of,
    material_of,
)
from tidegate.deploy.kubernetes.webhook.process.survey import survey_webhook
from tidegate.deploy.kubernetes.webhook.validity import Lifetimes, Material, end_of

pytestmark = [pytest.mark.live, pytest.mark.needs(tool="cluster"), pytest.mark.timeout(300)]
CONFIGURATION: Final = f"{CONFIGURATIONS}/{WEBHOOK_NAME}"
REPLACED: Final = {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"}
"""Objects of the chart whose place the process of the test takes."""
CLUSTERS: Final = {"ClusterRole", "ClusterRoleBinding", "MutatingWebhookConfiguration"}
RESTRICTED: Final = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
KINDS: Final = """\
accelerators:
  - {name: t4, kind: nvidia, count: 2, memory: 16Gi}
"""


class Hook:
    """The webhook of one namespace of the test, and that namespace."""

    def __init__(self, plane: ControlPlane, node: Node, folder: Path) -> None:
        self.plane, self.node, self.folder = plane, node, folder
        self.space = node.do(make_namespace)
        self.address = f"127.0.0.1:{free_port()}"
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def log(self) -> str:
        return (self.folder / "webhook.log").read_text()

    def install(self) -> None:
        """What the chart installs, with an address in the place of its Service."""
        rendered = render(CHART, self.space, {"webhook": {"enabled": True}})["webhook.yaml"]
        for each in yaml.safe_load_all(rendered):
            if each["kind"] in REPLACED:
                continue
            if each["kind"] == "MutatingWebhookConfiguration":
                each["webhooks"][0]["clientConfig"] = {"url": f"https://{self.address}/mutate"}
            self.apply(each)
        wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        account = f"/api/v1/namespaces/{self.space}/serviceaccounts/{WEBHOOK_NAME}/token"
        token = self.do(lambda api: api.create(account, wanted))["status"]["token"]
        write_kubeconfig(self.folder / "kubeconfig", self.plane.url, self.plane.authority, token=token)
        (self.folder / "accelerators.yaml").write_text(KINDS)

    def apply(self, each: Object) -> None:
        path = path_of(each, None if each["kind"] in CLUSTERS else self.space)
        self.do(lambda api: api.apply(path, each, "tests"))

    def start(self, *flags: str) -> None:
        words = ["--listen", self.address, "--image", SETTINGS.image, "--python", SETTINGS.python]
        words += ["--secret", WEBHOOK_NAME, "--namespace", self.space, "--dns-name", "127.0.0.1"]
        words += ["--kubeconfig", str(self.folder / "kubeconfig"), "--drain-delay", "300ms"]
        words += ["--accelerators-file", str(self.folder / "accelerators.yaml"), *flags]
        command = [sys.executable, "-P", "-m", "tidegate.deploy.kubernetes.webhook.main", *words]
        with (self.folder / "webhook.log").open("ab") as log:
            self.processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        self.until(lambda: self.status("/ready") == 200, "the webhook to have a certificate")

    def stop(self) -> None:
        for each in self.processes:
            each.terminate()
            assert each.wait(20) == 0, self.log
        self.processes.clear()

    def close(self) -> None:
        for each in self.processes:
            each.kill()
            each.wait(20)
        self.do(lambda api: api.delete(CONFIGURATION))
        self.do(lambda api: api.delete(f"/api/v1/namespaces/{self.space}"))

    def do(self, what: Callable[[KubernetesApi], Any]) -> Any:
        return self.node.do(what)

    def until(self, condition: Callable[[], bool], what: str, limit_s: float = 60.0) -> None:
        patience = Patience(limit_s)
        while not condition():
            assert not patience.is_over, f"{what}: {self.log} {self.node.faults}"
            time.sleep(0.05)

    def status(self, path: str) -> int:
        """The status of a GET, or 0 without an answer."""
        host, _, port = self.address.rpartition(":")
        context = ssl._create_unverified_context()
        with contextlib.closing(http.client.HTTPSConnection(host, int(port), context=context, timeout=5)) as connection:
            try:
                connection.request("GET", path)
                return connection.getresponse().status
            except OSError:
                return 0

    @property
    def served(self) -> bytes:
        """The certificate of a new connection."""
        host, _, port = self.address.rpartition(":")
        return ssl.get_server_certificate((host, int(port))).encode()

    def pod(
        self, *, asks: bool = True, dry: bool = True, annotations: dict[str, str] | None = None, label: str = "true"
    ) -> Object:
        """Makes a Pod, and returns what the API server made of it. Raises RefusedError."""
        body = pod_of(asks=asks, annotations=annotations, label=label)
        query = {"dryRun": "All"} if dry else {}
        path = f"/api/v1/namespaces/{self.space}/pods"
        found: Object = self.do(lambda api: api.call("POST", path, body, query=query))
        return found

    def refusal(self, annotations: dict[str, str] | None = None) -> str:
        with pytest.raises(RefusedError) as caught:
            self.pod(annotations=annotations)
        return str(caught.value)

    @property
    def secret(self) -> Material:
        path = f"/api/v1/namespaces/{self.space}/secrets/{WEBHOOK_NAME}"
        return material_of(self.do(lambda api: api.get(path)))

    @property
    def bundle(self) -> bytes:
        return bundle_of(self.do(lambda api: api.get(CONFIGURATION)))

    def doctor(self) -> tuple[Answer, str]:
        found: Surveyed = self.do(lambda api: survey_webhook(api, self.space, wall()))
        return found.answer, found.text


def pod_of(*, asks: bool = True, annotations: dict[str, str] | None = None, label: str = "true") -> Object:
    labels = {"app": "resnet"} | ({"tidegate.dev/inject": label} if asks else {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "resnet-", "labels": labels, "annotations": annotations or {}},
        "spec": template(),
    }


def template() -> Object:
    """The Pod of a user: a server, and nothing of Tidegate."""
    server = {
        "name": "server",
        "image": "resnet:7",
        "command": [sys.executable, MODEL, "--listen", "0.0.0.0:8080"],
        "ports": [{"name": "web", "containerPort": 8080}],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": "web"}},
        "securityContext": RESTRICTED,
    }
    return {"containers": [server], "automountServiceAccountToken": False}


def sidecar(pod: Object) -> Object:
    (found,) = [each for each in pod["spec"].get("initContainers", []) if each["name"] == "queue-proxy"]
    return dict(found)


def env(pod: Object) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in sidecar(pod)["env"]}


@pytest.fixture(scope="module")
def node(plane: ControlPlane) -> Iterator[Node]:
    with Node(plane).running() as found:
        found.do(install_resources)
        yield found


@pytest.fixture
def hook(plane: ControlPlane, node: Node, tmp_path: Path) -> Iterator[Hook]:
    found = Hook(plane, node, tmp_path)
    (tmp_path / "webhook.log").touch()
    try:
        found.install()
        yield found
    finally:
        found.close()


def settled(hook: Hook, **flags: Any) -> Object:
    """A Pod with its queue_proxy, as soon as the API server knows the configuration."""
    patience = Patience(30.0)
    while True:
        with contextlib.suppress(RefusedError):
            return hook.pod(**flags)
        assert not patience.is_over, hook.refusal()
        time.sleep(0.05)


def get(url: str, path: str, timeout: float = 10.0) -> tuple[int, str]:
    with contextlib.closing(http.client.HTTPConnection(url, timeout=timeout)) as connection:
        connection.request("GET", path)
        reply = connection.getresponse()
        return reply.status, reply.read().decode()


def test_the_pods_of_a_deployment_serve_by_their_queue_proxy_and_drain(hook: Hook) -> None:
    hook.start()
    settled(hook)
    apps, space = f"/apis/apps/v1/namespaces/{hook.space}/deployments", f"/api/v1/namespaces/{hook.space}"
    labels = {"app": "resnet", "tidegate.dev/inject": "true"}
    annotations = {"tidegate.dev/concurrency": "1", "tidegate.dev/timeout": "20s"}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "resnet"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "resnet"}},
            "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": template()},
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "resnet"},
        "spec": {"selector": {"app": "resnet"}, "ports": [{"port": 80, "targetPort": "web"}]},
    }
    hook.do(lambda api: api.create(apps, deployment))
    hook.do(lambda api: api.create(f"{space}/services", service))
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{hook.space}/endpointslices"

    def endpoint() -> str:
        """Where the Service sends requests, as soon as its Pod is ready."""
        for each in hook.do(lambda api: api.get(slices, labelSelector="kubernetes.io/service-name=resnet"))["items"]:
            for one in each["endpoints"] or ():
                if one["conditions"].get("ready"):
                    return f"{one['addresses'][0]}:{each['ports'][0]['port']}"
        return ""

    hook.until(lambda: bool(endpoint()), "a ready endpoint")
    url = endpoint()
    assert url.endswith(":8012"), "the name of the model server's port is the queue_proxy's"
    assert get(url, "/anything")[0] == 200
    admin = url.replace(":8012", ":8022")
    text = get(admin, "/metrics")[1]
    assert 'function="resnet"' in text and 'group="cpu"' in text
    assert get(admin, "/drain")[0] == 404
    with contextlib.closing(http.client.HTTPConnection(admin, timeout=10)) as connection:
        connection.request("POST", "/drain", body=b'{"epoch": 1}')
        assert connection.getresponse().status == 403, "no one may order a foreign Pod"
    (pod,) = hook.do(lambda api: api.get(f"{space}/pods", labelSelector="app=resnet"))["items"]
    held = http.client.HTTPConnection(url, timeout=30)
    held.request("GET", "/hold")
    hook.until(lambda: "in_flight" in get(admin, "/metrics")[1], "the request to run")
    hook.until(lambda: json.loads(get(admin, "/sample")[1])["in_flight"] == 1, "the request to run")
    hook.do(lambda api: api.delete(f"{space}/pods/{pod['metadata']['name']}"))
    hook.until(lambda: get(admin, "/ready")[1] == "draining", "the drain")
    inside = "import urllib.request as r; r.urlopen(r.Request('http://127.0.0.1:8080/release', b''))"
    found = hook.node.found(pod["metadata"]["name"])
    subprocess.run(["ip", "netns", "exec", found.namespace, sys.executable, "-c", inside], check=True, timeout=20)
    assert held.getresponse().status == 200, "the Pod ends after the requests that it has"
    held.close()
    hook.until(lambda: endpoint() not in ("", url), "the Pod that replaces it")
    assert get(endpoint(), "/anything")[0] == 200
    hook.do(lambda api: api.delete(f"{apps}/resnet"))


def test_annotations_become_environment_volumes_gpus_and_nodes(hook: Hook) -> None:
    hook.start()
    settled(hook)
    stated = {
        "concurrency": "3",
        "latency": "100ms",
        "gpu-model": "t4",
        "gpu-mem-limit": "8",
        "gpu-count": "2",
        "dnn-model": "resnet50",
        "dnn-quantization": "fp16",
        "volume-mounts": "models:/models:ro",
    }
    pod = hook.pod(annotations={f"tidegate.dev/{key}": text for key, text in stated.items()})
    (server,) = pod["spec"]["containers"]
    assert env(pod)["TIDEGATE_CONCURRENCY"] == "3"
    assert env(pod)["TIDEGATE_READINESS_PATH"] == "/ready"
    assert server["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    variables = {each["name"]: each["value"] for each in server["env"]}
    assert variables["TIDEGATE_MODEL_PATH"] == "/models/resnet50/t4/fp16/b1"
    assert [each["mountPath"] for each in server["volumeMounts"]] == ["/models"]
    terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms["nodeSelectorTerms"][0]["matchExpressions"][0]["values"] == ["t4"]
    assert "nvidia.com/gpu" in {each.get("key") for each in pod["spec"]["tolerations"]}


def test_a_bad_annotation_is_refused_with_every_fault(hook: Hook) -> None:
    hook.start()
    settled(hook)
    text = hook.refusal({"tidegate.dev/timeout": "5 minutes", "tidegate.dev/mps-on": "true", "tidegate.dev/conc": "1"})
    assert 'admission webhook "pods.tidegate.dev" denied the request' in text
    assert "tidegate.dev/timeout: got '5 minutes'" in text
    assert "unknown annotation 'conc'" in text
    assert "a part of a GPU" in text


def test_a_label_with_another_value_is_refused_and_one_of_false_asks_for_nothing(hook: Hook) -> None:
    hook.start()
    settled(hook)
    with pytest.raises(RefusedError, match="inject is 'true' or 'false'"):
        hook.pod(label="True")
    assert "initContainers" not in hook.pod(label="false")["spec"]


def test_while_it_is_down_other_pods_are_untouched_and_those_that_ask_are_refused(hook: Hook) -> None:
    hook.start()
    assert sidecar(settled(hook))["restartPolicy"] == "Always"
    hook.stop()
    other = hook.pod(asks=False)
    assert "initContainers" not in other["spec"]
    assert "which Tidegate's webhook adds: it is not installed" in hook.refusal()
    hook.start()
    assert sidecar(settled(hook))["restartPolicy"] == "Always"


def test_certificates_and_their_authority_are_exchanged_and_no_pod_is_refused(hook: Hook) -> None:
    """Each certificate lives for three seconds and each authority for twelve."""
    lives = ("--certificate-lifetime", "3s", "--authority-lifetime", "12s", "--settle", "1s", "--look-every", "200ms")
    hook.start(*lives)
    settled(hook)
    certificates, bundles, made = {hook.served}, {hook.bundle}, 0
    patience = Patience(60.0)
    while len(certificates) < 6 or len(bundles) < 4:  # One authority, two, the new one, two.
        assert sidecar(hook.pod())["name"] == "queue-proxy"
        made += 1
        if made % 5 == 0:
            certificates.add(hook.served)
            bundles.add(hook.bundle)
        assert not patience.is_over, (len(certificates), len(bundles), hook.log)
    assert made > 50
    assert hook.bundle == hook.secret.bundle


def test_two_replicas_agree_on_one_certificate(hook: Hook) -> None:
    async def both(api: KubernetesApi) -> list[Material]:
        rotations = [
            Rotation(
                api,
                namespace=hook.space,
                secret=WEBHOOK_NAME,
                configuration=WEBHOOK_NAME,
                names=("127.0.0.1",),
                lives=Lifetimes(),
                now=wall,
            )
            for _ in range(4)
        ]
        return list(await asyncio.gather(*(each.look() for each in rotations)))

    found = hook.do(both)
    assert len({each.certificate for each in found}) == 1
    assert hook.secret == found[0]
    assert hook.bundle == found[0].authority


def test_a_certificate_that_has_ended_is_seen_by_the_probe_the_doctor_and_who_asks(hook: Hook) -> None:
    hook.start("--certificate-lifetime", "4s", "--look-every", "1h")
    settled(hook)
    assert hook.doctor()[0] in (Answer.HAS, Answer.LACKS_LITTLE)
    hook.until(lambda: hook.status("/ready") == 503, "the end of the certificate")
    assert wall() >= end_of(hook.served)
    answer, text = hook.doctor()
    assert answer is Answer.LACKS
    assert "its certificate has ended" in text
    hook.stop()
    hook.start()
    settled(hook)
    answer, text = hook.doctor()
    assert (answer, text.partition(",")[0]) == (Answer.HAS, "its certificate is trusted")
    wrong = {"name": "pods.tidegate.dev", "clientConfig": {"caBundle": base64.b64encode(b"").decode()}}
    kind = "application/strategic-merge-patch+json"
    hook.do(lambda api: api.call("PATCH", CONFIGURATION, {"webhooks": [wrong]}, kind=kind))
    assert "no authority of caBundle" in hook.doctor()[1]
    hook.do(lambda api: api.delete(f"/api/v1/namespaces/{hook.space}/secrets/{WEBHOOK_NAME}"))
    assert "is not there: helm upgrade or cert-manager makes it again" in hook.doctor()[1]


def test_the_account_of_the_webhook_makes_the_calls_of_its_rights_and_no_other(hook: Hook) -> None:
    hook.start("--certificate-lifetime", "2s", "--look-every", "200ms")
    settled(hook)
    before = hook.served
    hook.until(lambda: hook.served != before, "a renewal")
    hook.stop()
    calls = hook.plane.calls(f"{hook.space}:{WEBHOOK_NAME}")
    assert [each for each in calls if each.code in (401, 403)] == []
    made = {(each.group, each.resource, each.name, each.verb) for each in calls}
    rendered = render(CHART, hook.space, {"webhook": {"enabled": True}})["webhook.yaml"]
    stated = {
        (group, resource, name, verb)
        for role in yaml.safe_load_all(rendered)
        if role["kind"] in ("Role", "ClusterRole")
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule["resourceNames"]
        for verb in rule["verbs"]
    }
    assert made == stated
