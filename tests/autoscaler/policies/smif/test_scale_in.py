"""The latency of a smaller fleet, and the memory of misses."""

import math

import pytest

from tests.support.worlds.autoscaling import T0, group
from tidegate.autoscaler.policies.smif.scale_in import (
    MAX_MISS_MEMORY_S,
    MISS_MEMORY_S,
    SLOW_S,
    LateShare,
    MissMemory,
    ScaleInTimer,
    SlowGroupHold,
    predicted_s,
)
from tidegate.autoscaler.policies.smif.waiting import spread_of, waiting_s


def test_two_become_one_at_seventy_percent_of_one() -> None:
    two = group(ready=2, limit=1, execution_s=0.1, tail_s=0.1, latency_s=0.12, busy=0.7, concurrency=0.7)
    later = predicted_s(two, 0.98, 0.35, 0.7, (2, 1))
    assert 0.6 < later < 0.8, "0.1 s of work and the wait of a queue of one"
    assert predicted_s(two, 0.98, 0.35, 1.01, (2, 1)) == math.inf


def test_what_is_waited_beyond_the_formula_grows_too() -> None:
    calm = group(ready=4, limit=1, execution_s=0.1, tail_s=0.1, latency_s=0.1, busy=1.6, concurrency=1.6)
    bursty = group(ready=4, limit=1, execution_s=0.1, tail_s=0.1, latency_s=0.3, busy=1.6, concurrency=1.6)
    servers = (4, 3)
    assert predicted_s(bursty, 0.98, 0.4, 0.53, servers) > predicted_s(calm, 0.98, 0.4, 0.53, servers) + 0.2


def test_shared_replicas_get_slower_with_company() -> None:
    shared = group(ready=2, limit=4, execution_s=0.1, tail_s=0.2, latency_s=0.2, busy=1.0, concurrency=2.0)
    assert predicted_s(shared, 0.98, 0.35, 0.7, (8, 4)) > 0.4


def test_a_miss_forbids_to_go_back_for_hours_and_longer_when_it_was_true() -> None:
    scars = MissMemory()
    assert not scars.forbid(T0, 0.7)
    scars.missed(T0, 0.7)
    assert scars.forbid(T0 + MISS_MEMORY_S - 1, 0.68)
    assert not scars.forbid(T0 + MISS_MEMORY_S - 1, 0.6)
    later = T0 + MISS_MEMORY_S + 1
    assert not scars.forbid(later, 0.7)
    scars.missed(later, 0.7)
    assert scars.forbid(later + 2 * MISS_MEMORY_S - 1, 0.7)
    scars.missed(later, 0.5)
    assert scars.utilization == 0.5, "the lowest counts"


def test_a_miss_of_an_idle_fleet_was_not_for_want_of_replicas() -> None:
    scars = MissMemory()
    scars.missed(T0, 0.1)
    assert not scars.forbid(T0, 0.9)


def test_one_bad_window_is_chance_a_flood_of_late_answers_is_not() -> None:
    window = [(1000, 0)] * 60 + [(1000, 100)] * 30 + [(1000, 0)] * 60
    shares = LateShare()
    seen = [shares.update(T0 + second, *counts) for second, counts in enumerate(window)]
    assert max(seen) < 0.02, "ten percent for half a minute"
    flood = LateShare()
    slow = [flood.update(T0 + second, 1000, 1000 * min(second, 30) // 30) for second in range(30)]
    assert next(second for second, share in enumerate(slow) if share > 0.02) < 20
    assert "of" in repr(flood)


def test_calm_remembers_the_most_that_was_wanted() -> None:
    calm = ScaleInTimer()
    assert [calm.below_for_s(T0 + second, wanted) for second, wanted in enumerate([3, 4, 2, 2])] == [0, 1, 2, 3]
    assert calm.max_wanted(T0 + 3, 60.0) == 4
    assert calm.max_wanted(T0 + 62, 60.0) == 2


def slow(kind: SlowGroupHold, now: float, execution_s: float, *, is_guess: bool = False) -> bool:
    """Returns whether a kind misses a target of half a second."""
    return kind.update(now, execution_s, 0.5, is_guess=is_guess) > 0.5


def test_a_kind_that_was_too_slow_stays_so_until_it_was_quick_for_five_minutes() -> None:
    kind = SlowGroupHold()
    assert (slow(kind, T0, 0.49), slow(kind, T0 + 1, 0.51), slow(kind, T0 + 2, 0.49)) == (False, True, True)
    assert slow(kind, T0 + 200, 0.51), "once more: the time begins anew"
    assert slow(kind, T0 + 199 + SLOW_S, 0.3)
    assert not slow(kind, T0 + 200 + SLOW_S, 0.3)


def test_each_mistake_makes_it_twice_as_long_until_a_day_without_one() -> None:
    kind, now, waits = SlowGroupHold(), T0, []
    for _ in range(12):
        assert slow(kind, now, 0.51)
        since = now
        while slow(kind, now, 0.49):
            now += 50.0
        waits.append(now - since)
        now += 50.0
    assert waits[:4] == [SLOW_S, 2 * SLOW_S, 4 * SLOW_S, 8 * SLOW_S]
    assert max(waits) == waits[-1] == MAX_MISS_MEMORY_S
    now += MAX_MISS_MEMORY_S
    assert slow(kind, now, 0.51)
    assert not slow(kind, now + SLOW_S, 0.49)


def test_that_it_may_be_quick_enough_acquits_none() -> None:
    """0.8 s with two requests in a replica may be 0.4 s for one; that is no reason to start it again."""
    kind = SlowGroupHold()
    assert not slow(kind, T0, 0.4, is_guess=True), "nor does it accuse"
    assert slow(kind, T0 + 1, 0.51)
    assert all(slow(kind, T0 + minute * 60.0, 0.4, is_guess=True) for minute in range(1, 60))
    assert slow(kind, T0 + 3600.0, 0.4)
    assert not slow(kind, T0 + 3600.0 + SLOW_S, 0.4)


def test_an_idle_kind_waits_for_its_time_and_is_not_found_guilty() -> None:
    kind = SlowGroupHold()
    assert (kind.held(T0, 0.4), kind.held(T0, 0.6)) == (0.4, 0.6)
    slow(kind, T0, 0.51)
    assert kind.held(T0 + 1, 0.4) == 0.51
    assert kind.held(T0 + 200, 0.6) == 0.6
    assert kind.held(T0 + SLOW_S, 0.4) == 0.4


def test_a_timer_that_remembers_nothing_asked_for_no_replica() -> None:
    timer = ScaleInTimer()
    assert timer.max_wanted(T0, 60.0) == 0
    timer.below_for_s(T0, 3)
    assert (timer.max_wanted(T0 + 60.0, 60.0), timer.max_wanted(T0 + 60.1, 60.0)) == (3, 0)


@pytest.mark.parametrize("latency_s", [0.3, 0.05])
def test_waiting_beyond_the_formula_grows_as_the_odds_of_the_utilization(latency_s: float) -> None:
    seen = group(ready=4, limit=1, execution_s=0.1, tail_s=0.12, latency_s=latency_s, busy=2.4, concurrency=2.4)
    spread = spread_of(0.1, 0.12)
    before, after = (waiting_s(count, part, 0.1, spread, 0.98) for count, part in ((4, 0.6), (3, 0.8)))
    beyond = max(0.0, latency_s - 0.12 - before)
    expected = 0.12 + after + beyond * (0.8 / 0.2) / (0.6 / 0.4)
    assert before > 0.0
    assert predicted_s(seen, 0.98, 0.6, 0.8, (4, 3)) == pytest.approx(expected)


def test_at_the_limits_of_the_utilization_nothing_is_divided() -> None:
    seen = group(ready=2, limit=1, execution_s=0.1, tail_s=0.12, latency_s=0.3, busy=1.0, concurrency=1.0)
    calm = 0.12 + waiting_s(1, 0.5, 0.1, spread_of(0.1, 0.12), 0.98)
    assert predicted_s(seen, 0.98, 0.0, 0.5, (2, 1)) == pytest.approx(calm)
    assert predicted_s(seen, 0.98, 1.0, 0.5, (2, 1)) == pytest.approx(calm)
    assert predicted_s(seen, 0.98, 0.5, 1.0, (2, 1)) == math.inf


@pytest.mark.parametrize(
    ("concurrency", "grown"), [(1.05, 1.0), (1.06, 0.65 / 0.3)], ids=["one at a time, nearly", "shared"]
)
def test_a_shared_replica_slows_down_as_a_shared_processor(concurrency: float, grown: float) -> None:
    seen = group(ready=2, limit=4, execution_s=0.1, tail_s=0.2, latency_s=0.2, busy=1.0, concurrency=concurrency)
    waiting = waiting_s(4, 0.7, 0.1, spread_of(0.1, 0.2), 0.98)
    assert predicted_s(seen, 0.98, 0.35, 0.7, (8, 4)) == pytest.approx(0.2 * grown + waiting)
    assert predicted_s(seen, 0.98, 0.35, 0.2, (8, 4)) == pytest.approx(0.2), "less load makes no request quicker"


def test_a_miss_is_remembered_for_six_hours_then_twelve_then_a_day() -> None:
    scars, now = MissMemory(), T0
    for hours in (6, 12, 24, 24):
        scars.missed(now, 0.5)
        assert scars.forbid(now + hours * 3600 - 1, 0.5)
        assert not scars.forbid(now + hours * 3600, 0.5)
        now += hours * 3600
    assert repr(scars) == f"<MissMemory 0.50 until {now:.0f}>"
    scars.missed(now, 0.47)
    assert scars.forbid(now + 24 * 3600 - 1, 0.47), "a little lower is another one: it lasts as long as before"


@pytest.mark.parametrize(("utilization", "counts"), [(0.25, True), (0.249, False)])
def test_a_miss_below_a_quarter_was_for_another_reason(utilization: float, counts: bool) -> None:
    scars = MissMemory()
    scars.missed(T0, utilization)
    assert scars.forbid(T0, 0.9) is counts


@pytest.mark.parametrize(("utilization", "is_forbidden"), [(0.475, True), (0.474, False), (0.9, True)])
def test_a_size_within_a_twentieth_of_a_miss_is_the_same(utilization: float, is_forbidden: bool) -> None:
    scars = MissMemory()
    scars.missed(T0, 0.5)
    assert scars.forbid(T0, utilization) is is_forbidden


def test_a_second_miss_while_one_is_remembered_lowers_it_and_lasts_from_there() -> None:
    scars = MissMemory()
    scars.missed(T0, 0.5)
    scars.missed(T0 + 3600, 0.7)
    assert scars.utilization == 0.5
    assert scars.forbid(T0 + 7 * 3600 - 1, 0.5)
    assert not scars.forbid(T0 + 7 * 3600, 0.5)
    scars.missed(T0 + 8 * 3600, 0.7)
    assert scars.utilization == 0.7, "the old one is over"


def test_a_verdict_of_slowness_lasts_300_s_and_counts_double_within_a_day() -> None:
    kind = SlowGroupHold()
    assert kind.update(T0, 0.51, 0.5, is_guess=False) == 0.51
    assert kind.update(T0 + 299.9, 0.4, 0.5, is_guess=False) == 0.51
    assert kind.update(T0 + 300, 0.4, 0.5, is_guess=False) == 0.4
    again = T0 + 300 + 86_399
    assert kind.update(again, 0.52, 0.5, is_guess=False) == 0.52
    assert kind.update(again + 599.9, 0.4, 0.5, is_guess=False) == 0.52
    assert kind.update(again + 600, 0.4, 0.5, is_guess=False) == 0.4
    later = again + 600 + 86_400
    assert kind.update(later, 0.53, 0.5, is_guess=False) == 0.53
    assert kind.update(later + 300, 0.4, 0.5, is_guess=False) == 0.4
    assert kind.update(later + 301, 0.5, 0.5, is_guess=False) == 0.5, "the target itself is met"


def test_the_late_share_forgets_in_three_minutes() -> None:
    shares = LateShare()
    assert shares.update(T0, 100, 90) == pytest.approx((90 / 180) / 100)
    late = 90 / 180
    for second, passed in ((1, 1), (19, 18), (19, 0), (9, 0), (400, 180)):
        late += passed / 180 * (90 - late)
        assert shares.update(T0 + second, 100, 90) == pytest.approx(late / 100)
    assert late == 90
    assert LateShare().update(T0, 0, 0) == 0.0


def test_a_timer_measures_since_it_began() -> None:
    timer = ScaleInTimer()
    assert [timer.below_for_s(T0 + second, 2) for second in (0, 5, 3, -1)] == [0.0, 5.0, 3.0, 0.0]
    assert repr(timer) == f"<ScaleInTimer since {T0}, {[(T0 - 1, 2)]}>"
    assert [timer.below_for_s(T0 + 10, wanted) for wanted in (5, 4, 3)] == [10.0, 10.0, 10.0]
    assert timer.max_wanted(T0 + 10, 60.0) == 5
