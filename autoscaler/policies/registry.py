"""The registry of policies: one row each. An unknown name is an error that lists the known ones."""

from tidegate.autoscaler.policies import hpa
from tidegate.autoscaler.policies.contract import Policy, PolicyRow
from tidegate.autoscaler.policies.kpa import policy as kpa
from tidegate.autoscaler.policies.smif import policy as smif
from tidegate.errors import Fault, InvalidInputError
from tidegate.function import Function

REGISTRY: dict[str, PolicyRow] = {row.name: row for row in (kpa.ROW, hpa.ROW, smif.ROW)}


def names() -> tuple[str, ...]:
    """Returns the known policies, sorted."""
    return tuple(sorted(REGISTRY))


def row(name: str) -> PolicyRow:
    """Returns the row of a policy; raises InvalidInputError that lists the known names."""
    found = REGISTRY.get(name)
    if found is None:
        raise InvalidInputError("policy", [Fault("policy", repr(name), "one of " + ", ".join(names()))])
    return found


def build(function: Function, now: float, ready: int) -> Policy:
    """Returns a new policy for one revision of ``function`` that has ``ready`` replicas at ``now``."""
    return row(function.scaling.policy).build(function, now, ready)
