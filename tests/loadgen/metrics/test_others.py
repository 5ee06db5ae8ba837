"""Usage, cost and service levels beside the worked cases of tests/golden."""

import pytest

from tests.golden.hetsev_levels import service_level, violations
from tidegate.loadgen.arrivals.pace import Ticker
from tidegate.loadgen.metrics.cost import Accounting, inferences_per_dollar, memory_cost
from tidegate.loadgen.metrics.usage import activity, variation
from tidegate.loadgen.simulator.lease import Lease


def test_devices_that_are_used_alike_vary_by_nothing() -> None:
    assert variation([3.0, 3.0, 3.0]) == 0.0
    assert variation([0.0, 2.0]) == pytest.approx(1.0)
    assert variation([]) is None
    assert variation([0.0, 0.0]) is None


def test_activity_counts_overlapping_executions_once() -> None:
    assert activity([(0.0, 4.0), (2.0, 6.0), (5.0, 5.5)], 10.0) == pytest.approx(60.0)
    with pytest.raises(ValueError, match="duration"):
        activity([], 0.0)


def test_an_accelerator_without_a_price_is_reported() -> None:
    lease = Lease(accelerator="h100", used_gb=4, start_s=0, end_s=1)
    with pytest.raises(KeyError, match="h100"):
        memory_cost([lease], {"v100": 1.0}, {}, Accounting.FOOTPRINT)


def test_nothing_paid_is_no_infinite_gain() -> None:
    assert inferences_per_dollar(10, 0.0) is None
    assert inferences_per_dollar(10, 2.0) == 5.0


def test_failed_requests_break_the_level_and_the_limit_itself_does_not() -> None:
    assert service_level([0.4] * 98, 0.4, 98.0, failed=2).is_met
    assert not service_level([0.4] * 97, 0.4, 98.0, failed=3).is_met


def test_violations_are_counted_by_the_period_of_their_arrival() -> None:
    requests = [(0.0, 0.1), (4.9, 0.5), (5.0, None), (12.0, 0.2)]
    assert violations(requests, 0.4) == [(0.0, 0.5), (5.0, 1.0), (10.0, 0.0)]


def test_a_ticker_needs_a_rate() -> None:
    with pytest.raises(ValueError, match="rate of 0"):
        Ticker(0.0)
    assert "Ticker" in repr(Ticker(2.0))
