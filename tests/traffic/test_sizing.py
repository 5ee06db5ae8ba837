"""When requests are cut by size, and when weights alone decide."""

import itertools
import math
import random

import pytest

from tidegate.traffic.size_cuts import BatchClass, CutGroup, route_cuts
from tidegate.traffic.sizing import BY_HAND, BY_WEIGHTS, REVIEW_S, Forecast, SizedGroup, Sizing, cut, forecast

SIZES = (1, 64)


def seconds(fixed_ms: float, per_item_ms: float, sizes: tuple[int, ...] = SIZES) -> dict[int, float]:
    """A fixed part and one per inference (SMIF, table 1)."""
    return {size: (fixed_ms + per_item_ms * size) / 1e3 for size in sizes}


T4 = SizedGroup("t4", 1, seconds(9.0, 10.0))
V100 = SizedGroup("v100", 1, seconds(9.0, 3.0))
GROUPS = (T4, V100)
WEIGHTS = {"t4": 0.25, "v100": 0.75}


def mix(small_rps: float, large_rps: float) -> list[BatchClass]:
    return [BatchClass(1, small_rps), BatchClass(64, large_rps)]


def test_two_sizes_are_cut_because_the_small_ones_no_longer_wait_for_the_large_ones() -> None:
    choice = Sizing().review("r", GROUPS, mix(20.0, 2.0), 600, 0.0)
    assert dict(choice.sizes) == {"t4": (1, 63), "v100": (64, None)}
    assert choice.why.startswith("cut by size: the fullest group busy for")
    cut_, weighed = (forecast(GROUPS, mix(20.0, 2.0), WEIGHTS, sizes) for sizes in (choice.sizes, {}))
    assert cut_.mean_s < 0.7 * weighed.mean_s


def test_rates_of_the_mix_do_not_depend_on_what_a_group_is_given_now() -> None:
    choice = Sizing().review("r", GROUPS, mix(20.0, 2.0), 600, 0.0)
    items, t4_s = 20.0 + 128.0, 20.0 * 0.019 + 2.0 * 0.649
    assert choice.mu_ips["t4"] == pytest.approx(items / t4_s)
    assert choice.mu_ips["v100"] > choice.mu_ips["t4"]


def test_one_size_is_left_to_the_weights() -> None:
    for classes in (mix(20.0, 0.0), mix(0.0, 3.0), mix(0.5, 3.0)):
        assert not Sizing().review("r", GROUPS, classes, 600, 0.0).sizes


def test_a_cut_that_overloads_a_group_is_not_made() -> None:
    classes = mix(20.0, 5.2)
    by_cuts = forecast(GROUPS, classes, WEIGHTS, cut(GROUPS, classes))
    assert by_cuts.fullest > 1.0
    choice = Sizing().review("r", GROUPS, classes, 600, 0.0)
    assert not choice.sizes
    assert "with cuts the fullest group busy for 1" in choice.why


@pytest.mark.parametrize("rate_rps", [10.0, 12.0, 25.0])
def test_requests_of_a_group_that_is_never_free_wait_for_ever(rate_rps: float) -> None:
    found = forecast([SizedGroup("g", 1, {1: 0.1})], [BatchClass(1, rate_rps)], {"g": 1.0}, {})
    assert found.fullest == pytest.approx(rate_rps / 10.0)
    assert found.mean_s == math.inf


def test_before_there_are_enough_requests_nothing_is_cut() -> None:
    sizing = Sizing()
    assert not sizing.review("r", GROUPS, mix(20.0, 2.0), 10, 0.0).sizes
    assert sizing.review("r", GROUPS, mix(20.0, 2.0), 600, 10.0).sizes
    assert sizing.review("r", GROUPS, mix(0.2, 0.02), 5, 20.0).sizes, "a quiet while is no reason to change it"


def test_noise_moves_nothing() -> None:
    sizing, rng = Sizing(), random.Random(3)
    seen = set()
    sizes = (1, 2, 4, 8, 16, 32, 64)
    groups = [SizedGroup("t4", 2, seconds(9, 10, sizes)), SizedGroup("v100", 1, seconds(9, 3, sizes))]
    for second in range(200):
        classes = [BatchClass(size, 2.0 * rng.uniform(0.85, 1.15)) for size in sizes]
        choice = sizing.review("r", groups, classes, 600, float(second))
        seen.add(tuple(sorted(choice.sizes.items())))
    assert len(seen) == 1, seen


def test_a_group_that_loses_its_last_replica_frees_its_sizes_at_once() -> None:
    sizing = Sizing()
    sizing.review("r", GROUPS, mix(20.0, 2.0), 600, 0.0)
    assert not sizing.is_due("r", frozenset({"t4", "v100"}), REVIEW_S - 1)
    assert sizing.is_due("r", frozenset({"t4", "v100"}), REVIEW_S)
    assert sizing.is_due("r", frozenset({"v100"}), 1.0)
    choice = sizing.review("r", (V100,), mix(20.0, 2.0), 600, 1.0)
    assert not choice.sizes
    assert sizing.in_force("r") == choice
    sizing.forget("r")
    assert sizing.in_force("r") == BY_WEIGHTS


def test_no_size_is_ever_without_a_group() -> None:
    rng = random.Random(4)
    for _ in range(300):
        sizes = tuple(sorted(rng.sample(range(1, 200), rng.randint(2, 6))))
        groups = [
            SizedGroup(f"g{n}", rng.randint(1, 4), seconds(rng.uniform(1, 20), rng.uniform(1, 20), sizes))
            for n in range(rng.randint(2, 5))
        ]
        classes = [BatchClass(size, rng.uniform(0.1, 5.0)) for size in sizes]
        ranges = cut(groups, classes)
        assert ranges.keys() == {group.id for group in groups}, "each group has work or shares some"
        for batch in range(1, 260):
            assert any(low <= batch and (high is None or batch <= high) for low, high in ranges.values()), batch


def test_the_cut_is_the_best_of_all_where_rates_depend_on_the_size() -> None:
    """Within 5 % of the best division of a bimodal mix over the groups, whatever its shape."""
    rng = random.Random(8)
    for _ in range(200):
        groups = [CutGroup(f"g{n}", rng.uniform(1, 9), rng.randint(1, 3)) for n in range(3)]
        table = [{1: rng.uniform(0.001, 0.02), 64: rng.uniform(0.05, 0.3)} for _ in groups]
        groups = [CutGroup(one.id, 64 / each[64], one.replicas, each) for one, each in zip(groups, table, strict=True)]
        classes = mix(rng.uniform(1, 50), rng.uniform(0.1, 5))
        found = route_cuts(groups, classes)
        assert found is not None
        order = sorted(groups, key=lambda group: (group.mu_ips, group.id))
        best = min(
            max(
                sum(group.use(each) for each, place in zip(classes, places, strict=True) if place == index)
                for index, group in enumerate(order)
            )
            for places in itertools.combinations_with_replacement(range(3), 2)
        )
        assert found.objective == pytest.approx(best, rel=1e-9)


def test_what_is_foreseen_of_one_replica_is_the_pollaczek_khinchine_mean() -> None:
    group = SizedGroup("g", 1, {1: 0.1})
    found = forecast([group], [BatchClass(1, 5.0)], {"g": 1.0}, {})
    assert found.fullest == pytest.approx(0.5)
    assert found.mean_s == pytest.approx(0.1 + 0.5 * 0.1 / (2 * 0.5)), "constant times: half of M/M/1's wait"


def test_above_85_percent_the_fullest_group_decides_and_below_it_the_mean_time() -> None:
    def way(fullest: float, mean_s: float) -> Forecast:
        return Forecast(fullest, mean_s)

    assert way(0.5, 1.0).is_better(way(0.4, 2.0), 0.1), "both have room: the shorter time"
    assert not way(0.4, 2.0).is_better(way(0.5, 1.0), 0.1)
    assert way(0.5, 9.0).is_better(way(0.9, 1.0), 0.1), "one is full: the emptier one"
    assert way(0.85, 1.0).is_better(way(0.85, 2.0), 0.1), "85 % is not full"
    assert not way(0.9, 1.0).is_better(way(1.0, 1.0), 0.1), "exactly the gain is not more than it"
    assert not way(0.5, 1.8).is_better(way(0.5, 2.0), 0.1)


def test_a_choice_by_hand_holds_until_figures_are_looked_at() -> None:
    sizing = Sizing()
    sizing.fix("r", BY_HAND)
    assert sizing.in_force("r") is BY_HAND
    assert sizing.is_due("r", frozenset({"t4"}), 0.0), "it was made without figures"
    assert sizing.is_due("r", frozenset(), 0.0)


def test_groups_without_weights_share_a_size_evenly() -> None:
    found = forecast([T4, SizedGroup("t4b", 1, T4.seconds)], mix(20.0, 0.0), {}, {})
    assert found.fullest == pytest.approx(10.0 * 0.019)


def test_a_way_that_keeps_up_is_better_than_one_with_twice_the_load_that_a_group_can_serve() -> None:
    assert Forecast(0.85, 1.0).is_better(Forecast(2.0, 1.0), 0.1)
    assert not Forecast(1.9, 1.0).is_better(Forecast(2.0, 1.0), 0.1)


@pytest.mark.parametrize(("requests", "is_cut"), [(49, False), (50, True)])
def test_fifty_requests_show_their_sizes(requests: int, is_cut: bool) -> None:
    choice = Sizing().review("r", GROUPS, mix(20.0, 2.0), requests, 0.0)
    assert bool(choice.sizes) is is_cut
    if not is_cut:
        assert choice.why == "by weights: too few requests to know their sizes"


def test_one_group_has_nothing_to_cut() -> None:
    assert Sizing().review("r", [T4], mix(20.0, 2.0), 600, 0.0).why == "by weights: one group serves"


@pytest.mark.parametrize(("large", "is_dominant"), [(19.0, True), (18.9, False)])
def test_a_size_with_95_percent_of_the_work_leaves_nothing_to_cut(large: float, is_dominant: bool) -> None:
    same = [SizedGroup(name, 1, {1: 0.001, 64: 0.001}) for name in ("a", "b")]
    why = Sizing().review("r", same, mix(1.0, large), 600, 0.0).why
    assert (why == "by weights: nearly all work is of size 64") is is_dominant


def test_the_wait_of_several_replicas_is_sakasegawas() -> None:
    group = SizedGroup("g", 3, {1: 0.1, 64: 0.4})
    found = forecast([group], mix(6.0, 3.0), {"g": 1.0}, {})
    rate, mean = 9.0, (6.0 * 0.1 + 3.0 * 0.4) / 9.0
    square = (6.0 * 0.01 + 3.0 * 0.16) / 9.0
    rho = rate * mean / 3
    wait = mean * (square / mean**2) / 2 * rho ** (math.sqrt(8.0) - 1) / (3 * (1 - rho))
    assert found.fullest == pytest.approx(rho)
    assert found.mean_s == pytest.approx(mean + wait)


def test_the_mean_time_is_over_all_requests_and_the_fullest_is_the_largest_of_the_groups() -> None:
    groups = [SizedGroup("a", 1, {1: 0.1, 64: 0.1}), SizedGroup("b", 1, {1: 0.2, 64: 0.2})]
    sizes: dict[str, tuple[int, int | None]] = {"a": (1, 63), "b": (64, None)}
    found = forecast(groups, mix(5.0, 1.0), {}, sizes)
    ours = (5.0 * (0.1 + 0.05), 1.0 * (0.2 + 0.2 / 2 * 0.2 / 0.8))
    assert found.fullest == pytest.approx(0.5)
    assert found.mean_s == pytest.approx(sum(ours) / 6.0)
    assert forecast(groups, [], {}, {}) == Forecast(0.0, 0.0)


@pytest.mark.parametrize(("size", "serves"), [(7, False), (8, True), (9, True), (10, False)])
def test_a_range_of_sizes_has_both_its_ends(size: int, serves: bool) -> None:
    groups = [SizedGroup("a", 1, {size: 0.1}), SizedGroup("b", 1, {size: 0.1})]
    found = forecast(groups, [BatchClass(size, 4.0)], {"a": 0.5, "b": 0.5}, {"a": (8, 9)})
    assert found.fullest == pytest.approx(0.2 if serves else 0.4)


def test_choices_are_counted() -> None:
    sizing = Sizing()
    sizing.review("a", GROUPS, mix(20.0, 2.0), 600, 0.0)
    sizing.review("b", GROUPS, mix(20.0, 0.0), 600, 0.0)
    assert repr(sizing) == "<Sizing 1 of 2 cut>"
