"""Manifests as custom resources: as they are written, with the types of the schemas."""

import pytest

from tidegate.deploy.kubernetes.resources.objects import objects_of
from tidegate.deploy.kubernetes.resources.states import manifest_of
from tidegate.errors import InvalidInputError
from tidegate.manifest.reader import parse
from tidegate.schema.files import Elsewhere

FUNCTION = """\
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata:
  name: resnet
  annotations: {tidegate.dev/min-scale: 1}
spec:
  server: {command: [serve, --port, "{port}", --level, 2]}
  port: 9000
  concurrency: auto
  retry-budget: 2.5
  env: {ONE: 1, TWO: "2", YES: true}
"""


def converted(text: str, **flags: str) -> list[dict[str, object]]:
    given = {key.replace("__", ".").replace("_", "-"): value for key, value in flags.items()}
    return list(objects_of(text, source="s", policies=["kpa", "smif"], flags=given).objects)


def test_a_function_stays_as_it_is_written() -> None:
    (found,) = converted(FUNCTION)
    assert found == {
        "apiVersion": "tidegate.dev/v1alpha1",
        "kind": "Function",
        "metadata": {"name": "resnet", "annotations": {"tidegate.dev/min-scale": "1"}},
        "spec": {
            "server": {"command": ["serve", "--port", "{port}", "--level", 2]},
            "port": 9000,
            "concurrency": "auto",
            "retry-budget": "2.5",
            "env": {"ONE": 1, "TWO": "2", "YES": "true"},
        },
    }


def test_it_is_read_back_as_the_same_function() -> None:
    (found,) = converted(FUNCTION)
    settings = {"source": "s", "base": "/", "policies": ["kpa", "smif"], "images": True, "files": Elsewhere()}
    assert parse(manifest_of(found), **settings) == parse(FUNCTION, **settings)  # type: ignore[arg-type]


def test_flags_are_annotations_and_keys_of_spec() -> None:
    (found,) = converted(FUNCTION, min_scale="2", spec__env__THREE="3", spec__accelerators="t4, v100")
    assert found["metadata"]["annotations"] == {"tidegate.dev/min-scale": "2"}  # type: ignore[index]
    assert found["spec"]["env"]["THREE"] == "3"  # type: ignore[index]
    assert found["spec"]["accelerators"] == ["t4", "v100"]  # type: ignore[index]


def test_a_service_of_knative_becomes_a_function() -> None:
    text = """\
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: hello}
spec: {template: {spec: {containers: [{image: r/hello:1, command: [x], args: [a]}]}}}
"""
    with pytest.raises(InvalidInputError, match="hello: command and args: got x a; allowed: an image that starts"):
        converted(text)
    (found,) = converted(text.replace(", command: [x], args: [a]", ""))
    assert found["kind"] == "Function"
    assert found["spec"]["server"] == {"image": "r/hello:1"}  # type: ignore[index]


def test_every_fault_is_reported_with_its_line() -> None:
    with pytest.raises(InvalidInputError) as caught:
        converted(FUNCTION.replace("port: 9000", "port: high").replace("min-scale: 1", "min-scale: x"))
    assert [each.line for each in caught.value.faults] == [5, 8]
