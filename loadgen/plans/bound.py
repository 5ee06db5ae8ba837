"""The lower bound of the cost that ``tidegate simulate`` compares policies with."""

import math

from tidegate.errors import InvalidInputError
from tidegate.loadgen.bound.clairvoyant import Group, clairvoyant
from tidegate.loadgen.plans.simulation import SimulationPlan
from tidegate.loadgen.reports.simulation import BoundFigures
from tidegate.loadgen.simulator.devices import Sharing
from tidegate.loadgen.simulator.profiles import ColdStart
from tidegate.loadgen.simulator.scenario import Deployed


def bound_of(plan: SimulationPlan) -> tuple[BoundFigures | None, str | None]:
    """Returns the bound, or the reason why there is none; neither without a latency SLA."""
    function = plan.functions[0]
    latency_s = function.sla.latency_s
    if latency_s is None:
        return None, None
    deployed = plan.deployed(function)
    why = _why_none(plan, deployed)
    if why is not None:
        return None, f"no bound: {why}"
    try:
        found = clairvoyant(
            ((each.at_s, each.inferences) for each in plan.arrivals()),
            _groups(plan, deployed),
            latency_s=latency_s,
            quantile=function.sla.percentile / 100.0,
            duration_s=math.floor(plan.duration_s or plan.source.total_s or 0.0) + 1.0,
        )
    except InvalidInputError as error:  # Such as a service that takes no time; the run is not lost for it.
        return None, f"no bound: {'; '.join(map(str, error.faults))}"
    if math.isinf(found.bq):
        return None, "no bound: no fleet keeps the SLA under this load, whatever it costs"
    return BoundFigures(b0_dollars=None if math.isinf(found.b0) else found.b0, bq_dollars=found.bq), None


def _why_none(plan: SimulationPlan, deployed: Deployed) -> str | None:
    if plan.source.schedule is None:
        return "in a closed loop the load follows the answers"
    if not deployed.limit:
        return "a replica without a limit of requests has no known capacity"
    if any(kind.sharing is not Sharing.EXCLUSIVE for kind in plan.kinds):
        return "of shared devices none is known"
    return None if all(kind.accelerator.price_per_hour for kind in plan.kinds) else "an accelerator has no price"


def _groups(plan: SimulationPlan, deployed: Deployed) -> list[Group]:
    """Returns the groups limited by their devices alone: draining replicas may exceed ``max-scale`` for a moment."""
    found = []
    for kind in plan.kinds:
        accelerator = kind.accelerator
        start = deployed.cold_starts.get(accelerator.name, ColdStart())
        found.append(
            Group(
                name=accelerator.name,
                times=deployed.profiles[accelerator.name].times,
                slots=deployed.limit,
                price_per_hour=accelerator.price_per_hour,
                start_s=start.total_s + accelerator.start_up_s,
                max_replicas=accelerator.count,
            )
        )
    return found
