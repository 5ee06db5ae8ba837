"""Elasticity beside the worked cases of tests/golden: bad input, and what must hold of any run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.loadgen.metrics.elasticity import Point, elasticity, workload_demand

LEVELS = st.lists(st.tuples(st.floats(0.1, 50.0), st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=20)


def test_times_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="duration of 0"):
        elasticity([Point(0, 1, 1)], 0.0)
    with pytest.raises(ValueError, match="points rise"):
        elasticity([Point(0, 1, 1), Point(5, 1, 1), Point(3, 1, 1)], 10.0)


def test_what_lies_behind_the_end_does_not_count() -> None:
    points = [Point(0, 1, 1), Point(20, 6, 1)]
    assert elasticity(points, 10.0).tau_under == 0.0
    assert elasticity(points, 40.0).tau_under == pytest.approx(50.0)


@given(LEVELS)
def test_time_is_either_short_or_over_or_right(levels: list[tuple[float, int, int]]) -> None:
    points, now = [], 0.0
    for span_s, demand, supply in levels:
        points.append(Point(now, demand, supply))
        now += span_s
    found = elasticity(points, now)
    right = sum(span_s for span_s, demand, supply in levels if demand == supply)
    assert found.tau_under + found.tau_over + 100.0 * right / now == pytest.approx(100.0)
    assert found.theta_under <= found.tau_under + 1e-9
    assert (found.theta_over == 0.0) == (found.tau_over == 0.0)


def test_the_load_asks_for_what_littles_law_says() -> None:
    assert workload_demand(90.0, 0.0495, 1.0) == 5
    assert workload_demand(100.0, 0.01, 1.0) == 1
    assert workload_demand(0.0, 0.1, 0.7) == 0
