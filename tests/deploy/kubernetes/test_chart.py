"""The chart as text. What Helm and an API server make of it: tests/live/test_kubernetes_chart.py."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tidegate.deploy.kubernetes.resources.chart import ChartError, render
from tidegate.deploy.kubernetes.resources.main import files, plain

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


def test_every_resource_is_in_the_chart() -> None:
    assert all(text.strip() in render(CHART, "models")["resources.yaml"] for text in files().values())


def test_without_the_resources_of_the_cluster_the_chart_has_none() -> None:
    assert render(CHART, "models", {"clusterResources": False})["resources.yaml"].strip() == ""


def test_with_gateways_the_front_door_is_theirs() -> None:
    """They have no account, and orders to replicas are not for them."""
    found = render(CHART, "models", {"gateways": {"replicas": 3}})
    objects = [
        each
        for name, text in found.items()
        if name.endswith(".yaml")
        for each in yaml.safe_load_all(text)
        if each is not None
    ]
    by_name = {(each["kind"], each["metadata"]["name"]): each for each in objects}
    gateway = by_name["Deployment", "tidegate-gateway"]["spec"]
    pod = gateway["template"]["spec"]
    assert gateway["replicas"] == 3
    assert pod["automountServiceAccountToken"] is False and "serviceAccountName" not in pod
    assert by_name["Service", "tidegate"]["spec"]["selector"] == {"app.kubernetes.io/name": "tidegate-gateway"}
    control = by_name["Deployment", "tidegate"]["spec"]["template"]["spec"]["containers"][0]
    assert "--gateway-workers=0" in control["command"] and "readinessProbe" not in control
    ports = by_name["NetworkPolicy", "tidegate-gateway-replicas"]["spec"]["ingress"][0]["ports"]
    assert [each["port"] for each in ports] == [8012]


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
    assert schema["additionalProperties"] is False
    for key, inner in known.items():
        assert inner is None or schema["properties"][key]["additionalProperties"] is False
        assert inner is None or values[key].keys() == inner.keys()


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("a: {{ .Values.a.b }}", "a: yes it is"),
        ("a: {{ .Values.a.b | quote }}", 'a: "yes it is"'),
        ("a:\n  {{- if .Values.a.b }}\n  b\n  {{- end }}\nc", "a:\n  b\nc"),
        ("a:\n  {{- if .Values.a.none }}\n  b\n  {{- else }}\n  d\n  {{- end }}\nc", "a:\n  d\nc"),
        ("{{ .Release.Namespace }} {{ .Chart.AppVersion }}", "there 4"),
        ("a:\n  {{- toYaml .Values.a.list | nindent 2 }}\n", "a:\n  - 1\n  - x: y\n"),
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
