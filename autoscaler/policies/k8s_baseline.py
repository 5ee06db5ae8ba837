"""The policy ``k8s-baseline``: what HetSev is compared with (Mo et al., section 6.1).

Kubernetes' horizontal autoscaler on the use of the throughput, and a default scheduler that knows no difference between
kinds: each further replica goes to a kind drawn uniformly among those with room. Every replica has a whole device. The
draws follow from the function's name and their number, so a replay repeats them.
"""

import math
import random
from collections.abc import Sequence
from typing import Any, Final

from tidegate.autoscaler.decisions.groups import row
from tidegate.autoscaler.decisions.reasons import figure, reason
from tidegate.autoscaler.measure.observation import GroupObservation, Observation
from tidegate.autoscaler.policies.contract import PolicyRow, Recommendation
from tidegate.autoscaler.policies.hetsev.arrivals import ArrivalRates
from tidegate.autoscaler.policies.hpa import HpaParameters, HpaScaler
from tidegate.function import Function
from tidegate.manifest import policy_parameters as scaling_parameters
from tidegate.manifest.policy_parameters import K8S_BASELINE_PARAMETERS, Shrinking
from tidegate.records.decision import GroupDecision, Reason


class K8sBaselinePolicy:
    """The policy of one revision."""

    __slots__ = ("_base", "_draws", "_due", "_function", "_last", "_rates", "scaler")

    activation_scale = 1
    retention_s = 0.0

    def __init__(self, function: Function, now: float, ready: int) -> None:
        self._function = function
        given = self._given
        self._rates = ArrivalRates(given["window"])
        self._draws = 0
        """Kinds drawn so far."""
        self._due = now
        self._last: Recommendation | None = None
        self._base = 0
        """Replicas at the last step."""
        self.scaler = HpaScaler(
            HpaParameters(
                target=given["target"],
                low=max(1, function.scaling.min_scale),
                high=function.scaling.max_scale,
                tolerance=given["tolerance"] / 100.0,
                cooldown_s=given["cooldown"],
            )
        )
        if ready > 1:
            self.scaler.begin(now, ready)

    @property
    def _given(self) -> dict[str, Any]:
        return scaling_parameters.values(K8S_BASELINE_PARAMETERS, self._function.scaling.parameters)

    def decide(self, observation: Observation, now: float) -> Recommendation:
        if not observation.complete:
            return Recommendation(
                desired=None, reasons=(reason("hold_no_data", "not every gateway and group was heard"),)
            )
        if not observation.groups:
            return Recommendation(desired=None, reasons=(reason("no_accelerator"),))
        self._rates.update(observation, now)
        if observation.existing == 0:
            self._rates.forget()
            self._last, self._due, self._base = None, now, 0
            return Recommendation(desired=0, reasons=(reason("zero"),))
        given = self._given
        if self._last is not None and self._base and now < self._due <= now + given["period"]:
            return self._last
        if self._rates.covered_s < min(given["period"], given["window"]):
            seen = f"arrivals of {figure(self._rates.covered_s)} s of {figure(given['period'])} s"
            return Recommendation(desired=None, reasons=(reason("hold_no_data", seen),))
        self._due, self._base = now + given["period"], observation.existing
        self._last = self._evaluated(observation, now)
        return self._last

    def _evaluated(self, observation: Observation, now: float) -> Recommendation:
        rate, batch = self._rates.rate()
        capacity = math.fsum((each.mu_ips or each.mu_bound_ips or 0.0) * each.existing for each in observation.groups)
        if capacity <= 0.0:
            return Recommendation(desired=None, reasons=(reason("mu_unknown", "no group has served yet"),))
        use = 100.0 * rate * batch / capacity
        current = observation.existing
        desired = self.scaler.decide(now, current, use)
        counts = self._drawn(observation.groups, desired - current)
        detail = f"throughput {figure(use)} %, target {figure(self.scaler.parameters.target)} %, {current} replicas"
        return Recommendation(
            desired=sum(counts),
            groups=tuple(
                row(group.accelerator, count) for group, count in zip(observation.groups, counts, strict=True)
            ),
            reasons=(reason("utilization", f"{detail}: {desired}"),),
            observed={"arrivals_ips": rate * batch, "capacity_ips": capacity},
        )

    def _drawn(self, groups: Sequence[GroupObservation], more: int) -> list[int]:
        """Returns the replicas by group, ``more`` of them drawn one by one (removed, if it is negative)."""
        counts = [group.existing for group in groups]
        step = 1 if more > 0 else -1
        for _ in range(abs(more)):
            left = [
                index
                for index, group in enumerate(groups)
                if (counts[index] > 0 if step < 0 else group.capacity is None or counts[index] < group.capacity)
            ]
            if not left:
                break
            draw = random.Random(f"{self._function.name}/{self._draws}")
            self._draws += 1
            counts[draw.choice(left)] += step
        return counts

    def __repr__(self) -> str:
        return f"<K8sBaselinePolicy {self.scaler!r}, {self._draws} draws>"


def warnings(function: Function) -> tuple[str, ...]:
    """Returns a warning for a function whose replicas do not have whole devices."""
    if function.gpu.mps:
        return ("mps-on: policy k8s-baseline is meant for whole devices; without it each replica has one",)
    return ()


ROW: Final = PolicyRow(
    name="k8s-baseline",
    sentence="HetSev's baseline: HPA on the throughput, each replica on a whole device of a random kind.",
    build=K8sBaselinePolicy,
    keeps=(
        K8sBaselinePolicy,
        ArrivalRates,
        HpaScaler,
        HpaParameters,
        Shrinking,
        Recommendation,
        GroupDecision,
        Reason,
    ),
    is_by_size=True,
    warnings=warnings,
)
