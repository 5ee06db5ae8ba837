"""The policies ``themis``, ``horizontal-only`` and ``vertical-only`` for one function: a pipeline of one stage.

A stage of a pipeline gets what was decided over all of its stages with its observation (``Observation.order``), and
follows that.
"""

from functools import partial
from typing import Final

from msgspec import UNSET

from tidegate.autoscaler.measure.observation import Observation
from tidegate.autoscaler.policies.contract import PolicyRow, Recommendation
from tidegate.autoscaler.policies.themis.joint import JointThemis, ThemisMode, ThemisStage
from tidegate.autoscaler.policies.themis.model import StageProfile
from tidegate.function import Function
from tidegate.manifest.policy_parameters import QueueModel


class ThemisPolicy:
    """The policy of one revision."""

    __slots__ = ("_function", "_joint")

    activation_scale = 1
    retention_s = 0.0

    def __init__(self, mode: ThemisMode, function: Function, now: float, ready: int) -> None:
        self._function = function
        stages = [(None, function.batching.max_size)]
        self._joint = JointThemis(mode, function.sla.latency_s, function.scaling, stages, now)

    def decide(self, observation: Observation, now: float) -> Recommendation:
        order = observation.order
        if order is UNSET:
            return self._joint.decide([observation], now)[0]
        return Recommendation(
            desired=order.desired,
            groups=order.groups,
            reasons=order.reasons,
            cores=order.cores,
            observed=order.observed,
        )

    def retarget(self, function: Function) -> None:
        """Goes on under another SLA."""
        self._function = function
        self._joint.retarget(function.sla.latency_s)

    def __repr__(self) -> str:
        return f"<ThemisPolicy {self._function.name}, {self._joint!r}>"


def _row(mode: ThemisMode, sentence: str) -> PolicyRow:
    return PolicyRow(
        name=mode.value,
        sentence=sentence,
        build=partial(ThemisPolicy, mode),
        keeps=(ThemisPolicy, JointThemis, ThemisStage, ThemisMode, QueueModel, StageProfile),
        scales_cores=True,
        retarget=ThemisPolicy.retarget,
    )


ROWS: Final = (
    _row(ThemisMode.BOTH, "Cores at once for a burst, replicas of one core when the load is stable."),
    _row(ThemisMode.HORIZONTAL, "The fewest replicas of one core that keep the latency target."),
    _row(ThemisMode.VERTICAL, "The fewest cores of the present replicas that keep the latency target."),
)
