"""Weights from what groups can do, and when a new one is worth telling."""

import math

import pytest

from traffic.weights import GroupCapacity, ServiceRates, Weights, filled, split


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
    assert [group.mu_ips for group in filled(groups)] == [10.0, 30.0, 20.0]
    assert [group.mu_ips for group in filled([GroupCapacity("a", None, 1), GroupCapacity("b", 0.0, 2)])] == [1.0, 1.0]


def test_rates_are_smoothed_and_idle_seconds_say_nothing() -> None:
    rates = ServiceRates()
    assert rates.mu_ips("r", "t4") is None
    rates.measured("r", "t4", 50, 0.5)
    assert rates.mu_ips("r", "t4") == 100.0
    rates.measured("r", "t4", 100, 0.5)
    assert rates.mu_ips("r", "t4") == pytest.approx(130.0)
    for inferences, busy_s in ((0, 1.0), (5, 0.001), (math.nan, 1.0), (5, math.nan), (-5, 1.0)):
        rates.measured("r", "t4", inferences, busy_s)
    assert rates.mu_ips("r", "t4") == pytest.approx(130.0)
    rates.forget("r")
    assert rates.mu_ips("r", "t4") is None


def test_weights_stay_until_one_moves_by_two_points() -> None:
    weights = Weights()

    def published(mu: float, other: float = 50.0) -> float:
        return weights.update("r", [GroupCapacity("a", mu, 1), GroupCapacity("b", other, 1)])["a"]

    assert published(50.0) == 0.5
    assert published(53.0) == 0.5, "51.5%: not worth a table"
    assert published(55.0) == pytest.approx(55 / 105), "52.4%"


def test_a_group_that_appears_dies_or_wakes_is_told_at_once() -> None:
    weights = Weights()
    both = [GroupCapacity("a", 99.0, 1), GroupCapacity("b", 1.0, 1)]
    assert weights.update("r", both[:1]) == {"a": 1.0}
    assert weights.update("r", both) == {"a": 0.99, "b": 0.01}
    assert weights.update("r", [both[0], GroupCapacity("b", 1.0, 0)]) == {"a": 1.0, "b": 0.0}
    assert weights.update("r", [GroupCapacity("a", 99.0, 0)]) == {}
    weights.forget("r")
    assert weights.update("r", both)["b"] == 0.01
    assert "'a': 0.99" in repr(weights)
