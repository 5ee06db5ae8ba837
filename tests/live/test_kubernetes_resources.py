"""The custom resources in a real API server: they install, and it refuses what the reader of manifests refuses."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.support.live.cluster import path_of
from tests.support.live.control_plane import ControlPlane, ExistingCluster, api_server
from tidegate.deploy.kubernetes.resources.conditions import condition
from tidegate.deploy.kubernetes.resources.main import files
from tidegate.manifest.annotations import ANNOTATIONS, PREFIX
from tidegate.manifest.spec import SPEC
from tidegate.schema.rows import (
    Choice,
    Duration,
    Kind,
    RisingPercents,
    Row,
    Size,
    Text,
    WholeSeconds,
    WordOr,
    YesNo,
    accepts,
)

pytestmark = [pytest.mark.live, pytest.mark.needs(tool="kubernetes"), pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(path for path in (ROOT / "examples").rglob("manifest.yaml") if "tidegate.dev" in path.read_text())
SPACE = f"tidegate-tests-{os.getpid()}"
HERE = f"/apis/tidegate.dev/v1alpha1/namespaces/{SPACE}"
STRICT = {"dryRun": "All", "fieldValidation": "Strict"}
WORDS = """
0 1 2 4 5 9 10 98 99.999 100 101 0.5 1.5 00 -1 +1 1e3 65535 65536 1001 100000 100001 10000001 0s 1us 1ms 200ms 0.5s 5s
90s
2m 1h 24h 25h 169h 1m30s 1d 5% 100% 101% 1,5,25,50 256Mi 1Ki 1kB 1KiB 2Ti 16GB 1B 0.1Gi none off auto file learnt equal
v100=65,t4=35 t4= true false yes client header:x-user p95 p100 v2 V2 arrival most-free tide Tide / /v2/health/ready
no/slash tcp a,b http://127.0.0.1:8090/events ftp://x
"""
TEXTS = [*WORDS.split(), "", "é", "64 Ki", "cookie:a b", "/a b", "a, b", "x" * 70, "/" + "a" * 1023, "/" + "a" * 1024]


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane | ExistingCluster]:
    with api_server() as found:
        yield found


@pytest.fixture(scope="module")
def api(plane: ControlPlane | ExistingCluster) -> Iterator[httpx.Client]:
    """The API server with our resources installed, and a namespace. What was made is deleted afterwards."""
    with plane.client() as client:
        made: list[str] = []
        try:
            install(client, made)
            yield client
        finally:
            for path in reversed(made):
                client.delete(path)
            settled(client, lambda: all(client.get(path).status_code == 404 or "namespaces" in path for path in made))


def install(client: httpx.Client, made: list[str]) -> None:
    """Makes what the tests need, and adds its paths to ``made``. What is there already is not ours to delete."""
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}}
    for each in (space, *(one for text in files().values() for one in yaml.safe_load_all(text))):
        path = path_of(each)
        reply = client.post(path.rpartition("/")[0], json=each, params={"fieldValidation": "Strict"})
        assert reply.status_code == 201, f"{each['metadata']['name']}: {reply.text}"
        made.append(path)
    settled(client, lambda: not [name for name, wrong in established(client).items() if wrong])
    # A policy holds a moment after it was made.
    settled(client, lambda: create(client, function(annotations={f"{PREFIX}latency": "soon"})).status_code == 422)


def settled(client: httpx.Client, holds: Any) -> None:
    from tests.support.deadline import Patience

    patience = Patience(30.0)
    while not holds():
        assert not patience.is_over, established(client)


def established(client: httpx.Client) -> dict[str, list[str]]:
    """What each definition lacks: it is established, its names are accepted, its schema is structural."""
    found = {}
    for each in client.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").json()["items"]:
        if not each["metadata"]["name"].endswith(".tidegate.dev"):
            continue
        states = {one["type"]: one["status"] for one in each.get("status", {}).get("conditions", [])}
        wanted = {"Established": "True", "NamesAccepted": "True"}
        found[each["metadata"]["name"]] = [name for name, state in wanted.items() if states.get(name) != state]
        if states.get("NonStructuralSchema") == "True":
            found[each["metadata"]["name"]].append("a structural schema")
    return found


def function(spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    named = {"name": "resnet", **metadata}
    body = {"server": {"image": "registry.example/resnet:1"}} if spec is None else spec
    return {"apiVersion": "tidegate.dev/v1alpha1", "kind": "Function", "metadata": named, "spec": body}


def create(client: httpx.Client, body: dict[str, Any], **params: str) -> httpx.Response:
    return client.post(f"{HERE}/{body['kind'].lower()}s", json=body, params=STRICT | params)


def test_every_definition_is_established(api: httpx.Client) -> None:
    found = {name: wrong for name, wrong in established(api).items() if name.endswith("tidegate.dev")}
    names = ("functionrevisions", "functions", "functionscales", "pipelines")
    assert found == {f"{name}.tidegate.dev": [] for name in names}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_the_manifest_of_an_example_is_accepted_as_it_is(api: httpx.Client, path: Path) -> None:
    for each in yaml.safe_load_all(path.read_text()):
        assert create(api, each).status_code == 201, create(api, each).json()["message"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"server": {}}, "allowed: exactly one of model, handler, asgi, command, image"),
        ({"server": {"image": "a", "model": "b.onnx"}}, "allowed: exactly one of model"),
        ({"server": {"image": "a"}, "timeout": "5 minutes"}, "allowed: a duration, 1ms to 24h"),
        ({"server": {"image": "a"}, "concurrency": -1}, "allowed: auto, or a whole number, 0 to 100000"),
        ({"server": {"image": "a"}, "env": {"PORT": "1"}}, "a variable's name (letters, digits, _), but not PORT"),
        ({"server": {"image": "a"}, "socket": "/s", "port": 80}, "allowed: either port or socket"),
        ({"server": {"image": "a"}, "access": {"api-keys": False}}, "allowed: api-keys: true, jwt, or both"),
        ({"server": {"image": "a"}, "match": [{}]}, "allowed: at least one of host, path-prefix, headers"),
        ({"server": {"image": "a"}, "concurency": 4}, 'unknown field "spec.concurency"'),
    ],
)
def test_a_bad_function_is_refused_with_the_readers_message(
    api: httpx.Client, spec: dict[str, Any], message: str
) -> None:
    reply = create(api, function(spec))
    assert reply.status_code in (400, 422), reply.text
    assert message in reply.json()["message"]


def test_an_annotation_is_checked_and_an_unknown_one_is_named(api: httpx.Client) -> None:
    reply = create(api, function(annotations={f"{PREFIX}latency": "98"}))
    assert reply.status_code == 201
    reply = create(api, function(annotations={f"{PREFIX}latency": "200 ms"}))
    assert "metadata.annotations.tidegate.dev/latency: allowed: none, or a duration" in reply.json()["message"]
    reply = create(api, function(annotations={f"{PREFIX}latncy": "98"}))
    assert "metadata.annotations: unknown: tidegate.dev/latncy" in reply.json()["message"]


@pytest.mark.parametrize("row", ANNOTATIONS, ids=lambda row: row.key)
def test_an_annotation_is_accepted_exactly_when_the_reader_accepts_it(api: httpx.Client, row: Row) -> None:
    def is_accepted(text: str) -> bool:
        return create(api, function(annotations={PREFIX + row.key: text})).status_code == 201

    assert disagreements(row.kind, is_accepted) == []


@pytest.mark.parametrize("row", SPEC, ids=lambda row: row.key)
def test_a_value_of_spec_is_accepted_exactly_when_the_reader_accepts_it(api: httpx.Client, row: Row) -> None:
    def is_accepted(text: str) -> bool:
        section, dot, key = row.key.partition(".")
        value = as_yaml(row.kind, text)
        spec = {"server": {"model": "/m.onnx"}, section: {key: value} if dot else value}
        return create(api, function(spec)).status_code == 201

    assert disagreements(row.kind, is_accepted) == []


def as_yaml(kind: Kind, text: str) -> object:
    """As a person writes it: numbers without quotes where they are numbers."""
    inner = kind.kind if isinstance(kind, WordOr) else kind
    if isinstance(inner, YesNo) and text in ("true", "false"):
        return text == "true"
    is_text = isinstance(inner, Text | Duration | WholeSeconds | Choice)
    return int(text) if not is_text and text.isascii() and text.isdigit() and str(int(text)) == text else text


def disagreements(kind: Kind, is_accepted: Any) -> list[str]:
    """Texts on which the API server and the reader differ, but for those that only the reader can refuse."""
    lenient = condition(kind, "x") is None or isinstance(kind, RisingPercents)

    def may_be_accepted(text: str) -> bool:
        return lenient or (isinstance(kind, Size) and "." in text)  # a part of a byte

    found = [text for text in TEXTS if is_accepted(text) != accepts(kind, text)]
    return [text for text in found if not (may_be_accepted(text) and is_accepted(text))]


def test_a_revision_never_changes(api: httpx.Client) -> None:
    revision = {
        "apiVersion": "tidegate.dev/v1alpha1",
        "kind": "FunctionRevision",
        "metadata": {"name": "resnet-00001"},
        "spec": {"function": "resnet", "number": 1, "template": {"server": {"image": "a"}, "concurrency": 4}},
    }
    made = api.post(f"{HERE}/functionrevisions", json=revision, params={"fieldValidation": "Strict"})
    assert made.status_code == 201, made.text
    assert made.json()["spec"] == revision["spec"], "nothing of the template is pruned"
    changed = made.json() | {"spec": revision["spec"] | {"number": 2}}  # type: ignore[operator]  # it is a dict
    reply = api.put(f"{HERE}/functionrevisions/resnet-00001", json=changed)
    assert "a revision never changes" in reply.json()["message"]


def test_a_group_is_scaled_by_its_subresource_and_a_deposed_writer_is_refused(api: httpx.Client) -> None:
    scale = {
        "apiVersion": "tidegate.dev/v1alpha1",
        "kind": "FunctionScale",
        "metadata": {"name": "resnet-00001-t4"},
        "spec": {"function": "resnet", "revision": "resnet-00001", "group": "t4", "epoch": 7},
    }
    path = f"{HERE}/functionscales"
    assert api.post(path, json=scale).json()["spec"]["replicas"] == 0
    patch = {"content-type": "application/merge-patch+json"}
    seen = api.get(f"{path}/resnet-00001-t4/scale").json()
    assert (seen["kind"], seen["spec"].get("replicas", 0)) == ("Scale", 0)
    reply = api.patch(f"{path}/resnet-00001-t4/scale", json={"spec": {"replicas": 3}}, headers=patch)
    assert reply.json()["spec"]["replicas"] == 3
    assert api.get(f"{path}/resnet-00001-t4").json()["spec"]["replicas"] == 3
    reply = api.patch(f"{path}/resnet-00001-t4", json={"spec": {"replicas": 9, "epoch": 6}}, headers=patch)
    assert "written by a controller that no longer leads" in reply.json()["message"]
    reply = api.patch(f"{path}/resnet-00001-t4", json={"spec": {"group": "v100"}}, headers=patch)
    assert "group never changes" in reply.json()["message"]
