"""Weights from what groups can do, and when a new one is worth telling."""

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.worlds.autoscaling import replica_sample
from tidegate.traffic.weights import (
    FINE_STEP,
    LIFT,
    MAX_MOVES,
    MEAN_S,
    MOVE_REFILL_S,
    GroupCapacity,
    Occupancy,
    ServiceRates,
    Weights,
    capacities,
    lifted,
    split,
    with_rates,
)


def test_equal_utilisation_not_equal_rates() -> None:
    shares = split([GroupCapacity("v100", 117.0, 1), GroupCapacity("t4", 65.25, 1)], 100.0)
    assert shares is not None
    assert shares.weights_pct == (64, 36)
    assert shares.lambdas[0] / 117.0 == pytest.approx(shares.lambdas[1] / 65.25)


def test_no_capacity_is_no_split() -> None:
    assert split([], 10.0) is None
    assert split([GroupCapacity("t4", 10.0, 0), GroupCapacity("v100", None, 3)], 10.0) is None


def test_a_group_without_a_rate_gets_the_mean_of_the_others() -> None:
    groups = [GroupCapacity("a", 10.0, 1), GroupCapacity("b", 30.0, 1), GroupCapacity("c", None, 1)]
    assert [group.mu_ips for group in with_rates(groups)] == [10.0, 30.0, 20.0]
    assert [group.mu_ips for group in with_rates([GroupCapacity("a", None, 1), GroupCapacity("b", 0.0, 2)])] == [
        1.0,
        1.0,
    ]


def did(
    rates: ServiceRates, accelerator: str, inferences: Any, busy_s: float, request_s: float = 0.0, limit: int = 0
) -> None:
    before = replica_sample("r-a", limit=limit)
    after = replace(before, inferences=inferences, busy_s=busy_s, in_flight_request_s=request_s)
    rates.measured(before, after, accelerator)


def test_rates_are_smoothed_and_idle_seconds_say_nothing() -> None:
    rates = ServiceRates()
    assert rates.mu_ips("r", "t4") is None
    did(rates, "t4", 50, 0.5)
    assert rates.mu_ips("r", "t4") == 100.0
    did(rates, "t4", 100, 0.5)
    assert rates.mu_ips("r", "t4") == pytest.approx(130.0)
    for inferences, busy_s in ((0, 1.0), (5, 0.001), (math.nan, 1.0), (5, math.nan), (-5, 1.0)):
        did(rates, "t4", inferences, busy_s)
    assert rates.mu_ips("r", "t4") == pytest.approx(130.0)
    rates.forget("r")
    assert rates.mu_ips("r", "t4") is None


def test_company_is_smoothed_too() -> None:
    rates = ServiceRates()
    assert rates.occupancy("r", "t4") is None
    did(rates, "t4", 50, 0.5, request_s=1.0, limit=8)
    assert rates.occupancy("r", "t4") == Occupancy(2.0, 8)
    did(rates, "t4", 50, 0.5, request_s=6.0, limit=4)
    assert rates.occupancy("r", "t4") == Occupancy(5.0, 4), "the newest limit"
    did(rates, "t4", 50, 0.5, request_s=math.inf)
    did(rates, "t4", 0, 0.5, request_s=50.0)
    assert rates.occupancy("r", "t4") == Occupancy(5.0, 4), "what cannot be true, and idle seconds"
    rates.forget("r")
    assert rates.occupancy("r", "t4") is None


def lifts(*occupancies: Occupancy | None, mu_ips: float | None = 100.0) -> list[bool]:
    groups = [GroupCapacity("abc"[index], mu_ips, 1, occupancy) for index, occupancy in enumerate(occupancies)]
    return [group.mu_ips != mu_ips for group in lifted(groups)]


def test_a_group_with_a_quarter_of_the_company_of_another_one_counts_for_a_little_more() -> None:
    assert lifts(Occupancy(1.5, 0), Occupancy(62.5, 0)) == [True, False]
    assert lifts(Occupancy(1.5, 0), Occupancy(5.9, 0)) == [False, False]
    assert lifts(Occupancy(1.0, 0), Occupancy(50.0, 0), Occupancy(13.0, 0)) == [True, False, False]
    (group, _) = lifted(
        [GroupCapacity("a", 100.0, 1, Occupancy(1.0, 0)), GroupCapacity("b", 100.0, 1, Occupancy(9.0, 0))]
    )
    assert group.mu_ips == pytest.approx(100.0 * (1.0 + LIFT))


def test_a_full_group_does_not_nor_one_of_which_nothing_is_known() -> None:
    assert lifts(Occupancy(1.9, 2), Occupancy(16.0, 16)) == [False, False]
    assert lifts(Occupancy(1.7, 2), Occupancy(16.0, 16)) == [True, False]
    assert lifts(None, Occupancy(16.0, 16)) == lifts(None, None) == [False, False]
    assert lifts(Occupancy(1.0, 0), Occupancy(16.0, 0), mu_ips=None) == [False, False]


def test_a_group_without_replicas_has_no_measure() -> None:
    gone = GroupCapacity("gone", 300.0, 0, Occupancy(40.0, 0))
    pair = [GroupCapacity("a", 100.0, 1, Occupancy(5.0, 0)), GroupCapacity("b", 100.0, 1, Occupancy(12.0, 0))]
    assert lifted([*pair, gone]) == [*pair, gone]


def test_weights_by_hand_are_not_lifted() -> None:
    occupancies = {"a": Occupancy(1.0, 0), "b": Occupancy(60.0, 0)}
    given = capacities({"a": 0.5, "b": 0.5}, {"a": 1.0, "b": 3.0}, {"a": 1, "b": 1}, occupancies)
    assert Weights().update("r", given, 0.0) == {"a": 0.5, "b": 0.5}
    learnt = capacities(None, {"a": 1.0, "b": 3.0}, {"a": 1, "b": 1}, occupancies)
    assert Weights().update("r", learnt, 0.0)["a"] == pytest.approx(1.03 / 4.03)


@pytest.mark.parametrize("callers", [16, 64])
def test_a_group_that_waits_for_another_one_fills(callers: int) -> None:
    """SMIF's pair in a closed loop, split by weights alone. With one request at a time the faster one yields 6 % less,
    which is that one's way there and back; weights by that yield leave it so, at 96.4 % of the sum."""
    rates, weights, fast, slow = ServiceRates(), Weights(), 117.0, 65.25
    present, part, done = 1.0, 0.5, 0.0
    for second in range(60):
        ended = {"v100": 0.0, "t4": 0.0}
        busy_s, request_s = dict(ended), dict(ended)
        for _ in range(100):
            here = {"v100": present, "t4": callers - present}
            for name, alone, way in (("v100", fast, 0.06), ("t4", slow, 0.0)):
                n = max(1.0, here[name])
                busy_s[name] += 0.01 * min(1.0, here[name])
                request_s[name] += 0.01 * here[name]
                here[name] = 0.01 * min(1.0, here[name]) * alone * n / (n + way)
                ended[name] += here[name]
            present += part * sum(here.values()) - here["v100"]
        for name in ended:
            did(rates, name, ended[name], busy_s[name], request_s[name])
        mu = {name: rates.mu_ips("r", name) for name in ended}
        groups = capacities(None, mu, {"v100": 1, "t4": 1}, {name: rates.occupancy("r", name) for name in ended})
        part = weights.update("r", groups, float(second))["v100"]
        if second >= 30:
            done += sum(ended.values())
    assert done / 30.0 > 0.985 * (fast + slow)
    assert part == pytest.approx(fast / (fast + slow), abs=0.01)


def pair(share: float) -> list[GroupCapacity]:
    """Two groups of which the first can do ``share`` of the whole."""
    return [GroupCapacity("a", 100.0 * share, 1), GroupCapacity("b", 100.0 * (1.0 - share), 1)]


def sent_by(weights: Weights, shares: Iterable[float], since: float = 0.0) -> list[float]:
    """What is in force of the first group, after one observe a second."""
    return [weights.update("r", pair(share), since + second)["a"] for second, share in enumerate(shares)]


def changes(published: list[float]) -> int:
    return sum(before != after for before, after in pairwise(published))


def test_two_points_are_reported_at_once() -> None:
    assert sent_by(Weights(), [0.5, 0.515, 0.524]) == pytest.approx([0.5, 0.5, 0.524])


def test_a_small_difference_is_reported_when_it_stays() -> None:
    """63.0 instead of 64.2 %: the slower group holds up all callers, and 3 % of the throughput is lost."""
    published = sent_by(Weights(), [0.630] + 30 * [0.642])
    assert published[:10] == pytest.approx(10 * [0.63]), "it may be a flicker"
    assert published[10:] == pytest.approx(21 * [0.642])


def test_a_difference_of_less_than_half_a_point_is_never_reported() -> None:
    assert changes(sent_by(Weights(), [0.640] + 600 * [0.6445])) == 0


def test_what_flickers_is_not_reported() -> None:
    """Up and down by a point and a half: the mean does not move."""
    assert changes(sent_by(Weights(), [0.64] + 300 * [0.655, 0.625])) == 0


def test_a_rate_that_flickers_widely_is_reported_as_its_mean() -> None:
    """Ten points up and down. The first ones go out as they are; then twenty seconds bring one more, and what is in
    force in between is the mean."""
    published = sent_by(Weights(), 300 * [0.74, 0.54])
    assert changes(published[:5]) == 4
    last = published[-300:]
    assert changes(last) <= 300 / MOVE_REFILL_S + 300 / MEAN_S
    assert sum(abs(share - 0.64) for share in last) / len(last) < 0.06


def test_moves_that_were_used_up_come_back() -> None:
    weights = Weights()
    assert sent_by(weights, [0.3, 0.36, 0.42, 0.48, 0.54, 0.6])[3:] == pytest.approx([0.48, 0.54, 0.54]), (
        "four in a row"
    )
    sent_by(weights, 40 * [0.6], since=6.0)
    assert sent_by(weights, [0.66, 0.72, 0.78], since=46.0) == pytest.approx([0.66, 0.72, 0.72]), "two after 40 s"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("noise", "most_a_minute"), [(0.0, 0.0), (0.002, 0.0), (0.005, 1.0), (0.01, 2.5)])
def test_noise_around_a_constant_makes_no_oscillation(noise: float, most_a_minute: float, seed: int) -> None:
    """Normal noise, its deviation in parts of the whole: the mean is published, and rarely again."""
    rng, weights = random.Random(seed), Weights()
    sent_by(weights, [0.5])
    published = sent_by(weights, [rng.gauss(0.642, noise) for _ in range(1860)], since=1.0)[60:]
    assert sum(abs(share - 0.642) for share in published) / len(published) < FINE_STEP
    assert max(abs(share - 0.642) for share in published) < FINE_STEP + 1.5 * noise
    assert changes(published) <= 30 * most_a_minute


rates = st.floats(1.0, 200.0)
looks = st.lists(st.tuples(st.floats(0.05, 3.0), rates, rates, rates), min_size=1, max_size=200)


@given(looks)
def test_however_rates_flicker_the_tables_of_a_minute_are_few(steps: list[tuple[float, float, float, float]]) -> None:
    """Four moves in a row and one more every 20 s, and a mean at most every 10 s."""
    weights, now, changed = Weights(), 0.0, []
    before: Mapping[str, float] = {}
    for passed, *mus in steps:
        now += passed
        groups = [GroupCapacity(name, mu, 2) for name, mu in zip("abc", mus, strict=True)]
        published = weights.update("r", groups, now)
        assert math.fsum(published.values()) == pytest.approx(1.0)
        if before and published != before:
            changed.append(now)
        before = dict(published)
    most = MAX_MOVES + 60.0 / MOVE_REFILL_S + 60.0 / MEAN_S + 1
    assert all(sum(at <= one <= at + 60.0 for one in changed) <= most for at in changed)


@pytest.mark.timeout(120)
@given(looks, st.lists(rates, min_size=3, max_size=3), st.floats(0.2, 1.0))
def test_whatever_was_before_constant_rates_are_reported_to_half_a_point(
    steps: list[tuple[float, float, float, float]], mus: list[float], every_s: float
) -> None:
    weights, now = Weights(), 0.0
    for passed, *was in steps:
        now += passed
        weights.update("r", [GroupCapacity(name, mu, 1) for name, mu in zip("abc", was, strict=True)], now)
    end = now + 2.0 * (MEAN_S + every_s)
    settled: Mapping[str, float] | None = None
    while now < end + 30.0:
        now += every_s
        published = weights.update("r", [GroupCapacity(name, mu, 1) for name, mu in zip("abc", mus, strict=True)], now)
        if now > end:
            assert all(abs(published[name] - mu / sum(mus)) <= FINE_STEP for name, mu in zip("abc", mus, strict=True))
            assert settled is None or settled == published
            settled = dict(published)


def test_a_group_that_appears_dies_or_wakes_is_reported_at_once() -> None:
    weights = Weights()
    both = [GroupCapacity("a", 99.0, 1), GroupCapacity("b", 1.0, 1)]
    assert weights.update("r", both[:1], 0.0) == {"a": 1.0}
    assert weights.update("r", both, 0.0) == {"a": 0.99, "b": 0.01}
    assert weights.update("r", [both[0], GroupCapacity("b", 1.0, 0)], 0.0) == {"a": 1.0, "b": 0.0}
    assert weights.published("r") == {"a": 1.0, "b": 0.0}
    assert weights.update("r", [GroupCapacity("a", 99.0, 0)], 0.0) == weights.published("r") == {}
    weights.forget("r")
    assert weights.update("r", both, 0.0)["b"] == 0.01
    assert "'a': 0.99" in repr(weights)


def test_groups_that_come_and_go_do_not_use_up_the_moves() -> None:
    weights = Weights()
    for second in range(20):
        weights.update("r", pair(0.5)[: 1 + second % 2], float(second))
    assert sent_by(weights, [0.6], since=20.0) == pytest.approx([0.6])


def test_what_is_left_of_a_hundred_goes_to_the_larger_remainder_then_capacity_then_the_earlier_group() -> None:
    def percentages(*capacities: float) -> tuple[int, ...]:
        found = split([GroupCapacity(str(index), mu, 1) for index, mu in enumerate(capacities)], 1.0)
        assert found is not None
        return found.weights_pct

    assert percentages(1.0, 1.0, 1.0) == (34, 33, 33), "all alike: the earlier one"
    assert percentages(1.0, 2.0) == (33, 67)
    assert percentages(0.5, 1.5, 6.0) == (6, 19, 75), "remainders alike: the larger capacity"
    assert percentages(1.5, 0.5, 6.0) == (19, 6, 75)
    assert percentages(0.0, 1.0, 2.0) == (0, 33, 67)


def test_a_revision_is_forgotten_alone() -> None:
    rates = ServiceRates()
    for revision in ("a", "b", "c"):
        before = replica_sample(f"{revision}-x", limit=4)
        after = replace(before, inferences=10, busy_s=1.0, in_flight_request_s=2.0)
        rates.measured(before, after, "t4")
    rates.forget("b")
    known = [rates.mu_ips(revision, "t4") is not None for revision in "abc"]
    assert known == [True, False, True]
    assert [rates.occupancy(revision, "t4") is not None for revision in "abc"] == known


def test_a_step_beyond_five_times_the_usual_change_is_published_at_once_and_a_smaller_one_is_not() -> None:
    """The share changes by 0.012 each second; the step itself raises the usual change to 0.0128."""
    for step, is_published in ((0.063, False), (0.065, True)):
        weights = Weights()
        usual = sent_by(weights, 48 * [0.64, 0.652])[-1]
        (after,) = sent_by(weights, [usual + step], since=96.0)
        assert (after != usual) is is_published, step


def test_a_weight_by_hand_is_that_of_the_group_however_many_replicas_it_has() -> None:
    given = capacities({"a": 0.5, "b": 0.5}, {"a": 1.0, "b": 3.0}, {"a": 1, "b": 3}, {})
    assert Weights().update("r", given, 0.0) == {"a": 0.5, "b": 0.5}


def test_weights_by_hand_that_name_no_group_share_evenly() -> None:
    found = capacities({}, {"a": 10.0, "b": 90.0}, {"a": 1, "b": 4}, {})
    assert found == [GroupCapacity("a", 1.0, 1), GroupCapacity("b", 0.25, 4)]
