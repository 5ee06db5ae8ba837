"""The level of a load: the longest window that no shorter one contradicts."""

import random

import pytest

from tidegate.autoscaler.policies.tide.level import Level

WORK = 0.1


def arrivals(rng: random.Random, rate: float) -> int:
    """Returns a Poisson count."""
    count, left = 0, rng.expovariate(1.0)
    while left < rate:
        count, left = count + 1, left + rng.expovariate(1.0)
    return count


def feed(level: Level, rng: random.Random, rate: float, seconds: int) -> list[float]:
    found = []
    for _ in range(seconds):
        count = arrivals(rng, rate)
        level.update(WORK * count, WORK**2 * count, 1)
        found.append(level.level)
    return found


def test_a_constant_load_is_seen_over_the_longest_window() -> None:
    level = Level()
    found = feed(level, random.Random(1), 60.0, 3600)
    assert level.window_s == 128.0
    assert all(5.6 < each < 6.4 for each in found[600:])
    assert level.unit == pytest.approx(WORK)
    assert level.ca2 == pytest.approx(1.0, abs=0.2)


def test_a_jump_is_followed_within_a_second_or_two() -> None:
    rng, level = random.Random(2), Level()
    feed(level, rng, 60.0, 600)
    found = feed(level, rng, 180.0, 3)
    assert found[1] > 12.0


def test_a_fall_is_followed_too() -> None:
    rng, level = random.Random(3), Level()
    feed(level, rng, 60.0, 600)
    found = feed(level, rng, 6.0, 4)
    assert found[-1] < 3.0


def test_a_ramp_is_no_dispersion() -> None:
    rng, level = random.Random(4), Level()
    for second in range(3600):
        count = arrivals(rng, 10.0 + second / 20.0)
        level.update(WORK * count, WORK**2 * count, 1)
    assert level.ca2 == pytest.approx(1.0, abs=0.2)


def test_pairs_are_dispersion() -> None:
    rng, level = random.Random(5), Level()
    for _ in range(7200):
        count = 4 * arrivals(rng, 15.0)
        level.update(WORK * count, WORK**2 * count, 1)
    assert level.ca2 > 2.5
    assert level.dispersion == pytest.approx(WORK * level.ca2)


def test_a_level_is_never_below_zero_and_falls_to_it() -> None:
    rng, level = random.Random(6), Level()
    feed(level, rng, 60.0, 300)
    for _ in range(700):
        level.update(0.0, 0.0, 1)
    assert level.level == 0.0
    assert level.is_idle
    assert level.unit == 0.0


def test_a_shortest_window_is_kept_to() -> None:
    level = Level()
    for _ in range(5):
        level.update(1.0, 0.1, 4)
    assert level.window_s == 4.0
    assert level.level == 1.0


def test_the_work_of_a_request_is_size_biased() -> None:
    level = Level()
    level.update(1.0 + 4.0, 1.0 + 16.0, 1)  # One request of 1 s, one of 4 s.
    assert level.unit == pytest.approx(17.0 / 5.0)
