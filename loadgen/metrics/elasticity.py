"""Elasticity metrics of the SPEC Cloud Group (Herbst et al. 2013): how well supply follows demand.

Printed as in the thesis on in-flight and utilisation autoscaling (section A3). Demand is the autoscaler's desired
count, supply the ready replicas. An autoscaler that never scales is perfect by that measure, so :func:`workload_demand`
gives the demand of the load itself, to be reported beside it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Point(NamedTuple):
    """Replicas wanted and present from ``at_s`` until the next point."""

    at_s: float
    demand: float
    supply: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Elasticity:
    """The metrics in percent; 0 is best. Over-provisioning accuracy can exceed 100."""

    theta_under: float
    """Under-provisioning accuracy: the mean share of the demand that was missing."""
    theta_over: float
    """Over-provisioning accuracy: the mean surplus as a share of the demand."""
    tau_under: float
    """Under-provisioning timeshare."""
    tau_over: float
    """Over-provisioning timeshare."""

    @property
    def theta(self) -> float:
        return (self.theta_under + self.theta_over) / 2.0

    @property
    def tau(self) -> float:
        return (self.tau_under + self.tau_over) / 2.0


class ElasticityTally:
    """A sum over spans of constant demand and supply, in constant memory."""

    __slots__ = ("_long", "_missing", "_short", "_surplus")

    def __init__(self) -> None:
        self._missing = self._surplus = self._short = self._long = 0.0

    def add(self, demand: float, supply: float, span_s: float) -> None:
        """Adds a span of ``span_s`` >= 0 seconds. Without demand the surplus counts as it is (a denominator of 1)."""
        per = demand if demand > 0.0 else 1.0
        if demand > supply:
            self._missing += (demand - supply) / per * span_s
            self._short += span_s
        elif supply > demand:
            self._surplus += (supply - demand) / per * span_s
            self._long += span_s

    def over(self, duration_s: float) -> Elasticity:
        """Returns the metrics as shares of ``duration_s``. Raises ValueError unless it is positive."""
        if duration_s <= 0.0:
            raise ValueError(f"a duration of {duration_s} s; it must be positive")
        percent = 100.0 / duration_s
        return Elasticity(
            theta_under=self._missing * percent,
            theta_over=self._surplus * percent,
            tau_under=self._short * percent,
            tau_over=self._long * percent,
        )


def elasticity(points: Sequence[Point], duration_s: float) -> Elasticity:
    """Returns the metrics of a step function over ``duration_s``; ``points`` rise in time, the last one holds until the
    end.

    Raises ValueError for a duration that is not positive and for points that fall in time.
    """
    tally = ElasticityTally()
    ends = [point.at_s for point in points[1:]] + [duration_s]
    for (at_s, demand, supply), until_s in zip(points, ends, strict=False):
        if until_s < at_s and until_s != duration_s:
            raise ValueError(f"a point at {until_s} s after one at {at_s} s; points rise in time")
        tally.add(demand, supply, max(0.0, min(until_s, duration_s) - at_s))
    return tally.over(duration_s)


def workload_demand(arrivals_per_s: float, service_s: float, target: float) -> int:
    """Returns the replicas that an arrival rate needs if each request takes ``service_s`` and a replica holds
    ``target`` of them at once (Little's law)."""
    return math.ceil(arrivals_per_s * service_s / target - 1e-9)
