"""A function written back as a whole manifest, with everything that was filled in: what `tidegate deploy` shows."""

from collections.abc import Collection
from typing import Any, Final

from tidegate.annotations import ANNOTATIONS, PARAMETER_PREFIX, PREFIX
from tidegate.function import Function, ServerKind
from tidegate.spec import API_VERSION, KIND, SPEC
from tidegate.table import Row, reach

_SPEC_LANDS: Final = frozenset(row.lands for row in SPEC)


def effective(function: Function) -> dict[str, Any]:
    """The manifest that says all of ``function`` in full; reading it gives the same function.

    Values of secrets are never in it, only the paths of their files. A container image with a command of its own
    (from a Knative manifest) has no form in a manifest; it is shown as both.
    """
    annotations = {PREFIX + row.key: _written(row, function) for row in ANNOTATIONS if row.lands not in _SPEC_LANDS}
    for name, text in function.scaling.parameters.items():
        annotations[f"{PREFIX}{PARAMETER_PREFIX}{name}"] = text
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": function.name, "annotations": annotations},
        "spec": _spec(function),
    }


def filled_in(function: Function, written: Collection[str]) -> dict[str, str]:
    """What holds without having been written: key to text, where it says anything.

    ``written``: the fields that were, as :class:`tidegate.manifest.Parsed` has them.
    """
    found = {row.key: (row, reach(function, row.lands)) for row in ANNOTATIONS if row.lands not in written}
    return {key: row.kind.write(value) for key, (row, value) in found.items() if value is not None and value != ""}


def _spec(function: Function) -> dict[str, Any]:
    spec: dict[str, Any] = {"server": _server(function), "models": list(function.models)}
    for row in SPEC:
        if row.lands.startswith("metrics.") and function.metrics is None:
            continue
        value = reach(function, row.lands)
        if value is None and row.default is None and not row.lands.startswith("readiness."):
            continue
        section, dot, key = row.key.partition(".")
        place = spec.setdefault(section, {}) if dot else spec
        place[key if dot else section] = "" if value is None and row.default is None else row.kind.write(value)
    if function.server.kind in (ServerKind.COMMAND, ServerKind.IMAGE):
        del spec["batching"]
    optional = {
        "socket": function.socket,
        "warmup": function.warmup,
        "accelerators": list(function.accelerators),
        "env": dict(function.env),
        "secrets": dict(function.secrets),
        "workdir": function.workdir,
        "python": function.python,
    }
    return spec | {key: value for key, value in optional.items() if value}


def _server(function: Function) -> dict[str, Any]:
    server = function.server
    if server.kind is ServerKind.COMMAND:
        return {"command": list(server.argv)}
    shown: dict[str, Any] = {server.kind.value: server.target}
    return shown | ({"command": list(server.argv)} if server.argv else {})


def _written(row: Row, function: Function) -> str:
    return row.kind.write(reach(function, row.lands))
