"""The chart as text. What Helm and an API server make of it: tests/live/test_kubernetes_chart.py."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tidegate.deploy.devices.declared import KEYS
from tidegate.deploy.kubernetes.pods.template import INJECT
from tidegate.deploy.kubernetes.resources.chart import ChartError, render
from tidegate.deploy.kubernetes.resources.main import defaults, files, plain, plain_webhook
from tidegate.deploy.kubernetes.webhook.main import arguments
from tidegate.deploy.kubernetes.webhook.process.rotation import WEBHOOK, secret_of
from tidegate.deploy.placement.ledger import AcceleratorKind
from tidegate.schema.rows import Whole
from tidegate.schema.units import BYTES, UnreadableError, size

FOLDER = Path(__file__).resolve().parents[3] / "deploy" / "kubernetes"
CHART = FOLDER / "chart"


def chart_with(folder: Path, template: str, values: str = "a: {b: yes it is, none: '', list: [1, {x: y}]}") -> Path:
    (folder / "templates").mkdir()
    (folder / "Chart.yaml").write_text("{version: 1.2.3, appVersion: '4'}")
    (folder / "values.yaml").write_text(values)
    (folder / "templates" / "one.yaml").write_text(template)
    return folder


def test_the_plain_yaml_is_what_the_chart_gives() -> None:
    """``make docs`` writes it."""
    assert (FOLDER / "tidegate.yaml").read_text(encoding="utf-8") == plain(CHART)
    assert (FOLDER / "webhook.yaml").read_text(encoding="utf-8") == plain_webhook(CHART)


def test_every_resource_is_in_the_chart() -> None:
    assert all(text.strip() in render(CHART, "models")["resources.yaml"] for text in files().values())


def test_without_the_resources_of_the_cluster_the_chart_has_none() -> None:
    assert render(CHART, "models", {"clusterResources": False})["resources.yaml"].strip() == ""


def test_with_gateways_the_front_door_is_theirs() -> None:
    """They have no account, and orders to replicas are not for them."""
    by_name = objects_with({"gateways": {"replicas": 3}})
    gateway = by_name["Deployment", "tidegate-gateway"]["spec"]
    pod = gateway["template"]["spec"]
    assert gateway["replicas"] == 3
    assert pod["automountServiceAccountToken"] is False and "serviceAccountName" not in pod
    assert by_name["Service", "tidegate"]["spec"]["selector"] == {"app.kubernetes.io/name": "tidegate-gateway"}
    control = by_name["Deployment", "tidegate"]["spec"]["template"]["spec"]["containers"][0]
    assert "--gateway-workers=0" in control["command"] and "readinessProbe" not in control
    ports = by_name["NetworkPolicy", "tidegate-gateway-replicas"]["spec"]["ingress"][0]["ports"]
    assert [each["port"] for each in ports] == [8012]
    (link,) = (each["secret"] for each in pod["volumes"] if each["name"] == "link")
    assert "data" not in by_name["Secret", link["secretName"]], "the control process writes it"
    assert [each["key"] for each in link["items"]] == ["token"], "a kubelet starts no container before a key it names"


def objects_with(values: dict[str, Any]) -> dict[tuple[str, str], Any]:
    """The objects of the chart by kind and name."""
    texts = [text for name, text in render(CHART, "models", values).items() if name.endswith(".yaml")]
    found = [each for text in texts for each in yaml.safe_load_all(text) if each is not None]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


@pytest.mark.parametrize("gateways", [0, 2])
def test_a_pod_monitor_opens_a_port_to_one_namespace_that_has_metrics_alone(gateways: int) -> None:
    asked = {"podMonitor": {"enabled": True, "labels": {"release": "p"}}, "namespace": "watch", "tokenSecret": "scrape"}
    found = objects_with({"monitoring": asked, "gateways": {"replicas": gateways}})
    monitor = found["PodMonitor", "tidegate"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert monitor["metadata"]["labels"]["release"] == "p"
    assert endpoint["authorization"]["credentials"] == {"name": "scrape", "key": "token"}
    pod = found["Deployment", "tidegate"]["spec"]["template"]
    assert pod["metadata"]["labels"].items() >= monitor["spec"]["selector"]["matchLabels"].items()
    (container,) = pod["spec"]["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    port = ports[endpoint["port"]]
    assert f"--metrics-listen=0.0.0.0:{port}" in container["command"]
    assert "--metrics-token-file=/etc/tidegate-metrics/token" in container["command"]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert mounts["metrics-token"] == "/etc/tidegate-metrics"
    front, metrics = found["NetworkPolicy", "tidegate"]["spec"]["ingress"]
    assert "from" not in front
    assert [each["port"] for each in metrics["ports"]] == [port]
    (peer,) = metrics["from"]
    assert peer == {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "watch"}}}


def test_without_a_pod_monitor_no_port_has_metrics() -> None:
    found = objects_with({})
    assert not any(kind == "PodMonitor" for kind, _ in found)
    assert not any("metrics" in word for word in control_command(found))
    assert len(found["NetworkPolicy", "tidegate"]["spec"]["ingress"]) == 1


@pytest.mark.parametrize(
    ("service", "flag"),
    [({"port": 8000}, "tidegate.models.svc:8000"), ({"url": "https://ml.example.com"}, "https://ml.example.com")],
)
def test_functions_are_reached_at_the_service_or_at_a_stated_url(service: dict[str, Any], flag: str) -> None:
    command = control_command(objects_with({"service": service}))
    assert [each for each in command if each.startswith("--kubernetes-front-door=")] == [
        f"--kubernetes-front-door={flag}"
    ]


def control_command(found: dict[tuple[str, str], Any]) -> list[str]:
    (container,) = found["Deployment", "tidegate"]["spec"]["template"]["spec"]["containers"]
    return list(container["command"])


def test_a_gateway_that_starts_slowly_is_not_ended_by_its_liveness() -> None:
    """SIGTERM does not reach the first process of a container before it has a handler: it would serve on until
    SIGKILL."""
    documents = yaml.safe_load_all(render(CHART, "models", {"gateways": {"replicas": 2}})["gateways.yaml"])
    (container,) = next(each for each in documents if each["kind"] == "Deployment")["spec"]["template"]["spec"][
        "containers"
    ]
    start, live = container["startupProbe"], container["livenessProbe"]
    assert start["httpGet"] == live["httpGet"]
    assert start["periodSeconds"] * start["failureThreshold"] >= 60


def test_the_state_is_a_folder_of_its_own_in_the_volume() -> None:
    """A kubelet gives a volume's own folder to root and to the group of ``fsGroup``, so that it cannot be closed to
    others. Commands in the container find the state too."""
    documents = yaml.safe_load_all(render(CHART, "models")["control.yaml"])
    pod = next(each for each in documents if each["kind"] == "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mount = next(each["mountPath"] for each in container["volumeMounts"] if each["name"] == "state")
    stated = next(each.partition("=")[2] for each in container["command"] if each.startswith("--state-directory="))
    assert Path(stated).parent == Path(mount)
    assert {"name": "TIDEGATE_STATE", "value": stated} in container["env"]
    assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch", "each mount would open its files again"


def webhook(**values: Any) -> dict[str, dict[str, Any]]:
    """The objects of the webhook by kind."""
    text = render(CHART, "models", {"webhook": {"enabled": True, **values}})["webhook.yaml"]
    return {each["kind"]: each for each in yaml.safe_load_all(text) if each}


def test_the_webhook_is_off_by_default() -> None:
    assert render(CHART, "models")["webhook.yaml"].strip() == ""


def test_only_pods_that_ask_for_it_depend_on_the_webhook() -> None:
    (found,) = webhook()["MutatingWebhookConfiguration"]["webhooks"]
    assert found["objectSelector"] == {"matchLabels": {INJECT: "true"}}
    assert found["failurePolicy"] == "Ignore"
    assert found["name"] == WEBHOOK
    (rule,) = found["rules"]
    assert (rule["operations"], rule["resources"]) == (["CREATE"], ["pods"])


def test_the_webhooks_pods_are_restricted_and_do_not_ask_for_themselves() -> None:
    template = webhook()["Deployment"]["spec"]["template"]
    assert INJECT not in template["metadata"]["labels"]
    pod, (container,) = template["spec"], template["spec"]["containers"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["seccompProfile"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@pytest.mark.parametrize(("values", "flag"), [({}, "--secret=tidegate-webhook"), ({"certManager": True}, "--cert")])
def test_the_flags_of_the_chart_are_those_of_the_webhook(values: dict[str, Any], flag: str) -> None:
    command = webhook(**values)["Deployment"]["spec"]["template"]["spec"]["containers"][0]["command"]
    module = command.index("tidegate.deploy.kubernetes.webhook.main")
    assert any(each.startswith(flag) for each in command)
    found = arguments(command[module + 1 :])
    assert found.listen == "0.0.0.0:9443"
    assert found.secret is not None or found.certificate_folder == "/etc/tidegate-webhook"


def test_with_cert_manager_the_webhook_has_no_right_and_its_authority_is_injected() -> None:
    found = webhook(certManager=True)
    assert not {"Secret", "Role", "ClusterRole"} & found.keys()
    assert found["Deployment"]["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
    annotations = found["MutatingWebhookConfiguration"]["metadata"]["annotations"]
    assert annotations == {"cert-manager.io/inject-ca-from": "models/tidegate-webhook-tls"}
    found = webhook(certManager=True, clusterIssuer="company")
    assert "Issuer" not in found
    assert found["Certificate"]["spec"]["issuerRef"] == {
        "group": "cert-manager.io",
        "kind": "ClusterIssuer",
        "name": "company",
    }


def test_with_cert_manager_an_authority_that_keeps_its_key_signs_each_certificate() -> None:
    """What API servers trust stays the same over renewals: adr/0116."""
    found = objects_with({"webhook": {"enabled": True, "certManager": True}})
    serving = found["Certificate", "tidegate-webhook-tls"]["spec"]
    authority = found["Certificate", "tidegate-webhook-authority"]["spec"]
    issuer = found[serving["issuerRef"]["kind"], serving["issuerRef"]["name"]]["spec"]
    assert issuer == {"ca": {"secretName": authority["secretName"]}}
    assert authority["isCA"] is True and authority["privateKey"]["rotationPolicy"] == "Never"
    assert found[authority["issuerRef"]["kind"], authority["issuerRef"]["name"]]["spec"] == {"selfSigned": {}}
    assert serving["secretName"] == "tidegate-webhook-tls" and "isCA" not in serving


@pytest.mark.parametrize("by_cert_manager", [False, True])
def test_the_secret_that_is_looked_at_is_the_one_whose_certificate_is_served(by_cert_manager: bool) -> None:
    found = webhook(certManager=by_cert_manager)
    pod = found["Deployment"]["spec"]["template"]["spec"]
    mounted = [each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each]
    given = [each for each in pod["containers"][0]["command"] if each.startswith("--secret=")]
    name = secret_of(found["MutatingWebhookConfiguration"])
    assert [*mounted, *given] == [name if by_cert_manager else f"--secret={name}"]


def test_the_notes_name_the_secrets_that_cert_manager_leaves() -> None:
    def notes(**values: Any) -> str:
        return render(CHART, "models", {"webhook": values})["NOTES.txt"]

    assert "tidegate-webhook-tls tidegate-webhook-authority" in notes(enabled=True, certManager=True)
    assert "cert-manager" not in notes(enabled=True) + notes(certManager=True)


def properties(schema: dict[str, Any]) -> dict[str, Any]:
    """The keys of a schema by key: closed mappings go on."""
    found = schema.get("properties", {})
    return {key: properties(each) if "properties" in each else None for key, each in found.items()}


def keys(values: dict[str, Any], like: dict[str, Any]) -> dict[str, Any]:
    return {key: keys(values[key], inner) if inner is not None else None for key, inner in like.items()}


def test_the_schema_has_every_value_and_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values.keys() == schema["properties"].keys()
    known = properties(schema)
    assert keys(values, known) == known
    all_closed(schema)


def all_closed(schema: dict[str, Any]) -> None:
    """A key that is misspelt is refused by its name."""
    if "properties" in schema:
        assert schema["additionalProperties"] is False
    for each in schema.get("properties", {}).values():
        all_closed(each)


FIRST = {
    "": ["image", "accelerators", "settings", "resources", "state", "service", "clusterResources", "networkPolicy"],
    "state": ["size", "storageClass", "keep"],
    "service": ["type", "port"],
    "networkPolicy": ["enabled"],
}
"""The values of the first chart. `helm upgrade --reuse-values` of its release has these and no other."""


def test_no_value_is_required_that_the_first_chart_did_not_have() -> None:
    """Those that it had are refused by their names when they are set to null; the others have their defaults then."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    found = {"": schema["required"]}
    found |= {key: each["required"] for key, each in schema["properties"].items() if "required" in each}
    assert found == FIRST
    inner = [one for each in schema["properties"].values() for one in each.get("properties", {}).values()]
    assert not any("required" in each for each in inner)


def test_the_templates_take_absent_values_from_a_copy_of_the_defaults() -> None:
    """``make docs`` writes it. Helm gives templates no ``values.yaml``."""
    assert (CHART / "defaults.yaml").read_text(encoding="utf-8") == defaults(CHART)
    assert yaml.safe_load(defaults(CHART)) == yaml.safe_load((CHART / "values.yaml").read_text())
    first = '{{- include "tidegate.defaults" . -}}'
    texts = {path.name: path.read_text() for path in (CHART / "templates").iterdir() if path.name[0] != "_"}
    assert [name for name, text in texts.items() if text.splitlines()[0] != first] == []


def test_accelerators_of_the_values_are_those_that_tidegate_reads() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]["accelerators"]["items"]
    assert schema["properties"].keys() == {row.key for row in KEYS} | {"profile"}
    assert schema["properties"]["kind"]["enum"] == list(AcceleratorKind)
    assert schema["additionalProperties"] is False
    for row in KEYS:
        if isinstance(row.kind, Whole):
            found = schema["properties"][row.key]
            assert (found["minimum"], found["maximum"]) == (row.kind.low, row.kind.high)


@pytest.mark.parametrize("number", ["4000000000", "16.5", "016", "1e9", ".5"])
@pytest.mark.parametrize("unit", [*BYTES, "m", "E", "Ei", "PB", "gb", " GB", "Gib"])
def test_the_memory_of_an_accelerator_is_written_as_tidegate_reads_it(number: str, unit: str) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    memory = schema["properties"]["accelerators"]["items"]["properties"]["memory"]
    pattern = schema["definitions"][memory["$ref"].rpartition("/")[2]]["pattern"]
    try:
        is_read = size(number + unit) > 0
    except UnreadableError:
        is_read = unit in BYTES and number == "16.5" and BYTES[unit] == 1  # Half a byte: no pattern says that.
    assert (re.search(pattern, number + unit) is not None) is is_read


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("a: {{ .Values.a.b }}", "a: yes it is"),
        ("a: {{ .Values.a.b | quote }}", 'a: "yes it is"'),
        ("a:\n  {{- if .Values.a.b }}\n  b\n  {{- end }}\nc", "a:\n  b\nc"),
        ("a:\n  {{- if .Values.a.none }}\n  b\n  {{- else }}\n  d\n  {{- end }}\nc", "a:\n  d\nc"),
        ("{{ .Release.Namespace }} {{ .Chart.AppVersion }}", "there 4"),
        ("a:\n  {{- toYaml .Values.a.list | nindent 2 }}\n", "a:\n  - 1\n  - x: y\n"),
        ('{{- include "tidegate.defaults" . -}}\na', "a"),
        ("{{ toJson .Values.a.list }}", '[1,{"x":"y"}]'),
    ],
)
def test_the_renderer_does_what_helm_does(tmp_path: Path, template: str, text: str) -> None:
    """The same is compared with Helm itself, over the whole chart."""
    assert render(chart_with(tmp_path, template), "there") == {"one.yaml": text}


@pytest.mark.parametrize(
    "template",
    [
        "{{ .Values.a.c }}",
        "{{ range .Values.a.list }}x{{ end }}",
        '{{ include "name" . }}',
        "{{ if .Values.a.b }}",
        "{{ end }}",
        "{{ .Values.a.b | upper }}",
        "{{ $x := 1 }}",
    ],
)
def test_what_the_renderer_does_not_know_it_refuses(tmp_path: Path, template: str) -> None:
    with pytest.raises(ChartError):
        render(chart_with(tmp_path, template), "there")
