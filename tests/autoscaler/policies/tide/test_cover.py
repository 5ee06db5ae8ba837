"""The cover: as much capacity as is worth its price for what may come."""

import numpy as np
import pytest

from tidegate.autoscaler.policies.tide.cover import (
    AIM,
    CHEAPEST,
    CLUMP_S,
    CLUMPS,
    DEAREST,
    SETTLED_S,
    Expectation,
    LatePrice,
)
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


def test_a_moment_may_have_all_that_the_sla_allows_once_the_price_keeps_the_mean() -> None:
    price = LatePrice()
    for second in range(SETTLED_S + 1):
        assert price.at_a_moment(ALLOWED) == ALLOWED, second
        price.update(60.0, 0.0, 0.0, ALLOWED)
    assert price.at_a_moment(ALLOWED) == 2.0 * ALLOWED


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


def test_what_is_needed_is_the_least_that_makes_so_few_late() -> None:
    found = expectation(0.1, 100.0)
    needed = found.needed(0.01)
    assert needed is not None
    assert found.late(needed) <= 0.01 < found.late(needed - 1.0)
    assert found.needed(1e9) == 0.0
    assert expectation(1e-4, 1.0).needed(0.01) is None


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


def test_what_was_late_while_nothing_was_learnt_is_forgotten_within_a_day() -> None:
    """Eight hours with fifteen times as many late requests as expected, then as many as expected and aimed at."""
    aim = ALLOWED * 60.0
    price = feed(feed(LatePrice(100.0), 28_800, 60.0, 15.0 * 0.7 * aim, 0.7 * aim), 86_400, 60.0, aim, aim)
    before = price.theta(ALLOWED)
    assert feed(price, 21_600, 60.0, aim, aim).theta(ALLOWED) < 1.15 * before


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
    assert price.theta(ALLOWED) == pytest.approx(0.1 / (ALLOWED * 60.0), rel=0.01)


def test_one_late_request_of_a_function_that_is_hardly_used_says_little() -> None:
    rate = 1.0 / 600.0
    price = feed(LatePrice(), 7200, rate, 0.0, ALLOWED * rate)
    before = price.theta(ALLOWED)
    price.update(rate, 1.0, ALLOWED * rate, ALLOWED)
    assert before < feed(price, 3600, rate, 0.0, ALLOWED * rate).theta(ALLOWED) < 1.4 * before


def test_a_limit_of_the_effort() -> None:
    assert LatePrice(-4.0).is_at_limit


def as_seen(log: float) -> float:
    """Returns the part of late requests that counts as it was seen."""
    return float(1.0 / (1.0 + np.exp(log)))


def log_of(price: LatePrice, rate: float) -> float:
    """Returns the logarithm of the price of one late request a second."""
    return float(np.log(price.theta(ALLOWED) * ALLOWED * rate))


@pytest.mark.parametrize(
    ("expected", "step"),
    [(0.5, 0.2 / (0.3 * 21_600)), (0.1, -0.2 / (0.3 * 21_600)), (0.3, 0.0), (100.0, 0.01), (0.0, -1.0 / 21_600)],
)
def test_the_price_moves_by_the_late_share_over_six_hours_and_a_hundredth_at_most(expected: float, step: float) -> None:
    """60/s, of which 0.3/s may be late."""
    price = feed(LatePrice(), 1, 60.0, 0.0, expected)
    assert log_of(price, 60.0) == pytest.approx(np.log(0.1) + step)


def test_a_function_that_is_hardly_used_has_the_price_of_ten_thousand_requests_a_day() -> None:
    price = feed(LatePrice(), 1, 1e-4, 0.0, 1e-4)
    step = (1e-4 - ALLOWED * 1e-4) / (ALLOWED * 0.03 * 21_600)
    assert price.is_seldom
    assert price.theta(ALLOWED) == pytest.approx(0.1 * np.exp(step) / (ALLOWED * 10_000 / 86_400))
    assert not feed(LatePrice(), 1, 0.12, 0.0, 0.12).is_seldom


def test_without_a_replica_what_comes_after_a_silence_is_late() -> None:
    nothing = np.array([0.0]), np.array([1.0])
    for seldom, best in ((0.001, 0.0), (0.02, 1.0)):
        found = Expectation(TABLE, *nothing, 100.0, 1.0, 0.0, seldom=seldom)
        assert (found.best, found.late(0.0), found.late(1.0)) == (best, seldom, 0.0)


def test_the_rate_is_a_mean_of_a_day() -> None:
    price = LatePrice()
    for arrivals in (4.0, 8.0, 0.0):
        price.update(arrivals, 0.0, 0.0, ALLOWED)
    assert price.rate == pytest.approx(4.0)
    price._seconds = 200_000
    price.update(4.0 + 86_400.0, 0.0, 0.0, ALLOWED)
    assert price.rate == pytest.approx(5.0)


@pytest.mark.parametrize("late", [0.0, 0.5, 200.0, 1e6])
def test_after_an_hour_late_requests_are_compared_with_the_expected(late: float) -> None:
    price = feed(LatePrice(), 3600, 60.0, 1e6, 0.3)
    assert (price._late, price._expected) == (0.0, 0.0), "not before"
    before = price._log
    price.update(60.0, late, 0.6, ALLOWED)
    weight = 3600.0 * ALLOWED * 60.0 + 1.0
    bias = min(20.0, (late + weight) / (0.6 + weight))
    step = ((1.0 - as_seen(before)) * bias * 0.6 - 0.3) / (0.3 * 21_600)
    assert price._log - before == pytest.approx(min(0.01, step))


@pytest.mark.parametrize(("log", "part"), [(-2.0, 0.881), (0.0, 0.5), (2.0, 0.119)])
def test_what_was_late_raises_a_low_price_more_than_a_high_one(log: float, part: float) -> None:
    """It counts once its quarter of an hour is over: 6,480 late requests are what six hours allow."""
    even, clumped = (feed(LatePrice(100.0), 3600, 60.0, 0.0, 0.3) for _ in range(2))
    for price, late in ((even, 0.0), (clumped, 6480.0)):
        price._log = log
        feed(price, 1, 60.0, late, 0.0)
        feed(price, CLUMP_S - 2, 60.0, 0.0, 0.0)
    assert clumped._log == even._log, "nothing is expected, so that their ratio counts for nothing"
    for price in (even, clumped):
        feed(price, 1, 60.0, 0.0, 0.0)
    assert clumped._log - even._log == pytest.approx(part, rel=0.05)


def test_what_was_late_before_anything_is_settled_raises_nothing() -> None:
    late, none = (feed(LatePrice(100.0), 3600, 60.0, late, 0.3) for late in (30.0, 0.0))
    for price in (late, none):
        feed(price, CLUMP_S, 60.0, 0.0, 0.3)
    assert late._log == none._log


@pytest.mark.parametrize(("seconds", "memory_s"), [(3600, 3602.0 / 2.0), (400_000, 86_400.0)])
def test_sums_of_late_requests_forget_in_half_of_the_life_and_a_day_at_most(seconds: int, memory_s: float) -> None:
    price = feed(LatePrice(), 3600, 60.0, 0.0, 0.3)
    price._seconds = seconds
    price._late = price._expected = 0.0
    price.update(60.0, 100.0, 10.0, ALLOWED)
    price.update(60.0, 0.0, 0.0, ALLOWED)
    keep = 1.0 - 1.0 / memory_s
    assert [price._late, price._expected] == pytest.approx([100.0 * keep, 10.0 * keep])


def clumps(rate: float, size: float, every: int, days: int = 4) -> LatePrice:
    """Returns the price after days with so many late requests in a second of every so many quarters of an hour."""
    price = LatePrice(100.0)
    price.rate, price._seconds = rate, 3600
    for clump in range(days * 96):
        price._seconds += CLUMP_S - 1
        price.update(rate, size if clump % every == 0 else 0.0, 0.0, ALLOWED)
    return price


def test_where_late_requests_come_in_large_clumps_fewer_are_aimed_at() -> None:
    """60/s are 5.2 million requests a day, of which the SLA allows 51,840 to be late: a clump of 12,960, less the mean
    of all quarters of an hour, is a quarter of them."""
    found = clumps(60.0, 13_270.0, every=48)
    part = (13_270.0 - 13_270.0 / 48) / 51_840.0
    assert found._squares / found._mean == pytest.approx(13_270.0)
    aimed = found.aimed(ALLOWED) * AIM / ALLOWED
    assert aimed == pytest.approx(0.382, abs=0.01)
    assert aimed + 2.0 * np.sqrt(aimed * part) == pytest.approx(1.0, abs=0.02), "two deviations above, the SLA holds"


def test_where_they_come_evenly_or_in_small_clumps_half_of_what_the_sla_allows_is_aimed_at() -> None:
    assert LatePrice().aimed(ALLOWED) == ALLOWED
    assert clumps(60.0, 3000.0, every=1).aimed(ALLOWED) == ALLOWED, "as many in every quarter of an hour"
    assert clumps(60.0, 3000.0, every=8).aimed(ALLOWED) == ALLOWED


def test_of_a_function_that_is_hardly_used_ten_thousand_requests_are_judged() -> None:
    """The hundred that may be late of ten thousand are more than one clump of ten, the fourteen of a day are not."""
    assert clumps(1 / 60, 10.0, every=96).aimed(ALLOWED) == ALLOWED
    assert clumps(1 / 60, 40.0, every=96).aimed(ALLOWED) < 0.7 * ALLOWED


def test_that_no_large_clump_came_of_the_few_expected_says_little() -> None:
    """2,000 are expected and 200 came. Where 13,270 come at once, a sixth of such a clump did not come."""
    steps = []
    for size, every in ((13_270.0, 48), (0.0, 1)):
        price = clumps(60.0, size, every)
        price._late, price._expected, before = 200.0, 2000.0, price._log
        weight = 3600.0 * ALLOWED * 60.0 + 1.0 + CLUMPS * (size - size / every)
        bias = (200.0 + weight) / (2000.0 + weight)
        price.update(60.0, 0.0, 1.0, ALLOWED)
        step = ((1.0 - as_seen(before)) * bias - price.aimed(ALLOWED) * 60.0) / (0.3 * 21_600)
        assert price._log - before == pytest.approx(step, rel=0.01)
        steps.append(bias)
    assert steps == pytest.approx([0.93, 0.42], abs=0.01)
    price = clumps(60.0, 13_270.0, every=48)
    price._late, price._expected, before = 4000.0, 2000.0, price._log
    bias = (4000.0 + 1081.0) / (2000.0 + 1081.0)
    price.update(60.0, 0.0, 1.0, ALLOWED)
    step = ((1.0 - as_seen(before)) * bias - price.aimed(ALLOWED) * 60.0) / (0.3 * 21_600)
    assert price._log - before == pytest.approx(step, rel=0.01), "that more came counts as before"


def test_a_lower_aim_raises_the_price() -> None:
    even, clumped = (clumps(60.0, 15_000.0, every=48) for _ in range(2))
    even._mean = even._squares = 0.0
    before = even._log
    even._late = clumped._late = even._expected = clumped._expected = 1.0
    for price in (even, clumped):
        feed(price, CLUMP_S, 60.0, ALLOWED * 60.0, ALLOWED * 60.0)
    assert even._log == pytest.approx(before, abs=1e-4)
    assert clumped._log > before + 1e-3


def test_the_bounds_of_the_price_and_of_its_effort() -> None:
    assert pytest.approx(np.log(20.0)) == DEAREST
    price = LatePrice()
    price._log = DEAREST - 0.005
    assert feed(price, 1, 60.0, 60.0, 60.0).is_at_limit
    price._log = -5.995
    assert feed(price, 400, 60.0, 0.0, 0.0)._log == -6.0
    assert not LatePrice(-2.0).is_at_limit
    assert LatePrice(-2.5)._log == -2.5


def test_a_price_goes_on_from_the_one_before() -> None:
    before = feed(LatePrice(), 4000, 60.0, 1.0, 0.5)
    same, other = LatePrice(), LatePrice()
    same.resume(before, is_same=True)
    other.resume(before, is_same=False)
    assert (same.rate, same._log, same._late, same._seconds) == (before.rate, before._log, before._late, 4000)
    assert same.aimed(ALLOWED) == before.aimed(ALLOWED)
    assert (other.rate, other._log, other._late, other._seconds) == (before.rate, LatePrice()._log, 0.0, 4000)
    capped = LatePrice(-4.0)
    capped.resume(before, is_same=True)
    assert capped.is_at_limit


def test_a_surge_is_a_level_above_the_slots_of_the_present_load() -> None:
    assert expectation(0.25, 1.0).surge == pytest.approx(0.25)
    assert Expectation(TABLE, np.array([2.0, 8.0]), np.array([0.5, 0.5]), 1.0, 1.0, 8.0).surge == 0.0
