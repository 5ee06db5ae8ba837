"""The integer program: named results at the edges, and the greedy rule against it."""

import random
from typing import Any

import pytest

from benchmarks.micro.hetsev_bench import SLO_S, THRESHOLD
from tidegate.autoscaler.policies.hetsev import exact
from tidegate.autoscaler.policies.hetsev.exact import Program, is_feasible, objective, solve
from tidegate.autoscaler.policies.hetsev.greedy import scale_out
from tidegate.autoscaler.policies.hetsev.instances import InstanceType
from tidegate.loadgen.experiments.setups.hetsev.greedy import drawn


def kind(name: str = "t4", **fields: object) -> InstanceType:
    given: dict[str, object] = {"cost": 1.0, "throughput_ips": 10.0, "latency_s": 0.1, "needs": {name: 1.0}}
    return InstanceType(**{**given, **fields})  # type: ignore[arg-type]


def test_zero_load_removes_all() -> None:
    assert solve([kind(running=3)], 0.0, 0.4, 0.01, {"t4": 9.0}) == Program((-3,), -3.0)


def test_no_type_at_all() -> None:
    assert solve([], 1.0, 0.4, 0.01, {}) == Program(None, None)
    assert solve([], 0.0, 0.4, 0.01, {}) == Program((), 0.0)
    assert solve([], 1e-9, 0.4, 0.01, {}) == Program((), 0.0)


@pytest.mark.parametrize("unknown", [{"throughput_ips": None}, {"latency_s": None}, {"throughput_ips": 0.0}])
def test_a_type_without_a_profile_is_not_launched(unknown: dict[str, object]) -> None:
    types = [kind("t4", **unknown), kind("v100", cost=9.0)]
    free = {"t4": 9.0, "v100": 9.0}
    assert solve(types, 8.0, 0.4, 0.01, free).change == (0, 1)
    assert solve(types[:1], 8.0, 0.4, 0.01, free) == Program(None, None)


def test_what_runs_counts_though_its_type_misses_the_slo() -> None:
    slow = [kind(running=2, latency_s=1.0)]
    assert solve(slow, 15.0, 0.4, 0.01, {"t4": 2.0}).change == (0,)
    assert solve(slow, 25.0, 0.4, 0.01, {"t4": 9.0}) == Program(None, None), "no more of them are launched"


def test_a_single_type_is_a_division() -> None:
    for arrivals in (1.0, 10.0, 10.5, 99.9):
        change = solve([kind()], arrivals, 0.4, 0.01, {"t4": 50.0}).change
        assert change == (-(-arrivals // 10.0),)
    assert solve([kind(running=2)], 35.0, 0.4, 0.01, {"t4": 4.0}) == Program((2,), 2.0)
    assert solve([kind(running=2)], 45.0, 0.4, 0.01, {"t4": 4.0}) == Program(None, None)


def test_the_cheapest_mix_launches_and_removes_at_once() -> None:
    types = [kind("a", cost=5.0, running=3), kind("b", cost=1.0)]
    total = {"a": 3.0, "b": 2.0}
    assert solve(types, 30.0, 0.4, 0.01, total) == Program((-2, 2), -8.0)
    assert solve(types, 30.0, 0.4, 0.01, {"a": 3.0}) == Program((0, 0), 0.0)
    dear = [types[0], kind("b", cost=1.0, launch_s=500.0)]
    assert solve(dear, 30.0, 0.4, 0.01, total).change == (0, 0), "a launch at 1 x (1 + 5) is dearer than what runs at 5"
    assert solve(dear, 30.0, 0.4, 0.0, total) == Program((-2, 2), -8.0)
    nearly = solve(dear, 30.0, 0.4, 0.007, total)
    assert (nearly.change, nearly.is_proved) == ((-2, 2), True)
    assert nearly.objective == pytest.approx(-1.0)


def test_one_resource_of_two_types_limits_both() -> None:
    types = [kind("a", needs={"gpu": 0.5}), kind("b", cost=0.6, throughput_ips=20.0, needs={"gpu": 1.0})]
    assert solve(types, 60.0, 0.4, 0.01, {"gpu": 3.0}).change == (0, 3)
    assert solve(types, 50.0, 0.4, 0.01, {"gpu": 2.5}).change == (1, 2)
    assert solve(types, 50.1, 0.4, 0.01, {"gpu": 2.5}) == Program(None, None)


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


@pytest.mark.parametrize(
    ("change", "fields", "ips", "total", "holds"),
    [
        (1, {}, 10.0, 1.0, True),
        (1, {"latency_s": 9.0}, 0.0, 5.0, False),
        (0, {"latency_s": 9.0, "running": 1}, 10.0, 5.0, True),
        (-1, {"latency_s": 9.0, "running": 1}, 0.0, 5.0, True),
        (2, {}, 0.0, 1.0, False),
        (2, {}, 0.0, 2.0 - 1e-10, True),
        (1, {"running": 1}, 0.0, 1.0, False),
        (1, {"running": 1}, 20.0, 2.0, True),
        (-1, {}, 0.0, 1.0, False),
        (-1, {"running": 1}, 0.0, 0.0, True),
        (-1, {"running": 1}, 0.1, 0.0, False),
        (1, {}, 10.1, 1.0, False),
        (1, {}, 10.0 + 1e-10, 1.0, True),
        (1, {"throughput_ips": None}, 0.0, 1.0, False),
    ],
)
def test_a_solution_holds_if_it_keeps_all_constraints(
    change: int, fields: dict[str, Any], ips: float, total: float, holds: bool
) -> None:
    assert is_feasible((change,), [kind(**fields)], ips, 0.4, {"t4": total}) is holds


def test_a_resource_that_is_missing_has_none() -> None:
    assert not is_feasible((1,), [kind()], 0.0, 0.4, {})
    assert is_feasible((0,), [kind()], 0.0, 0.4, {})
    assert is_feasible((), [], 0.0, 0.4, {})
    mixed = [kind("a", needs={"gpu": 0.5}), kind("b", needs={"gpu": 1.0, "memory": 2.0})]
    assert is_feasible((1, 1), mixed, 20.0, 0.4, {"gpu": 1.5, "memory": 2.0})
    assert not is_feasible((1, 1), mixed, 20.0, 0.4, {"gpu": 1.4, "memory": 2.0})
    assert not is_feasible((1, 1), mixed, 20.0, 0.4, {"gpu": 1.5, "memory": 1.9})


def test_the_objective_weighs_launches_and_gives_back_removals() -> None:
    types = [kind(cost=2.0, launch_s=30.0), kind("b", cost=3.0, launch_s=40.0)]
    assert objective((2, -1), types, 0.01) == pytest.approx(2 * 2.0 * 1.3 - 3.0)
    assert objective((-2, 1), types, 0.01) == pytest.approx(-4.0 + 3.0 * 1.4)
    assert objective((0, 0), types, 0.01) == 0.0


def test_the_solver_is_there() -> None:
    assert exact.is_available()


def test_a_type_of_less_than_one_inference_a_second_may_be_launched_as_often_as_needed() -> None:
    assert solve([kind(throughput_ips=0.5)], 5.0, 0.4, 0.01, {"t4": 12.0}).change == (10,)
