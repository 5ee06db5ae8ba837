"""Windows, beyond what the golden vectors replay: the consequences that surprise."""

import math

import pytest

from tidegate.autoscaler.policies.kpa.windows import DelayWindow, LinearWindow, WeightedWindow, round_micro, smoothing


def test_records_of_one_second_add_up_and_a_young_window_divides_by_the_seconds_seen() -> None:
    window = LinearWindow(60)
    window.record(100.1, 2.0)
    window.record(100.9, 3.0)
    assert window.average(100.9) == 5.0
    window.record(101.0, 1.0)
    assert window.average(101.5) == 3.0


def test_silence_after_the_last_record_is_not_a_zero_but_a_gap_between_two_records_is() -> None:
    window = LinearWindow(10)
    window.record(0, 6.0)
    assert window.average(4) == 6.0, "no report said that the load went away"
    window.record(2, 6.0)
    assert window.average(2) == 4.0, "second 1 had no record: 12 / 3"


def test_an_average_is_gone_exactly_one_window_after_the_last_record_and_empty_just_after() -> None:
    window = LinearWindow(10)
    window.record(0, 6.0)
    assert (window.average(9), window.average(10)) == (6.0, 0.0)
    assert (window.is_empty(10), window.is_empty(11)) == (False, True)


def test_a_record_older_than_the_window_is_dropped_and_a_late_one_counts_in_its_second() -> None:
    window = LinearWindow(10)
    window.record(100, 1.0)
    window.record(90, 50.0)
    assert window.average(100) == 1.0
    window.record(99, 3.0)
    assert window.average(100) == 2.0


def test_growing_keeps_the_history_shrinking_keeps_the_newest() -> None:
    window = LinearWindow(4)
    for second, value in enumerate((1.0, 2.0, 3.0, 4.0)):
        window.record(second, value)
    window.resize(3, 2)
    assert window.average(3) == 3.5
    window.resize(3, 8)
    assert window.average(3) == 3.5


def test_weighted_average_is_not_normalised() -> None:
    window = WeightedWindow(60)
    window.record(0, 10.0)
    assert window.average(0) == pytest.approx(2.0)
    assert smoothing(60) == smoothing(3600) == 0.2
    assert smoothing(6) == pytest.approx(0.7846, abs=1e-4)


def test_rounding_is_half_away_from_zero_in_doubles() -> None:
    assert round_micro(0.0000005) == 0.000001
    assert round_micro(-0.0000005) == -0.000001
    assert round_micro(0.4999999e-6) == 0.0


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_a_window_without_length_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="positive number of seconds"):
        LinearWindow(seconds)


def test_delay_holds_the_largest_value_of_its_time_in_slots_of_even_seconds() -> None:
    delay = DelayWindow(10)
    assert [delay.record(at, value) for at, value in ((0, 5), (1, 3), (2, 1), (9, 1))] == [5, 5, 5, 5]
    assert delay.record(10, 1) == 1, "slot 0 is five slots back: out"


def test_windows_say_what_they_hold() -> None:
    window = LinearWindow(60)
    window.record(7, 2.0)
    assert repr(window) == "<LinearWindow 60 s, total 2, last record 7>"
    assert "DelayWindow 5 slots" in repr(DelayWindow(10))
