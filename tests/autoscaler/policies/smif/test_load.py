"""The load estimate: noise stays inside its bounds, a change shows within seconds."""

import math
import random

import pytest

from tests.support.worlds.autoscaling import T0
from tidegate.autoscaler.policies.smif.load import Load, LoadEstimate


def windows(chance: random.Random, rates: list[float], batch: int = 1) -> list[tuple[float, float]]:
    """Means over ten seconds of Poisson arrivals with one rate per second, and the last second of each."""
    seconds = []
    for rate in rates:
        count, at = 0, chance.expovariate(rate)
        while at < 1.0:
            count, at = count + 1, at + chance.expovariate(rate)
        seconds.append(float(count * batch))
    return means(seconds)


def means(seconds: list[float]) -> list[tuple[float, float]]:
    spans = [seconds[max(0, end - 10) : end] for end in range(1, len(seconds) + 1)]
    return [(sum(span) / len(span), span[-1]) for span in spans]


def follow(values: list[tuple[float, float]], batch: float = 1.0) -> list[Load]:
    estimate = LoadEstimate()
    return [estimate.update(T0 + second, *value, batch) for second, value in enumerate(values)]


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
    single, batches = follow([(64.0, 64.0)] * 40)[-1], follow([(64.0, 64.0)] * 40, batch=32.0)[-1]
    assert batches.mid == single.mid == 64.0
    assert batches.high - batches.low > 4 * (single.high - single.low)


def test_silence_is_no_load_at_once_and_nonsense_too() -> None:
    estimate = LoadEstimate()
    estimate.update(T0, 50.0, 50.0, 1.0)
    assert estimate.update(T0 + 1, 0.0, 0.0, 1.0) == Load(0.0, 0.0, 0.0)
    assert estimate.update(T0 + 2, math.nan, 1.0, 1.0).mid == 0.0
    assert estimate.update(T0 + 3, 40.0, math.nan, 1.0).mid == 40.0
    assert "40/s" in repr(estimate)


def test_a_ramp_is_seen_within_three_seconds_and_not_five_late() -> None:
    """Requests of a burst in the Twitter trace, second by second: one replica carries 52 at 80 %, two carry 104."""
    ramp = [48.0, 63.0, 51.0, 71.0, 87.0, 85.0, 101.0, 123.0, 130.0, 148.0, 145.0]
    loads = follow(means([25.0] * 40 + ramp))[40:]
    assert next(second for second, load in enumerate(loads) if load.low > 52.0) == 4
    assert next(second for second, load in enumerate(loads) if load.low > 104.0) == 9
    assert max(load.mid for load in loads[:3]) < 60.0


def test_after_a_burst_the_window_grows_from_its_beginning() -> None:
    """The ten seconds that hold the calm before it are not taken for the end of the burst."""
    loads = follow(means([28.0] * 40 + [90.0] * 20))[40:]
    assert all(load.mid == pytest.approx(90.0) for load in loads[2:])
    widths = [load.high - load.low for load in loads[2:]]
    assert widths == sorted(widths, reverse=True), "and every second makes it more certain"


def test_a_fall_waits_for_the_window() -> None:
    loads = follow(means([90.0] * 40 + [28.0] * 20))[40:]
    assert loads[1].mid > 60.0
    assert loads[12].high < 40.0


@pytest.mark.parametrize("rate", [4.0, 45.0, 455.0])
def test_three_noisy_seconds_are_never_certainly_a_seventh_more(rate: float) -> None:
    """70 % of what the replicas can do is aimed to be 80 %: a constant load must not look like more for sure."""
    loads = follow(windows(random.Random(5), [rate] * 3000))[20:]
    assert all(load.low <= rate * 8 / 7 for load in loads)


@pytest.mark.parametrize("rate", [3.0, 14.0, 45.0])
def test_hours_of_chance_never_start_a_replica(rate: float) -> None:
    """70 % of what the replicas can do is aimed to be 80 %: a seventh more is needed before another one starts."""
    loads = follow(windows(random.Random(11), [rate] * 7200))
    assert max(load.sure for load in loads) < rate * 8 / 7
    assert loads[-1].sure > 0.5 * rate


@pytest.mark.parametrize(("rate", "within"), [(14.0, 8), (45.0, 5), (450.0, 3)])
def test_a_doubled_load_is_sure_to_be_more_within_seconds(rate: float, within: int) -> None:
    loads = follow(windows(random.Random(7), [rate] * 60 + [2.0 * rate] * 20))[60:]
    assert next(second for second, load in enumerate(loads, 1) if load.sure > rate * 8 / 7) <= within


def test_a_small_rise_is_sure_by_the_newest_ten_seconds_before_the_memory_has_it() -> None:
    last = follow(means([100.0] * 40 + [109.0] * 10))[-1]
    assert last.mid < 102.0, "the mean over half a minute has hardly moved"
    assert last.sure == pytest.approx((math.sqrt(109.0 * 10.0) - 2.25) ** 2 / 10.0)
