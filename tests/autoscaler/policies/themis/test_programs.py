"""The three programs against full enumeration."""

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tidegate.autoscaler.policies.themis.model import StageProfile
from tidegate.autoscaler.policies.themis.programs import (
    Problem,
    StagePlan,
    extra_instances,
    horizontal,
    joint,
    vertical,
    with_cores,
)
from tidegate.errors import InvalidInputError
from tidegate.manifest.policy_parameters import QueueModel


def flat(ms: float, per_core: float = 0.0, delta: float = 0.0) -> StageProfile:
    return StageProfile(gamma=per_core, epsilon=0.0, delta=delta, eta=ms)


def stages(rng: random.Random) -> tuple[StageProfile, ...]:
    return tuple(
        StageProfile(
            gamma=rng.uniform(0, 80), epsilon=rng.uniform(-8, 40), delta=rng.uniform(0, 30), eta=rng.uniform(-10, 60)
        )
        for _ in range(rng.randint(1, 3))
    )


def enumerated(problem: Problem, cores: range, fixed: list[int] | None, load: float) -> Iterator[tuple[int, int]]:
    """(cost, latency) of every feasible plan, by Eq. 6 alone."""
    options = []
    for at, stage in enumerate(problem.stages):
        own = []
        for b, c in itertools.product(range(1, problem.b_max + 1), cores):
            wait = 0.0 if b == 1 else math.inf if load == 0 else 1000 * (b - 1) / load
            if wait == math.inf:
                continue
            h, wanted = stage.throughput_rps(b, c), load * problem.headroom
            n = max(1, math.ceil(wanted / h - 1e-9)) if fixed is None else fixed[at]
            if n * h >= wanted - 1e-9 * (1 if fixed else 1 + h):
                own.append((n * c, math.ceil(stage.latency_ms(b, c) + wait - 1e-9)))
        options.append(own)
    for plan in itertools.product(*options):
        if sum(ms for _, ms in plan) <= problem.slo_ms:
            yield sum(cost for cost, _ in plan), sum(ms for _, ms in plan)


@pytest.mark.parametrize("seed", range(60))
def test_each_program_reaches_the_optimum_and_the_least_latency_of_it(seed: int) -> None:
    rng = random.Random(seed)
    problem = Problem(
        stages=stages(rng),
        slo_ms=rng.randint(60, 700),
        lambda_rps=rng.choice([0.0, 0.3, rng.uniform(1, 60)]),
        b_max=4,
        c_max=3,
        headroom=rng.choice([1.0, 1.2]),
    )
    fixed = [rng.randint(1, 4) for _ in problem.stages]
    load = problem.lambda_rps
    for found, best in (
        (horizontal(problem), min(enumerated(problem, range(1, 2), None, load), default=None)),
        (joint(problem), min(enumerated(problem, range(1, 4), None, load), default=None)),
        (vertical(problem, fixed).plan, min(enumerated(problem, range(1, 4), fixed, load), default=None)),
    ):
        assert (None if found is None else (found.cost, found.latency_ms)) == best


@pytest.mark.parametrize("seed", range(40))
def test_the_largest_load_of_given_instances_is_that_of_a_scan_over_all_smaller_ones(seed: int) -> None:
    rng = random.Random(1000 + seed)
    problem = Problem(stages=stages(rng), slo_ms=rng.randint(60, 400), lambda_rps=rng.uniform(20, 99), b_max=3, c_max=2)
    fixed = [rng.randint(1, 3) for _ in problem.stages]
    found = vertical(problem, fixed)
    if found.plan is not None:
        assert found.lambda_max is None
        return
    for load in range(math.ceil(problem.lambda_rps) - 1, -1, -1):
        best = min(enumerated(problem, range(1, 3), fixed, load), default=None) if load else None
        if best is not None or load == 0:
            assert found.lambda_max == load
            assert (None if found.at_lambda_max is None else found.at_lambda_max.cost) == (best and best[0])
            return


def test_the_largest_load_is_below_the_given_one_also_for_a_whole_number() -> None:
    fast = Problem(stages=(flat(0.0, per_core=100.0),), slo_ms=100, lambda_rps=10.5, b_max=1)
    assert vertical(fast, [1]).lambda_max == 10
    assert vertical(Problem(stages=fast.stages, slo_ms=100, lambda_rps=11.0, b_max=1), [1]).lambda_max == 10


def test_without_load_each_stage_has_one_instance_and_vertical_keeps_its_number() -> None:
    problem = Problem(stages=(flat(20.0), flat(30.0)), slo_ms=100, lambda_rps=0.0, b_max=8, c_max=8)
    plans = [horizontal(problem), joint(problem), vertical(problem, [2, 3]).plan]
    assert [plan and plan.stages for plan in plans] == [
        (StagePlan(1, 1, 1), StagePlan(1, 1, 1)),
        (StagePlan(1, 1, 1), StagePlan(1, 1, 1)),
        (StagePlan(2, 1, 1), StagePlan(3, 1, 1)),
    ]


def test_equal_costs_and_latencies_give_the_smallest_batches_in_order() -> None:
    """Twin stages of 40 ms at 40/s in 110 ms: one of them has two instances, or a batch of two. The first stage keeps
    the smaller batch."""
    problem = Problem(stages=(flat(40.0), flat(40.0)), slo_ms=110, lambda_rps=40.0, b_max=2)
    found = horizontal(problem)
    assert found is not None and found.stages == (StagePlan(2, 1, 1), StagePlan(1, 2, 1))


def test_headroom_asks_for_more_throughput_and_leaves_waits_as_they_are() -> None:
    problem = Problem(stages=(flat(50.0),), slo_ms=50, lambda_rps=40.0, b_max=1)
    assert [plan and plan.cost for plan in (horizontal(problem),)] == [2]
    more = Problem(stages=problem.stages, slo_ms=50, lambda_rps=40.0, b_max=1, headroom=1.2)
    assert [plan and plan.cost for plan in (horizontal(more),)] == [3]


def test_waits_at_the_99th_percentile_ask_for_smaller_batches() -> None:
    problem = Problem(stages=(flat(40.0),), slo_ms=100.0, lambda_rps=50.0, b_max=4)
    mean, tail = horizontal(problem), horizontal(replace(problem, queue=QueueModel.P99))
    assert mean is not None and tail is not None
    assert (mean.stages[0].b, tail.stages[0].b) == (2, 1)


def test_what_runs_fits_if_some_batches_carry_the_load() -> None:
    problem = Problem(stages=(flat(0.0, per_core=50.0),), slo_ms=50, lambda_rps=60.0, b_max=2, c_max=4)
    assert with_cores(problem, [(1, 3)]) is not None
    assert with_cores(problem, [(1, 2)]) is None


def test_further_instances_for_the_rest_are_like_those_that_run() -> None:
    problem = Problem(stages=(flat(0.0, per_core=100.0),), slo_ms=100, lambda_rps=95.0, b_max=1, c_max=4)
    found = vertical(problem, [1])
    assert (found.lambda_max, found.at_lambda_max and found.at_lambda_max.stages[0].c) == (40, 4)
    assert found.at_lambda_max is not None
    assert extra_instances(problem, found.at_lambda_max, 55.0) == (2,)


def test_faults_of_the_input_are_named_together() -> None:
    with pytest.raises(InvalidInputError) as error:
        Problem(stages=(), slo_ms=-1.0, lambda_rps=math.nan, b_max=0, c_max=0, headroom=0.0)
    for name in ("stages", "slo_ms", "lambda_rps", "b_max", "c_max", "headroom"):
        assert name in str(error.value)


@pytest.mark.parametrize("latency_ms", [4.0, 8.0, 10.0, 20.0, 25.0, 40.0, 50.0, 100.0, 125.0, 200.0])
def test_a_whole_load_that_fills_the_instances_is_the_largest(latency_ms: float) -> None:
    stage = StageProfile(gamma=latency_ms, epsilon=0.0, delta=0.0, eta=0.0)
    problem = Problem(stages=(stage,), slo_ms=latency_ms, lambda_rps=1e5, b_max=1, c_max=1)
    for instances in range(1, 40):
        found = vertical(problem, [instances])
        assert (found.plan, found.lambda_max) == (None, round(instances * 1000.0 / latency_ms))
