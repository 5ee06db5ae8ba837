"""A manifest's text as custom resources, for ``tidegate deploy --context``: what ``kubectl apply`` would send.

The text is read as for a deploy first, so that all its faults are reported with their lines. A Function or Pipeline
then stays as it is written; a Knative Service or a KServe InferenceService becomes the Function that it is read as.
Values get the types of the schemas: the text of an annotation and a number with a fraction are quoted.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from tidegate.deploy.kubernetes.resources.schemas import Schema, function_spec, pipeline_spec
from tidegate.errors import Fault, InvalidInputError
from tidegate.function import Function, ServerKind
from tidegate.manifest.annotations import PREFIX
from tidegate.manifest.builder import SPEC_FLAG, Note, ParseContext
from tidegate.manifest.pipeline import PIPELINE_KIND
from tidegate.manifest.reader import read
from tidegate.manifest.spec import API_VERSION, KIND
from tidegate.manifest.writer import write
from tidegate.schema.files import Elsewhere
from tidegate.schema.units import yes_or_no
from tidegate.schema.yaml_nodes import Faults, ListNode, MapNode, Node, Scalar, load

Object = dict[str, Any]

PLURALS: Final = {KIND: "functions", PIPELINE_KIND: "pipelines"}
_WHOLE: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,17})?")


@dataclass(frozen=True, slots=True)
class Converted:
    """The resources of a text, in its order, and what was noted about its keys."""

    objects: tuple[Object, ...]
    functions: tuple[Function, ...]
    """What each of them is read as."""
    warnings: tuple[Note, ...]


def objects_of(
    text: str, *, source: str, policies: Collection[str], flags: Mapping[str, str] | None = None
) -> Converted:
    """Returns the custom resources of a manifest. Raises InvalidInputError with every fault.

    ``flags`` are those of :class:`tidegate.manifest.builder.ParseContext`. Files are those of the cluster's image:
    whether they exist is not checked.
    """
    given = dict(flags or {})
    context = ParseContext(base="/", policies=policies, images=True, files=Elsewhere(), flags=given)
    parsed = read(text, source=source, context=context)
    documents = load(text, Faults(source))
    started = [each for each in parsed.functions if each.server.kind is ServerKind.IMAGE and each.server.argv]
    if started:
        allowed = "an image that starts by itself: a Function has no command or arguments beside an image"
        raise InvalidInputError(
            source, [Fault(f"{each.name}: command and args", " ".join(each.server.argv), allowed) for each in started]
        )
    pairs = zip(documents, parsed.functions, strict=True)
    return Converted(
        tuple(_object(document, function, given) for document, function in pairs), parsed.functions, parsed.warnings
    )


def _object(document: Node, function: Function, flags: Mapping[str, str]) -> Object:
    assert isinstance(document, MapNode)
    if _text(document, "apiVersion") != API_VERSION:
        converted: Object = yaml.safe_load(write(function))
        return converted
    kind = _text(document, "kind")
    spec = _value(document.get("spec"), pipeline_spec() if kind == PIPELINE_KIND else function_spec())
    metadata = document.get("metadata")
    assert isinstance(metadata, MapNode)
    annotations = metadata.get("annotations")
    given = (
        {pair.key: _plain_text(pair.value) for pair in annotations.pairs} if isinstance(annotations, MapNode) else {}
    )
    for key, text in flags.items():
        if key.startswith(SPEC_FLAG):
            _set(spec, key.removeprefix(SPEC_FLAG), text)
        else:
            given[f"{PREFIX}{key}"] = text
    named = {"name": function.name, **({"annotations": given} if given else {})}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": named, "spec": spec}


def _set(spec: Object, path: str, text: str) -> None:
    """Sets a key of ``spec`` that was given on the command line: ``python``, ``accelerators``, ``env.NAME``."""
    section, dot, name = path.partition(".")
    if dot:
        spec.setdefault(section, {})[name] = text
    else:
        spec[section] = [each.strip() for each in text.split(",")] if section == "accelerators" else text


def _text(node: MapNode, key: str) -> str:
    return _plain_text(node.get(key))


def _plain_text(node: Node | None) -> str:
    return node.text if isinstance(node, Scalar) else ""


def _value(node: Node | None, schema: Schema) -> Any:
    """Returns plain data with the types of a schema; where it has none, as JSON has them."""
    if isinstance(node, MapNode):
        properties, others = schema.get("properties", {}), schema.get("additionalProperties", {})
        return {pair.key: _value(pair.value, properties.get(pair.key, others)) for pair in node.pairs}
    if isinstance(node, ListNode):
        return [_value(each, schema.get("items", {})) for each in node.items]
    if not isinstance(node, Scalar) or node.is_null:
        return None
    kind = schema.get("type")
    if kind == "boolean":
        return yes_or_no(node.text)
    if kind == "integer" or (schema.get("x-kubernetes-int-or-string") and not node.is_quoted):
        return int(node.text) if _WHOLE.fullmatch(node.text) else node.text
    if kind is None and not node.is_quoted and not schema.get("x-kubernetes-int-or-string"):
        return _guessed(node.text)
    return node.text


def _guessed(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text
