"""Each limit by itself: wish in, number and reasons out."""

from typing import Any

import pytest
from msgspec import structs

from tests.support.worlds.autoscaling import group, observation
from tidegate.autoscaler.decisions.groups import spread
from tidegate.autoscaler.decisions.limits import LimitContext, bounded, dry_run_floor, within_total
from tidegate.autoscaler.decisions.reasons import SENTENCES, figure, reason
from tidegate.autoscaler.measure.observation import GroupObservation, Observation
from tidegate.function import Scaling


def decide(
    wish: int | None, seen: Observation, scaling: Scaling | None = None, *, idle_s: float = 0.0, **standing: Any
) -> tuple[int | None, list[str]]:
    number, reasons = bounded(
        wish,
        seen,
        scaling or Scaling(),
        LimitContext(idle_s=idle_s, **standing),
    )
    return number, [each.code for each in reasons]


TWO = observation(group(ready=2))
ONE = observation(group(ready=1))
NONE = observation(group())


@pytest.mark.parametrize(
    ("wish", "seen", "scaling", "idle_s", "expected"),
    [
        (2, TWO, Scaling(), 0, (2, [])),
        (9, TWO, Scaling(max_scale=5), 0, (5, ["capped_by_max"])),
        (1, TWO, Scaling(min_scale=2), 0, (2, ["raised_to_min"])),
        (40, TWO, Scaling(), 0, (12, ["capped_by_capacity"])),
        (0, TWO, Scaling(), 10, (1, ["not_idle_yet"])),
        (0, TWO, Scaling(), 60, (1, ["one_before_zero"])),
        (2, TWO, Scaling(), 60, (1, ["one_before_zero"])),
        (0, ONE, Scaling(), 59.9, (1, ["not_idle_yet"])),
        (0, ONE, Scaling(), 60, (0, ["idle"])),
        (1, ONE, Scaling(), 60, (0, ["idle"])),
        (0, ONE, Scaling(min_scale=1), 600, (1, ["raised_to_min"])),
        (3, NONE, Scaling(), 600, (0, ["asleep"])),
        (None, NONE, Scaling(), 600, (0, ["asleep"])),
        (None, TWO, Scaling(), 0, (None, [])),
        (None, ONE, Scaling(min_scale=3), 0, (3, ["raised_to_min"])),
    ],
)
def test_bounds(
    wish: int | None, seen: Observation, scaling: Scaling, idle_s: float, expected: tuple[int | None, list[str]]
) -> None:
    assert decide(wish, seen, scaling, idle_s=idle_s) == expected


def test_work_in_sight_is_never_idle() -> None:
    for busy in ({"waiting": 1}, {"concurrency": 0.1}, {"rps": 1.0}):
        assert decide(1, observation(group(ready=1), **busy), idle_s=999.0) == (1, []), busy


def test_missing_data_never_takes_a_replica_away() -> None:
    blind = observation(group(ready=3), complete=False)
    assert decide(1, blind) == (3, ["hold_stale_metrics"])
    assert decide(0, blind, idle_s=999.0) == (3, ["hold_stale_metrics"])
    assert decide(5, blind) == (5, [])
    assert decide(None, blind, idle_s=999.0) == (None, [])


def test_what_starts_is_let_to_its_end() -> None:
    assert decide(0, observation(group(starting=1)), idle_s=999.0) == (1, ["starting"])
    assert decide(4, observation(group(starting=1)), idle_s=999.0) == (4, [])


def test_at_zero_a_waiting_request_or_an_activation_wakes() -> None:
    assert decide(0, observation(group(), waiting=7)) == (1, ["activation"])
    assert decide(30, observation(group(), waiting=70)) == (1, ["activation"]), "one replica first, whatever waits"
    assert decide(0, observation(group(), waiting=7), activation_scale=3) == (3, ["activation"])
    assert decide(0, NONE, is_activating=True) == (1, ["activating"])


def test_at_zero_only_a_policy_that_starts_ahead_is_followed_without_a_request() -> None:
    quiet, asked = LimitContext(idle_s=600.0), observation(group(), waiting=1)
    ahead, reasons = bounded(3, NONE, Scaling(), quiet, is_zero_settled=True, starts_ahead=True)
    assert (ahead, [each.code for each in reasons]) == (3, ["ahead"])
    assert bounded(0, NONE, Scaling(), quiet, starts_ahead=True)[0] == 0
    assert bounded(3, asked, Scaling(), quiet, starts_ahead=True)[0] == 3
    assert bounded(3, NONE, Scaling(), quiet)[0] == 0


def test_the_initial_scale_is_a_floor_until_it_was_reached() -> None:
    assert decide(None, NONE, Scaling(initial_scale=2), is_initial=True) == (2, ["initial_scale"])
    assert decide(0, ONE, Scaling(initial_scale=2), is_initial=True) == (2, ["initial_scale"])
    assert decide(0, ONE, Scaling(initial_scale=2, min_scale=3), is_initial=True) == (3, ["raised_to_min"])


def test_existing_replicas_are_never_capped_away() -> None:
    shrunk = observation(group(ready=4, room=0))
    assert decide(9, shrunk) == (4, ["capped_by_capacity"])


def counts(desired: int, *groups: GroupObservation, base: dict[str, int] | None = None) -> list[int]:
    return [row.replicas for row in spread(desired, groups, base)]


CHEAP, DEAR = group("t4", price_per_hour=0.5, room=3), group("v100", price_per_hour=3.0, room=3)


def test_growth_fills_the_cheapest_room_first() -> None:
    assert counts(2, DEAR, CHEAP) == [0, 2]
    assert counts(5, CHEAP, DEAR) == [3, 2]
    assert counts(9, CHEAP, DEAR) == [3, 3], "no more than there is room"
    assert counts(2, group("a", room=None), group("b")) == [2, 0], "without prices in the order given"


def test_growth_fills_accelerators_that_are_too_slow_for_the_target_last() -> None:
    slow, quick = structs.replace(CHEAP, one_s=0.01), structs.replace(DEAR, one_s=0.004)
    assert [row.replicas for row in spread(2, (slow, quick), slo_s=0.008)] == [0, 2]
    assert [row.replicas for row in spread(5, (slow, quick), slo_s=0.008)] == [2, 3], "late rather than not at all"
    assert [row.replicas for row in spread(2, (slow, quick))] == [2, 0], "no target"
    measured = structs.replace(slow, min_execution_s=0.005, min_execution_occupancy=1.0)
    assert [row.replicas for row in spread(2, (measured, quick), slo_s=0.008)] == [2, 0], "it is quicker than was given"


def test_growth_takes_draining_replicas_back_before_it_starts_new_ones() -> None:
    assert counts(1, CHEAP, group("v100", price_per_hour=3.0, draining=1)) == [0, 1]


def test_shrinking_takes_starting_ones_first_then_the_dearest_and_ends_on_the_cheapest() -> None:
    running = (group("t4", price_per_hour=0.5, ready=2), group("v100", price_per_hour=3.0, ready=2, starting=1))
    assert counts(4, *running) == [2, 2]
    assert counts(3, *running) == [2, 1]
    assert counts(1, *running) == [1, 0]
    only_dear_is_ready = (group("t4", price_per_hour=0.5, starting=1), group("v100", price_per_hour=3.0, ready=1))
    assert counts(1, *only_dear_is_ready) == [0, 1]


def test_a_policys_own_choice_is_the_base() -> None:
    assert counts(3, CHEAP, DEAR, base={"v100": 2}) == [1, 2]
    assert counts(1, CHEAP, DEAR, base={"v100": 2, "gone": 9}) == [0, 1]


def test_every_reason_has_a_sentence_and_other_words_are_refused() -> None:
    assert all(text and text[0].islower() for text in SENTENCES.values())
    with pytest.raises(KeyError):
        reason("because")
    assert [figure(value) for value in (0.12345, 12.0, 1234.5)] == ["0.123", "12", "1234"]


def test_a_window_of_time_has_a_minimum_of_its_own() -> None:
    seen = observation(group(ready=1), least=3)
    desired, reasons = bounded(1, seen, Scaling(), LimitContext(idle_s=1000.0))
    assert (desired, [each.code for each in reasons]) == (3, ["window_minimum"])
    larger, reasons = bounded(1, seen, Scaling(min_scale=4), LimitContext(idle_s=0.0))
    assert (larger, [each.code for each in reasons]) == (4, ["raised_to_min"])


def test_what_is_rolled_out_is_kept_ready_though_none_asks() -> None:
    asleep = observation(group(), is_rolled_out=True)
    assert decide(0, asleep, idle_s=600.0) == (1, ["rollout_awake"])
    assert decide(None, asleep, idle_s=600.0) == (1, ["rollout_awake"])
    assert decide(None, observation(group(ready=1), is_rolled_out=True)) == (None, [])
    dry, (why,) = dry_run_floor(0, asleep, Scaling(dry_run=True), LimitContext(idle_s=600.0), 0)
    assert (dry, why.code) == (1, "dry_run_start")


def test_the_limit_over_all_functions_is_the_last_word() -> None:
    assert within_total(5, observation(group(ready=2))) == (5, ())
    desired, (why,) = within_total(5, observation(group(ready=2), most=3))
    assert (desired, why.code) == (3, "capped_by_total")
    held, (why,) = within_total(None, observation(group(ready=4), most=3))
    assert (held, why.detail) == (3, "wanted 4, its share is 3")
