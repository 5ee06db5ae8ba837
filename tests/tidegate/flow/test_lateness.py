"""When a request is late: the percentile of recent times to a head, or a fixed time."""

from itertools import pairwise

import pytest

from tidegate.flow.lateness import MAX_OBSERVATIONS, MIN_OBSERVATIONS, Lateness
from tidegate.records.route_table import Hedging


def after(rule: Hedging) -> Lateness[str]:
    lateness: Lateness[str] = Lateness()
    lateness.follow(rule)
    return lateness


def test_nothing_is_late_before_a_hundred_were_seen() -> None:
    lateness = after(Hedging(percentile=95.0))
    for _ in range(MIN_OBSERVATIONS - 1):
        lateness.observed(0.010)
    assert lateness.sent("early", 0.0) is None
    lateness.observed(0.010)
    for _ in range(32):
        lateness.observed(0.010)
    assert lateness.sent("later", 5.0) == pytest.approx(5.0 + 0.010, rel=0.01)


def test_the_percentile_stands_where_the_slow_ones_begin() -> None:
    lateness = after(Hedging(percentile=95.0))
    for number in range(640):
        lateness.observed(1.0 if number % 50 == 0 else 0.020)
    assert lateness.delay_s == pytest.approx(0.020, rel=1 / 8), "2 % are slow"
    for number in range(640):
        lateness.observed(1.0 if number % 5 == 0 else 0.020)
    assert lateness.delay_s == pytest.approx(1.0, rel=1 / 8), "11 % are slow"


def test_a_percentile_that_falls_between_two_times_is_the_lower_one() -> None:
    lateness = after(Hedging(percentile=50.0))
    for number in range(128):
        lateness.observed(0.020 if number % 2 else 1.0)
    assert lateness.delay_s == pytest.approx(0.020, rel=1 / 8)


def test_old_times_fade() -> None:
    lateness = after(Hedging(percentile=50.0))
    for _ in range(4 * MAX_OBSERVATIONS):
        lateness.observed(0.1)
    for _ in range(2 * MAX_OBSERVATIONS):
        lateness.observed(0.4)
    assert lateness.delay_s == pytest.approx(0.4, rel=1 / 8)


def test_a_fixed_time_needs_no_observation() -> None:
    lateness = after(Hedging(percentile=None, after_s=0.5))
    assert lateness.sent("a", 1.0) == 1.5
    lateness.follow(Hedging(percentile=95.0))
    assert lateness.delay_s is None


def test_late_requests_come_in_order_and_once() -> None:
    lateness = after(Hedging(percentile=None, after_s=0.5))
    for number, name in enumerate("abc"):
        lateness.sent(name, number / 10)
    assert lateness.next_due() == 0.5
    assert lateness.late(0.49) == []
    assert [name for _, name in lateness.late(0.6)] == ["a", "b"]
    assert lateness.next_due() == pytest.approx(0.7)
    assert [name for _, name in lateness.late(9.0)] == ["c"]
    assert lateness.next_due() is None


def test_the_percentile_is_computed_again_after_32_observations() -> None:
    lateness = after(Hedging(percentile=99.0))
    delays = []
    for number in range(1, 200):
        lateness.observed(0.010 if number <= 100 else 10.0)
        delays.append(lateness.delay_s)
    changed = [number for number, (one, other) in enumerate(pairwise(delays), 2) if one != other]
    assert changed == [100, 132], "it waits for a hundred; the slow ones are the 99th percentile since the 102nd"


def test_all_counts_are_halved_at_2048() -> None:
    lateness = after(Hedging(percentile=50.0))
    for _ in range(MAX_OBSERVATIONS):
        lateness.observed(0.010)
    assert lateness._total == 1024
    for _ in range(1023):
        lateness.observed(0.010)
    assert lateness._total == 2047
    lateness.observed(0.010)
    assert lateness._total == 1024


@pytest.mark.parametrize(
    ("percentile", "bound_s"), [(75.0, 0.010), (75.1, 1.0), (100.0, 1.0), (0.0, 0.010), (1.0, 0.010)]
)
def test_the_percentile_is_the_bound_of_its_bucket(percentile: float, bound_s: float) -> None:
    lateness = after(Hedging(percentile=percentile))
    for number in range(128):
        lateness.observed(1.0 if number % 4 == 0 else 0.010)
    assert lateness.delay_s == pytest.approx(bound_s, rel=1 / 8)


def test_another_rule_is_followed_at_once() -> None:
    lateness = after(Hedging(percentile=50.0))
    for number in range(128):
        lateness.observed(1.0 if number % 4 == 0 else 0.010)
    lateness.follow(Hedging(percentile=90.0))
    assert lateness.delay_s == pytest.approx(1.0, rel=1 / 8)
    assert lateness.sent("a", 2.0) == 2.0 + (lateness.delay_s or 0.0)
    assert repr(lateness) == f"<Lateness after {lateness.delay_s} s, 1 on the way>"
