"""The lower bound of the cost that ``tidegate simulate`` compares policies with."""

import math

from tidegate.errors import InvalidInputError
from tidegate.function import Function
from tidegate.loadgen.bound.clairvoyant import Group, clairvoyant
from tidegate.loadgen.plans.simulation import FunctionPlan, SimulationPlan
from tidegate.loadgen.reports.simulation import BoundFigures
from tidegate.loadgen.simulator.devices import Sharing
from tidegate.loadgen.simulator.profiles import ColdStart
from tidegate.loadgen.simulator.scenario import Deployed


def bound_of(plan: SimulationPlan) -> tuple[BoundFigures | None, str | None]:
    """Returns the bound, or the reason why there is none; neither without a latency SLA.

    That of several functions is the sum of theirs: a replica is one function's, so none pays for another's work."""
    if plan.called:
        return None, "no bound: of a pipeline none is known"
    pairs = list(zip(plan.parts, plan.variants[0].functions, strict=True))
    if len(pairs) == 1:
        return _bound_of(plan, *pairs[0])
    b0: float | None = 0.0
    bq = 0.0
    for part, function in pairs:
        found, why = _bound_of(plan, part, function)
        if found is None:
            return None, f"no bound: {function.name} promises no latency" if why is None else f"{why} ({function.name})"
        b0 = None if b0 is None or found.b0_dollars is None else b0 + found.b0_dollars
        bq += found.bq_dollars
    return BoundFigures(b0_dollars=b0, bq_dollars=bq), None


def _bound_of(plan: SimulationPlan, part: FunctionPlan, function: Function) -> tuple[BoundFigures | None, str | None]:
    latency_s = function.sla.latency_s
    if latency_s is None:
        return None, None
    deployed = part.deployed(function)
    why = _why_none(plan, part, deployed)
    if why is not None:
        return None, f"no bound: {why}"
    try:
        found = clairvoyant(
            ((each.at_s, each.inferences) for each in part.arrivals(plan.duration_s)),
            _groups(plan, deployed),
            latency_s=latency_s,
            quantile=function.sla.percentile / 100.0,
            duration_s=math.floor(plan.duration_s or part.source.total_s or 0.0) + 1.0,
        )
    except InvalidInputError as error:  # Such as a service that takes no time; the run is not lost for it.
        return None, f"no bound: {'; '.join(map(str, error.faults))}"
    if math.isinf(found.bq):
        return None, "no bound: no fleet keeps the SLA under this load, whatever it costs"
    return BoundFigures(b0_dollars=None if math.isinf(found.b0) else found.b0, bq_dollars=found.bq), None


def _why_none(plan: SimulationPlan, part: FunctionPlan, deployed: Deployed) -> str | None:
    if part.source.schedule is None:
        return "in a closed loop the load follows the answers"
    if not deployed.limit and any(profile.joins == 1 for profile in deployed.profiles.values()):
        return "a replica without a limit of requests has no known capacity"
    if any(kind.sharing is not Sharing.EXCLUSIVE for kind in plan.kinds):
        return "of shared devices none is known"
    if any(profile.is_by_token for profile in deployed.profiles.values()):
        return "service times follow the tokens of a request"
    return None if all(kind.accelerator.price_per_hour for kind in plan.kinds) else "an accelerator has no price"


def _groups(plan: SimulationPlan, deployed: Deployed) -> list[Group]:
    """Returns the groups limited by their devices alone: draining replicas may exceed ``max-scale`` for a moment."""
    found = []
    for kind in plan.kinds:
        accelerator = kind.accelerator
        if accelerator.name not in deployed.profiles:
            continue  # Another function's.
        profile = deployed.profiles[accelerator.name]
        start = deployed.cold_starts.get(accelerator.name, ColdStart())
        found.append(
            Group(
                name=accelerator.name,
                times=profile.times,
                slots=deployed.limit or 1,
                price_per_hour=accelerator.price_per_hour,
                start_s=start.total_s + accelerator.start_up_s,
                max_replicas=accelerator.count,
                joins=profile.joins,
            )
        )
    return found
