"""What was started again at the same level is held for longer each time."""

import random

import pytest

from tests.autoscaler.policies.tide.test_level import feed
from tidegate.autoscaler.policies.tide.level import Level
from tidegate.autoscaler.policies.tide.regret import HOLD_S, Regret


def steady(rate: float, level: Level | None = None) -> Level:
    level = Level() if level is None else level
    feed(level, random.Random(1), rate, 1200)
    assert level.is_steady
    return level


def sizes(regret: Regret, level: Level, *slots: float, now: float = 0.0) -> tuple[float, float]:
    """Adds these sizes, of one moment each; returns what is held."""
    for each in slots:
        regret.update(level, each, 0.5, now)
    return regret.held(level, now)


def test_what_was_started_again_is_held_six_times_as_long_the_next_time_and_then_for_most_of_a_day() -> None:
    regret, level = Regret(), steady(60.0)
    assert sizes(regret, level, 8.0, 7.0) == (0.0, 0.0)
    assert sizes(regret, level, 8.0, now=100.0) == (8.0, HOLD_S)
    assert regret.held(level, 100.0 + HOLD_S) == (0.0, 0.0)
    assert sizes(regret, level, 7.0, 8.0, now=20_000.0) == (8.0, 6.0 * HOLD_S)
    assert sizes(regret, level, 7.0, 8.0, now=50_000.0) == (8.0, 216.0 * HOLD_S)
    assert regret.times == 3


def test_a_first_start_and_a_difference_of_less_than_a_step_are_none() -> None:
    regret, level = Regret(), steady(60.0)
    assert sizes(regret, level, 7.0, 8.0, 7.6, 8.0) == (0.0, 0.0)
    assert regret.times == 0


@pytest.mark.parametrize("rate", [52.0, 68.0])
def test_a_level_that_has_moved_begins_again(rate: float) -> None:
    regret, level = Regret(), steady(60.0)
    assert sizes(regret, level, 8.0, 7.0, 8.0)[0] == 8.0
    steady(rate, level)
    assert regret.held(level, 1.0) == (0.0, 0.0)
    assert regret.times == 0
    assert sizes(regret, level, 9.0, now=1.0) == (0.0, 0.0), "nothing was given up at this level"


def test_what_a_burst_started_is_not_held() -> None:
    regret, level = Regret(), steady(60.0)
    sizes(regret, level, 8.0, 7.0)
    feed(level, random.Random(3), 200.0, 2)
    assert not level.is_steady
    assert sizes(regret, level, 20.0)[0] == 0.0


@pytest.mark.parametrize(("every_s", "is_held"), [(100_000, True), (9000, True), (1800, False)])
def test_nothing_is_held_where_bursts_come_often(every_s: int, is_held: bool) -> None:
    """A burst of twenty seconds contradicts the longest window for 512 s, more than a quarter of half an hour."""
    regret, level = Regret(), steady(60.0)
    rng = random.Random(4)
    for second in range(20_000):
        feed(level, rng, 200.0 if second % every_s < 20 else 60.0, 1)
        regret.update(level, 7.0, 0.5, float(second))
    steady(60.0, level)
    assert (sizes(regret, level, 8.0, 7.0, 8.0, now=20_000.0)[0] > 0.0) == is_held


def test_a_silence_is_not_steady() -> None:
    level = steady(60.0)
    feed(level, random.Random(1), 0.0, 1200)
    assert not level.is_steady
