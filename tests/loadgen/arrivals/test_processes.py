"""Arrival times follow their shape."""

import random

import pytest

from tidegate.loadgen.arrivals.processes import poisson, ramp


def test_a_ramp_rises_stays_and_falls() -> None:
    shape = ramp(100.0, 2.0, 10.0)
    assert [shape(at) for at in (-1.0, 0.0, 25.0, 50.0, 60.0, 87.5, 100.0)] == [0.0, 2.0, 6.0, 10.0, 10.0, 6.0, 0.0]


def test_times_rise_and_are_as_many_as_the_shape_says() -> None:
    times = list(poisson(ramp(100.0, 2.0, 10.0), 100.0, 10.0, random.Random(3)))
    assert times == sorted(times)
    assert times[0] >= 0.0
    assert times[-1] < 100.0
    expected = 100.0 * (0.5 * 6.0 + 0.25 * 10.0 + 0.25 * 6.0)
    assert abs(len(times) - expected) < 4 * expected**0.5
    early, middle = sum(t < 12.5 for t in times), sum(50 <= t < 62.5 for t in times)
    assert middle > 2 * early


def test_the_same_seed_gives_the_same_times() -> None:
    shape = ramp(10.0, 1.0, 5.0)
    assert list(poisson(shape, 10.0, 5.0, random.Random(1))) == list(poisson(shape, 10.0, 5.0, random.Random(1)))


def test_no_rate_no_arrivals_and_a_wrong_bound_is_an_error() -> None:
    assert list(poisson(lambda _: 0.0, 10.0, 0.0, random.Random(1))) == []
    with pytest.raises(ValueError, match="above its bound"):
        list(poisson(lambda _: 3.0, 100.0, 2.0, random.Random(1)))
