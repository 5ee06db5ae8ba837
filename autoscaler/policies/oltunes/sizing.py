"""What the policy ``oltunes`` and its rivals have in common: as many replicas as the load needs, kind after kind.

What is needed is the largest rate of the cool-down, or the rate now with what waits: within the deadline for a
latency-critical function, within ``DRAIN_S`` for a throughput-oriented one. A replica is planned at
``target-utilization`` of its rate. The first kind that a policy chooses is filled first, then the next. Replicas of
other kinds stay until those of the chosen ones carry the load.
"""

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidegate.autoscaler.decisions.groups import row
from tidegate.autoscaler.decisions.reasons import figure, reason
from tidegate.autoscaler.measure.observation import GroupObservation, Observation
from tidegate.autoscaler.policies.contract import Recommendation
from tidegate.autoscaler.policies.sla_basics import TIE, by_concurrency, floor_ips, held
from tidegate.function import Function, TaskClass
from tidegate.records.decision import Reason

DRAIN_S: Final = 60.0
"""Time within which a throughput-oriented function is to have served what waits (our choice)."""
MANY: Final = 1_000_000
"""More replicas than anything has."""
UNKNOWN_GROWTH: Final = 2.0
"""Most growth before any rate is known, as a factor."""


class KindsPolicy(ABC):
    """The policy of one revision; a subclass chooses the kinds."""

    __slots__ = ("_function", "_needs")

    activation_scale = 1
    retention_s = 0.0

    def __init__(self, function: Function, now: float, ready: int) -> None:
        self._function = function
        self._needs: deque[tuple[float, float]] = deque()
        """(time, rate) that was needed within the cool-down; each rate is larger than all after it."""

    @property
    @abstractmethod
    def _given(self) -> dict[str, Any]:
        """Values of the policy's parameters, ``target-utilization`` and ``cooldown`` among them."""

    def _allowed(self, observation: Observation) -> tuple[Sequence[GroupObservation], Reason | None]:
        """Returns the kinds that the function may use, in the order in which replicas of unknown rate are put on them;
        and why there is none. An empty order leaves it to the price."""
        return observation.groups, None

    @abstractmethod
    def _chosen(
        self, observation: Observation, known: Sequence[GroupObservation], needed_ips: float
    ) -> tuple[Sequence[str], Reason]:
        """Returns the chosen ones of the kinds with a rate, the best first, and the reason."""

    def decide(self, observation: Observation, now: float) -> Recommendation:
        found = held(observation)
        if found is not None:
            return found
        if observation.existing == 0 and observation.is_quiet:
            self._needs.clear()
            return Recommendation(desired=0, reasons=(reason("zero"),))
        given = self._given
        used = given["target-utilization"] / 100.0
        allowed, why = self._allowed(observation)
        if why is not None:
            return Recommendation(desired=None, reasons=(why,))
        known = [each for each in allowed if rate_of(each) > 0.0]
        if not known:
            found = by_concurrency(observation, self._function, used=used, most_factor=UNKNOWN_GROWTH)
            return found if len(allowed) == len(observation.groups) else self._put(observation, allowed, found)
        needed = self._needed(observation, now, given["cooldown"]) / used
        names, because = self._chosen(observation, known, needed)
        return self._planned(observation, {each.accelerator: each for each in known}, names, because, needed)

    @property
    def _deadline_s(self) -> float:
        function = self._function
        return function.task_deadline_s or function.sla.latency_s or function.timeout_s

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
        self,
        observation: Observation,
        known: Mapping[str, GroupObservation],
        names: Sequence[str],
        because: Reason,
        needed: float,
    ) -> Recommendation:
        counts, missing, ready = dict.fromkeys((each.accelerator for each in observation.groups), 0), needed, 0.0
        for name in names:
            group = known[name]
            wanted = max(0, math.ceil(min(missing / rate_of(group), MANY) - TIE))
            counts[name] = wanted if group.capacity is None else min(wanted, group.capacity)
            missing -= counts[name] * rate_of(group)
            ready += min(counts[name], group.ready) * rate_of(group)
        if not any(counts.values()) and names:
            counts[names[0]] = 1
        reasons = [because]
        if ready < min(needed, observation.lambda_ips):
            for group in observation.groups:
                if group.accelerator not in names:
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

    def _put(
        self, observation: Observation, allowed: Sequence[GroupObservation], found: Recommendation
    ) -> Recommendation:
        """Puts replicas of unknown rate on the allowed kinds, in their order."""
        counts, missing = dict.fromkeys((each.accelerator for each in observation.groups), 0), found.desired or 0
        for group in allowed:
            counts[group.accelerator] = missing if group.capacity is None else min(missing, group.capacity)
            missing -= counts[group.accelerator]
        share = self._function.gpu.core_percentage
        return Recommendation(
            desired=sum(counts.values()),
            groups=tuple(row(name, count, share) for name, count in counts.items()),
            reasons=found.reasons,
            observed=found.observed,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._function.name}, {len(self._needs)} rates>"


def rate_of(group: GroupObservation) -> float:
    """Returns the service rate of one replica, or what it has yielded so far; 0 if neither is known."""
    return group.mu_ips or group.mu_bound_ips or 0.0
