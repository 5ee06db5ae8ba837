"""HetSev's rules as pure functions: named results at the edges, and the greedy rule against the exact program."""

import random

import pytest

from benchmarks.micro.hetsev_bench import SLO_S, THRESHOLD
from tidegate.autoscaler.policies.hetsev import exact
from tidegate.autoscaler.policies.hetsev.exact import Program, is_feasible, objective, solve
from tidegate.autoscaler.policies.hetsev.greedy import ScaleOut, room_for, scale_in, scale_out
from tidegate.autoscaler.policies.hetsev.instances import InstanceType
from tidegate.autoscaler.policies.hetsev.saturation import RateSample, Saturation, saturation
from tidegate.loadgen.experiments.setups.hetsev.greedy import drawn


def kind(name: str = "t4", **fields: object) -> InstanceType:
    given: dict[str, object] = {"cost": 1.0, "throughput_ips": 10.0, "latency_s": 0.1, "needs": {name: 1.0}}
    return InstanceType(**{**given, **fields})  # type: ignore[arg-type]


def test_no_sample_triggers_nothing() -> None:
    assert saturation([], 100.0) == Saturation((), False)
    assert saturation([], 0.0) == Saturation((), False)
    assert saturation([RateSample(0.0, 0.0)], 0.0) == Saturation((None,), False)


def test_zero_load_launches_nothing() -> None:
    assert scale_out([kind()], 0.0, 0.4, 0.01, {"t4": 9.0}, 0.8) == ScaleOut((0,), 0.0, True)
    assert scale_out([], 0.0, 0.4, 0.01, {}, 0.8) == ScaleOut((), 0.0, True)
    assert solve([kind(running=3)], 0.0, 0.4, 0.01, {"t4": 9.0}) == Program((-3,), -3.0)


def test_no_type_at_all() -> None:
    assert scale_out([], 1.0, 0.4, 0.01, {}, 0.8) == ScaleOut((), 0.0, False)
    assert scale_in([], 1.0, 0.8, 0.0, None, 300.0, 0) is None
    assert solve([], 1.0, 0.4, 0.01, {}) == Program(None, None)
    assert solve([], 0.0, 0.4, 0.01, {}) == Program((), 0.0)


@pytest.mark.parametrize("unknown", [{"throughput_ips": None}, {"latency_s": None}, {"throughput_ips": 0.0}])
def test_a_type_without_a_profile_is_not_launched(unknown: dict[str, object]) -> None:
    types = [kind("t4", **unknown), kind("v100", cost=9.0)]
    free = {"t4": 9.0, "v100": 9.0}
    assert scale_out(types, 8.0, 0.4, 0.01, free, 0.8).launch == (0, 1)
    assert solve(types, 8.0, 0.4, 0.01, free).change == (0, 1)
    assert not scale_out(types[:1], 8.0, 0.4, 0.01, free, 0.8).is_satisfied
    assert solve(types[:1], 8.0, 0.4, 0.01, free) == Program(None, None)


def test_what_runs_counts_though_its_type_misses_the_slo() -> None:
    slow = [kind(running=2, latency_s=1.0)]
    assert solve(slow, 15.0, 0.4, 0.01, {"t4": 2.0}).change == (0,)
    assert solve(slow, 25.0, 0.4, 0.01, {"t4": 9.0}) == Program(None, None), "no more of them are launched"
    assert scale_out(slow, 12.0, 0.4, 0.01, {"t4": 9.0}, 0.8) == ScaleOut((0,), 0.0, True)


def test_a_single_type_is_a_division() -> None:
    for arrivals in (1.0, 10.0, 10.5, 99.9):
        change = solve([kind()], arrivals, 0.4, 0.01, {"t4": 50.0}).change
        assert change == (-(-arrivals // 10.0),)


def test_room_is_what_the_scarcest_resource_allows() -> None:
    assert room_for({"memory": 4.0, "cores": 2.0}, {"memory": 13.0, "cores": 4.0}) == 2
    assert room_for({"memory": 4.0}, {}) == 0
    assert room_for({"memory": 4.0}, {"memory": -3.0}) == 0
    assert room_for({"memory": 0.0}, {}) == float("inf")
    assert room_for({"memory": 0.1}, {"memory": 0.1 + 0.2}) == 3, "binary noise takes none"


def test_a_removal_waits_for_the_cool_down_and_keeps_the_minimum() -> None:
    types = [kind(running=3)]
    assert scale_in(types, 1.0, 0.8, 299.0, 0.0, 300.0, 1) is None
    assert scale_in(types, 1.0, 0.8, 300.0, 0.0, 300.0, 1) == 0
    assert scale_in(types, 1.0, 0.8, 300.0, None, 300.0, 3) is None


def test_the_greedy_rule_is_feasible_and_never_cheaper_than_the_optimum() -> None:
    rng, judged = random.Random(3), 0
    for _ in range(60):
        types, arrivals_ips, weight, free = drawn(rng.randint(1, 7), rng)
        quick = scale_out(types, arrivals_ips, SLO_S, weight, free, THRESHOLD)
        best = solve(types, arrivals_ips / THRESHOLD, SLO_S, weight, free)
        if not quick.is_satisfied:
            continue
        judged += 1
        assert is_feasible(quick.launch, types, arrivals_ips / THRESHOLD, SLO_S, free)
        assert best.change is not None
        assert best.objective is not None
        assert is_feasible(best.change, types, arrivals_ips / THRESHOLD, SLO_S, free)
        assert best.objective == objective(best.change, types, weight)
        assert quick.cost >= best.objective - 1e-9
    assert judged > 30


def test_a_solution_that_does_not_hold_is_no_solution() -> None:
    assert not is_feasible((1,), [kind(latency_s=9.0)], 0.0, 0.4, {"t4": 5.0}), "it misses the SLO"
    assert not is_feasible((2,), [kind()], 0.0, 0.4, {"t4": 1.0}), "there is no room"
    assert not is_feasible((-1,), [kind()], 0.0, 0.4, {"t4": 1.0}), "nothing runs"
    assert not is_feasible((1,), [kind()], 10.1, 0.4, {"t4": 1.0}), "it carries too little"
    assert exact.is_available()


def test_a_type_of_less_than_one_inference_a_second_may_be_launched_as_often_as_needed() -> None:
    assert solve([kind(throughput_ips=0.5)], 5.0, 0.4, 0.01, {"t4": 12.0}).change == (10,)
