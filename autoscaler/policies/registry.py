"""The registry of policies: one row each. An unknown name is an error that lists the known ones."""

from tidegate.autoscaler.policies import hpa, k8s_baseline
from tidegate.autoscaler.policies.contract import Policy, PolicyRow
from tidegate.autoscaler.policies.hetsev import policy as hetsev
from tidegate.autoscaler.policies.kpa import policy as kpa
from tidegate.autoscaler.policies.oltunes import policy as oltunes
from tidegate.autoscaler.policies.oltunes import rivals
from tidegate.autoscaler.policies.smif import policy as smif
from tidegate.autoscaler.policies.themis import policy as themis
from tidegate.autoscaler.policies.tide import policy as tide
from tidegate.errors import Fault, InvalidInputError
from tidegate.function import Function

REGISTRY: dict[str, PolicyRow] = {
    row.name: row
    for row in (
        kpa.ROW,
        hpa.ROW,
        smif.ROW,
        tide.ROW,
        *themis.ROWS,
        hetsev.GREEDY,
        hetsev.EXACT,
        k8s_baseline.ROW,
        oltunes.ROW,
        rivals.ORION,
        rivals.RESERVE_AND_PACK,
    )
}


def names() -> tuple[str, ...]:
    """Returns the known policies, sorted."""
    return tuple(sorted(REGISTRY))


def by_size() -> frozenset[str]:
    """Returns the policies that read arrivals and service times by batch size."""
    return frozenset(name for name, each in REGISTRY.items() if each.is_by_size)


def by_cores() -> frozenset[str]:
    """Returns the policies that order cores."""
    return frozenset(name for name, each in REGISTRY.items() if each.scales_cores)


def row(name: str) -> PolicyRow:
    """Returns the row of a policy; raises InvalidInputError that lists the known names."""
    found = REGISTRY.get(name)
    if found is None:
        raise InvalidInputError("policy", [Fault("policy", repr(name), "one of " + ", ".join(names()))])
    return found


def build(function: Function, now: float, ready: int) -> Policy:
    """Returns a new policy for one revision of ``function`` that has ``ready`` replicas at ``now``."""
    return row(function.scaling.policy).build(function, now, ready)
