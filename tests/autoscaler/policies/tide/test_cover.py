"""The cover: as much capacity as is worth its price for what may come."""

import numpy as np
import pytest

from tidegate.autoscaler.policies.tide.cover import CHEAPEST, DEAREST, Expectation, LatePrice
from tidegate.autoscaler.policies.tide.queueing import LateTable, Service

TABLE = LateTable(Service(sizes=((1.0, 0.1),), cv=0.15, latency_s=0.3), 1.0)
ALLOWED = 0.005


def expectation(chance: float, theta: float, step: float = 1.0, before: float = 0.0) -> Expectation:
    """Returns that of a load of 2 slots that becomes one of 20 with this chance."""
    levels, chances = np.array([2.0, 20.0]), np.array([1.0 - chance, chance])
    return Expectation(TABLE, levels, chances, theta, step, 8.0, before, 0.05)


def test_a_certain_burst_is_covered_whole() -> None:
    assert 20.0 < expectation(1.0, 1.0).best < 30.0


def test_an_impossible_one_is_not() -> None:
    assert expectation(0.0, 1.0).best < 8.0


def test_a_rare_one_is_covered_only_at_a_price() -> None:
    # 18 more replicas save 200 late requests a second, once in 10,000 seconds.
    assert expectation(1e-4, 1.0).best < 8.0
    assert expectation(1e-4, 10_000.0).best > 20.0


def test_no_price_buys_nothing() -> None:
    assert expectation(1.0, 0.0).best == 0.0


def test_the_best_size_is_the_cheapest_of_all() -> None:
    found = expectation(0.05, 2.0)
    costs = {count: count + 2.0 * found.late(count) for count in range(40)}
    assert found.best == min(costs, key=lambda count: costs[count])


def test_of_two_sizes_that_cost_nearly_the_same_the_present_one_stays() -> None:
    """Covered as a whole, or not at all: at a chance of 0.00087 both cost the same."""
    low, high = expectation(8.5e-4, 100.0), expectation(1e-3, 100.0)
    assert low.best < 8.0 < 20.0 < high.best
    assert expectation(8.5e-4, 100.0, before=high.best).best == high.best
    assert expectation(7e-4, 100.0, before=high.best).best == low.best
    assert expectation(1e-3, 100.0, before=low.best).best == high.best


def test_late_requests_are_counted_by_rate() -> None:
    # On 10 slots a load of 20, that is 200 requests/s, is late as a whole; that of 2 is not.
    assert expectation(0.1, 1.0).late(10.0) == pytest.approx(20.0, rel=1e-3)
    assert expectation(0.1, 1.0).late(0.0) == pytest.approx(0.1 * 200 + 0.9 * 20)
    assert expectation(0.1, 1.0).late(1000.0) < 1e-3


def test_a_replica_that_is_larger_than_any_load_is_bought() -> None:
    assert expectation(0.0, 1.0, step=32.0).best == 32.0


def test_late_requests_between_two_whole_numbers_of_slots_lie_between_theirs() -> None:
    found = expectation(0.1, 1.0)
    some, fewer = found.late(20.0), found.late(21.0)
    assert some > fewer + 1.0
    assert found.late(20.25) == pytest.approx(0.75 * some + 0.25 * fewer)


def feed(price: LatePrice, seconds: int, arrivals: float, late: float, expected: float) -> LatePrice:
    for _ in range(seconds):
        price.update(arrivals, late, expected, ALLOWED)
    return price


def test_without_arrivals_there_is_no_price() -> None:
    assert LatePrice().theta(ALLOWED) == 0.0
    assert feed(LatePrice(), 100, 0.0, 0.0, 0.0).theta(ALLOWED) == 0.0


def test_it_begins_at_a_tenth_of_the_unit_and_falls_while_nothing_is_late() -> None:
    price = feed(LatePrice(), 1, 60.0, 0.0, 0.3)
    assert price.theta(ALLOWED) == pytest.approx(0.1 / (ALLOWED * 60.0))
    before = price.theta(ALLOWED)
    assert feed(price, 3600, 60.0, 0.0, 0.0).theta(ALLOWED) < before


def test_it_rises_while_too_many_are_late_up_to_the_limit() -> None:
    price = feed(LatePrice(), 3600, 60.0, 6.0, 6.0)
    assert price.theta(ALLOWED) > 0.1 / (ALLOWED * 60.0)
    limits = [price.is_at_limit]
    limits.append(feed(price, 100_000, 60.0, 6.0, 6.0).is_at_limit)
    assert limits == [False, True]
    assert price.theta(ALLOWED) == pytest.approx(np.exp(DEAREST) / (ALLOWED * 60.0))


def test_it_has_a_lowest_value() -> None:
    price = feed(LatePrice(), 400_000, 60.0, 0.0, 0.0)
    assert price.theta(ALLOWED) == pytest.approx(np.exp(CHEAPEST) / (ALLOWED * 60.0))


def test_late_requests_beyond_the_expected_ones_raise_it() -> None:
    quiet, missed = feed(LatePrice(), 14_400, 60.0, 0.3, 0.3), feed(LatePrice(), 14_400, 60.0, 3.0, 0.3)
    assert missed.theta(ALLOWED) > 1.5 * quiet.theta(ALLOWED)


def test_late_requests_just_as_expected_leave_it() -> None:
    price = feed(LatePrice(), 14_400, 60.0, ALLOWED * 60.0, ALLOWED * 60.0)
    assert price.theta(ALLOWED) == pytest.approx(0.1 / (ALLOWED * 60.0))


def test_one_late_request_of_a_function_that_is_hardly_used_says_little() -> None:
    rate = 1.0 / 600.0
    price = feed(LatePrice(), 7200, rate, 0.0, ALLOWED * rate)
    before = price.theta(ALLOWED)
    price.update(rate, 1.0, ALLOWED * rate, ALLOWED)
    assert before < feed(price, 3600, rate, 0.0, ALLOWED * rate).theta(ALLOWED) < 1.3 * before


def test_a_limit_of_the_effort() -> None:
    assert LatePrice(-4.0).is_at_limit
