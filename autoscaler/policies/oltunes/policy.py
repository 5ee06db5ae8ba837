"""The policy ``oltunes``: accelerator kinds by the tuning objective of OLTunes (Eq. 4 to 6), as many replicas as the
load needs (:mod:`tidegate.autoscaler.policies.oltunes.sizing`).

Each kind with a known time and rate is a row of the objective (:mod:`tidegate.autoscaler.oltunes.objective`). The class
weight says how much its time counts and how much its rate. The two best kinds are kept; the best one is filled first.

A kind's power is its price: an observation has no watts (our choice). Its weight is the share that the load has of all
that the kinds could serve, as the paper's grows with the load. One combination a kind: clients choose the batch size.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidegate.autoscaler.decisions.reasons import figure, reason
from tidegate.autoscaler.measure.observation import GroupObservation, Observation
from tidegate.autoscaler.oltunes.objective import Ranking, TuningRow, objective
from tidegate.autoscaler.policies.contract import PolicyRow, Recommendation
from tidegate.autoscaler.policies.oltunes.sizing import KindsPolicy, rate_of
from tidegate.function import TaskClass
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


class OltunesPolicy(KindsPolicy):
    """The policy of one revision."""

    __slots__ = ()

    @property
    def _given(self) -> dict[str, Any]:
        return scaling_parameters.values(OLTUNES_PARAMETERS, self._function.scaling.parameters)

    def _chosen(
        self, observation: Observation, known: Sequence[GroupObservation], needed_ips: float
    ) -> tuple[Sequence[str], Reason]:
        ranking = self._ranked(observation, known, self._given)
        detail = f"{figure(needed_ips)} inferences/s: {_named(ranking, known)}"
        return ranking.devices, reason("tuned", detail)

    def _ranked(self, observation: Observation, known: Sequence[GroupObservation], given: dict[str, Any]) -> Ranking:
        capacity = sum(rate_of(each) * (each.existing if each.capacity is None else each.capacity) for each in known)
        use = min(1.0, observation.lambda_ips / capacity) if capacity > 0.0 else 0.0
        weight = given["class-weight"]
        return objective(
            [
                TuningRow(
                    device=each.accelerator,
                    combination=0,
                    latency_s=each.unloaded_s or 0.0,
                    throughput=rate_of(each),
                    epc=each.price_per_hour or 0.0,
                )
                for each in known
            ],
            class_weight=CLASS_WEIGHTS[self._function.task_class] if weight is None else weight,
            alpha=ALPHA,
            beta=use,
            deadline_s=self._deadline_s,
        )


def _named(ranking: Ranking, known: Sequence[GroupObservation]) -> str:
    """Returns the kinds with their values, the best first, for people."""
    values = dict(zip((each.accelerator for each in known), ranking.values, strict=True))
    return ", ".join(f"{name} {figure(values[name])}" for name in ranking.devices)


ROW: Final = PolicyRow(
    name="oltunes",
    sentence="OLTunes' tuning objective: the two kinds that suit the function's class, its deadline and the price.",
    build=OltunesPolicy,
    keeps=(OltunesPolicy, Recommendation, GroupDecision, Reason),
)
