"""The changes of seven days, found again at the same time of other days and in the last half hours."""

import pytest

from tidegate.autoscaler.policies.tide.calendar import (
    AROUND,
    HALF_HOUR_WEIGHT,
    LAGS,
    REACH,
    SAMPLES,
    STEP_S,
    Calendar,
)
from tidegate.autoscaler.policies.tide.queueing import Vector

DAY, HALF_HOUR = 86_400 // STEP_S, 1800 // STEP_S


def filled(days: float, burst_at: tuple[int, ...] = ()) -> Calendar:
    calendar = Calendar()
    for position in range(int(days * DAY)):
        calendar.write(position, 200 if position in burst_at else 128, 20)
    return calendar


def is_nothing(found: tuple[Vector, float]) -> bool:
    weights, moments = found
    return not weights.any() and moments == 0.0


def test_nothing_is_known_at_first() -> None:
    assert is_nothing(Calendar().around(100, 20))


def test_half_hours_count_a_quarter() -> None:
    calendar = filled(0.0)
    for position in range(HALF_HOUR + AROUND):
        calendar.write(position, 128, 20)
    found, moments = calendar.around(HALF_HOUR + REACH, 20)
    assert found[128] == found.sum() == HALF_HOUR_WEIGHT * AROUND
    assert moments == HALF_HOUR_WEIGHT


def test_what_came_at_the_same_time_of_yesterday_is_found() -> None:
    calendar = filled(1.2, (10_000,))
    found, _ = calendar.around(10_000 + DAY, 20)
    assert found[200] == 1.0
    assert calendar.around(10_000 + DAY + REACH + 2, 20)[0][200] == 0.0


def test_another_state_does_not_count_and_a_neighbouring_one_does() -> None:
    calendar = filled(1.2)
    assert is_nothing(calendar.around(int(1.2 * DAY), 22))
    assert calendar.around(int(1.2 * DAY), 21)[1] > 0.0


def test_samples_left_out_are_unknown() -> None:
    calendar = Calendar()
    calendar.write(5, 128, 20)
    calendar.write(5 + HALF_HOUR, 128, 20)
    assert is_nothing(calendar.around(5 + HALF_HOUR, 20))  # The moment begins before the first sample.
    found, moments = calendar.around(5 + HALF_HOUR + REACH, 20)
    assert found[128] == found.sum() == HALF_HOUR_WEIGHT
    assert moments == HALF_HOUR_WEIGHT / AROUND


def test_an_older_sample_is_dropped() -> None:
    calendar = Calendar()
    calendar.write(50, 128, 20)
    calendar.write(49, 200, 20)
    assert calendar.position == 50


@pytest.mark.parametrize("extra", [0, 1, 77, DAY])
def test_memory_is_bounded_and_the_last_seven_days_stay(extra: int) -> None:
    calendar = filled(0.0)
    last = SAMPLES + extra
    burst = last - 7 * DAY
    for position in range(last + 1):
        calendar.write(position, 200 if position == burst else 128, 20)
    assert len(calendar._changes) == len(calendar._rows) == SAMPLES
    assert calendar.around(last, 20)[0][200] == 1.0


@pytest.mark.parametrize("row", range(15, 26))
def test_states_within_one_row_count_each_with_its_change(row: int) -> None:
    calendar = Calendar()
    for position in range(7, 7 + AROUND):
        calendar.write(position, 128 if position % 2 else 130, 20)
    found, moments = calendar.around(7 + REACH + HALF_HOUR, row)
    if abs(row - 20) > 1:
        assert is_nothing((found, moments))
    else:
        assert (found[128], found[130]) == (HALF_HOUR_WEIGHT * 7, HALF_HOUR_WEIGHT * 6)
        assert found.sum() == HALF_HOUR_WEIGHT * AROUND
        assert moments == HALF_HOUR_WEIGHT


def test_a_moment_counts_once_all_of_its_samples_are_there() -> None:
    calendar = Calendar()
    for position in range(7, 7 + AROUND - 1):
        calendar.write(position, 128, 20)
    assert is_nothing(calendar.around(7 + REACH + HALF_HOUR, 20))
    calendar.write(7 + AROUND - 1, 128, 20)
    assert calendar.around(7 + REACH + HALF_HOUR, 20)[1] == HALF_HOUR_WEIGHT
    assert is_nothing(calendar.around(7 + REACH + HALF_HOUR + 1, 20))


def test_unknown_samples_are_in_no_row() -> None:
    calendar = Calendar()
    calendar.write(5, 128, 1)
    calendar.write(5 + AROUND, 128, 1)
    found, _ = calendar.around(5 + REACH + HALF_HOUR, 1)
    assert found[128] == found.sum() == HALF_HOUR_WEIGHT


def test_a_gap_of_more_than_the_memory_forgets_and_one_of_all_of_it_keeps_the_oldest_row() -> None:
    calendar = Calendar()
    calendar.write(3, 128, 20)
    calendar.write(3 + SAMPLES, 128, 20)
    assert len(calendar._changes) == SAMPLES
    calendar.write(3 + 2 * SAMPLES + 1, 128, 20)
    assert (len(calendar._changes), calendar.position) == (1, 3 + 2 * SAMPLES + 1)


def test_the_moments_that_count_are_seven_days_and_three_days_of_half_hours() -> None:
    assert (STEP_S, REACH, AROUND, SAMPLES) == (5, 6, 13, 7 * 17_280 + 12)
    days, halves = LAGS[:7], LAGS[7:]
    assert days == tuple((17_280 * day, 1.0) for day in range(1, 8))
    assert halves == tuple((360 * count, 0.25) for count in range(1, 145) if count % 48)
    assert repr(filled(0.001)) == "<Calendar 17 samples up to 16>"


def test_samples_left_out_over_the_end_of_the_ring_are_unknown_at_its_beginning() -> None:
    calendar = Calendar()
    for position in range(SAMPLES - 3):
        calendar.write(position, 128, 20)
    calendar.write(SAMPLES + 3, 200, 20)
    assert len(calendar._changes) == len(calendar._rows) == SAMPLES
    assert bytes(calendar._changes[:5]) == bytes((0, 0, 0, 200, 128))
    assert bytes(calendar._changes[-4:]) == bytes((128, 0, 0, 0))
    assert bytes(calendar._rows[:5]) == bytes((0, 0, 0, 20, 20))
