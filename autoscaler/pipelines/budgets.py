"""The latency budget of each stage of a pipeline, from the SLA of the whole. Pure.

The budgets of the stages along any way through the graph add up to the SLA at most. Each stage is to keep its budget
for a part of the late requests that the SLA allows (:func:`stage_percentile`), so that the whole keeps it however the
stages' delays go together.

What a stage needs beyond its service time is time to wait. A stage that may wait needs fewer replicas, so the time goes
where it saves most: to the stage whose next replica less costs the fewest milliseconds per price of a replica (Erlang's
formula, ``policies/smif/waiting``). What is left goes to all stages, in proportion.

Worked example, p98 of 300 ms, 20/s: *detect* takes 100 ms and *read* 20 ms. In proportion *detect* would have 250 ms
and *read* 50, with 4 and 2 replicas. With 202 and 98 ms one of *read* is enough
(``test_time_goes_where_it_saves_a_replica``).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.autoscaler.policies.smif.waiting import waiting_s

STEPS: Final = 20
"""Equal parts in which the time to wait is given away."""
MOST_REPLICAS: Final = 400
"""Replicas beyond those that carry the load that are looked at."""
TIE: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFacts:
    """The measured facts about one stage."""

    name: str
    after: tuple[int, ...]
    """Indices of the stages whose answers it gets; each is smaller than its own."""
    service_s: float | None
    """Time of a request that has a replica for itself; None if none was measured."""
    slots: float = 1.0
    """Requests that a replica works on at a time."""
    rps: float = 0.0
    """Requests per second."""
    price: float = 1.0
    """Price of a replica."""
    spread: float = 0.0
    """Squared coefficient of variation of the service times."""
    own_s: float | None = None
    """Latency target that its function has of its own: its budget whatever the others need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBudget:
    """The budget of one stage, and what it follows from."""

    name: str
    budget_s: float
    service_s: float | None
    rps: float
    replicas: int | None
    """Fewest replicas that keep the budget; None if not known, or if none do."""
    is_own: bool
    """True if the stage's function has this target of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """The budgets of all stages."""

    stages: tuple[StageBudget, ...]
    percentile: float
    """Part of its requests that each stage is to answer within its budget, in percent."""
    is_measured: bool
    """False: a stage's service time is not known yet, so that the SLA was divided evenly."""
    is_feasible: bool
    """False: the service times alone are longer than the SLA."""


def stage_percentile(percentile: float, stages: int) -> float:
    """Returns the percentile of each stage with which the whole keeps ``percentile``: the late requests of all stages
    together are at most those that the whole may have."""
    return 100.0 - (100.0 - percentile) / max(1, stages)


def divided(slo_s: float, percentile: float, stages: Sequence[StageFacts]) -> Budgets:
    """Returns the budgets under a target of ``slo_s`` for ``percentile`` of the requests."""
    own = stage_percentile(percentile, len(stages))
    is_measured = all(each.service_s is not None or each.own_s is not None for each in stages)
    taken = [_base(each) if is_measured else (each.own_s or 1e-3) for each in stages]
    is_feasible = not is_measured or _through(stages, taken)[1] <= slo_s + TIE
    if is_measured and is_feasible:
        _give(slo_s, own / 100.0, stages, taken)
    found = _scaled(slo_s, stages, taken)
    return Budgets(
        stages=tuple(
            StageBudget(
                name=each.name,
                budget_s=budget_s,
                service_s=each.service_s,
                rps=each.rps,
                replicas=_needed(each, budget_s, own / 100.0),
                is_own=each.own_s is not None,
            )
            for each, budget_s in zip(stages, found, strict=True)
        ),
        percentile=own,
        is_measured=is_measured,
        is_feasible=is_feasible,
    )


def _base(stage: StageFacts) -> float:
    return max(1e-6, stage.service_s or 0.0) if stage.own_s is None else stage.own_s


def _give(slo_s: float, q: float, stages: Sequence[StageFacts], taken: list[float]) -> None:
    """Gives time to wait to the stages, in steps, where it saves the most per step."""
    step_s = (slo_s - _through(stages, taken)[1]) / STEPS
    known: dict[tuple[int, int], float] = {}

    def cost(at: int, steps: int) -> float:
        """Returns the price of the replicas with which a stage waits for ``steps`` at most."""
        if (at, steps) not in known:
            needed = _needed(stages[at], _base(stages[at]) + steps * step_s, q)
            known[at, steps] = math.inf if needed is None else needed * stages[at].price
        return known[at, steps]

    given = [0] * len(stages)
    while step_s > TIE:
        through, _ = _through(stages, taken)
        best: tuple[float, int, int] | None = None
        for at, stage in enumerate(stages):
            if stage.own_s is not None:
                continue
            before = cost(at, given[at])
            for more in range(1, int((slo_s - through[at]) / step_s + 1e-6) + 1):
                after = cost(at, given[at] + more)
                if after < before and (best is None or (before - after) / more > best[0]):
                    best = ((before - after) / more, at, more)
        if best is None:
            return
        _, at, more = best
        given[at] += more
        taken[at] += more * step_s


def _through(stages: Sequence[StageFacts], lengths: Sequence[float]) -> tuple[list[float], float]:
    """Returns (the longest way through each stage, the longest way of all)."""
    until = [0.0] * len(stages)
    for at, stage in enumerate(stages):
        until[at] = lengths[at] + max((until[before] for before in stage.after), default=0.0)
    rest = list(lengths)
    for at in range(len(stages) - 1, -1, -1):
        for before in stages[at].after:
            rest[before] = max(rest[before], lengths[before] + rest[at])
    through = [until[at] + rest[at] - lengths[at] for at in range(len(stages))]
    return through, max(through, default=0.0)


def _scaled(slo_s: float, stages: Sequence[StageFacts], taken: Sequence[float]) -> list[float]:
    """Returns the budgets that use up the SLA along the longest way through each stage; stages with a target of their
    own keep it."""
    if all(each.own_s is None for each in stages):
        through, _ = _through(stages, taken)
        return [each * slo_s / way for each, way in zip(taken, through, strict=True)]
    free = [0.0 if each.own_s is not None else time for each, time in zip(stages, taken, strict=True)]
    kept = [0.0 if each.own_s is None else each.own_s for each in stages]
    most, left_s = _through(stages, free)[1], slo_s - _through(stages, kept)[1]
    factor = max(left_s, 1e-3) / most if most > 0.0 else 0.0
    return [own + time * factor for own, time in zip(kept, free, strict=True)]


def _needed(stage: StageFacts, budget_s: float, q: float) -> int | None:
    """Returns the fewest replicas with which the q-quantile of the wait fits into the budget; None if none do."""
    service_s = stage.service_s
    if service_s is None or service_s <= 0.0 or service_s > budget_s + TIE:
        return None
    offered, slots = stage.rps * service_s, max(1.0, stage.slots)
    least = max(1, math.floor(offered / slots + TIE) + (1 if offered else 0))
    for count in range(least, least + MOST_REPLICAS):
        servers = max(1, int(count * slots))
        if waiting_s(servers, offered / servers, service_s, stage.spread, q) <= budget_s - service_s + TIE:
            return count
    return None
