"""Arrival rates: exact over the window, whatever is missing or begins again."""

import pytest

from tests.support.worlds.autoscaling import observation
from tidegate.autoscaler.measure.observation import ArrivalCounts
from tidegate.autoscaler.policies.hetsev.arrivals import ArrivalRates


def fed(rates: ArrivalRates, *reports: tuple[float, dict[float, float]]) -> ArrivalRates:
    """``reports``: (time, requests by size in all)."""
    for now, sizes in reports:
        rates.update(observation(at=now, counts=ArrivalCounts(sizes=tuple(sizes.items()), late=0.0)), now)
    return rates


def test_without_two_reports_there_is_no_rate() -> None:
    rates = ArrivalRates(60.0)
    assert (rates.rate(), rates.covered_s) == ((0.0, 1.0), 0.0)
    fed(rates, (100.0, {1.0: 500.0}))
    assert (rates.rate(), rates.covered_s) == ((0.0, 1.0), 0.0), "what arrived before counts for nothing"


def test_the_rate_is_what_arrived_since_over_the_time_since() -> None:
    rates = fed(ArrivalRates(60.0), (100.0, {1.0: 500.0}), (110.0, {1.0: 520.0}))
    assert (rates.rate(), rates.covered_s) == ((2.0, 1.0), 10.0)
    fed(rates, (115.0, {1.0: 520.0, 4.0: 10.0}))
    assert rates.rate() == (30.0 / 15.0, (20.0 + 40.0) / 30.0)
    assert repr(rates) == "<ArrivalRates over 15 s>"


def test_without_arrivals_the_rate_is_zero_and_a_request_one_inference() -> None:
    assert fed(ArrivalRates(60.0), (100.0, {1.0: 5.0}), (110.0, {1.0: 5.0})).rate() == (0.0, 1.0)
    one = fed(ArrivalRates(60.0), (100.0, {8.0: 5.0}), (110.0, {8.0: 6.0}))
    assert one.rate() == (0.1, 8.0)


def test_the_window_keeps_the_last_report_that_is_as_old_as_itself() -> None:
    rates = fed(ArrivalRates(20.0), *((10.0 * step, {1.0: 10.0 * step**2}) for step in range(4)))
    assert (rates.rate(), rates.covered_s) == (((90.0 - 10.0) / 20.0, 1.0), 20.0)
    fed(rates, (35.0, {1.0: 90.0}))
    assert (rates.rate(), rates.covered_s) == ((80.0 / 25.0, 1.0), 25.0)
    fed(rates, (40.0, {1.0: 90.0}))
    assert (rates.rate(), rates.covered_s) == ((50.0 / 20.0, 1.0), 20.0)


@pytest.mark.parametrize(("gap_s", "covered_s"), [(30.0, 30.0), (30.5, 0.0), (0.0, 0.0), (-0.5, 0.0)])
def test_after_a_long_gap_or_a_step_back_the_window_begins_again(gap_s: float, covered_s: float) -> None:
    rates = fed(ArrivalRates(60.0), (100.0, {1.0: 0.0}), (100.0 + gap_s, {1.0: 60.0}))
    assert rates.covered_s == covered_s
    assert rates.rate() == ((2.0, 1.0) if covered_s else (0.0, 1.0))
    fed(rates, (100.0 + gap_s + 10.0, {1.0: 90.0}))
    assert rates.covered_s == covered_s + 10.0
    if gap_s not in (0.0, 30.0):
        assert rates.rate() == (3.0, 1.0)


def test_a_step_back_forgets_what_was_seen() -> None:
    rates = fed(ArrivalRates(60.0), (100.0, {1.0: 0.0}), (110.0, {1.0: 60.0}), (109.0, {1.0: 70.0}))
    assert rates.covered_s == 0.0


def test_counts_that_begin_again_count_from_there() -> None:
    rates = fed(ArrivalRates(60.0), (100.0, {1.0: 50.0}), (110.0, {1.0: 60.0}), (120.0, {1.0: 5.0}))
    assert rates.rate() == (10.0 / 20.0, 1.0)
    fed(rates, (130.0, {1.0: 10.0}))
    assert rates.rate() == (15.0 / 30.0, 1.0)
    fed(rates, (140.0, {1.0: 20.0, 2.0: -1.0}))
    assert rates.rate() == (15.0 / 40.0, 1.0)


def test_a_trace_of_figures_has_the_rates_alone() -> None:
    rates = ArrivalRates(60.0)
    for now in (100.0, 110.0, 115.0):
        rates.update(observation(at=now, rps=2.0, lambda_ips=6.0), now)
    assert (rates.rate(), rates.covered_s) == ((2.0, 3.0), 15.0)


def test_forgotten_is_begun_again() -> None:
    rates = fed(ArrivalRates(60.0), (100.0, {1.0: 0.0}), (110.0, {1.0: 60.0}))
    rates.forget()
    assert (rates.rate(), rates.covered_s) == ((0.0, 1.0), 0.0)
    fed(rates, (120.0, {1.0: 70.0}), (130.0, {1.0: 80.0}))
    assert (rates.rate(), rates.covered_s) == ((1.0, 1.0), 10.0)
