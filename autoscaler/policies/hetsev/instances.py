"""Instance types: replicas of one model on one kind of device, as the choice among them sees them.

Rates of arrival and throughput have one unit, inferences per second.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

TIE: Final = 1e-9
"""A computed figure this near to its limit counts as equal to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceType:
    """One type. Costs per unit of time."""

    cost: float
    """Cost of one running instance."""
    launch_s: float = 0.0
    """Time from the launch to ready."""
    throughput_ips: float | None
    """Maximum throughput of one instance; None if unknown. An unknown one counts as 0 and is not launched."""
    running: int = 0
    latency_s: float | None
    """Inference latency as profiled; None if unknown: then it is not launched."""
    needs: Mapping[str, float] = field(default_factory=dict)
    """Amount of each resource that one instance takes."""

    def may_launch(self, slo_s: float) -> bool:
        """Returns whether new instances may be of this type."""
        is_known = self.latency_s is not None and (self.throughput_ips or 0.0) > TIE
        return is_known and (self.latency_s or 0.0) <= slo_s + TIE

    def launch_cost(self, weight: float) -> float:
        """Returns the cost of one new instance, its launch included. ``weight``: of unpredictability, per second."""
        return self.cost * (1.0 + weight * self.launch_s)


def capacity_ips(types: Sequence[InstanceType]) -> float:
    """Returns the throughput of all running instances."""
    return math.fsum((each.throughput_ips or 0.0) * each.running for each in types)


def ceil(value: float) -> int:
    """Rounds up, but binary noise adds no instance."""
    return math.ceil(value - TIE)


def floor(value: float) -> int:
    """Rounds down, but binary noise takes none."""
    return math.floor(value + TIE)
