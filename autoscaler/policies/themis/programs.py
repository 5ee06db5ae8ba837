"""The three programs of Themis (Eq. 6): fewest cores with which a pipeline meets its SLO at a load.

- :func:`horizontal` (Algorithm 2): instances of one core; their number and the batch sizes are free.
- :func:`vertical` (Algorithm 1): the instances are given; their cores and the batch sizes are free.
- :func:`joint`: all three are free.

Each stage has options (batch, cores, instances) with a latency in whole milliseconds, waiting for the batch included,
and a cost in cores. The programs add one stage after the other and keep the Pareto frontier of (cost, latency): a
partial plan that costs as much and takes as long as another one, or more, is never part of the answer. The paper's
table over all milliseconds of the SLO gives the same optimum and is a thousand times larger.

Ties: least latency in all, then the lexicographically smallest batch sizes (our choice).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidegate.autoscaler.policies.themis.model import TIE, StageProfile, ceil, queue_ms
from tidegate.errors import Fault, InvalidInputError
from tidegate.manifest.policy_parameters import QueueModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A pipeline, its load and its limits."""

    stages: tuple[StageProfile, ...]
    slo_ms: float
    """What latencies and waits of all stages may add up to, inclusive."""
    lambda_rps: float
    """Requests per second, the same at every stage."""
    b_max: int
    c_max: int = 1
    headroom: float = 1.0
    """Multiple of the load that the instances must carry. At 1 a stage may be fully busy, and its queue then grows."""
    queue: QueueModel = QueueModel.MEAN

    def __post_init__(self) -> None:
        faults = [] if self.stages else [Fault("stages", "none", "at least one")]
        for name in ("slo_ms", "lambda_rps"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                faults.append(Fault(name, repr(value), "a finite number, at least 0"))
        faults += [
            Fault(name, repr(value), "an integer from 1")
            for name, value in (("b_max", self.b_max), ("c_max", self.c_max))
            if value < 1
        ]
        if not (math.isfinite(self.headroom) and self.headroom > 0.0):
            faults.append(Fault("headroom", repr(self.headroom), "a finite number above 0"))
        faults += [
            Fault(f"stages[{index}]", repr(each), "finite coefficients")
            for index, each in enumerate(self.stages)
            if not all(map(math.isfinite, (each.gamma, each.epsilon, each.delta, each.eta)))
        ]
        if faults:
            raise InvalidInputError("pipeline", faults)

    def batches(self, stage: StageProfile) -> range:
        """Returns the batch sizes that a stage may have."""
        return range(1, (self.b_max if stage.b_max is None else min(self.b_max, stage.b_max)) + 1)


class StagePlan(NamedTuple):
    """The configuration of one stage."""

    n: int
    b: int
    c: int


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """A feasible configuration."""

    stages: tuple[StagePlan, ...]
    cost: int
    """Cores of all instances."""
    latency_ms: int
    """Latencies and waits of all stages, each in whole milliseconds."""

    @property
    def instances(self) -> tuple[int, ...]:
        return tuple(each.n for each in self.stages)


@dataclass(frozen=True, slots=True)
class VerticalPlan:
    """The answer of Algorithm 1."""

    plan: PipelinePlan | None
    """The configuration for the whole load; None if no number of cores carries it."""
    lambda_max: int | None = None
    """Without one: the largest whole load below it that the instances carry, 0 if none."""
    at_lambda_max: PipelinePlan | None = None
    """The configuration for that load; None at 0."""


class _Partial(NamedTuple):
    """A plan of the first stages, in the order of preference."""

    cost: int
    latency_ms: int
    batches: tuple[int, ...]
    stages: tuple[StagePlan, ...]


_EMPTY = _Partial(0, 0, (), ())
Options = Iterable[StagePlan]
"""Configurations of one stage that carry the load."""


def horizontal(problem: Problem) -> PipelinePlan | None:
    """Returns the cheapest plan of one-core instances (Algorithm 2); None if none meets the SLO."""
    return _cheapest(problem, [_free(problem, stage, c_max=1) for stage in problem.stages])


def joint(problem: Problem) -> PipelinePlan | None:
    """Returns the cheapest plan of all (Eq. 6); None if none meets the SLO."""
    return _cheapest(problem, [_free(problem, stage, c_max=problem.c_max) for stage in problem.stages])


def vertical(problem: Problem, instances: Sequence[int]) -> VerticalPlan:
    """Returns the cheapest cores and batch sizes for given ``instances`` of each stage (Algorithm 1), or the largest
    load that they carry."""
    plan = _vertical(problem, instances, problem.lambda_rps)
    if plan is not None:
        return VerticalPlan(plan)
    load = _largest_load(problem, instances)
    return VerticalPlan(None, load, _vertical(problem, instances, float(load)) if load else None)


def with_cores(problem: Problem, config: Sequence[tuple[int, int]]) -> PipelinePlan | None:
    """Returns batch sizes with which ``config``, (instances, cores) of each stage, carries the load as it is; None if
    none do."""
    options = [
        [StagePlan(n, b, c) for b in problem.batches(stage) if _carries(problem, stage, n, b, c, problem.lambda_rps)]
        for stage, (n, c) in zip(problem.stages, config, strict=True)
    ]
    return _cheapest(problem, options)


def extra_instances(problem: Problem, plan: PipelinePlan, remaining_rps: float) -> tuple[int, ...]:
    """Returns the further instances of each stage, like those of ``plan``, that carry ``remaining_rps`` (Algorithm 1,
    line 30)."""
    return tuple(
        ceil(max(0.0, remaining_rps) * problem.headroom / stage.throughput_rps(each.b, each.c))
        for stage, each in zip(problem.stages, plan.stages, strict=True)
    )


def _free(problem: Problem, stage: StageProfile, c_max: int) -> Options:
    wanted = problem.lambda_rps * problem.headroom
    for c in range(1, c_max + 1):
        for b in problem.batches(stage):
            yield StagePlan(max(1, ceil(wanted / stage.throughput_rps(b, c))), b, c)


def _vertical(problem: Problem, instances: Sequence[int], load: float) -> PipelinePlan | None:
    options = [
        [
            StagePlan(n, b, c)
            for c in range(1, problem.c_max + 1)
            for b in problem.batches(stage)
            if _carries(problem, stage, n, b, c, load)
        ]
        for stage, n in zip(problem.stages, instances, strict=True)
    ]
    return _cheapest(problem, options, load)


def _carries(problem: Problem, stage: StageProfile, n: int, b: int, c: int, load: float) -> bool:
    return n * stage.throughput_rps(b, c) >= load * problem.headroom - TIE


def _largest_load(problem: Problem, instances: Sequence[int]) -> int:
    """Returns the largest whole load below the problem's that ``instances`` carry within the SLO, 0 if none.

    More load makes waits for a batch shorter. So feasibility ends, going up, only where a configuration stops carrying
    the load: between two such places the upper end decides, and only these are tried.
    """
    highest = ceil(problem.lambda_rps) - 1
    ends, options = {highest}, []
    for stage, n in zip(problem.stages, instances, strict=True):
        own = []
        for b in problem.batches(stage):
            for c in range(1, problem.c_max + 1):
                most = (n * stage.throughput_rps(b, c) + TIE) / problem.headroom
                end = math.floor(most + TIE)
                ends.update((end - 1, end))  # The rounding may lie on either side.
                own.append((most, b, stage.latency_ms(b, c)))
        options.append(sorted(own, reverse=True))
    for load in sorted((each for each in ends if 1 <= each <= highest), reverse=True):
        waits = [queue_ms(b, load, problem.queue) for b in range(problem.b_max + 1)]
        left_ms = problem.slo_ms + TIE
        for own in options:
            least = math.inf
            for most, b, latency_ms in own:
                if most < load:
                    break
                if (total_ms := latency_ms + waits[b]) < least:
                    least = total_ms
            if least > left_ms:
                break
            left_ms -= ceil(least)
        else:
            if left_ms >= 0.0:
                return load
    return 0


def _cheapest(problem: Problem, options: Sequence[Options], load: float | None = None) -> PipelinePlan | None:
    """Returns the best plan of one option for each stage; None if none meets the SLO."""
    rate = problem.lambda_rps if load is None else load
    wait: Callable[[int], float] = {
        b: queue_ms(b, rate, problem.queue) for b in range(1, problem.b_max + 1)
    }.__getitem__
    partial = [_EMPTY]
    for stage, choices in zip(problem.stages, options, strict=True):
        rows = []
        for plan in choices:
            total_ms = stage.latency_ms(plan.b, plan.c) + wait(plan.b)
            if total_ms <= problem.slo_ms + TIE:
                rows.append(_Partial(plan.n * plan.c, ceil(total_ms), (plan.b,), (plan,)))
        ways = _frontier(rows)
        partial = _frontier(
            _Partial(
                each.cost + more.cost,
                each.latency_ms + more.latency_ms,
                each.batches + more.batches,
                each.stages + more.stages,
            )
            for each in partial
            for more in ways
            if each.latency_ms + more.latency_ms <= problem.slo_ms + TIE
        )
    if not partial:
        return None
    best = partial[0]
    return PipelinePlan(best.stages, best.cost, best.latency_ms)


def _frontier(rows: Iterable[_Partial]) -> list[_Partial]:
    """Returns the rows that no other one equals or beats in cost and latency, cheapest first."""
    kept: list[_Partial] = []
    for row in sorted(rows):
        if not kept or row.latency_ms < kept[-1].latency_ms:
            kept.append(row)
    return kept
