"""Changes to a function for a replay: another policy, other parameters, another target."""

from collections.abc import Sequence
from typing import Final

from tidegate.autoscaler.policies import registry
from tidegate.errors import Fault, InvalidInputError
from tidegate.function import Function, Server, ServerKind
from tidegate.manifest.annotations import ANNOTATION, PARAMETER_PREFIX, PARAMETERS, PREFIX
from tidegate.manifest.builder import SLA_POLICIES
from tidegate.schema.rows import Row, allowed_for, assemble, by_spelling

READ_BY_POLICIES: Final = ("scaling.", "sla.", "concurrency", "gpu.core_percentage")
"""Prefixes of the fields that a policy or the limits read."""


def changed(function: Function, policy: str | None, given: Sequence[str]) -> Function:
    """Returns ``function`` under ``policy`` (default: its own) with the settings of ``given``, each ``KEY=VALUE``: a
    key of the annotations (``latency``, ``max-scale``), or ``policy.NAME`` for a parameter of the policy. Parameters of
    another policy than its own are not taken over. Raises InvalidInputError with all faults."""
    faults: list[Fault] = []
    name = function.scaling.policy if policy is None else policy
    is_known = name in registry.names()
    if not is_known:
        faults.append(Fault("--policy", repr(name), "one of " + ", ".join(registry.names())))
    parameters = dict(function.scaling.parameters) if name == function.scaling.policy else {}
    rows, values = by_spelling(PARAMETERS.get(name, ())), dict[str, object]()
    for text in given:
        key, equals, value = text.partition("=")
        key, value = key.strip().removeprefix(PREFIX), value.strip()
        if not equals:
            faults.append(Fault("--set", repr(text), "KEY=VALUE"))
        elif key.startswith(PARAMETER_PREFIX):
            if not is_known:
                continue  # of an unknown policy
            row = rows.get(key.removeprefix(PARAMETER_PREFIX))
            if _accepts(row, key, value, _known(rows, PARAMETER_PREFIX), faults):
                assert row is not None
                parameters[row.key] = value
        else:
            row = _read_by_policies().get(key)
            if _accepts(row, key, value, _known(_read_by_policies(), ""), faults):
                assert row is not None
                values[row.field] = row.kind.read(value)
    if faults:
        raise InvalidInputError("replay", faults)
    result = assemble(function, values | {"scaling.policy": name, "scaling.parameters": parameters})
    _check(result)
    return result


def _read_by_policies() -> dict[str, Row]:
    left_out = ("policy", "dry-run", "min-scale-windows")  # windows of time are in the observations
    return {
        key: row
        for key, row in ANNOTATION.items()
        if row.key not in left_out and row.field.startswith(READ_BY_POLICIES)
    }


def _known(rows: dict[str, Row], prefix: str) -> str:
    return ", ".join(sorted({prefix + row.key for row in rows.values()}))


def _accepts(row: Row | None, key: str, value: str, known: str, faults: list[Fault]) -> bool:
    if row is None:
        faults.append(Fault(f"--set {key}", repr(value), f"one of {known}"))
    elif not row.accepts(value):
        faults.append(Fault(f"--set {key}", repr(value), allowed_for(row.kind, value)))
    else:
        return True
    return False


def _check(function: Function) -> None:
    scaling, faults = function.scaling, list[Fault]()
    if scaling.policy in SLA_POLICIES and function.sla.latency_s is None:
        faults.append(
            Fault("--policy", scaling.policy, "another policy, unless a latency is given (--set latency=200ms)")
        )
    if 0 < scaling.max_scale < scaling.min_scale:
        faults.append(
            Fault("--set min-scale", str(scaling.min_scale), f"at most max-scale, which is {scaling.max_scale}")
        )
    if faults:
        raise InvalidInputError("replay", faults)


def unrecorded(policy: str | None, given: Sequence[str]) -> Function:
    """Returns the function behind a trace without a header: all defaults except ``given``. Without a policy it has the
    one that a deployed function would have."""
    start = Function(name="trace", server=Server(kind=ServerKind.COMMAND), models=("trace",))
    if policy is None:
        has_latency = any(text.partition("=")[0].strip().removeprefix(PREFIX) == "latency" for text in given)
        policy = SLA_POLICIES[0] if has_latency else start.scaling.policy
    return changed(start, policy, given)
