"""Start-up times, learnt from what is seen."""

import pytest

from tidegate.autoscaler.policies.tide.starts import ASSUMED_S, REMEMBERED, Starts, assume_slowest


def test_before_the_first_start_one_is_assumed() -> None:
    assert Starts().median_s == ASSUMED_S
    assert Starts().eta_s(0.0) is None


def test_a_start_is_measured_from_starting_to_ready() -> None:
    starts = Starts()
    starts.update(0, 1, 0, 10.0)
    assert starts.eta_s(12.0) == ASSUMED_S - 2.0
    starts.update(1, 0, 0, 15.0)
    assert starts.median_s == 5.0
    assert starts.eta_s(15.0) is None


def test_the_longest_starting_one_is_ready_first() -> None:
    starts = Starts()
    starts.update(0, 1, 0, 0.0)
    starts.update(0, 2, 0, 8.0)
    starts.update(1, 1, 0, 10.0)
    assert starts.median_s == 10.0
    assert starts.eta_s(11.0) == pytest.approx(7.0)


def test_a_start_that_is_given_up_is_none() -> None:
    starts = Starts()
    starts.update(0, 2, 0, 0.0)
    starts.update(0, 1, 0, 5.0)
    starts.update(1, 0, 0, 6.0)
    assert starts.median_s == 6.0


def test_a_late_start_has_no_negative_rest() -> None:
    starts = Starts()
    starts.update(0, 1, 0, 0.0)
    assert starts.eta_s(1000.0) == 0.0


def test_the_median_is_of_the_last_starts() -> None:
    starts, now = Starts(), 0.0
    for took in [100.0] * REMEMBERED + [2.0] * REMEMBERED:
        starts.update(0, 1, 0, now)
        starts.update(1, 0, 0, now + took)
        starts.update(0, 0, 0, now + took)
        now += took + 1.0
    assert starts.median_s == 2.0


def test_a_ready_replica_that_was_never_seen_starting_is_no_start() -> None:
    starts = Starts()
    starts.update(3, 0, 0, 0.0)
    assert starts.median_s == ASSUMED_S


def test_ten_seconds_are_assumed_and_twenty_starts_remembered() -> None:
    starts, now = Starts(), 0.0
    assert (starts.median_s, starts.took_s) == (10.0, ())
    for took in range(1, 26):
        starts.update(0, 1, 0, now)
        starts.update(1, 0, 0, now + took)
        starts.update(0, 0, 0, now + took)
        now += 100.0
    assert starts.took_s == tuple(map(float, range(6, 26)))
    assert starts.median_s == 15.5


def test_several_are_ready_at_once_and_no_more_than_were_starting() -> None:
    starts = Starts()
    starts.update(0, 2, 0, 0.0)
    starts.update(0, 3, 0, 4.0)
    starts.update(5, 0, 0, 6.0)
    assert starts.took_s == (6.0, 6.0, 2.0)
    assert repr(starts) == "<Starts 6 s, 0 under way>"
    starts.update(5, 1, 0, 7.0)
    starts.update(4, 1, 0, 8.0)
    starts.update(5, 0, 0, 9.0)
    assert list(starts.took_s) == [6.0, 6.0, 2.0, 2.0]


def test_a_clock_that_was_set_back_makes_no_start_negative() -> None:
    starts = Starts()
    starts.update(0, 1, 0, 50.0)
    starts.update(1, 0, 0, 20.0)
    assert starts.took_s == (0.0,)


def test_the_rest_is_the_mean_of_those_under_way() -> None:
    starts = Starts()
    starts.resume((4.0, 8.0))
    assert starts.median_s == 6.0
    starts.update(0, 1, 0, 0.0)
    starts.update(0, 2, 0, 3.0)
    assert starts.eta_s(4.0) == pytest.approx((2.0 + 5.0) / 2)
    assert starts.eta_s(8.0) == pytest.approx((0.0 + 1.0) / 2)
    starts.resume(())
    assert starts.median_s == 10.0


def test_one_that_was_ordered_and_is_ready_at_the_next_look_took_at_most_the_time_between() -> None:
    starts = Starts()
    starts.update(1, 0, 0, 0.0)
    starts.order(1)
    starts.update(1, 0, 0, 1.0)
    starts.update(2, 0, 0, 2.5)
    assert starts.took_s == (1.5,)
    starts.update(3, 0, 0, 3.5)
    assert starts.took_s == (1.5,), "nothing was ordered"


def test_the_first_one_at_zero_is_a_start_without_an_order() -> None:
    starts = Starts()
    starts.update(0, 0, 0, 0.0)
    starts.update(1, 0, 0, 1.0)
    assert starts.took_s == (1.0,)


def test_one_that_drained_and_is_taken_back_is_no_start() -> None:
    starts = Starts()
    starts.update(0, 0, 1, 0.0)
    starts.update(1, 0, 0, 1.0)
    assert starts.took_s == ()


def test_what_was_seen_starting_is_no_quick_start() -> None:
    starts = Starts()
    starts.update(0, 0, 0, 0.0)
    starts.order(2)
    starts.update(0, 1, 0, 1.0)
    starts.update(2, 0, 0, 4.0)
    assert starts.took_s == (3.0,)


def _seen(took_s: float) -> Starts:
    starts = Starts()
    assert not starts.update(0, 1, 0, 0.0)
    assert starts.update(1, 0, 0, took_s)
    return starts


def test_a_group_whose_starts_were_never_seen_takes_as_long_as_the_slowest_other() -> None:
    quick, slow, unseen = _seen(4.0), _seen(30.0), Starts()
    assume_slowest([quick, slow, unseen])
    assert [each.median_s for each in (quick, slow, unseen)] == [4.0, 30.0, 30.0]
    unseen.update(0, 1, 0, 40.0)
    assert unseen.eta_s(50.0) == 20.0
    assert unseen.update(1, 0, 0, 52.0)
    assume_slowest([quick, slow, unseen])
    assert unseen.median_s == 12.0


def test_before_any_start_of_any_group_one_is_assumed() -> None:
    groups = [Starts(), Starts()]
    assume_slowest(groups)
    assert {each.median_s for each in groups} == {ASSUMED_S}
