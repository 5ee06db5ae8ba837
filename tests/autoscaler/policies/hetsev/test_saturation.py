"""The trigger of scale-out: every sample of the hold above the threshold."""

import pytest

from tidegate.autoscaler.policies.hetsev.saturation import RateSample, Saturation, saturation


def test_no_sample_triggers_nothing() -> None:
    assert saturation([], 100.0) == Saturation((), False)
    assert saturation([], 0.0) == Saturation((), False)
    assert saturation([RateSample(0.0, 0.0)], 0.0) == Saturation((None,), False)


def samples(*rates: float, every_s: float = 15.0) -> list[RateSample]:
    return [RateSample(100.0 + every_s * number, rate) for number, rate in enumerate(rates)]


def test_a_level_is_inferences_over_capacity() -> None:
    found = saturation([RateSample(0.0, 10.0, 4.0), RateSample(15.0, 10.0)], 80.0)
    assert found.levels == (0.5, 0.125)


@pytest.mark.parametrize(
    ("rates", "is_triggered"),
    [
        ((81.0, 81.0, 81.0), True),
        ((81.0, 81.0, 80.0), False),
        ((80.0, 81.0, 81.0), False),
        ((81.0, 80.0, 81.0), False),
        ((0.0, 81.0, 81.0, 81.0), True),
        ((81.0, 81.0), False),
        ((81.0,), False),
        ((80.0 + 1e-8, 81.0, 81.0), False),
        ((80.0 + 1e-6, 81.0, 81.0), True),
    ],
)
def test_all_of_the_last_30_s_above_80_percent_trigger(rates: tuple[float, ...], is_triggered: bool) -> None:
    assert saturation(samples(*rates), 100.0).is_triggered is is_triggered


def test_the_hold_and_the_threshold_are_given() -> None:
    assert saturation(samples(51.0, 51.0), 100.0, 0.5, 15.0).is_triggered
    assert not saturation(samples(51.0, 51.0), 100.0, 0.5, 15.1).is_triggered
    assert not saturation(samples(51.0, 51.0), 100.0, 0.51, 15.0).is_triggered
    assert saturation(samples(10.0, 51.0, 51.0), 100.0, 0.5, 14.9).is_triggered
    assert saturation(samples(51.0), 100.0, 0.5, 0.0).is_triggered


def test_the_order_of_the_samples_does_not_matter() -> None:
    assert saturation(samples(81.0, 81.0, 81.0)[::-1], 100.0).is_triggered
    assert not saturation(samples(0.0, 81.0, 81.0)[::-1], 100.0).is_triggered


@pytest.mark.parametrize(("capacity", "is_triggered"), [(0.0, True), (1e-9, True), (1e-8, False)])
def test_without_capacity_any_load_triggers(capacity: float, is_triggered: bool) -> None:
    found = saturation([RateSample(0.0, 0.0), RateSample(15.0, 0.5)], capacity)
    assert found.is_triggered is is_triggered
    assert (found.levels == (None, None)) is is_triggered
    assert not saturation([RateSample(0.0, 0.5, 0.0)], 0.0).is_triggered
