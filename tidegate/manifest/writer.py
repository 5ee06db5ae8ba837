"""Writes a function back as the text of a manifest: the reverse of ``tidegate.manifest.reader``.

The text holds what differs from the defaults, in the order of the tables, with absolute paths. Read again it is the
same function, whatever the text that it came from looked like (flags, relative paths, Knative's annotations): two
functions are equal if their texts are. One thing is lost: a Knative Service may name a GPU without saying which model
of the repository it serves and how much memory that needs. A Function manifest must, and its reader asks for both.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from tidegate.function import Function, Server, ServerKind
from tidegate.manifest.access import ACCESS_ROWS, JWT_ROWS
from tidegate.manifest.annotations import ANNOTATIONS, PARAMETER_PREFIX, PREFIX
from tidegate.manifest.formats import by_suffix
from tidegate.manifest.pipeline import BODY_BYTES, PIPELINE_ANNOTATIONS, PIPELINE_KIND
from tidegate.manifest.routing import GroupWeights
from tidegate.manifest.spec import API_VERSION, DEFAULT_READINESS, KIND, SPEC
from tidegate.records.pipeline import CHAIN, Stage
from tidegate.records.route_table import Hedging, RouteMatch
from tidegate.records.tenants import AccessRule, JwtRule
from tidegate.schema.rows import Duration, Kind, Row, Size, WholeSeconds, WordOr, reach
from tidegate.schema.units import plain, show_duration, show_size
from tidegate.schema.yaml_nodes import dump

_DEFAULTS: Final = Function(name="default", server=Server(kind=ServerKind.COMMAND))
_SPECIAL: Final = {"user_metrics", "scaling.policy", "scaling.initial_scale", "readiness.path"}
"""Fields whose default depends on others; metrics are one value."""


def write(function: Function) -> str:
    """Returns the manifest of a function. Copies of its files are not part of it."""
    if function.is_pipeline:
        return _pipeline(function)
    spec: dict[str, Any] = {"server": _server(function.server)}
    fields = {row.field for row in ANNOTATIONS}
    for row in SPEC:
        if row.field not in fields and row.field not in _SPECIAL and not row.field.startswith("metrics."):
            _put(spec, row, function)
    if function.readiness.path != DEFAULT_READINESS[function.protocol]:
        spec.setdefault("readiness", {})["path"] = function.readiness.path or ""
    for key in ("socket", "warmup", "python"):
        if getattr(function, key) is not None:
            spec[key] = getattr(function, key)
    spec["workdir"] = function.workdir
    if function.models != (function.name,):
        spec["models"] = list(function.models)
    if function.accelerators:
        spec["accelerators"] = list(function.accelerators)
    if function.metrics is not None:
        port = {} if function.metrics.port is None else {"port": function.metrics.port}
        spec["metrics"] = {"path": function.metrics.path, **port}
    for key, pairs in (("args", function.args), ("env", function.env), ("secrets", function.secrets)):
        if pairs:
            spec[key] = dict(pairs)
    if function.routing.matches:
        spec["match"] = [_match(each) for each in function.routing.matches]
    if function.access is not None:
        spec["access"] = _access(function.access)
    metadata = {"name": function.name, "annotations": _annotations(function)}
    return dump({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec})


def _pipeline(function: Function) -> str:
    spec: dict[str, Any] = {"stages": [_stage(each) for each in function.server.stages]}
    if function.body_bytes != BODY_BYTES:
        spec["limits"] = {"body-bytes": show_size(function.body_bytes)}
    if function.routing.matches:
        spec["match"] = [_match(each) for each in function.routing.matches]
    if function.access is not None:
        spec["access"] = _access(function.access)
    found = {
        PREFIX + row.key: text_of(row.kind, reach(function, row.field))
        for row in PIPELINE_ANNOTATIONS
        if reach(function, row.field) != reach(_DEFAULTS, row.field)
    }
    for key, text in function.scaling.parameters.items():
        found[f"{PREFIX}{PARAMETER_PREFIX}{key}"] = text
    metadata = {"name": function.name, **({"annotations": found} if found else {})}
    return dump({"apiVersion": API_VERSION, "kind": PIPELINE_KIND, "metadata": metadata, "spec": spec})


def _stage(stage: Stage) -> dict[str, Any]:
    found: dict[str, Any] = {"function": stage.function}
    if stage.path is not None:
        found["path"] = stage.path
    if stage.inputs:
        found["inputs"] = dict(stage.inputs)
    if stage.after != CHAIN:
        found["after"] = stage.after[0] if len(stage.after) == 1 else list(stage.after)
    if stage.when is not None:
        values = stage.when.values
        found["when"] = {"field": stage.when.field, stage.when.test.value: values[0] if len(values) == 1 else [*values]}
    if stage.profile is not None:
        found["profile"] = stage.profile
    return found


def _annotations(function: Function) -> dict[str, str]:
    found = {}
    for row in ANNOTATIONS:
        value = reach(function, row.field)
        default = reach(_DEFAULTS, row.field)
        if row.field == "scaling.initial_scale":
            default = max(1, function.scaling.min_scale)
        if row.field == "scaling.policy" or (value != default and row.field != "user_metrics"):
            found[PREFIX + row.key] = text_of(row.kind, value)
    for key, text in function.scaling.parameters.items():
        found[f"{PREFIX}{PARAMETER_PREFIX}{key}"] = text
    return found


def _put(spec: dict[str, Any], row: Row, function: Function) -> None:
    value = reach(function, row.field)
    if value == reach(_DEFAULTS, row.field):
        return
    section, dot, key = row.key.partition(".")
    target = spec.setdefault(section, {}) if dot else spec
    target[key if dot else section] = _scalar(row.kind, value)


def _scalar(kind: Kind, value: Any) -> Any:
    """Returns a value of ``spec``: numbers stay numbers there."""
    return value if type(value) is int and not isinstance(kind, Size) else text_of(kind, value)


def text_of(kind: Kind, value: Any) -> str:
    """Returns the text that ``kind`` reads back as ``value``. Raises ValueError if there is none."""
    text = _text(kind, value)
    if kind.read(text) != value:
        raise ValueError(f"{value!r} written as {text!r} is read as {kind.read(text)!r}")
    return text


def _text(kind: Kind, value: Any) -> str:
    if isinstance(kind, GroupWeights):
        return "learnt" if value is None else _weights(value)
    if isinstance(kind, WordOr):
        return kind.word if value is None else _text(kind.kind, value)
    if isinstance(kind, Duration | WholeSeconds):
        return show_duration(value)
    if isinstance(kind, Size):
        return show_size(value)
    if isinstance(value, Hedging):
        return show_duration(value.after_s or 0.0) if value.percentile is None else f"p{plain(value.percentile)}"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return plain(value)
    if isinstance(value, tuple):
        return ",".join(plain(each) for each in value) or "none"
    return str(value)


def _weights(value: Mapping[str, float]) -> str:
    return ",".join(f"{name}={plain(weight)}" for name, weight in value.items()) or "equal"


def _server(server: Server) -> dict[str, Any]:
    if server.kind is ServerKind.COMMAND:
        return {"command": list(server.argv)}
    written: dict[str, Any] = {server.kind.value: server.target}
    if server.kind is ServerKind.MODEL and not server.forms and by_suffix(server.target) is not server.format:
        written["format"] = server.format.value
    return written


def _match(match: RouteMatch) -> dict[str, Any]:
    headers = {each.name: each.value for each in match.headers}
    given = {"host": match.host, "path-prefix": match.path_prefix, "headers": headers or None}
    return {key: value for key, value in given.items() if value is not None}


def _access(rule: AccessRule) -> dict[str, Any]:
    found = {row.key: reach(rule, row.field) for row in ACCESS_ROWS}
    return found if rule.jwt is None else {**found, "jwt": _jwt(rule.jwt)}


def _jwt(rule: JwtRule) -> dict[str, Any]:
    found: dict[str, Any] = {
        row.key: text_of(row.kind, reach(rule, row.field)) for row in JWT_ROWS if reach(rule, row.field) is not None
    }
    return {
        **found,
        "audience": list(rule.audience),
        "algorithms": [str(each) for each in rule.algorithms],
        "jwks": rule.jwks,
    }
