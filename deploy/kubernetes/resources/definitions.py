"""The custom resources of a cluster, and the policy that checks what their schemas cannot: annotations.

A user writes ``Function`` and ``Pipeline``; nothing that a controller writes is in their ``spec``. Each revision of a
function is a ``FunctionRevision``, which never changes, and each of its groups a ``FunctionScale``, whose ``scale``
subresource is what ``kubectl scale`` and autoscalers write.
"""

from collections.abc import Iterable
from typing import Any, Final

from tidegate.deploy.kubernetes.resources.conditions import condition, literal
from tidegate.deploy.kubernetes.resources.policies import policy
from tidegate.deploy.kubernetes.resources.schemas import (
    MAX_TEXT,
    Schema,
    function_spec,
    mapping,
    pipeline_spec,
    rule,
    value,
)
from tidegate.manifest.annotations import ANNOTATIONS, PARAMETER_PREFIX, PREFIX
from tidegate.manifest.builder import NAME_KIND
from tidegate.manifest.pipeline import PIPELINE_ANNOTATIONS
from tidegate.manifest.spec import ACCELERATOR, API_VERSION
from tidegate.schema.rows import Row

GROUP, _, VERSION = API_VERSION.partition("/")

Object = dict[str, Any]

_COUNT: Final = {"type": "integer", "format": "int32", "minimum": 0}
_REVISION: Final = {
    "type": "string",
    "maxLength": 63,
    "description": "The revision that was made of this spec.",
}
_URL: Final = {"type": "string", "maxLength": 512}
_REVISION_COLUMN: Final = {"name": "Revision", "type": "string", "jsonPath": ".status.revision"}
_URL_COLUMN: Final = {"name": "URL", "type": "string", "jsonPath": ".status.url"}
_AGE: Final = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
_READY: Final = {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'}
_REASON: Final = {
    "name": "Reason",
    "type": "string",
    "jsonPath": '.status.conditions[?(@.type=="Ready")].reason',
    "priority": 1,
}


def definitions() -> tuple[Object, ...]:
    """Returns the CustomResourceDefinitions."""
    return (_function(), _pipeline(), _revision(), _scale())


def _definition(kind: str, short: list[str], schema: Schema, columns: list[Object], subresources: Object) -> Object:
    plural = f"{kind.lower()}s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{GROUP}",
            "labels": {"app.kubernetes.io/part-of": "tidegate"},
            "annotations": {"helm.sh/resource-policy": "keep"},
        },
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": short,
                "categories": ["tidegate"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "additionalPrinterColumns": columns,
                    "subresources": subresources,
                }
            ],
        },
    }


def _root(spec: Schema, status: dict[str, Schema], description: str, longest: int) -> Schema:
    observed: dict[str, Schema] = {
        "observedGeneration": {"type": "integer", "format": "int64"},
        "observedManifest": {
            "type": "string",
            "maxLength": 64,
            "description": "Hash of the manifest that was brought about: annotations are part of it.",
        },
        "conditions": _conditions(),
    }
    name = f"size(self.metadata.name) <= {longest} && {condition(NAME_KIND, 'self.metadata.name')}"
    return mapping(
        {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": mapping(observed | status),
        },
        required=["spec"],
        rules=[rule(name, f"allowed as name: a DNS label of at most {longest} characters")],
    ) | {"description": description}


def _conditions() -> Schema:
    short = {"type": "string", "maxLength": 64}
    return {
        "type": "array",
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": mapping(
            {
                "type": short,
                "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                "reason": short | {"pattern": "^[A-Za-z](?:[A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
                "message": {"type": "string", "maxLength": 32768},
                "lastTransitionTime": {"type": "string", "format": "date-time"},
                "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
            },
            required=["type", "status", "reason", "message", "lastTransitionTime"],
        ),
    }


def _function() -> Object:
    status = {
        "revision": _REVISION,
        "replicas": _COUNT | {"description": "Replicas wanted, over all groups."},
        "readyReplicas": _COUNT,
        "url": _URL,
    }
    columns: list[Object] = [
        _READY,
        _REVISION_COLUMN,
        {"name": "Wanted", "type": "integer", "jsonPath": ".status.replicas"},
        {"name": "Replicas", "type": "integer", "jsonPath": ".status.readyReplicas"},
        _URL_COLUMN,
        _REASON,
        _AGE,
    ]
    schema = _root(function_spec(), status, "A model server that is scaled by its requests.", 63)
    return _definition("Function", ["fn"], schema, columns, {"status": {}})


def _pipeline() -> Object:
    status = {"revision": _REVISION, "url": _URL}
    schema = _root(pipeline_spec(), status, "Functions that a request runs through.", 63)
    columns: list[Object] = [_READY, _REVISION_COLUMN, _URL_COLUMN, _REASON, _AGE]
    return _definition("Pipeline", ["pl"], schema, columns, {"status": {}})


def _revision() -> Object:
    spec = mapping(
        {
            "function": value(NAME_KIND, "Name of the function.", longest=63),
            "number": {"type": "integer", "format": "int32", "minimum": 1, "description": "Number of the revision."},
            "annotations": {
                "description": "Annotations of the function under tidegate.dev/.",
                "type": "object",
                "maxProperties": 256,
                "additionalProperties": {"type": "string", "maxLength": MAX_TEXT},
            },
            "template": {
                "description": "The function's spec as it was.",
                "type": "object",
                "x-kubernetes-preserve-unknown-fields": True,
            },
        },
        required=["function", "number", "template"],
        rules=[rule("self == oldSelf", "a revision never changes: change the Function, which makes another one")],
    )
    columns = [
        {"name": "Function", "type": "string", "jsonPath": ".spec.function"},
        {"name": "Number", "type": "integer", "jsonPath": ".spec.number"},
        _READY,
        _AGE,
    ]
    schema = _root(spec, {}, "One state of a function's spec, from which replicas are made.", 63)
    found = _definition("FunctionRevision", ["fnrev"], schema, columns, {"status": {}})
    found["spec"]["versions"][0]["selectableFields"] = [{"jsonPath": ".spec.function"}]
    return found


def _scale() -> Object:
    name = {"type": "string", "minLength": 1, "maxLength": 63}
    fixed = [
        rule(f"self.{field} == oldSelf.{field}", f"{field} never changes: a group of another {what} is another object")
        for field, what in (("revision", "revision"), ("group", "accelerator"))
    ]
    spec = mapping(
        {
            "function": name | {"description": "Name of the function."},
            "revision": name | {"description": "Name of the FunctionRevision."},
            "group": value(ACCELERATOR, "Accelerator of the group.", longest=63),
            "replicas": _COUNT | {"default": 0, "description": "Replicas wanted."},
            "weight": _COUNT
            | {"maximum": 1_000_000, "description": "Share of the revision's requests, relative to other groups."},
            "epoch": {
                "type": "integer",
                "format": "int64",
                "minimum": 0,
                "description": "Epoch of the last writer of replicas and weight; a smaller one is refused.",
            },
        },
        required=["function", "revision", "group"],
        rules=[
            *fixed,
            rule(
                "!has(oldSelf.epoch) || (has(self.epoch) && self.epoch >= oldSelf.epoch)",
                "written by a controller that no longer leads: its epoch is smaller than that of the last writer",
            ),
        ],
    )
    status = {
        "replicas": _COUNT,
        "readyReplicas": _COUNT,
        "selector": {"type": "string", "maxLength": 1024, "description": "Selector of the group's Pods."},
    }
    columns = [
        {"name": "Function", "type": "string", "jsonPath": ".spec.function"},
        {"name": "Group", "type": "string", "jsonPath": ".spec.group"},
        {"name": "Wanted", "type": "integer", "jsonPath": ".spec.replicas"},
        {"name": "Replicas", "type": "integer", "jsonPath": ".status.readyReplicas"},
        {"name": "Weight", "type": "integer", "jsonPath": ".spec.weight"},
        _AGE,
    ]
    schema = _root(spec, status, "Replicas of one revision on one kind of accelerator.", 63)
    scale = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    found = _definition("FunctionScale", ["fnscale"], schema, columns, {"status": {}, "scale": scale})
    found["spec"]["versions"][0]["selectableFields"] = [
        {"jsonPath": f".spec.{key}"} for key in ("function", "revision")
    ]
    return found


# --- annotations -----------------------------------------------------------------------------------------------------


def policies() -> tuple[Object, ...]:
    """Returns the ValidatingAdmissionPolicies over annotations, each with its binding."""
    found: list[Object] = []
    for kind, table in (("functions", ANNOTATIONS), ("pipelines", PIPELINE_ANNOTATIONS)):
        rules = [{"apiGroups": [GROUP], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], "resources": [kind]}]
        spec = {
            "matchConstraints": {"resourceRules": rules},
            "variables": [{"name": "given", "expression": "object.metadata.?annotations.orValue({})"}],
            "validations": [_known(table), *(each for row in table for each in _stated(row))],
        }
        found += policy(f"{kind}.{GROUP}", spec)
    return tuple(found)


def _known(table: Iterable[Row]) -> Object:
    """Returns the rule that each annotation under our prefix is known."""
    known = ", ".join(literal(PREFIX + spelling) for row in table for spelling in row.spellings)
    unknown = (
        f"variables.given.filter(key, key.startsWith('{PREFIX}') && !key.startsWith('{PREFIX}{PARAMETER_PREFIX}')"
        f" && !(key in [{known}]))"
    )
    return {
        "expression": f"size({unknown}) == 0",
        "messageExpression": f"'metadata.annotations: unknown: ' + {unknown}.join(', ')",
        "reason": "Invalid",
    }


def _stated(row: Row) -> Iterable[Object]:
    for spelling in row.spellings:
        key = literal(PREFIX + spelling)
        checked = condition(row.kind, f"variables.given[{key}]")
        if checked is not None:
            yield {
                "expression": f"!({key} in variables.given) || ({checked})",
                "message": f"metadata.annotations.{PREFIX}{spelling}: allowed: {row.kind.allowed}",
                "reason": "Invalid",
            }
