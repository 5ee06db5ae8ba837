"""The outlook: which levels to expect once a replica that starts now would help."""

import math
import random

import numpy as np
import pytest

from tests.autoscaler.policies.tide.test_level import WORK, arrivals
from tidegate.autoscaler.policies.tide.level import Level
from tidegate.autoscaler.policies.tide.outlook import CENTRE, FIRST_BUSY_ROW, HALF_LIFE_S, IDLE_ROWS, Outlook

HORIZON_S = 31.0


class Load:
    """A level and its outlook, fed second by second."""

    def __init__(self, seed: int) -> None:
        self.rng, self.level, self.outlook = random.Random(seed), Level(), Outlook()

    def run(self, rate: float, seconds: int) -> "Load":
        for _ in range(seconds):
            self._add(arrivals(self.rng, rate))
        return self

    def watch(self, rate: float, seconds: int) -> "Load":
        """As :meth:`run`, with a forecast every ten seconds: only forecasts that were made can be judged."""
        for second in range(seconds):
            self._add(arrivals(self.rng, rate))
            if second % 10 == 0:
                self.outlook.forecast(self.level)
        return self

    def run_evenly(self, rate: int, seconds: int) -> "Load":
        for _ in range(seconds):
            self._add(rate)
        return self

    def _add(self, count: int) -> None:
        self.level.update(WORK * count, WORK**2 * count, 1)
        self.outlook.update(self.level, HORIZON_S)

    def chance_above(self, slots: float) -> float:
        levels, chances = self.outlook.forecast(self.level)
        return float(chances[levels > slots].sum())


def test_chances_are_chances() -> None:
    load = Load(1).run(60.0, 900)
    levels, chances = load.outlook.forecast(load.level)
    assert chances.sum() == pytest.approx(1.0)
    assert (chances >= 0.0).all()
    assert (levels >= 0.0).all()
    assert np.isfinite(levels).all()


def test_a_constant_load_is_expected_to_stay() -> None:
    load = Load(2).run(60.0, 7200)
    assert load.chance_above(7.5) < 0.01
    assert 1.0 - load.chance_above(4.5) < 0.01


def test_bursts_that_come_now_and_then_are_expected_as_often_as_they_came() -> None:
    load = Load(3)
    for _ in range(20):
        load.run(30.0, 570).run(120.0, 30)
    load.run(30.0, 300)
    # In 30 of 600 seconds a burst begins within the horizon, and only its later part is larger than chance.
    assert 0.01 < load.chance_above(8.0) < 0.15


def test_amid_a_burst_no_other_one_is_expected_upon_it() -> None:
    """To four times the load, from the base: in the burst itself that factor would be a level that never was."""
    load = Load(3)
    for _ in range(12):
        load.run(30.0, 570).run(120.0, 20)
    levels, chances = load.outlook.forecast(load.level)
    assert load.level.level > 10.0
    assert float(chances[levels > 20.0].sum()) < 1e-4


def test_an_idle_load_that_wakes_is_remembered_by_how_long_it_was_idle() -> None:
    load = Load(4)
    for _ in range(12):
        load.run(20.0, 200).run(0.0, 700)
    load.run(20.0, 200).run(0.0, 300)
    soon = load.chance_above(0.5)
    load.run(0.0, 350)
    assert load.chance_above(0.5) > soon


def test_waking_from_idle_says_nothing_about_a_load_that_is_there() -> None:
    """From none to four slots is a factor of eighty: of four slots it would make more than three hundred."""
    load = Load(4)
    for _ in range(4):
        load.run(0.0, 900).run(40.0, 330)
    load.run(0.0, 900).run(40.0, 30)
    assert load.chance_above(40.0) < 1e-4


def test_rows_of_idle_time_grow_by_four() -> None:
    load = Load(5).run(20.0, 60).run(0.0, 160)
    assert load.outlook.row(load.level) <= IDLE_ROWS
    rows = []
    for _ in range(60):
        load.run(0.0, 60)
        rows.append(load.outlook.row(load.level))
    assert rows == sorted(rows)
    assert rows[-1] == 5  # 31 x 4^3 s are 33 min.


def test_rows_of_levels_are_quarter_octaves_of_e() -> None:
    low, high = Load(6).run(30.0, 300), Load(6).run(82.0, 300)
    assert high.outlook.row(high.level) - low.outlook.row(low.level) == pytest.approx(4, abs=1)
    assert low.outlook.row(low.level) >= FIRST_BUSY_ROW


def test_what_repeats_every_half_hour_is_seen_to_come() -> None:
    load = Load(7)
    for _ in range(10):
        load.run(30.0, 1740).run(150.0, 60)
    load.run(30.0, 600)
    amid = load.chance_above(9.0)
    load.run(30.0, 1110)  # 30 s before the next burst.
    assert load.chance_above(9.0) > 3.0 * amid


def test_a_calendar_that_foresees_nothing_loses_its_say() -> None:
    """Bursts at random: the calendar finds some at whatever moment it looks, and none at most. The chance of one is to
    be about the same all the time."""
    load = Load(11)
    for _ in range(24):
        load.watch(30.0, load.rng.randint(900, 2400)).watch(150.0, 120)
    chances = [load.watch(30.0, 60).chance_above(9.0) for _ in range(30)]
    assert max(chances) < 1.5 * min(chances)


def test_seconds_passed_over_keep_the_time_of_day() -> None:
    load = Load(8).run(30.0, 700)
    load.outlook.skip(1000)
    assert load.outlook.seconds == 1700


def test_another_horizon_forgets_what_was_learnt_over_a_very_different_one() -> None:
    load = Load(9)
    for _ in range(5):
        load.run(30.0, 570).run(120.0, 30)
    load.run(30.0, 300)
    learnt = load.chance_above(8.0)
    load.outlook.update(load.level, 200.0)
    assert load.chance_above(8.0) < learnt


@pytest.mark.parametrize(
    ("horizon_s", "is_kept"), [(15.0, False), (16.0, True), (33.0, True), (62.0, True), (63.0, False)]
)
def test_a_horizon_of_half_to_twice_the_length_keeps_what_was_learnt(horizon_s: float, is_kept: bool) -> None:
    load = Load(9).run(30.0, 700).run(120.0, 100)
    assert load.outlook.rows > 1
    load.outlook.update(load.level, horizon_s)
    assert (load.outlook.rows > 1) is is_kept


def test_before_anything_was_learnt_a_sudden_twentyfold_load_is_all_but_ruled_out() -> None:
    load = Load(10).run(30.0, 300)
    assert load.chance_above(20 * 3.0) < 1e-5
    assert load.chance_above(1.1 * 3.0) > 0.01


@pytest.mark.parametrize(("began", "reached", "now"), [(30, 120, 24), (30, 120, 30), (30, 120, 38), (28, 53, 28)])
def test_a_burst_is_expected_at_the_level_that_it_reached(began: int, reached: int, now: int) -> None:
    """Not that many times above the present level, which may be another one than the bursts began at."""
    load = Load(11)
    for _ in range(20):
        load.run_evenly(began, 600).run_evenly(reached, 60)
    load.run_evenly(began, 400).run_evenly(now, 200)
    levels, chances = load.outlook.forecast(load.level)
    burst = levels > 1.5 * now * WORK
    assert np.average(levels[burst], weights=chances[burst]) == pytest.approx(reached * WORK, rel=0.1)


def test_a_change_weighs_half_after_its_half_life() -> None:
    load = Load(4).run_evenly(20, 3000)
    before = load.outlook._weight
    after = load.run_evenly(20, 200).outlook._weight
    assert after / before == pytest.approx(2.0 ** (200.0 / HALF_LIFE_S), rel=1e-9)


@pytest.mark.parametrize(("horizon_s", "first"), [(31.0, 601), (599.0, 601), (600.4, 601), (700.0, 701), (0.2, 601)])
def test_nothing_is_learnt_for_ten_minutes_nor_before_a_horizon_is_over(horizon_s: float, first: int) -> None:
    level, outlook = Level(), Outlook()
    for second in range(1, first + 1):
        level.update(3.0, 0.3, 1)
        outlook.update(level, horizon_s)
        assert (outlook.rows, outlook.seconds) == (int(second >= first), second)


@pytest.mark.parametrize(
    ("idle_s", "row"),
    [(1, 1), (31, 1), (32, 2), (124, 2), (125, 3), (496, 3), (497, 4), (126_976, 7), (126_977, 8), (10**7, 8)],
)
def test_the_row_of_an_idle_load_is_how_long_it_has_been_idle(idle_s: int, row: int) -> None:
    level, outlook = Level(), Outlook()
    outlook.update(level, HORIZON_S)
    outlook.skip(idle_s - 1)
    assert outlook.row(level) == row


@pytest.mark.parametrize(
    ("slots", "row"),
    [(1.0, 46), (0.99, 45), (1.28, 46), (1.29, 47), (0.0006, 16), (1e-9, 16), (1e20, 230), (1e30, 255)],
)
def test_the_row_of_a_level_is_a_quarter_of_its_logarithm(slots: float, row: int) -> None:
    level = Level()
    level.level = slots
    assert Outlook().row(level) == row


def test_a_skip_passes_idle_time_only_in_an_idle_load() -> None:
    level, outlook = Level(), Outlook()
    level.update(3.0, 0.3, 1)
    outlook.update(level, HORIZON_S)
    outlook.skip(500)
    level.level = 0.0
    outlook.update(level, HORIZON_S)
    assert (outlook.row(level), outlook.seconds) == (1, 502)


def test_the_weight_of_a_change_halves_in_three_days() -> None:
    load = Load(1).run_evenly(30, 600)
    load.outlook._weight = 1.0
    load.run_evenly(30, 600)
    assert load.outlook._weight == pytest.approx(2.0 ** (600.0 / (3 * 86_400.0)))


def test_weights_are_scaled_back_before_they_grow_too_large() -> None:
    load = Load(1).run_evenly(30, 700)
    before = load.outlook.forecast(load.level)[1]
    load.outlook._weight = 1e6
    for counts in (load.outlook._busy, *load.outlook._rows.values()):
        for change in counts:
            counts[change] *= 1e6
    load.run_evenly(30, 1)
    assert load.outlook._weight == 1.0
    assert load.outlook.forecast(load.level)[1] == pytest.approx(before, rel=0.02)


def test_chances_with_a_calendar_are_chances() -> None:
    load = Load(1).run_evenly(30, 4000)
    assert load.outlook._calendar_at(load.outlook.row(load.level))[1] > 0.0
    assert load.outlook.forecast(load.level)[1].sum() == pytest.approx(1.0)


def test_a_calendar_of_two_moments_counts_half_of_what_its_forecasts_have_earned() -> None:
    load = Load(1).run_evenly(30, 4000)
    _, moments = load.outlook._calendar_at(load.outlook.row(load.level))
    load.outlook._odds = -50.0
    rows = chances_of(load.outlook, load.level)[CENTRE]
    load.outlook._odds = 50.0
    trust = moments / (moments + 2.0)
    assert chances_of(load.outlook, load.level)[CENTRE] == pytest.approx((1.0 - trust) * rows + trust)
    load.outlook._odds = 0.0
    assert chances_of(load.outlook, load.level)[CENTRE] == pytest.approx(rows + 0.5 * trust * (1.0 - rows))


@pytest.mark.parametrize(
    ("rows", "both", "odds"), [(0.1, 0.2, 2.0 + math.log(2.0)), (0.01, 0.5, 4.0), (0.9, 1e-4, -4.0)]
)
def test_the_odds_on_the_calendar_stay_between_four_factors_of_e(rows: float, both: float, odds: float) -> None:
    outlook = Outlook()
    outlook._horizon_s, outlook._odds = 1, 2.0
    outlook._foreseen.append((1, rows, both))
    outlook._judge(1, CENTRE + 20)
    assert outlook._odds == pytest.approx(odds)


UNCHANGED = (0.4 + 3e-5) / (0.4 * (1.0 + 2.0 / (math.e - 1.0)) + 3e-5 * (1.0 + 2.0 / (math.exp(0.1) - 1.0)))
"""Chance of no change before anything is learnt."""


def chances_of(outlook: Outlook, level: Level) -> list[float]:
    """Returns the chances by bin."""
    return [0.0, *outlook.forecast(level)[1].tolist()]


def test_a_row_leans_on_all_rows_and_these_on_what_is_assumed() -> None:
    load = Load(1).run_evenly(60, 660)  # Sixty samples without a change.
    everywhere = 60.0 * (600.0 * UNCHANGED + 60.0) / 660.0
    assert chances_of(Outlook(), load.level)[CENTRE] == pytest.approx(UNCHANGED, rel=1e-4)
    assert chances_of(load.outlook, load.level)[CENTRE] == pytest.approx((everywhere + 60.0) / 120.0, rel=1e-4)
    beside = Load(1).run_evenly(80, 10).level  # Eight slots are the row above that of six.
    assert load.outlook.row(beside) == load.outlook.row(load.level) + 1
    seen = 0.3 * 60.0
    assert chances_of(load.outlook, beside)[CENTRE] == pytest.approx((everywhere + seen) / (60.0 + seen), rel=1e-4)


class Seen(Level):
    """A level as it is stated, over one second."""

    def __init__(self, level: float) -> None:
        super().__init__()
        self.level, self.work, self.squares = level, WORK, WORK**2


@pytest.mark.parametrize(
    ("level", "change"),
    [
        (8.5, 0),  # 2.5 of two standard errors of 2.6.
        (8.75, 5),  # One standard error less is 7.8 slots: ln(7.86 / 6.05).
        (9.7, 7),
        (13.5, 13),  # From the centre of the row on, 6.52 slots: ln(12.4 / 6.57).
        (20.0, 21),
    ],
)
def test_a_change_beyond_chance_is_counted_and_a_big_one_from_the_centre_of_its_row(level: float, change: int) -> None:
    outlook = Outlook()
    for _ in range(640):
        outlook.update(Seen(6.0), 1.0)
    before = chances_of(outlook, Seen(6.0))
    outlook.update(Seen(level), 1.0)
    gained = np.subtract(chances_of(outlook, Seen(6.0)), before)
    assert int(gained.argmax()) == CENTRE + change
    levels, _ = outlook.forecast(Seen(6.0))
    expected = 6.0 if change < 10 else math.exp(7.5 / 4.0)
    assert levels[CENTRE + change - 1] == pytest.approx((expected + 0.05) * math.exp(0.05 * change) - 0.05)
