"""HPA: replicas in proportion to a utilisation, as Kubernetes' horizontal autoscaler decides it.

:class:`HpaScaler` is the rule: ratio of metric to target, a tolerance, and one of two ways to shrink. Which of the two
a published experiment used is not always the one its text describes, so both can be chosen: ``stabilization`` takes the
largest recommendation of the cool-down, ``cooldown`` refuses to shrink until the last change is that long ago.
:class:`HpaPolicy` feeds it from observations.

Worked example: target 30 %, two replicas at 60 %: ratio 2, four replicas. At 32 % the ratio is 1.07, inside the
tolerance of 10 %, and two stay.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tidegate.autoscaler.decisions.reasons import figure, reason
from tidegate.autoscaler.measure.model_servers import LEVELS, PER_REQUEST, UNITS, unit_of
from tidegate.autoscaler.measure.observation import GroupObservation, Observation
from tidegate.autoscaler.policies.contract import PolicyRow, Recommendation
from tidegate.function import Function
from tidegate.manifest import policy_parameters as scaling_parameters
from tidegate.manifest.policy_parameters import HPA_PARAMETERS, Shrinking
from tidegate.records.decision import Reason

TIE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class HpaParameters:
    target: float
    """Utilisation aimed at, in the unit of the metric (percent)."""
    low: int = 1
    """Fewest replicas; the rule cannot reach zero."""
    high: int = 0
    """Most replicas; 0: no limit."""
    tolerance: float = 0.10
    cooldown_s: float = 300.0
    shrinking: Shrinking = Shrinking.STABILIZATION


class HpaScaler:
    """The rule for one revision. ``decide`` comes once per period; the period itself does not matter."""

    __slots__ = ("_changed_at", "_recommended", "parameters")

    def __init__(self, parameters: HpaParameters) -> None:
        self.parameters = parameters
        self._recommended: deque[tuple[float, int]] = deque()
        self._changed_at: float | None = None

    def decide(self, now: float, current: int, metric: float | None) -> int:
        """Returns the replicas to follow ``current`` ones with mean utilisation ``metric``; None (unknown) keeps the
        number."""
        if metric is None:
            return current
        wanted = self._bounded(self.recommendation(current, metric))
        recommended, keep_s = self._recommended, self.parameters.cooldown_s
        while recommended and not now - keep_s < recommended[0][0] <= now:
            # Also those of the future: the clock was set back.
            recommended.popleft()
        while recommended and recommended[-1][1] <= wanted:
            # A smaller one that is older never counts again.
            recommended.pop()
        recommended.append((now, wanted))
        count = wanted if wanted >= current else self._shrunk(now, current, wanted)
        if count != current:
            self._changed_at = now
        return count

    def begin(self, now: float, count: int) -> None:
        """Notes ``count`` replicas that run already, without a remembered recommendation: a restart shrinks
        nothing before a cool-down has passed."""
        self._recommended.append((now, count))
        self._changed_at = now

    def recommendation(self, current: int, metric: float) -> int:
        """Returns the number that the ratio alone asks for."""
        ratio = metric / self.parameters.target
        if abs(ratio - 1.0) <= self.parameters.tolerance + TIE:
            return current
        return math.ceil(current * ratio - TIE)

    def _bounded(self, wanted: int) -> int:
        wanted = max(wanted, self.parameters.low)
        return min(wanted, self.parameters.high) if self.parameters.high else wanted

    def _shrunk(self, now: float, current: int, wanted: int) -> int:
        if self.parameters.shrinking is Shrinking.STABILIZATION:
            return min(current, self._recommended[0][1])
        is_recent = self._changed_at is not None and 0 <= now - self._changed_at < self.parameters.cooldown_s - TIE
        return current if is_recent else wanted

    def __repr__(self) -> str:
        return f"<HpaScaler target {self.parameters.target:g}, {len(self._recommended)} recommendations>"


def rolling_utilization(
    samples: Sequence[tuple[float, Mapping[str, float | None]]], window_s: float, now: float
) -> float | None:
    """Returns the figure that the exporter publishes: mean utilisation in percent of the devices that belong to a
    function, over the window. A device that is None does not belong to it at that moment; moments without any do not
    count."""
    means = []
    for at, devices in samples:
        used = [value for value in devices.values() if value is not None and math.isfinite(value)]
        if used and now - window_s < at <= now:
            means.append(math.fsum(used) / len(used))
    return math.fsum(means) / len(means) if means else None


class RollingUtilization:
    """Computes the same, fed moment by moment; keeps one window of moments."""

    __slots__ = ("_samples", "_window_s")

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, Mapping[str, float | None]]] = deque()

    def add(self, now: float, devices: Mapping[str, float | None]) -> None:
        self._samples.append((now, dict(devices)))
        while not now - self._window_s < self._samples[0][0] <= now:
            self._samples.popleft()

    def mean(self, now: float) -> float | None:
        return rolling_utilization(self._samples, self._window_s, now)

    def __repr__(self) -> str:
        return f"<RollingUtilization {len(self._samples)} moments of {self._window_s:g} s>"


class HpaPolicy:
    """The rule on one metric of the observation, averaged over the ready replicas and a window.

    A starting replica counts as idle while the metric asks for more, so that a slow start is not followed by ever more
    starts. A metric that no source reports is a reason to hold, never a zero. A metric per request that was reported
    before is zero when the window and the function have no requests. Zero replicas and back are decided by the limits.
    """

    __slots__ = ("_due", "_last", "_mean", "_metric", "_period_s", "_was_told", "scaler")

    activation_scale = 1
    retention_s = 0.0

    def __init__(self, function: Function, now: float, ready: int) -> None:
        given = scaling_parameters.values(HPA_PARAMETERS, function.scaling.parameters)
        self._metric: str = given["metric"]
        self._period_s: float = given["period"]
        self._mean = RollingUtilization(given["window"])
        self._due = now
        self._last: Recommendation | None = None
        self._was_told = False
        self.scaler = HpaScaler(
            HpaParameters(
                target=given["target"],
                low=max(1, function.scaling.min_scale),
                high=function.scaling.max_scale,
                tolerance=given["tolerance"] / 100.0,
                cooldown_s=given["cooldown"],
                shrinking=given["shrink"],
            )
        )
        if ready > 1:
            self.scaler.begin(now, ready)

    def decide(self, observation: Observation, now: float) -> Recommendation:
        if observation.existing == 0:
            self._last, self._due = None, now
            return Recommendation(desired=0)
        value = None
        if observation.complete:
            value = mean_metric(self._metric, observation.groups)
            self._mean.add(now, {self._metric: value})
            self._was_told |= value is not None
        if self._last is not None and now < self._due <= now + self._period_s:
            return self._last
        mean = self._mean.mean(now)
        if mean is None and self._was_told and self._metric in PER_REQUEST and observation.is_quiet:
            mean = 0.0
        if mean is None:
            known = ", ".join(
                sorted({name for group in observation.groups for name in group.metrics} | BUILT_IN.keys())
            )
            return Recommendation(desired=None, reasons=(reason("hold_no_metric", f"{self._metric}; known: {known}"),))
        self._due = now + self._period_s
        self._last = self._evaluate(observation, now, mean)
        return self._last

    def _evaluate(self, observation: Observation, now: float, mean: float) -> Recommendation:
        current, p = observation.existing, self.scaler.parameters
        counted = mean
        if mean > p.target and observation.starting:
            counted = max(p.target, mean * observation.ready / current)
        desired = self.scaler.decide(now, current, counted)
        unit = unit_of(self._metric)
        detail = (
            f"{self._metric} {figure(mean)} {unit}, target {figure(p.target)} {unit}, {current} replicas: {desired}"
        )
        return Recommendation(desired=desired, reasons=(reason("utilization", detail),), observed={self._metric: mean})

    def __repr__(self) -> str:
        return f"<HpaPolicy {self._metric} {self.scaler!r} {self._mean!r}>"


def _busy(group: GroupObservation) -> float | None:
    """Returns the share of its time in which a replica had work."""
    return 100.0 * group.busy / group.ready if group.sampled and group.ready else None


def _slots(group: GroupObservation) -> float | None:
    """Returns the share of the slots in use."""
    if not (group.sampled and group.ready and group.limit):
        return None
    return 100.0 * group.concurrency / (group.ready * group.limit)


BUILT_IN: Mapping[str, Callable[[GroupObservation], float | None]] = MappingProxyType({"busy": _busy, "slots": _slots})
"""Metrics that every observation has."""
OF_DEVICES = ("cpu", "gpu-memory", "gpu-memory-busy", "gpu-utilization")
"""Metrics that the control process reads of devices and processes, if there are any."""


def warnings(function: Function) -> tuple[str, ...]:
    """Returns a warning for a metric that may never be reported: it holds the size for ever."""
    given: dict[str, Any] = scaling_parameters.values(HPA_PARAMETERS, function.scaling.parameters)
    metric, reported = given["metric"], {*LEVELS, *UNITS}
    if metric in BUILT_IN or metric in OF_DEVICES:
        return ()
    if metric not in reported:
        known = ", ".join(sorted({*BUILT_IN, *OF_DEVICES, *reported}))
        return (f"policy.metric {metric}: no source reports it, so the size will be held; known: {known}",)
    if not function.user_metrics:
        return (f"policy.metric {metric}: only the model server reports it, and spec.metrics is not given",)
    return ()


def mean_metric(name: str, groups: Sequence[GroupObservation]) -> float | None:
    """Returns a metric in percent, mean over the ready replicas of the groups that report it; None if no group does."""
    read = BUILT_IN.get(name)
    total, replicas = 0.0, 0
    for group in groups:
        value = group.metrics.get(name) if read is None else read(group)
        if value is not None and math.isfinite(value) and value >= 0 and group.ready:
            total += value * group.ready
            replicas += group.ready
    return total / replicas if replicas else None


ROW = PolicyRow(
    name="hpa",
    sentence="Kubernetes' horizontal autoscaler: replicas in proportion to a utilisation, held at a target.",
    build=HpaPolicy,
    keeps=(HpaPolicy, HpaScaler, HpaParameters, Shrinking, RollingUtilization, Recommendation, Reason),
    warnings=warnings,
)
