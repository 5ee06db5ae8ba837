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


def fed(estimate: LoadEstimate, rates: list[float], start: float = T0, batch: float = 1.0) -> Load:
    """Feeds rates that are both the window's and the last second's; returns the last load."""
    load = Load(0.0, 0.0, 0.0)
    for second, rate in enumerate(rates):
        load = estimate.update(start + second, rate, rate, batch)
    return load


@pytest.mark.parametrize(("seconds", "memory_s"), [(1, 10), (2, 11), (3, 12), (20, 29), (21, 30), (60, 30)])
@pytest.mark.parametrize(("batch", "per_event"), [(0.5, 1.0), (1.0, 1.0), (4.0, 6.0)])
def test_the_bounds_are_three_errors_of_a_memory_that_grows_to_30_s(
    batch: float, per_event: float, seconds: int, memory_s: int
) -> None:
    load = fed(LoadEstimate(), [28.0] * seconds, batch=batch)
    error = 3.0 * math.hypot(math.sqrt(28.0 * per_event / memory_s), 0.03 * 28.0)
    assert load.mid == pytest.approx(28.0)
    assert load.high == pytest.approx(28.0 + error)
    assert load.low == pytest.approx(max(0.0, 28.0 - error))


@pytest.mark.parametrize(("seconds", "memory_s", "steady_s"), [(5, 15, 15), (20, 30, 30), (40, 30, 50), (400, 30, 300)])
def test_a_small_change_moves_the_means_by_their_memories(seconds: int, memory_s: int, steady_s: int) -> None:
    estimate = LoadEstimate()
    fed(estimate, [28.0] * seconds)
    load = estimate.update(T0 + seconds, 30.0, 28.0, 1.0)
    assert load.mid == pytest.approx(28.0 + 2.0 / memory_s)
    assert load.steady == pytest.approx(28.0 + 2.0 / steady_s)


@pytest.mark.parametrize(
    ("passed_s", "memory_s", "moved"), [(0.0, 10, 0.0), (5.0, 15, 5.0 / 15), (90.0, 30, 1.0), (-9.0, 10, 0.0)]
)
def test_the_time_since_the_last_observation_counts_up_to_the_memory(
    passed_s: float, memory_s: int, moved: float
) -> None:
    estimate = LoadEstimate()
    estimate.update(T0, 28.0, 28.0, 1.0)
    load = estimate.update(T0 + passed_s, 30.0, 28.0, 1.0)
    assert load.mid == pytest.approx(28.0 + 2.0 * moved)
    assert load.high - load.mid == pytest.approx(3.0 * math.hypot(math.sqrt(load.mid / memory_s), 0.03 * load.mid))


@pytest.mark.parametrize(("recent", "is_change"), [(33.0, False), (33.1, True), (23.0, False), (22.9, True)])
def test_a_window_more_than_three_errors_away_is_a_change(recent: float, is_change: bool) -> None:
    """Of 28/s over ten seconds one error is 1.67."""
    estimate = LoadEstimate()
    fed(estimate, [28.0] * 30)
    load = estimate.update(T0 + 30, recent, 28.0, 1.0)
    assert (load.mid == recent) is is_change
    if not is_change:
        assert load.mid == pytest.approx(28.0 + (recent - 28.0) / 30)


@pytest.mark.parametrize(("newest", "is_burst"), [(37.1, False), (37.2, True)])
def test_three_seconds_more_than_three_errors_above_are_a_burst(newest: float, is_burst: bool) -> None:
    estimate = LoadEstimate()
    load = fed(estimate, [28.0] * 30)
    for second in range(3):
        load = estimate.update(T0 + 30 + second, 28.0, newest, 1.0)
    assert (load.mid == pytest.approx(newest)) is is_burst
    if is_burst:
        assert load.high - load.mid == pytest.approx(3.0 * math.hypot(math.sqrt(newest / 3.0), 0.03 * newest))
        later = estimate.update(T0 + 33, 28.0, 30.0, 1.0)
        assert later.mid == pytest.approx((28.0 * 0 + 3 * newest + 30.0) / 4), "the window has four seconds now"


def test_a_fall_of_three_seconds_is_no_change() -> None:
    estimate = LoadEstimate()
    load = fed(estimate, [28.0] * 30)
    for second in range(3):
        load = estimate.update(T0 + 30 + second, 28.0, 1.0, 1.0)
    assert load.mid == pytest.approx(28.0)


@pytest.mark.parametrize(("recent", "is_change"), [(35.5, False), (35.6, True), (20.5, False), (20.4, True)])
def test_the_long_mean_restarts_only_when_the_load_has_surely_changed(recent: float, is_change: bool) -> None:
    """By 4.5 errors of ten seconds: 7.53."""
    estimate = LoadEstimate()
    fed(estimate, [28.0] * 100)
    load = estimate.update(T0 + 100, recent, 28.0, 1.0)
    assert (load.steady == recent) is is_change


def root_bound(rate: float, span_s: float, sigmas: float, per_event: float = 1.0) -> float:
    root = math.sqrt(rate * span_s / per_event) - sigmas / 2.0
    return root**2 * per_event / span_s if root > 0.0 else 0.0


@pytest.mark.parametrize(
    ("newest", "span_s"),
    [([60.0] * 3, 3), ([36.5] * 5, 5), ([33.0] * 10, 10), ([28.0], 30)],
)
def test_a_sure_load_is_the_highest_bound_of_the_spans_and_the_memory(newest: list[float], span_s: int) -> None:
    estimate = LoadEstimate()
    load = fed(estimate, [28.0] * 40)
    for second, rate in enumerate(newest):
        load = estimate.update(T0 + 40 + second, 28.0, rate, 1.0)
    seconds = ([28.0] * 40 + newest)[-10:]
    bounds = {span: root_bound(sum(seconds[-span:]) / span, span, 4.5) for span in (3, 5, 10)}
    memory_s = 3 if span_s == 3 else 30
    bounds[memory_s] = max(bounds.get(memory_s, 0.0), root_bound(load.mid, memory_s, 4.5))
    assert load.sure == pytest.approx(max(bounds.values()))
    assert load.sure == pytest.approx(bounds[span_s])


def test_a_lower_bound_by_any_certainty_is_of_the_memory_or_the_window() -> None:
    estimate = LoadEstimate()
    assert estimate.at_least(1.0, 3.0) == 0.0
    fed(estimate, [28.0] * 40)
    assert estimate.at_least(1.0, 3.0) == pytest.approx(root_bound(28.0, 30, 3.0))
    assert estimate.at_least(4.0, 3.0) == pytest.approx(root_bound(28.0, 30, 3.0, 6.0))
    for second in range(10):
        estimate.update(T0 + 40 + second, 28.0, 36.0, 1.0)
    assert estimate.at_least(1.0, 3.0) == pytest.approx(root_bound(36.0, 10, 3.0))
    estimate.forget()
    assert estimate.at_least(1.0, 0.0) == 0.0
    assert fed(estimate, [0.05], start=T0 + 99).sure == 0.0


def test_a_hardly_used_function_has_the_error_of_one_request_in_a_window() -> None:
    estimate = LoadEstimate()
    estimate.update(T0, 0.001, 0.001, 1.0)
    assert estimate.update(T0 + 1, 0.3, 0.0, 1.0).mid == pytest.approx(0.001 / 11 + (0.3 - 0.001 / 11) / 12)
    other = LoadEstimate()
    assert other.update(T0, 0.31, 0.31, 1.0).mid == 0.31
