"""The load estimate: noise stays inside its bounds, a change shows within seconds."""

import math
import random

import pytest

from autoscaler.load import Load, LoadEstimate
from tests.support.autoscaling import T0


def windows(chance: random.Random, rates: list[float], batch: int = 1) -> list[float]:
    """Means over ten seconds of Poisson arrivals with one rate per second."""
    seconds = []
    for rate in rates:
        count, at = 0, chance.expovariate(rate)
        while at < 1.0:
            count, at = count + 1, at + chance.expovariate(rate)
        seconds.append(float(count * batch))
    return [sum(seconds[max(0, end - 10) : end]) / min(10, end) for end in range(1, len(seconds) + 1)]


def follow(values: list[float], batch: float = 1.0) -> list[Load]:
    estimate = LoadEstimate()
    return [estimate.update(T0 + second, value, batch) for second, value in enumerate(values)]


@pytest.mark.parametrize("rate", [2.0, 28.0, 300.0])
def test_the_true_rate_lies_between_the_bounds_of_a_constant_load(rate: float) -> None:
    loads = follow(windows(random.Random(3), [rate] * 600))[20:]
    outside = sum(1 for load in loads if not load.low <= rate <= load.high)
    assert outside <= 0.03 * len(loads)


def test_a_doubled_load_is_certain_within_the_window() -> None:
    loads = follow(windows(random.Random(4), [28.0] * 60 + [56.0] * 20))
    assert loads[59].high < 40.0
    assert loads[69].low > 40.0, "ten seconds later"


def test_batches_are_noisier_than_single_requests() -> None:
    single, batches = follow([64.0] * 40)[-1], follow([64.0] * 40, batch=32.0)[-1]
    assert batches.mid == single.mid == 64.0
    assert batches.high - batches.low > 4 * (single.high - single.low)


def test_silence_is_no_load_at_once_and_nonsense_too() -> None:
    estimate = LoadEstimate()
    estimate.update(T0, 50.0, 1.0)
    assert estimate.update(T0 + 1, 0.0, 1.0) == Load(0.0, 0.0, 0.0)
    assert estimate.update(T0 + 2, math.nan, 1.0).mid == 0.0
    assert estimate.update(T0 + 3, 40.0, 1.0).mid == 40.0
    assert "40/s" in repr(estimate)
