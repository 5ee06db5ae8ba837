"""The chart by Helm itself: rendered, refused, installed into a real API server, upgraded and uninstalled."""

import base64
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.support.deadline import Patience
from tests.support.live.certificates import make_certificate
from tests.support.live.cluster import CHART, Node, path_of
from tests.support.live.control_plane import ControlPlane
from tests.support.live.helm import helm, set_flags
from tidegate.deploy.kubernetes.resources.chart import render

pytestmark = [pytest.mark.live, pytest.mark.needs(tool="helm"), pytest.mark.timeout(300)]
SPACE = "models"
VALUES: list[dict[str, Any]] = [
    {},
    {"image": "registry.example/t:1", "networkPolicy": {"enabled": False}, "clusterResources": False},
    {
        "state": {"keep": False, "storageClass": "fast", "size": "1Gi"},
        "service": {"type": "NodePort", "port": 8080, "url": "https://m.example"},
    },
    {
        "settings": '[log]\nformat = "json"\n',
        "accelerators": [{"name": "t4", "kind": "nvidia", "count": 2, "memory": "16Gi"}],
    },
    {"resources": {"limits": {"memory": "1Gi"}}},
    {"monitoring": {"podMonitor": {"enabled": True, "labels": {"release": "p"}}, "tokenSecret": "scrape"}},
    {"monitoring": {"podMonitor": {"enabled": True, "interval": "30s"}}, "gateways": {"replicas": 2}},
    {"webhook": {"enabled": True}, "networkPolicy": {"enabled": False}},
    {"webhook": {"enabled": True, "certManager": True}},
    {"webhook": {"enabled": True, "certManager": True, "clusterIssuer": "company"}, "image": "t:2"},
]
CLUSTERS = ("CustomResourceDefinition", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")


def objects(text: str) -> list[dict[str, Any]]:
    found = [each for each in yaml.safe_load_all(text) if each]
    return sorted(found, key=lambda each: (each["kind"], each["metadata"]["name"]))


def rendered(values: dict[str, Any]) -> list[dict[str, Any]]:
    """What the renderer of the project makes of the chart."""
    texts = {name: text for name, text in render(CHART, SPACE, values).items() if name.endswith(".yaml")}
    return objects("\n---\n".join(texts.values()))


@pytest.mark.parametrize("values", VALUES, ids=lambda values: ",".join(values) or "defaults")
def test_helm_renders_what_the_project_renders(tmp_path: Path, values: dict[str, Any]) -> None:
    flags = set_flags(values)
    assert objects(helm("template", "tidegate", str(CHART), "-n", SPACE, *flags, home=tmp_path)) == rendered(values)


LATER = ("gateways", "storeName", "webhook", "monitoring")
"""Values that the first chart did not have, beside ``service.url``."""


@pytest.mark.parametrize("values", VALUES, ids=lambda values: ",".join(values) or "defaults")
def test_what_a_release_of_the_first_chart_lacks_takes_its_default(tmp_path: Path, values: dict[str, Any]) -> None:
    """`helm upgrade --reuse-values` gives the chart the values of the release before in the place of values.yaml."""
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart)
    first = yaml.safe_load((chart / "values.yaml").read_text())
    del first["service"]["url"]
    kept = {key: value for key, value in first.items() if key not in LATER}
    (chart / "values.yaml").write_text(yaml.safe_dump(kept))
    flags = set_flags(values)
    assert objects(helm("template", "tidegate", str(chart), "-n", SPACE, *flags, home=tmp_path)) == rendered(values)


def test_helm_finds_nothing_wrong(tmp_path: Path) -> None:
    assert "1 chart(s) linted, 0 chart(s) failed" in helm("lint", str(CHART), home=tmp_path)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"imag": "x"}, "imag"),
    ({"image": ""}, "/image"),
    ({"storeName": "Blue"}, "/storeName"),
    ({"accelerators": []}, "/accelerators"),
    ({"accelerators": [{"name": "t4", "kind": "nvidia", "count": 0, "memory": "16Gi"}]}, "/accelerators/0/count"),
    ({"accelerators": [{"name": "t4", "kind": "nvidia", "count": 1, "memory": "-1Gi"}]}, "/accelerators/0/memory"),
    ({"accelerators": [{"name": "T4", "kind": "nvidia", "count": 1, "memory": "1Gi"}]}, "/accelerators/0/name"),
    ({"accelerators": [{"name": "t4", "kind": "gpu", "count": 1, "memory": "1Gi"}]}, "/accelerators/0/kind"),
    ({"accelerators": [{"name": "t4", "kind": "cpu", "count": 1, "memory": 9, "core": 2}]}, "/accelerators/0"),
    ({"service": {"port": 0}}, "/service/port"),
    ({"service": {"port": 65536}}, "/service/port"),
    ({"service": {"type": "ExternalName"}}, "/service/type"),
    ({"service": {"type": None}}, "/service"),
    ({"service": {"url": "models.example.com/path"}}, "/service/url"),
    ({"gateways": {"replicas": -1}}, "/gateways/replicas"),
    ({"gateways": {"redisSecret": ""}}, "/gateways/redisSecret"),
    ({"gateways": {"redisSecret": "a..b"}}, "/gateways/redisSecret"),
    ({"gateways": {"resources": {"limit": {"memory": "1Gi"}}}}, "/gateways/resources"),
    ({"resources": {"requests": {"cpu": "-1"}}}, "/resources/requests/cpu"),
    ({"resources": {"requests": {"cpu": -1}}}, "/resources/requests/cpu"),
    ({"resources": {"limits": {"memory": "2 GB"}}}, "/resources/limits/memory"),
    ({"state": {"size": "big"}}, "/state/size"),
    ({"state": {"size": "0Gi"}}, "/state/size"),
    ({"state": {"storageClass": "Fast"}}, "/state/storageClass"),
    ({"webhook": {"clusterIssuer": "company"}}, "/webhook/certManager"),
    ({"webhook": {"replicas": 0}}, "/webhook/replicas"),
    ({"monitoring": {"namespace": ""}}, "/monitoring/namespace"),
    ({"monitoring": {"podMonitor": {"interval": "often"}}}, "/monitoring/podMonitor/interval"),
    ({"monitoring": {"podMonitor": {"interval": "0s"}}}, "/monitoring/podMonitor/interval"),
    ({"monitoring": {"podMonitor": {"interval": "1ms"}}}, "/monitoring/podMonitor/interval"),
    ({"monitoring": {"podMonitor": {"labels": {"-team": "a"}}}}, "/monitoring/podMonitor/labels"),
    ({"monitoring": {"podMonitor": {"labels": {"a b": "a"}}}}, "/monitoring/podMonitor/labels"),
    ({"monitoring": {"podMonitor": {"labels": {"Team/x": "a"}}}}, "/monitoring/podMonitor/labels"),
    ({"monitoring": {"podMonitor": {"labels": {"app.kubernetes.io/name": "a"}}}}, "/monitoring/podMonitor/labels"),
    ({"monitoring": {"podMonitor": {"labels": {"team": "a b"}}}}, "/monitoring/podMonitor/labels/team"),
    ({"monitoring": {"podMonitor": {"labels": {"team": 1}}}}, "/monitoring/podMonitor/labels/team"),
]


@pytest.mark.parametrize(("values", "place"), REFUSED, ids=json.dumps)
def test_values_that_would_be_refused_later_or_do_nothing_are_refused_at_their_place(
    tmp_path: Path, values: dict[str, Any], place: str
) -> None:
    file = tmp_path / "values.json"
    file.write_text(json.dumps(values))
    text = helm("template", "tidegate", str(CHART), f"--values={file}", home=tmp_path, code=1)
    assert place in text


@pytest.mark.parametrize(
    "values",
    [
        {"resources": {"requests": {"cpu": 1.5, "memory": "1.5Gi", "nvidia.com/gpu": 1}, "limits": {}}},
        {"state": {"size": "0.5Ti"}, "webhook": {"certManager": True}},
        {"monitoring": {"podMonitor": {"labels": {"example.com/Team": "", "a_b.c": "1"}, "interval": "1m"}}},
        {
            "accelerators": [
                {"name": "t4", "kind": "nvidia", "count": 1, "memory": "16Gi", "price-per-hour": 0.35, "mig": True},
                {"name": "cpu", "kind": "cpu", "count": 1, "memory": "1G", "cores": 2, "quota": "50%"},
            ]
        },
    ],
    ids=json.dumps,
)
def test_values_of_every_form_are_taken(tmp_path: Path, values: dict[str, Any]) -> None:
    file = tmp_path / "values.json"
    file.write_text(json.dumps(values))
    assert "kind: Deployment" in helm("template", "tidegate", str(CHART), f"--values={file}", home=tmp_path)


def there(client: httpx.Client, each: dict[str, Any]) -> bool:
    space = None if each["kind"] in CLUSTERS else SPACE
    reply = client.get(path_of(each, space))
    return reply.status_code == 200 and "deletionTimestamp" not in reply.json()["metadata"]


def test_an_installation_is_upgraded_and_leaves_what_it_says(plane: ControlPlane, tmp_path: Path) -> None:
    run = partial(helm, home=tmp_path, kubeconfig=plane.kubeconfig)
    text = run("install", "tidegate", str(CHART), "-n", SPACE, "--create-namespace")
    assert "tidegate doctor --context NAME --namespace models" in text
    with plane.client() as client:
        assert all(there(client, each) for each in rendered({}))
        secret = f"/api/v1/namespaces/{SPACE}/secrets/tidegate-link"
        patch = {"content-type": "application/apply-patch+yaml"}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tidegate-link"}, "data": {"token": "YQ=="}}
        query = {"fieldManager": "tidegate", "force": "true"}
        assert client.patch(secret, json=body, headers=patch, params=query).status_code == 200
        run("upgrade", "tidegate", str(CHART), "-n", SPACE, "--set", "image=t:1")
        # The chart before this one had definitions without a key of today: an upgrade brings it.
        definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/functions.tidegate.dev"
        merge = {"content-type": "application/merge-patch+json"}
        assert (
            client.patch(definition, json={"spec": {"names": {"shortNames": ["old"]}}}, headers=merge).status_code
            == 200
        )
        run("upgrade", "tidegate", str(CHART), "-n", SPACE, "--set", "image=t:2", "--force-conflicts")
        assert client.get(definition).json()["spec"]["names"]["shortNames"] == ["fn"]
        assert client.get(secret).json()["data"] == {"token": "YQ=="}, "the token is the control process's"
        deployment = client.get(f"/apis/apps/v1/namespaces/{SPACE}/deployments/tidegate").json()
        assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "t:2"
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "replica",
                "ownerReferences": [
                    {
                        "apiVersion": "v1",
                        "kind": "Secret",
                        "name": "tidegate-link",
                        "uid": client.get(secret).json()["metadata"]["uid"],
                    }
                ],
            },
            "spec": {
                "containers": [{"name": "model-server", "image": "t:2"}],
                "serviceAccountName": "tidegate-replicas",
            },
        }
        made = client.post(f"/api/v1/namespaces/{SPACE}/pods", json=pod)
        assert made.status_code == 201, made.text
        text = run("uninstall", "tidegate", "-n", SPACE)
        kept = [each for each in rendered({}) if "helm.sh/resource-policy" in each["metadata"].get("annotations", {})]
        names = {each["metadata"]["name"] for each in kept}
        assert names == {"tidegate", *(f"{name}.tidegate.dev" for name in KINDS)}
        assert all(name in text for name in names), "Helm says what it keeps"
        patience = Patience(60.0)
        while left := [each for each in rendered({}) if each not in kept and there(client, each)]:
            assert not patience.is_over, left
        while client.get(f"/api/v1/namespaces/{SPACE}/pods").json()["items"]:
            assert not patience.is_over, "the replica is deleted with the Secret"
        assert all(there(client, each) for each in kept)


KINDS = ("functions", "pipelines", "functionrevisions", "functionscales")


def test_an_upgrade_keeps_what_the_webhook_has_written_and_an_uninstallation_leaves_nothing_of_it(
    plane: ControlPlane, tmp_path: Path
) -> None:
    run = partial(helm, home=tmp_path, kubeconfig=plane.kubeconfig)
    values = ("--set", "webhook.enabled=true,clusterResources=false,state.keep=false")
    run("install", "hooks", str(CHART), "-n", "hooks", "--create-namespace", *values)
    configuration = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/tidegate-webhook"
    secret = "/api/v1/namespaces/hooks/secrets/tidegate-webhook"
    authority = base64.b64encode(make_certificate(tmp_path)[0].read_bytes()).decode()
    with plane.client() as client:
        change = {"webhooks": [{"name": "pods.tidegate.dev", "clientConfig": {"caBundle": authority}}]}
        kind = {"content-type": "application/strategic-merge-patch+json"}
        reply = client.patch(configuration, json=change, headers=kind)
        assert reply.status_code == 200, reply.text
        found = client.get(secret).json()
        assert client.put(secret, json=found | {"data": {"ca.crt": authority}}).status_code == 200
        run("upgrade", "hooks", str(CHART), "-n", "hooks", *values, "--set", "image=t:2")
        (webhook,) = client.get(configuration).json()["webhooks"]
        assert webhook["clientConfig"]["caBundle"] == authority
        assert client.get(secret).json()["data"] == {"ca.crt": authority}
        deployment = client.get("/apis/apps/v1/namespaces/hooks/deployments/tidegate-webhook").json()
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}} | {
            "spec": deployment["spec"]["template"]["spec"]
        }
        restricted = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
        merge = {"content-type": "application/merge-patch+json"}
        assert client.patch("/api/v1/namespaces/hooks", json=restricted, headers=merge).status_code == 200
        made = client.post("/api/v1/namespaces/hooks/pods", json=pod, params={"dryRun": "All"})
        assert made.status_code == 201, made.text
        run("uninstall", "hooks", "-n", "hooks")
        patience = Patience(30.0)
        roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles/tidegate-webhook"
        while any(client.get(path).status_code == 200 for path in (configuration, secret, roles)):
            assert not patience.is_over, "the webhook stays"


@pytest.mark.needs(tool="cluster")
def test_helm_takes_over_what_kubectl_has_applied_and_the_pod_stays(
    plane: ControlPlane, node: Node, tmp_path: Path
) -> None:
    space, run = "taken", partial(helm, home=tmp_path, kubeconfig=plane.kubeconfig)
    install = ("install", "tidegate", str(CHART), "-n", space)
    (tmp_path / "volume").mkdir()
    volume = {
        "capacity": {"storage": "4Gi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": str(tmp_path / "volume")},
        "claimRef": {"namespace": space, "name": "tidegate"},
    }
    made = objects("\n---\n".join(text for name, text in render(CHART, space).items() if name.endswith(".yaml")))
    with plane.client() as client:
        assert client.post("/api/v1/namespaces", json={"metadata": {"name": space}}).status_code == 201
        body = {"metadata": {"name": space}, "spec": volume}
        assert client.post("/api/v1/persistentvolumes", json=body).status_code == 201
        apply = {"content-type": "application/apply-patch+yaml"}
        query = {"fieldManager": "kubectl", "force": "true"}
        for each in made:  # As kubectl apply --server-side does.
            path = path_of(each, None if each["kind"] in CLUSTERS else space)
            reply = client.patch(path, json=each, headers=apply, params=query)
            assert reply.status_code in (200, 201), reply.text
        pods = f"/api/v1/namespaces/{space}/pods"
        patience = Patience(90.0)
        while not is_available(client, space):
            assert not patience.is_over, f"{node.faults}: {client.get(pods).text}"
        before = [each["metadata"]["uid"] for each in client.get(pods).json()["items"]]
        text = run(*install, code=1)
        assert "exists and cannot be imported into the current release" in text
        run(*install, "--take-ownership")
        run("upgrade", "tidegate", str(CHART), "-n", space, "--reuse-values")
        assert is_available(client, space)
        assert [each["metadata"]["uid"] for each in client.get(pods).json()["items"]] == before
        assert node.faults == []
        run("uninstall", "tidegate", "-n", space)
        for each in made:
            if each["kind"] == "CustomResourceDefinition":
                client.delete(path_of(each))
        while client.get(pods).json()["items"]:
            assert not patience.is_over, "the Pod ends with the release"


def is_available(client: httpx.Client, space: str) -> bool:
    """Whether the control process's Pod is ready."""
    found = client.get(f"/apis/apps/v1/namespaces/{space}/deployments/tidegate").json()
    return bool(found["status"].get("availableReplicas"))
