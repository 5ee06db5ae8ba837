"""The rule of SMIF at its limits; its worked cases are in tests/golden/test_papers.py."""

import pytest

from tidegate.autoscaler.policies.smif.rule import Flag, RuleGroup, RuleParameters, RuleResult, autoscale, ceil

P = RuleParameters()


def group(load: float, replicas: int = 0, most: int = 9, mu: float = 10.0, **facts: float | None) -> RuleGroup:
    return RuleGroup(mu, replicas, most, load, **facts)  # type: ignore[arg-type]


def ruled(*groups: RuleGroup, idle_s: float = 0.0, slo_s: float = 0.5, parameters: RuleParameters = P) -> RuleResult:
    return autoscale(slo_s, groups, parameters, idle_s)


def test_the_defaults() -> None:
    assert RuleParameters() == RuleParameters(
        rho=0.8, down_watermark=0.5, cooldown_s=60.0, max_up_factor=2.0, scale_to_zero=True, zero_grace_s=90.0
    )
    assert RuleGroup(1.0, 2, 3, 4.0) == (1.0, 2, 3, 4.0, None, None, 0.0)


@pytest.mark.parametrize(("value", "count"), [(2.0, 2), (2.0 + 5e-10, 2), (2.0 + 1e-8, 3), (2.0 - 1e-8, 2), (0.0, 0)])
def test_binary_noise_adds_no_replica(value: float, count: int) -> None:
    assert ceil(value) == count


def test_the_worked_example() -> None:
    cheap, fast = group(180.0, 0, 2, 65.25), group(0.0, 0, 9, 117.0)
    assert ruled(cheap, fast) == RuleResult((2, 2), (Flag.HETERO_UP,))
    assert ruled(cheap._replace(load_ips=3 * 52.2), fast).replicas == (2, 1)
    assert ruled(cheap._replace(load_ips=3 * 52.2 + 0.1), fast).replicas == (2, 2)


@pytest.mark.parametrize(("load", "count"), [(0.1, 1), (8.0, 1), (8.1, 2), (72.0, 9)])
def test_a_group_carries_its_load_at_80_percent(load: float, count: int) -> None:
    assert ruled(group(load)) == RuleResult((count,), ())


def test_what_has_no_room_spills_over_in_order_and_is_said() -> None:
    assert ruled(group(72.1)) == RuleResult((9,), (Flag.NO_CAPACITY,))
    assert ruled(group(32.0, 0, 2), group(0.0, 0, 1), group(0.0, 0, 9)) == RuleResult((2, 1, 1), (Flag.HETERO_UP,))
    assert ruled(group(32.0, 0, 2), group(8.0, 0, 1), group(0.0)) == RuleResult((2, 1, 2), (Flag.HETERO_UP,))
    assert ruled(group(32.0, 0, 2), group(0.0, 0, 1)) == RuleResult((2, 1), (Flag.HETERO_UP, Flag.NO_CAPACITY))
    assert ruled(group(24.0, 0, 2), group(0.0, execution_s=9.0), group(0.0)) == RuleResult((2, 0, 1), (Flag.HETERO_UP,))
    assert ruled(group(16.0 + 1e-10, 0, 2), group(0.0)) == RuleResult((2, 0), ())


@pytest.mark.parametrize(
    ("execution_s", "is_feasible"), [(None, True), (0.5, True), (0.5 + 5e-10, True), (0.501, False)]
)
def test_a_group_whose_execution_misses_the_target_is_replaced(execution_s: float | None, is_feasible: bool) -> None:
    found = ruled(group(8.0, 1, execution_s=execution_s), group(0.0))
    assert found == (RuleResult((1, 0), ()) if is_feasible else RuleResult((0, 1), (Flag.HETERO_UP,)))
    unused = ruled(group(8.0, 0, execution_s=execution_s), group(0.0))
    assert unused.replicas == found.replicas


def test_where_none_can_meet_the_target_the_fastest_carries_all_and_a_miss_asks_for_nothing() -> None:
    slow = [group(8.0, 1, execution_s=2.0, latency_s=9.0), group(8.0, 1, execution_s=1.0, latency_s=9.0)]
    assert ruled(*slow) == RuleResult((0, 2), (Flag.SLO_INFEASIBLE, Flag.HETERO_UP))
    assert ruled(slow[1]._replace(load_ips=1.0)) == RuleResult((1,), (Flag.SLO_INFEASIBLE,))


@pytest.mark.parametrize(
    ("replicas", "latency_s", "count"),
    [
        (4, 0.5, 4), (4, 0.5 + 5e-10, 4), (4, 0.51, 5), (4, 0.625, 5), (4, 0.63, 6), (4, 0.75, 6), (4, 1.0, 8),
        (4, 5.0, 8), (1, 0.51, 2), (0, 0.51, 1), (4, None, 4),
    ],
)  # fmt: skip
def test_a_miss_asks_for_one_more_or_in_proportion_twice_at_most(
    replicas: int, latency_s: float | None, count: int
) -> None:
    assert ruled(group(8.0, replicas, latency_s=latency_s)).replicas == (count,)


def test_a_load_may_ask_for_more_than_a_miss() -> None:
    assert ruled(group(64.0, 2, latency_s=0.6)).replicas == (8,)
    assert ruled(group(8.0, 2, latency_s=2.0), parameters=RuleParameters(max_up_factor=4.0)).replicas == (8,)
    assert ruled(group(8.0, 2, latency_s=2.0), parameters=RuleParameters(max_up_factor=1.0)).replicas == (3,)


@pytest.mark.parametrize(
    ("latency_s", "below_s", "count"),
    [
        (None, 60.0, 1), (None, 59.9, 4), (None, 60.0 - 5e-10, 1), (0.25, 60.0, 1), (0.25 + 5e-10, 60.0, 1),
        (0.26, 60.0, 4), (0.26, 600.0, 4), (0.25, 0.0, 4),
    ],
)  # fmt: skip
def test_a_group_shrinks_when_it_is_calm_and_has_been_for_a_cooldown(
    latency_s: float | None, below_s: float, count: int
) -> None:
    assert ruled(group(8.0, 4, latency_s=latency_s, below_for_s=below_s)).replicas == (count,)


@pytest.mark.parametrize(
    ("idle_s", "expected"),
    [
        (0.0, RuleResult((2, 1), (Flag.HOLD,))),
        (59.9, RuleResult((2, 1), (Flag.HOLD,))),
        (60.0 - 5e-10, RuleResult((1, 0), (Flag.PARK,))),
        (60.0, RuleResult((1, 0), (Flag.PARK,))),
        (89.9, RuleResult((1, 0), (Flag.PARK,))),
        (90.0 - 5e-10, RuleResult((0, 0), (Flag.SCALE_TO_ZERO,))),
        (90.0, RuleResult((0, 0), (Flag.SCALE_TO_ZERO,))),
    ],
)
def test_without_load_it_holds_then_parks_then_goes(idle_s: float, expected: RuleResult) -> None:
    assert ruled(group(0.0, 2), group(0.0, 1), idle_s=idle_s) == expected


def test_it_parks_on_the_cheapest_that_has_a_place_and_meets_the_target() -> None:
    stays = RuleParameters(scale_to_zero=False)
    there = group(0.0, 2)
    assert ruled(there._replace(max_replicas=0), there, idle_s=99.0, parameters=stays).replicas == (0, 1)
    assert ruled(there._replace(max_replicas=1), there, idle_s=99.0, parameters=stays).replicas == (1, 0)
    assert ruled(there._replace(execution_s=0.6), there, idle_s=99.0, parameters=stays).replicas == (0, 1)
    slow = there._replace(execution_s=0.6)
    assert ruled(slow, slow, idle_s=99.0, parameters=stays) == RuleResult((1, 0), (Flag.PARK,))
    assert ruled(group(0.0), group(0.0), idle_s=0.0) == RuleResult((0, 0), (Flag.ZERO,))
    assert ruled(idle_s=0.0) == RuleResult((), (Flag.ZERO,))
