"""Rates over time."""

import random
from itertools import pairwise

import pytest

from tests.golden.hetsev_levels import windowed_rates
from tidegate.loadgen.arrivals.processes import even, mmpp, poisson
from tidegate.loadgen.arrivals.shapes import constant, diurnal, fluctuating, production, spike, steps, waves


def test_steps_follow_one_another_and_end() -> None:
    load = steps([(10.0, 1.0), (5.0, 3.0)])
    assert [load.rate(at) for at in (-1.0, 0.0, 9.9, 10.0, 14.9, 15.0)] == [0.0, 1.0, 1.0, 3.0, 3.0, 0.0]
    assert (load.duration_s, load.highest) == (15.0, 3.0)
    assert constant(5.0, 2.0).rate(4.0) == 2.0


def test_shapes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="no steps"):
        steps([])
    with pytest.raises(ValueError, match="step of 0"):
        steps([(0.0, 1.0)])
    with pytest.raises(ValueError, match="does not lie inside"):
        spike(10.0, 1.0, 2.0, 8.0, 5.0)
    with pytest.raises(ValueError, match="as many of both"):
        list(mmpp([1.0, 2.0], [1.0], 10.0, random.Random(1)))


def test_a_day_begins_low_and_has_its_peak_at_noon() -> None:
    load = diurnal(86_400.0, 10.0, 90.0)
    assert load.rate(0.0) == 10.0
    assert load.rate(43_200.0) == pytest.approx(90.0)
    assert load.rate(86_400.0) == 0.0


def test_waves_rise_from_the_flat_to_their_peak() -> None:
    load = waves(100.0, 2.0, [(10.0, 30.0, 8.0)])
    assert [load.rate(at) for at in (5.0, 10.0, 20.0, 30.0)] == pytest.approx([2.0, 2.0, 8.0, 2.0])


def test_the_production_pattern_as_windows_of_two_minutes_see_it() -> None:
    load = production(20.0, 100.0)
    times = list(poisson(load.rate, load.duration_s, load.highest, random.Random(5)))
    rates = windowed_rates(times, load.duration_s)
    assert abs(rates[3000 // 15 - 1] - 20.0) < 2.0
    assert abs(rates[4095 // 15 - 1] - 100.0) < 4.0
    assert abs(rates[5000 // 15 - 1] - 20.0) < 2.0


def test_the_fluctuating_pattern_has_its_two_waves() -> None:
    load = fluctuating(100.0)
    assert [load.rate(at) for at in (500.0, 1100.0, 1700.0, 2400.0)] == pytest.approx([60.0, 20.0, 100.0, 20.0])


def test_even_arrivals_are_equally_far_apart() -> None:
    load = steps([(1.0, 4.0), (1.0, 2.0)])
    assert list(even(load.rate, load.duration_s)) == pytest.approx([0.0, 0.25, 0.5, 0.75, 1.0, 1.5])


def test_a_modulated_process_has_the_mean_of_its_states() -> None:
    times = list(mmpp([0.0, 40.0], [3.0, 1.0], 4000.0, random.Random(2)))
    assert times == sorted(times)
    assert times[-1] < 4000.0
    assert abs(len(times) / 4000.0 - 10.0) < 1.5
    quiet = sum(b - a > 1.0 for a, b in pairwise(times))
    assert quiet > 200
