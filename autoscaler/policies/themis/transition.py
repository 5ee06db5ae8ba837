"""When Themis changes cores and when instances (section 5.3, spec of the decision of one second).

- The present instances and cores carry the load, and the forecast asks for other instances than the load: *hold*.
- They carry it, and load and forecast agree on the one-core instances: go there (*to horizontal*).
- They do not carry it: other cores at once (*vertical*); if no cores are enough, the most that they carry and further
  instances (*vertical plus horizontal*); if nothing meets the SLO, say so (*infeasible*).

The forecast decides about stability alone. It never sizes the vertical step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from tidegate.autoscaler.policies.themis.programs import (
    PipelinePlan,
    Problem,
    extra_instances,
    horizontal,
    vertical,
    with_cores,
)


class Action(StrEnum):
    HOLD = "hold"
    TO_HORIZONTAL = "to_horizontal"
    VERTICAL = "vertical"
    VERTICAL_PLUS_HORIZONTAL = "vertical_plus_horizontal"
    SLO_INFEASIBLE = "slo_infeasible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """The decision of one second."""

    action: Action
    plan: PipelinePlan | None = None
    """The configuration to reach. For *vertical plus horizontal*, what the present instances get. None if nothing meets
    the SLO."""
    spawn: tuple[int, ...] = ()
    """Instances to start, by stage; for *vertical plus horizontal* those for the remaining load."""
    retire: tuple[int, ...] = ()
    supported_rps: int | None = None
    remaining_rps: float | None = None


def decide(problem: Problem, config: Sequence[tuple[int, int]], forecast_rps: float) -> Transition:
    """Returns what to do with ``config``, the (instances, cores) of each stage; instances that still start count.

    ``forecast_rps``: the largest load expected in the next seconds; less than the present one counts as that.
    """
    none = (0,) * len(config)
    now = horizontal(problem)
    then = horizontal(replace(problem, lambda_rps=max(problem.lambda_rps, forecast_rps)))
    is_stable = now is not None and then is not None and now.instances == then.instances
    present = with_cores(problem, config)
    if present is not None:
        is_there = now is not None and tuple(n for n, _ in config) == now.instances and all(c == 1 for _, c in config)
        if now is None or not is_stable or is_there:
            return Transition(action=Action.HOLD, plan=present, spawn=none, retire=none)
        changes = [wanted - n for wanted, (n, _) in zip(now.instances, config, strict=True)]
        return Transition(
            action=Action.TO_HORIZONTAL,
            plan=now,
            spawn=tuple(max(0, each) for each in changes),
            retire=tuple(max(0, -each) for each in changes),
        )
    found = vertical(problem, [n for n, _ in config])
    if found.plan is not None:
        return Transition(action=Action.VERTICAL, plan=found.plan, spawn=none, retire=none)
    if found.lambda_max and found.at_lambda_max is not None:
        remaining = problem.lambda_rps - found.lambda_max
        return Transition(
            action=Action.VERTICAL_PLUS_HORIZONTAL,
            plan=found.at_lambda_max,
            spawn=extra_instances(problem, found.at_lambda_max, remaining),
            retire=none,
            supported_rps=found.lambda_max,
            remaining_rps=remaining,
        )
    return Transition(action=Action.SLO_INFEASIBLE)
