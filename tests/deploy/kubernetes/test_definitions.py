"""The custom resources as data. What an API server makes of them: tests/live/test_kubernetes_resources.py."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidegate.deploy.kubernetes.resources.conditions import condition
from tidegate.deploy.kubernetes.resources.definitions import definitions, policies
from tidegate.deploy.kubernetes.resources.main import files
from tidegate.deploy.kubernetes.resources.schemas import function_spec
from tidegate.manifest.annotations import ANNOTATIONS, PREFIX
from tidegate.manifest.spec import SPEC
from tidegate.schema.rows import Row

ROOT = Path(__file__).resolve().parents[3]
KINDS = ("Function", "Pipeline", "FunctionRevision", "FunctionScale")
UNCHECKED = {"min-scale-windows"}
"""Annotations whose texts CEL cannot judge."""


def version(definition: dict[str, Any]) -> dict[str, Any]:
    (found,) = definition["spec"]["versions"]
    assert isinstance(found, dict)
    return found


def schemas(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from schemas(inner, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from schemas(schema[key], f"{path}.{key}")


def test_the_files_are_those_that_the_tables_give() -> None:
    """``make docs`` writes them."""
    folder = ROOT / "deploy" / "kubernetes" / "chart" / "resources"
    assert {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()} == files()


def test_each_kind_has_a_status_columns_and_conditions() -> None:
    assert tuple(each["spec"]["names"]["kind"] for each in definitions()) == KINDS
    for each in definitions():
        found = version(each)
        assert "status" in found["subresources"]
        assert found["additionalPrinterColumns"]
        conditions = found["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["conditions"]
        assert conditions["x-kubernetes-list-map-keys"] == ["type"]


def test_the_scale_subresource_finds_its_fields() -> None:
    """Without ``.spec.replicas`` on an object ``GET /scale`` fails, so that it has a default."""
    found = version(definitions()[3])
    assert found["subresources"]["scale"]["specReplicasPath"] == ".spec.replicas"
    root = found["schema"]["openAPIV3Schema"]["properties"]
    assert root["spec"]["properties"]["replicas"]["default"] == 0
    assert {"replicas", "selector"} <= root["status"]["properties"].keys()


def test_every_text_and_list_is_bounded() -> None:
    """The API server refuses rules whose cost it cannot bound."""
    for definition in definitions():
        for path, schema in schemas(version(definition)["schema"]["openAPIV3Schema"]):
            if path in (".apiVersion", ".kind", ".metadata") or schema.get("format") == "date-time":
                continue
            if schema.get("type") == "string" or schema.get("x-kubernetes-int-or-string"):
                assert "maxLength" in schema or "enum" in schema, path
            if schema.get("type") == "array":
                assert "maxItems" in schema, path
            if isinstance(schema.get("additionalProperties"), dict):
                assert "maxProperties" in schema, path


def test_every_message_fits_on_a_line() -> None:
    for definition in definitions():
        for path, schema in schemas(version(definition)["schema"]["openAPIV3Schema"]):
            for rule in schema.get("x-kubernetes-validations", ()):
                assert "\n" not in rule["message"], path
                assert len(rule["message"]) <= 2048, path


@pytest.mark.parametrize("row", SPEC, ids=lambda row: row.key)
def test_every_value_of_spec_has_its_place(row: Row) -> None:
    section, dot, key = row.key.partition(".")
    properties = function_spec()["properties"]
    found = properties[section]["properties"][key] if dot else properties[section]
    assert found["description"] == row.description


def test_nothing_that_a_controller_writes_is_in_the_spec_of_a_function() -> None:
    assert "replicas" not in function_spec()["properties"]


def test_each_spelling_of_an_annotation_is_checked() -> None:
    policy = policies()[0]
    said = {each.get("message", "").partition(": ")[0] for each in policy["spec"]["validations"]}
    for row in ANNOTATIONS:
        expected = set() if row.key in UNCHECKED else {f"metadata.annotations.{PREFIX}{each}" for each in row.spellings}
        assert {f"metadata.annotations.{PREFIX}{each}" for each in row.spellings} & said == expected


def test_the_annotations_that_are_not_checked_are_known() -> None:
    assert {row.key for row in ANNOTATIONS if condition(row.kind, "x") is None} == UNCHECKED
    assert {row.key for row in SPEC if condition(row.kind, "x") is None} == set()
