"""The policy ``oltunes``: accelerator kinds by the tuning objective of OLTunes (Eq. 4 to 6), as many replicas as the
load needs.

1. Each kind with a known time and rate is a row of the objective (:mod:`tidegate.autoscaler.oltunes.objective`). The
   class weight says how much its time counts and how much its rate. The two best kinds are kept.
2. What is needed is the largest rate of the cool-down, or the rate now with what waits: within the deadline for a
   latency-critical function, within ``DRAIN_S`` for a throughput-oriented one. A replica is planned at
   ``target-utilization`` of its rate.
3. The best kind is filled first, then the second. Replicas of other kinds stay until those of the two carry the load.

A kind's power is its price: an observation has no watts (our choice). Its weight is the share that the load has of all
that the kinds could serve, as the paper's grows with the load. One combination a kind: clients choose the batch size.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidegate.autoscaler.decisions.groups import row
from tidegate.autoscaler.decisions.reasons import figure, reason
from tidegate.autoscaler.measure.observation import GroupObservation, Observation
from tidegate.autoscaler.oltunes.objective import Ranking, TuningRow, objective
from tidegate.autoscaler.policies.contract import PolicyRow, Recommendation
from tidegate.autoscaler.policies.sla_basics import TIE, by_concurrency, floor_ips, held
from tidegate.function import Function, TaskClass
from tidegate.manifest import policy_parameters as scaling_parameters
from tidegate.manifest.policy_parameters import OLTUNES_PARAMETERS
from tidegate.records.decision import GroupDecision, Reason

ALPHA: Final = 1.0
"""Weight of the time that is left before the deadline."""
CLASS_WEIGHTS: Final[Mapping[TaskClass, float]] = {
    TaskClass.LATENCY_CRITICAL: 0.75,
    TaskClass.THROUGHPUT_ORIENTED: 0.25,
}
"""Class weights of functions that state none: the middles of the paper's two ranges."""
DRAIN_S: Final = 60.0
"""Time within which a throughput-oriented function is to have served what waits (our choice)."""
MANY: Final = 1_000_000
"""More replicas than anything has."""
UNKNOWN_GROWTH: Final = 2.0
"""Most growth before any rate is known, as a factor."""


class OltunesPolicy:
    """The policy of one revision."""

    __slots__ = ("_function", "_needs")

    activation_scale = 1
    retention_s = 0.0

    def __init__(self, function: Function, now: float, ready: int) -> None:
        self._function = function
        self._needs: deque[tuple[float, float]] = deque()
        """(time, rate) that was needed within the cool-down; each rate is larger than all after it."""

    @property
    def _given(self) -> dict[str, Any]:
        return scaling_parameters.values(OLTUNES_PARAMETERS, self._function.scaling.parameters)

    def decide(self, observation: Observation, now: float) -> Recommendation:
        found = held(observation)
        if found is not None:
            return found
        if observation.existing == 0 and observation.is_quiet:
            self._needs.clear()
            return Recommendation(desired=0, reasons=(reason("zero"),))
        given = self._given
        used = given["target-utilization"] / 100.0
        known = [each for each in observation.groups if _rate(each) > 0.0]
        if not known:
            return by_concurrency(observation, self._function, used=used, most_factor=UNKNOWN_GROWTH)
        ranking = self._ranked(observation, known, given)
        needed = self._needed(observation, now, given["cooldown"]) / used
        return self._planned(observation, {each.accelerator: each for each in known}, ranking, needed)

    @property
    def _deadline_s(self) -> float:
        function = self._function
        return function.task_deadline_s or function.sla.latency_s or function.timeout_s

    def _ranked(self, observation: Observation, known: Sequence[GroupObservation], given: dict[str, Any]) -> Ranking:
        capacity = sum(_rate(each) * (each.existing if each.capacity is None else each.capacity) for each in known)
        use = min(1.0, observation.lambda_ips / capacity) if capacity > 0.0 else 0.0
        weight = given["class-weight"]
        return objective(
            [
                TuningRow(
                    device=each.accelerator,
                    combination=0,
                    latency_s=each.unloaded_s or 0.0,
                    throughput=_rate(each),
                    epc=each.price_per_hour or 0.0,
                )
                for each in known
            ],
            class_weight=CLASS_WEIGHTS[self._function.task_class] if weight is None else weight,
            alpha=ALPHA,
            beta=use,
            deadline_s=self._deadline_s,
        )

    def _needed(self, observation: Observation, now: float, cooldown_s: float) -> float:
        """Returns the largest rate that was needed within the cool-down, that of now included."""
        is_oriented = self._function.task_class is TaskClass.THROUGHPUT_ORIENTED
        within_s = DRAIN_S if is_oriented else max(self._deadline_s, 1.0)
        ips = max(observation.lambda_ips, floor_ips(self._function.sla, observation))
        ips += observation.waiting_inferences / within_s
        while self._needs and (self._needs[-1][1] <= ips or self._needs[-1][0] > now):
            self._needs.pop()
        self._needs.append((now, ips))
        while self._needs[0][0] < now - cooldown_s:
            self._needs.popleft()
        return self._needs[0][1]

    def _planned(
        self, observation: Observation, known: Mapping[str, GroupObservation], ranking: Ranking, needed: float
    ) -> Recommendation:
        counts, missing, ready = dict.fromkeys((each.accelerator for each in observation.groups), 0), needed, 0.0
        for name in ranking.devices:
            group = known[name]
            wanted = max(0, math.ceil(min(missing / _rate(group), MANY) - TIE))
            counts[name] = wanted if group.capacity is None else min(wanted, group.capacity)
            missing -= counts[name] * _rate(group)
            ready += min(counts[name], group.ready) * _rate(group)
        if not any(counts.values()) and ranking.devices:
            counts[ranking.devices[0]] = 1
        reasons = [reason("tuned", f"{figure(needed)} inferences/s: {_named(ranking, known)}")]
        if ready < min(needed, observation.lambda_ips):
            for group in observation.groups:
                if group.accelerator not in ranking.devices:
                    counts[group.accelerator] = group.existing
        if missing > TIE * max(1.0, needed):
            reasons.append(reason("no_capacity", f"{figure(missing)} inferences/s are missing"))
        share = self._function.gpu.core_percentage
        return Recommendation(
            desired=sum(counts.values()),
            groups=tuple(row(name, count, share) for name, count in counts.items()),
            reasons=tuple(reasons),
            observed={"needed_ips": needed, "missing_ips": max(0.0, missing)},
        )

    def __repr__(self) -> str:
        return f"<OltunesPolicy of {self._function.name}, {len(self._needs)} rates>"


def _rate(group: GroupObservation) -> float:
    """Returns the service rate of one replica, or what it has yielded so far; 0 if neither is known."""
    return group.mu_ips or group.mu_bound_ips or 0.0


def _named(ranking: Ranking, known: Mapping[str, GroupObservation]) -> str:
    """Returns the kinds with their values, the best first, for people."""
    values = dict(zip(known, ranking.values, strict=True))
    return ", ".join(f"{name} {figure(values[name])}" for name in ranking.devices)


ROW: Final = PolicyRow(
    name="oltunes",
    sentence="OLTunes' tuning objective: the two kinds that suit the function's class, its deadline and the price.",
    build=OltunesPolicy,
    keeps=(OltunesPolicy, Recommendation, GroupDecision, Reason),
)
