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
    assert level.window_s == 512.0
    assert all(5.8 < each < 6.2 for each in found[600:])
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


@pytest.mark.parametrize(("rise", "counted"), [(0.00066, 0.0), (0.0009, 0.448), (0.0015, 0.80), (0.01, 0.995)])
def test_a_trend_counts_as_far_as_it_is_more_than_chance(rise: float, counted: float) -> None:
    """A load of 6 slots of 0.1 s: means of half of the window have a standard error of 0.048 slots, their difference
    one of 0.068, and so that a rise of 0.00067 slots/s, 0.17 in 256 s, is 2.5 of them."""
    level = Level()
    for second in range(-512, 1):
        work = 6.0 + rise * (second + 256)
        level.update(work, WORK * work, 1)
    level.level, level.window_s, level.ca2 = 6.0, 256.0, 1.0
    assert level.trend() == pytest.approx(counted * rise, rel=0.05)


def test_a_load_that_rises_or_falls_for_long_has_a_trend() -> None:
    for rise in (0.015, -0.015):
        rng, level = random.Random(1), Level()
        feed(level, rng, 60.0, 1000)
        found = []
        for second in range(2000):
            feed(level, rng, 60.0 + rise * second, 1)
            found.append(level.trend())
        assert sum(found[512:]) / len(found[512:]) == pytest.approx(WORK * rise, rel=0.5)
        assert all(each * rise >= 0.0 for each in found[512:])


@pytest.mark.parametrize("rate", [30.0, 50.0, 75.0, 90.0, 200.0])
def test_a_jump_is_no_trend(rate: float) -> None:
    rng, level = random.Random(1), Level()
    feed(level, rng, 60.0, 1000)
    found = []
    for _ in range(1200):
        feed(level, rng, rate, 1)
        found.append(level.trend())
    assert sum(each != 0.0 for each in found) < 0.05 * len(found)


def test_a_constant_load_has_hardly_ever_a_trend() -> None:
    rng, level = random.Random(2), Level()
    found = []
    for _ in range(20_000):
        feed(level, rng, 60.0, 1)
        found.append(level.trend())
    assert sum(each != 0.0 for each in found) < 0.01 * len(found)


def test_a_window_that_is_not_full_has_no_trend() -> None:
    level = Level()
    for second in range(512):
        assert level.trend() == 0.0
        level.update(0.01 * second, 0.001 * second, 1)


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


def test_a_silence_in_which_eight_requests_would_have_come_is_no_load() -> None:
    level = Level()
    for second in range(600):
        level.update(*((WORK, WORK**2) if second % 5 == 0 else (0.0, 0.0)), 1)
    assert level.level == pytest.approx(0.2 * WORK, rel=0.02)
    for _ in range(35):
        level.update(0.0, 0.0, 1)
    assert level.level > 0.0
    for _ in range(15):
        level.update(0.0, 0.0, 1)
    assert (level.level, level.window_s) == (0.0, 54.0)


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


def steady(seconds: int, work: float = 6.0, unit: float = WORK, shortest_s: int = 1) -> Level:
    """Returns the level after the same work in each second."""
    level = Level()
    for _ in range(seconds):
        level.update(work, work * unit, shortest_s)
    return level


def test_a_new_level_knows_nothing() -> None:
    level = Level()
    assert (level.level, level.window_s, level.ca2, level.unit, level.is_idle) == (0.0, 1.0, 1.0, 0.0, True)
    assert repr(level) == "<Level 0 over 1 s, ca2 1>"


@pytest.mark.parametrize(
    ("seconds", "shortest_s", "window_s"),
    [(1, 1, 1), (2, 1, 2), (3, 1, 2), (4, 1, 4), (127, 1, 64), (128, 1, 128), (600, 1, 512), (2, 5, 2), (9, 5, 5),
     (10, 5, 10), (600, 5, 320), (600, 20, 320), (600, 8, 512), (1300, 40, 640)],
)  # fmt: skip
def test_the_window_doubles_from_the_shortest_up_to_the_longest(seconds: int, shortest_s: int, window_s: int) -> None:
    level = steady(seconds, shortest_s=shortest_s)
    assert level.window_s == window_s
    assert level.level == pytest.approx(6.0)


@pytest.mark.parametrize(
    ("level", "window_s", "ca2"), [(6.0, 1.0, 1.0), (6.0, 64.0, 4.0), (6.0, 4.0, 0.5), (-1.0, 1.0, 1.0)]
)
def test_the_error_is_that_of_arrivals_with_their_dispersion(level: float, window_s: float, ca2: float) -> None:
    found = steady(10)
    found.ca2 = ca2
    assert found.dispersion == pytest.approx(WORK * max(1.0, ca2))
    assert found.error(level, window_s) == pytest.approx((WORK * max(1.0, ca2) * max(0.0, level) / window_s) ** 0.5)


@pytest.mark.parametrize(
    ("before", "work", "seen"), [(6.0, 7.0, 1.0 / 1.3), (6.0, 4.0, 4.0 / 1.0), (1.0, 9.0, 9.0), (6.0, 6.0, 0.0)]
)
def test_the_dispersion_is_the_square_of_differences_of_neighbouring_seconds(
    before: float, work: float, seen: float
) -> None:
    """Within an hour's memory; a difference counts nine times at most."""
    level = Level()
    level.update(before, before * WORK, 1)
    level.update(work, work * WORK, 1)
    assert level.ca2 == pytest.approx(1.0 + (seen - 1.0) / 3600.0)


def test_the_dispersion_is_at_least_a_half() -> None:
    assert steady(1).ca2 == 1.0
    assert steady(2).ca2 == pytest.approx(1.0 - 1.0 / 3600.0)
    level = steady(2)
    level.ca2 = 0.5
    level.update(6.0, 0.6, 1)
    assert level.ca2 == 0.5


@pytest.mark.parametrize(("jump", "window_s"), [(9.8, 512.0), (10.0, 16.0)])
def test_a_second_five_errors_away_is_a_change(jump: float, window_s: float) -> None:
    """One second of 10 against 32 with a mean of 6.125: 3.875, and 5 x sqrt(0.6125 x (1 - 1/32)) = 3.852."""
    level = steady(600)
    level.ca2 = 1.0
    level.update(jump, jump * WORK, 1)
    assert level.window_s == window_s


@pytest.mark.parametrize(("work", "seconds"), [(6.0, 1), (0.1, 8), (0.05, 16)])
def test_silence_of_eight_requests_is_no_load(work: float, seconds: int) -> None:
    level = steady(300, work)
    for silent in range(1, 400):
        before = level.level
        level.update(0.0, 0.0, 1)
        if level.level == 0.0:
            assert level.window_s == silent
            assert silent * before > 0.0
            assert silent >= seconds
            return
    raise AssertionError("silence was not seen")


def test_idle_is_three_tenths_of_a_request() -> None:
    level = steady(10)
    for value, is_idle in ((0.03, True), (0.031, False), (0.0, True)):
        level.level = value
        assert level.is_idle is is_idle


def test_the_work_of_a_request_is_of_the_last_ten_minutes() -> None:
    level = steady(600, 6.0, 0.1)
    assert level.work == pytest.approx(3600.0)
    level.update(6.0, 6.0 * 0.3, 1)
    assert level.work == pytest.approx(3600.0)
    assert level.squares == pytest.approx(599 * 0.6 + 1.8)
    for _ in range(599):
        level.update(6.0, 6.0 * 0.3, 1)
    assert level.unit == pytest.approx(0.3)
