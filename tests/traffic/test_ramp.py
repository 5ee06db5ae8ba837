"""The ramp of a gradual rollout, percent by percent."""

import pytest

from tidegate.records.rollout import Ramp
from tidegate.traffic.ramp import aimed, appeared, in_force, settled, ticked


def test_the_first_revision_has_everything_and_the_next_one_begins_with_one_percent() -> None:
    first = appeared(Ramp(goal=100, parts=()), 1, 5.0)
    assert first == settled(100, 1)
    second = appeared(first, 2, 7.0)
    assert (second.parts, second.began_at) == (((1, 99), (2, 1)), 7.0)
    assert appeared(second, 2, 9.0) is second
    assert appeared(second, 3, 9.0).parts == ((1, 99), (3, 1)), "a part of nothing goes"


def test_one_percent_cannot_be_shared() -> None:
    one = Ramp(goal=1, parts=((1, 1),))
    assert appeared(one, 2, 0.0) == settled(1, 2)
    two = appeared(settled(2, 1), 2, 0.0)
    assert two.parts == ((1, 1), (2, 1))


def test_a_revision_takes_its_percent_from_the_newest_that_has_some() -> None:
    ramp = Ramp(goal=100, parts=((1, 60), (2, 40)))
    assert appeared(ramp, 3, 0.0).parts == ((1, 60), (2, 39), (3, 1))


def test_a_larger_goal_goes_to_the_newest() -> None:
    ramp = Ramp(goal=50, parts=((1, 20), (2, 30)), began_at=1.0)
    assert aimed(ramp, 80) == Ramp(goal=80, parts=((1, 20), (2, 60)), began_at=1.0)
    assert aimed(ramp, 50) == ramp
    assert aimed(Ramp(goal=50, parts=()), 80) == Ramp(goal=80, parts=())


def test_a_smaller_goal_is_taken_from_the_oldest() -> None:
    ramp = Ramp(goal=100, parts=((1, 30), (2, 30), (3, 40)))
    assert aimed(ramp, 90).parts == ((1, 20), (2, 30), (3, 40))
    assert aimed(ramp, 60).parts == ((2, 20), (3, 40))
    assert aimed(ramp, 40) == settled(40, 3), "one is left: nothing more is due"
    assert aimed(ramp, 10).parts == ((3, 10),)


@pytest.mark.parametrize(
    ("goal", "duration_s", "took_s", "step", "period_s"),
    [
        (100, 60.0, 0.4, 2, 1.0),  # 59 s left, periods of the second that the route took
        (100, 60.0, 1.0, 2, 1.0),
        (100, 60.0, 8.0, 15, 8.0),  # 52 s left, 6.5 periods of 8 s
        (100, 600.0, 0.0, 1, 6.050505050),  # one percent each: no more than 99 periods
        (100, 5.0, 30.0, 99, 1.0),  # the route took longer than the whole time: one period of a second
        (3, 10.0, 1.0, 1, 4.5),
    ],
)
def test_the_steps_are_laid_out_when_the_route_works(
    goal: int, duration_s: float, took_s: float, step: int, period_s: float
) -> None:
    ramp = appeared(settled(goal, 1), 2, 100.0)
    laid = in_force(ramp, duration_s, 100.0 + took_s)
    assert laid.step == step
    assert laid.period_s == pytest.approx(period_s, abs=1e-8)
    assert laid.period_s <= period_s, "rounded down to nanoseconds, so that the last step is not late"
    assert laid.next_at == pytest.approx(100.0 + took_s + period_s, abs=1e-8)
    assert in_force(laid, duration_s, 500.0) is laid, "once"


def test_nothing_is_laid_out_for_a_revision_that_serves_alone() -> None:
    alone = settled(100, 1)
    assert in_force(alone, 60.0, 5.0) is alone


def test_a_step_moves_percents_from_the_newest_of_the_old_ones_when_it_is_due() -> None:
    ramp = Ramp(goal=100, parts=((1, 60), (2, 10), (3, 30)), began_at=0.0, step=15, period_s=4.0, next_at=8.0)
    assert ticked(ramp, 7.9) is ramp
    due = ticked(ramp, 8.0)
    assert (due.parts, due.next_at) == (((1, 55), (3, 45)), 12.0)
    late = ticked(ramp, 9.5)
    assert late.next_at == 13.5, "what was missed is not made up"
    assert ticked(ticked(due, 12.0), 16.0).parts == ((1, 25), (3, 75))


def test_the_last_step_takes_what_is_left_and_ends_the_ramp() -> None:
    ramp = Ramp(goal=100, parts=((1, 10), (2, 90)), began_at=0.0, step=15, period_s=4.0, next_at=8.0)
    assert ticked(ramp, 8.0) == settled(100, 2)
    assert ticked(settled(100, 2), 99.0) == settled(100, 2)
