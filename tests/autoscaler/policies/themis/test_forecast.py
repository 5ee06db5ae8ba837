"""The load of the next ten seconds."""

import math
import random

import pytest

from tidegate.autoscaler.policies.themis import forecast
from tidegate.errors import InvalidInputError


def poisson(mean: float, rng: random.Random) -> float:
    limit, count, product = math.exp(-mean), 0, rng.random()
    while product > limit:
        count, product = count + 1, product * rng.random()
    return float(count)


def test_a_minute_is_six_maxima_and_the_target_is_the_next_ten_seconds() -> None:
    rps = [float(at) for at in range(75)]
    assert forecast.maxima(rps, 60) == (9.0, 19.0, 29.0, 39.0, 49.0, 59.0)
    assert forecast.maxima(rps, 61) == (10.0, 20.0, 30.0, 40.0, 50.0, 60.0)
    assert forecast.next_maximum(rps, 60) == 69.0


def test_a_minute_or_ten_seconds_that_are_not_there_are_refused() -> None:
    with pytest.raises(InvalidInputError):
        forecast.maxima([1.0] * 59, 59)
    with pytest.raises(InvalidInputError):
        forecast.next_maximum([1.0] * 65, 60)
    with pytest.raises(InvalidInputError, match="0 to 60"):
        forecast.next_maximum([1.0] * 70, 61)
    with pytest.raises(InvalidInputError):
        forecast.next_maximum([1.0] * 70, -1)
    assert (forecast.next_maximum([1.0] * 70, 60), forecast.next_maximum([1.0] * 10, 0)) == (1.0, 1.0)
    with pytest.raises(InvalidInputError, match="60 to 70"):
        forecast.maxima([1.0] * 70, 71)


def test_an_error_is_in_percent_of_the_target_and_unknown_for_none() -> None:
    assert forecast.absolute_error_pct(38.2, 60.0) == pytest.approx(36.3333333)
    assert forecast.absolute_error_pct(1.0, 0.0) is None


def test_before_a_minute_is_known_a_tenth_more_than_the_last_two_slices_is_expected() -> None:
    assert forecast.predicted([], 0) == 0.0
    assert forecast.predicted([9.0] + [5.0] * 20, 21) == pytest.approx(5.5)
    assert forecast.predicted([9.0] + [5.0] * 19, 20) == pytest.approx(9.9)
    assert forecast.predicted([9.0, 5.0], 2) == pytest.approx(9.9)
    assert forecast.predicted([9.0, 5.0, 100.0], 2) == pytest.approx(9.9), "what comes later is not known"


def test_without_load_nothing_is_expected() -> None:
    assert forecast.predicted([0.0] * 60, 60) == 0.0


@pytest.mark.parametrize("mean", [4.0, 12.0, 40.0])
def test_a_steady_load_is_expected_at_its_usual_maximum(mean: float) -> None:
    """The largest of ten seconds of Poisson arrivals: the prediction is off by less than a repeat of the last slice."""
    rng = random.Random(7)
    rps = [poisson(mean, rng) for _ in range(4000)]
    ours = theirs = 0.0
    for at in range(60, 3990, 10):
        target = forecast.next_maximum(rps, at)
        ours += abs(forecast.predicted(rps, at) - target) / target
        theirs += abs(max(rps[at - 10 : at]) - target) / target
    assert ours < 0.9 * theirs


def test_a_load_without_chance_is_expected_to_go_on() -> None:
    assert forecast.predicted([35.0, 36.0] * 30, 60) == 36.0


def test_a_rising_load_is_expected_to_rise_further() -> None:
    rising = [20.0 + at for at in range(60)]
    assert forecast.predicted(rising, 60) > max(rising)


def test_features_are_logarithms_of_maxima_and_means_relative_to_the_minute() -> None:
    values, scale = forecast.features([4.0, 0.0] * 5 + [2.0] * 50, 60)
    assert scale == pytest.approx(2.5), "a mean of 2, and a half"
    assert values == pytest.approx((math.log(4.5 / 2.5), *[0.0] * 11, math.log(2.5) / 4.0 - 1.0))
