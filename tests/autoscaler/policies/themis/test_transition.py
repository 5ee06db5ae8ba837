"""The decision of one second, by its timeline: a burst, then stable load."""

from dataclasses import replace

from tidegate.autoscaler.policies.themis.model import StageProfile
from tidegate.autoscaler.policies.themis.programs import Problem, StagePlan
from tidegate.autoscaler.policies.themis.transition import Action, decide

VIDEO = (
    StageProfile(gamma=148.817, epsilon=5.433, delta=37.494, eta=-15.476),
    StageProfile(gamma=34.693, epsilon=19.479, delta=2.058, eta=14.259),
)
LOAD = Problem(stages=VIDEO, slo_ms=780, lambda_rps=10.0, b_max=8, c_max=8)


def test_a_burst_gets_cores_at_once_and_instances_when_the_load_is_stable() -> None:
    """At rest: 2 + 1 instances for 10/s. The load doubles: cores. Stable at 20/s: instances of one core."""
    assert decide(LOAD, [(2, 1), (1, 1)], 10.0).action is Action.HOLD
    burst = replace(LOAD, lambda_rps=20.0)
    more = decide(burst, [(2, 1), (1, 1)], 30.0)
    assert more.action is Action.VERTICAL and more.plan is not None
    assert more.plan.instances == (2, 1) and more.plan.cost > 3
    cores = [each.c for each in more.plan.stages]
    stable = decide(burst, list(zip((2, 1), cores, strict=True)), 20.0)
    assert stable.action is Action.TO_HORIZONTAL and stable.plan is not None
    assert all(each.c == 1 for each in stable.plan.stages)
    assert sum(stable.spawn) > 0


def test_beyond_all_cores_further_instances_carry_the_rest() -> None:
    found = decide(replace(LOAD, lambda_rps=60.0, c_max=4), [(2, 1), (1, 1)], 60.0)
    assert found.action is Action.VERTICAL_PLUS_HORIZONTAL
    assert (found.supported_rps, found.remaining_rps) == (33, 27.0)
    assert all(count > 0 for count in found.spawn)


def test_a_smaller_forecast_counts_as_the_present_load() -> None:
    assert decide(LOAD, [(9, 1), (3, 1)], 0.0) == decide(LOAD, [(9, 1), (3, 1)], 10.0)


def test_where_one_core_never_meets_the_sla_the_present_cores_are_held() -> None:
    slow = Problem(
        stages=(StageProfile(gamma=70.0, epsilon=0.0, delta=0.0, eta=0.0),), slo_ms=50, lambda_rps=8.0, b_max=2, c_max=4
    )
    found = decide(slow, [(1, 3)], 5.0)
    assert found.action is Action.HOLD and found.plan is not None
    assert found.plan.stages == (StagePlan(1, 1, 3),)


def test_an_sla_that_nothing_meets_is_said() -> None:
    assert decide(replace(LOAD, slo_ms=60), [(1, 1), (1, 1)], 10.0).action is Action.SLO_INFEASIBLE


def test_instances_beyond_what_the_load_needs_go_and_missing_ones_come() -> None:
    found = decide(LOAD, [(9, 1), (3, 1)], 10.0)
    assert (found.action, found.spawn, found.retire) == (Action.TO_HORIZONTAL, (0, 0), (7, 2))
    mixed = decide(LOAD, [(1, 8), (3, 1)], 10.0)
    assert (mixed.action, mixed.spawn, mixed.retire) == (Action.TO_HORIZONTAL, (1, 0), (0, 2))
    assert mixed.plan is not None
    assert mixed.plan.instances == (2, 1)


def test_what_is_there_already_or_will_not_last_is_held() -> None:
    there = decide(LOAD, [(2, 1), (1, 1)], 10.0)
    assert (there.action, there.spawn, there.retire) == (Action.HOLD, (0, 0), (0, 0))
    assert decide(LOAD, [(2, 2), (1, 1)], 10.0).action is Action.TO_HORIZONTAL, "the same instances, with more cores"
    assert decide(LOAD, [(2, 1), (1, 2)], 10.0).action is Action.TO_HORIZONTAL
    assert decide(LOAD, [(9, 1), (3, 1)], 40.0).action is Action.HOLD, "more is expected"
    assert (there.supported_rps, there.remaining_rps) == (None, None)


def test_other_cores_start_nothing() -> None:
    more = decide(replace(LOAD, lambda_rps=20.0), [(2, 1), (1, 1)], 20.0)
    assert (more.action, more.spawn, more.retire) == (Action.VERTICAL, (0, 0), (0, 0))
    beyond = decide(replace(LOAD, lambda_rps=60.0, c_max=4), [(2, 1), (1, 1)], 60.0)
    assert beyond.retire == (0, 0)
    nothing = decide(replace(LOAD, slo_ms=60), [(1, 1), (1, 1)], 10.0)
    assert (nothing.plan, nothing.spawn, nothing.retire) == (None, (), ())
