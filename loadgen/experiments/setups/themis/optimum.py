"""The programs against the paper's table over all milliseconds of the SLO (Algorithms 1 and 2, Eq. 6)."""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tidegate.autoscaler.policies.themis.model import StageProfile, ceil, queue_ms
from tidegate.autoscaler.policies.themis.programs import Problem, StagePlan, horizontal, joint, vertical
from tidegate.loadgen.experiments.outcome import ExperimentOutcome
from tidegate.loadgen.experiments.registry import setup
from tidegate.loadgen.experiments.tables import Count

Choices = Callable[[StageProfile, int], Iterable[StagePlan]]
"""Called with a stage and its index: its configurations that carry the load."""


def least_cost(problem: Problem, choices: Choices) -> int | None:
    """Returns the least cores by the table: used milliseconds of the SLO, least cores. None if nothing meets it."""
    size = int(problem.slo_ms) + 1
    table = [0.0, *[math.inf] * (size - 1)]
    for index, stage in enumerate(problem.stages):
        more = [math.inf] * size
        for n, b, c in choices(stage, index):
            used = ceil(stage.latency_ms(b, c) + queue_ms(b, problem.lambda_rps, problem.queue))
            for at in range(size - used):
                if table[at] + n * c < more[at + used]:
                    more[at + used] = table[at] + n * c
        table = more
    least = min(table)
    return None if math.isinf(least) else int(least)


def free(problem: Problem, c_max: int) -> Choices:
    """Returns the choices of the programs in which instances are free."""

    def choices(stage: StageProfile, _: int) -> Iterable[StagePlan]:
        for b in problem.batches(stage):
            for c in range(1, c_max + 1):
                needed = problem.lambda_rps * problem.headroom / stage.throughput_rps(b, c)
                yield StagePlan(max(1, ceil(needed)), b, c)

    return choices


def given(problem: Problem, instances: Sequence[int]) -> Choices:
    """Returns the choices of the program in which instances are given."""

    def choices(stage: StageProfile, index: int) -> Iterable[StagePlan]:
        for b in problem.batches(stage):
            for c in range(1, problem.c_max + 1):
                if instances[index] * stage.throughput_rps(b, c) >= problem.lambda_rps * problem.headroom - 1e-9:
                    yield StagePlan(instances[index], b, c)

    return choices


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    problems: Count
    most_stages: Count
    b_max: Count
    c_max: Count


@setup(Optimum)
def optimum(parameters: Optimum, seed: int) -> ExperimentOutcome:
    """Solves random pipelines both ways."""
    rng = random.Random(seed)
    found = {"horizontal": 0, "vertical": 0, "joint": 0}
    feasible = dict(found)
    for _ in range(parameters.problems):
        problem = _drawn(parameters, rng)
        instances = [rng.randint(1, 6) for _ in problem.stages]
        across, whole, upward = horizontal(problem), joint(problem), vertical(problem, instances).plan
        for name, plan, choices in (
            ("horizontal", across, free(problem, 1)),
            ("joint", whole, free(problem, problem.c_max)),
            ("vertical", upward, given(problem, instances)),
        ):
            cost = None if plan is None else plan.cost
            found[name] += cost == least_cost(problem, choices)
            feasible[name] += cost is not None
    figures = {f"{name}_equal_percent": 100.0 * count / parameters.problems for name, count in found.items()}
    figures |= {f"{name}_feasible": float(count) for name, count in feasible.items()}
    return ExperimentOutcome(figures=figures)


def _drawn(parameters: Optimum, rng: random.Random) -> Problem:
    stages = tuple(
        StageProfile(
            gamma=rng.uniform(10.0, 300.0),
            epsilon=rng.uniform(-15.0, 160.0),
            delta=rng.uniform(1.0, 80.0),
            eta=rng.uniform(-15.0, 60.0),
        )
        for _ in range(rng.randint(1, parameters.most_stages))
    )
    alone_ms = sum(each.latency_ms(1, 1) for each in stages)
    return Problem(
        stages=stages,
        slo_ms=float(round(alone_ms * rng.uniform(0.5, 3.0))),
        lambda_rps=round(rng.uniform(0.5, 60.0), 2),
        b_max=parameters.b_max,
        c_max=parameters.c_max,
    )
