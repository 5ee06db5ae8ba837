"""The SLA rule of SMIF: how many replicas of which group carry the load inside the latency target.

One pure step, in the order of the rule: zero load, feasible groups, need of each group, overflow to the others. The
groups come in order of rising cost. The paper names the decisions (more of the same group, more of another, down to
zero over the low-end one); the exact rule is our choice. ``tidegate.autoscaler.policies.smif.policy`` feeds it in a
deployment.

Worked example: two groups, a cheap one that serves 65.25 inferences/s at most twice, a fast one with 117. A load of 180
asks the cheap one for ceil(180 / (0.8 x 65.25)) = 4; two are too many, 2 x 52.2 = 104.4 spill over, and ceil(104.4 /
(0.8 x 117)) = 2 fast ones take them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

import msgspec

TIE = 1e-9
"""A computed figure this near to its limit counts as equal to it."""


class Flag(StrEnum):
    """A step of the rule; flags are in the order of the steps."""

    ZERO = "zero"
    SCALE_TO_ZERO = "scale_to_zero"
    PARK = "park_on_cheapest"
    HOLD = "hold"
    SLO_INFEASIBLE = "slo_infeasible"
    HETERO_UP = "hetero_up"
    NO_CAPACITY = "no_capacity"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleParameters:
    rho: float = 0.8
    """Share of a replica's service rate that is planned with."""
    down_watermark: float = 0.5
    """A group shrinks only while its percentile is at most this part of the target."""
    cooldown_s: float = 60.0
    max_up_factor: float = 2.0
    scale_to_zero: bool = True
    zero_grace_s: float = 90.0


class RuleFacts(Protocol):
    """The facts that the rule needs: the fields of :class:`RuleGroup`, in whatever object."""

    @property
    def mu_ips(self) -> float: ...
    @property
    def replicas(self) -> int: ...
    @property
    def max_replicas(self) -> int: ...
    @property
    def load_ips(self) -> float: ...
    @property
    def execution_s(self) -> float | None: ...
    @property
    def latency_s(self) -> float | None: ...
    @property
    def below_for_s(self) -> float: ...


class RuleGroup(NamedTuple):
    """One group; rates in inferences per second, durations in seconds."""

    mu_ips: float
    """Service rate of one replica, above 0."""
    replicas: int
    max_replicas: int
    load_ips: float
    execution_s: float | None = None
    """Mean execution time; None (no data) counts as feasible."""
    latency_s: float | None = None
    """The SLA's percentile of end-to-end latency; None if there is no data."""
    below_for_s: float = 0.0
    """Time that the group has been under the low watermark."""


class RuleResult(msgspec.Struct, frozen=True, gc=False):
    replicas: tuple[int, ...]
    """In the order of the groups."""
    flags: tuple[Flag, ...]


def ceil(value: float) -> int:
    """Rounds up, but binary noise adds no replica."""
    return math.ceil(value - TIE)


def autoscale(slo_s: float, groups: Sequence[RuleFacts], parameters: RuleParameters, idle_s: float) -> RuleResult:
    """Returns the replicas of each group. ``idle_s``: time since the last load."""
    if math.fsum([group.load_ips for group in groups]) <= 0.0:
        return _without_load(slo_s, groups, parameters, idle_s)
    flags: list[Flag] = []
    limit_s = slo_s + TIE
    feasible = [group.execution_s is None or group.execution_s <= limit_s for group in groups]
    is_reachable = any(feasible)
    if not is_reachable:
        flags.append(Flag.SLO_INFEASIBLE)
        fastest = min(range(len(groups)), key=lambda index: groups[index].execution_s or 0.0)
        feasible[fastest] = True
    needs, spill = [0] * len(groups), 0.0
    for index, group in enumerate(groups):
        if not feasible[index]:
            spill += group.load_ips
            if group.replicas > 0:
                flags.append(Flag.HETERO_UP)
            continue
        need = _need(group, slo_s, parameters, is_reachable)
        if need > group.max_replicas:
            spill += (need - group.max_replicas) * parameters.rho * group.mu_ips
            need = group.max_replicas
        needs[index] = need
    spill = _place(spill, groups, feasible, needs, parameters, flags)
    if spill > TIE:
        flags.append(Flag.NO_CAPACITY)
    return RuleResult(tuple(needs), tuple(flags))


def _is_feasible(group: RuleFacts, slo_s: float) -> bool:
    return group.execution_s is None or group.execution_s <= slo_s + TIE


def _without_load(slo_s: float, groups: Sequence[RuleFacts], parameters: RuleParameters, idle_s: float) -> RuleResult:
    if not any(group.replicas for group in groups):
        return RuleResult((0,) * len(groups), (Flag.ZERO,))
    if parameters.scale_to_zero and idle_s >= parameters.zero_grace_s - TIE:
        return RuleResult((0,) * len(groups), (Flag.SCALE_TO_ZERO,))
    if idle_s < parameters.cooldown_s - TIE:
        return RuleResult(tuple(group.replicas for group in groups), (Flag.HOLD,))
    parked = next(
        (index for index, group in enumerate(groups) if group.max_replicas >= 1 and _is_feasible(group, slo_s)), 0
    )
    return RuleResult(tuple(int(index == parked) for index in range(len(groups))), (Flag.PARK,))


def _need(group: RuleFacts, slo_s: float, parameters: RuleParameters, may_press: bool) -> int:
    """Returns the replicas of a feasible group for its own load. ``may_press`` False: no group can meet the target, so
    a miss of it asks for nothing."""
    count, latency_s = group.replicas, group.latency_s
    base = ceil(group.load_ips / (parameters.rho * group.mu_ips))
    if may_press and count > 0 and latency_s is not None and latency_s > slo_s + TIE:
        return max(base, count + 1, ceil(count * min(latency_s / slo_s, parameters.max_up_factor)))
    if base >= count:
        return base
    is_calm = latency_s is None or latency_s <= parameters.down_watermark * slo_s + TIE
    return base if is_calm and group.below_for_s >= parameters.cooldown_s - TIE else count


def _place(
    spill: float,
    groups: Sequence[RuleFacts],
    feasible: Sequence[bool],
    needs: list[int],
    parameters: RuleParameters,
    flags: list[Flag],
) -> float:
    """Puts the overflow on feasible groups in order of cost; returns the rest without room."""
    is_flagged = Flag.HETERO_UP in flags
    for index, group in enumerate(groups):
        if spill <= TIE:
            break
        if not feasible[index]:
            continue
        usable = parameters.rho * group.mu_ips
        added = min(ceil(spill / usable), group.max_replicas - needs[index])
        if added <= 0:
            continue
        needs[index] += added
        spill -= added * usable
        if not is_flagged:
            flags.append(Flag.HETERO_UP)
            is_flagged = True
    return spill
