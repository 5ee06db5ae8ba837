"""Rollouts as timelines, second by second."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tidegate.records.rollout import Phase, Ramp, Rollout, RolloutPlan
from tidegate.traffic.judge import Tally
from tidegate.traffic.stages import RolloutFacts, advanced, aligned, begun, ended, paused, resumed

CANARY = RolloutPlan(canary_steps=(1.0, 5.0, 25.0, 50.0), canary_window_s=30.0)


def rollout(plan: RolloutPlan = CANARY, at: float = 0.0) -> Rollout:
    return begun(Rollout(candidate=2, base=1, plan=plan, began_at=at), None, at)


class World:
    """Requests at a rate; a part of each revision's goes badly."""

    def __init__(
        self, plan: RolloutPlan = CANARY, *, rps: float = 200.0, bad: float = 0.0, old_bad: float = 0.0
    ) -> None:
        self.rollout = rollout(plan)
        self.now = 0.0
        self.rps, self.bad, self.old_bad = rps, bad, old_bad
        self.is_ready = True
        self.hit = self.total = 0.0
        self._since = -1.0
        self._new = self._old = 0.0
        self.percents: list[float] = []

    def second(self) -> None:
        self.now += 1.0
        if self.rollout.since != self._since:
            self._since, self._new, self._old = self.rollout.since, 0.0, 0.0
        percent = self.rollout.percent if self.is_ready else 0.0
        self._new += self.rps * percent / 100
        self._old += self.rps * (1 - percent / 100)
        self.hit += self.rps * percent / 100 * self.bad
        self.total += self.rps
        seen = RolloutFacts(is_ready=self.is_ready, new=tally(self._new, self.bad), old=tally(self._old, self.old_bad))
        self.rollout = advanced(self.rollout, seen, self.now)
        if not self.percents or self.percents[-1] != self.rollout.percent:
            self.percents.append(self.rollout.percent)

    def run(self, until: Callable[[], bool], limit: int = 2000) -> None:
        for _ in range(limit):
            self.second()
            if until():
                return
        raise AssertionError(f"not within {limit} s: {self.rollout}")

    def codes(self) -> list[str]:
        return [event.code for event in self.rollout.events]


def tally(requests: float, bad: float) -> Tally:
    failed = int(int(requests) * bad)
    return Tally(answered=int(requests) - failed, failed=failed)


def test_a_good_version_passes_every_step_in_its_window() -> None:
    world = World()
    world.run(lambda: world.rollout.is_over)
    assert world.rollout.phase is Phase.PROMOTED
    assert world.percents == [1.0, 5.0, 25.0, 50.0, 0.0]
    assert world.now == pytest.approx(4 * 30 + 1, abs=4)
    assert world.codes() == ["begun", "ready", "step", "step", "step", "promoted"]


def test_a_step_lasts_one_window_to_the_second() -> None:
    good = RolloutFacts(is_ready=True, new=tally(10_000, 0.0), old=tally(10_000, 0.0))
    running = advanced(rollout(), good, 10.0)
    before = advanced(running, good, 39.0)
    assert (before.step, before.verdict.endswith("the window lasts 1 s more")) == (0, True)
    assert advanced(before, good, 40.0).step == 1


@pytest.mark.parametrize("bad", [1.0, 0.5, 0.25])
def test_a_bad_version_is_taken_back_within_two_windows_with_few_users_hit(bad: float) -> None:
    world = World(bad=bad)
    world.run(lambda: world.rollout.is_over)
    assert world.rollout.phase is Phase.TAKEN_BACK
    assert world.now <= 2 * 30
    assert world.hit / world.total < 0.01
    assert world.percents == [1.0, 0.0]
    assert "went badly" in world.rollout.verdict


def test_clear_evidence_ends_the_first_step_early() -> None:
    world = World(bad=1.0)
    world.run(lambda: world.rollout.is_over)
    assert world.now < 10, "2 requests a second: 6 bad ones are there after 3 s"


def test_a_bit_worse_is_found_at_a_later_step() -> None:
    world = World(bad=0.08)
    world.run(lambda: world.rollout.is_over)
    assert world.rollout.phase is Phase.TAKEN_BACK
    assert world.hit / world.total < 0.01


def test_an_overload_of_both_is_no_reason() -> None:
    world = World(bad=0.3, old_bad=0.3)
    world.run(lambda: world.rollout.is_over)
    assert world.rollout.phase is Phase.PROMOTED


def test_without_traffic_it_waits_and_says_so() -> None:
    world = World(rps=0.0)
    world.run(lambda: world.now >= 120)
    assert world.percents == [1.0]
    assert world.rollout.verdict.startswith("no traffic to judge by, waits")
    assert world.codes() == ["begun", "ready", "waits_for_traffic"], "reported once"
    world.rps = 50.0
    world.run(lambda: world.rollout.step == 1)
    assert world.now < 170


def test_it_gets_nothing_before_a_replica_is_ready_and_while_none_is() -> None:
    world = World()
    world.is_ready = False
    world.run(lambda: world.now >= 300)
    assert world.percents == [0.0]
    assert world.rollout.phase is Phase.STARTING
    world.is_ready = True
    world.run(lambda: world.rollout.step == 1)
    assert world.now == pytest.approx(331, abs=2), "a cold start of five minutes was not held against it"
    world.is_ready = False
    world.run(lambda: world.rollout.unready_since is not None)
    world.run(lambda: world.now >= 345)
    world.is_ready = True
    world.run(lambda: world.rollout.step == 2)
    assert world.now == pytest.approx(376, abs=2), "a fresh window"
    assert world.codes()[-3:] == ["not_ready", "ready_again", "step"]


def test_a_version_that_breaks_again_and_again_is_taken_back_though_each_time_it_comes_back() -> None:
    """One request breaks it, two seconds later it is ready again: its windows never see more than one failure."""
    world = World()
    world.run(lambda: world.rollout.phase is Phase.RUNNING)
    for _ in range(2):
        world.is_ready = False
        world.second()
        world.second()
        world.is_ready = True
        world.second()
        assert not world.rollout.is_over
    world.is_ready = False
    world.second()
    assert world.rollout.phase is Phase.TAKEN_BACK
    assert "3 times" in world.rollout.verdict


def test_a_step_is_not_passed_while_requests_are_under_way_and_none_ends() -> None:
    running = advanced(rollout(), RolloutFacts(is_ready=True), 1.0)
    good = tally(50.0, 0.0)
    held = advanced(running, RolloutFacts(is_ready=True, is_stalled=True, new=good, old=good), 32.0)
    assert (held.step, held.events[-1].code) == (0, "stalled")
    again = advanced(held, RolloutFacts(is_ready=True, is_stalled=True, new=good, old=good), 33.0)
    assert len(again.events) == len(held.events)
    assert advanced(again, RolloutFacts(is_ready=True, new=good, old=good), 34.0).step == 1


def test_losses_of_an_earlier_step_do_not_count() -> None:
    world = World()
    for step in (1, 2, 3):
        world.is_ready = False
        world.second()
        world.is_ready = True
        world.run(lambda step=step: world.rollout.step == step)  # type: ignore[misc]  # a default binds the loop's value


def test_what_a_version_has_broken_counts_also_while_it_is_not_ready() -> None:
    running = advanced(rollout(), RolloutFacts(is_ready=True), 1.0)
    after = advanced(running, RolloutFacts(is_ready=False, new=tally(8.0, 1.0), old=tally(500.0, 0.0)), 2.0)
    assert after.phase is Phase.TAKEN_BACK
    assert after.events[-1].code == "judged_bad"


def test_a_version_that_stays_away_for_a_window_is_taken_back() -> None:
    world = World()
    world.run(lambda: world.rollout.phase is Phase.RUNNING)
    world.is_ready = False
    world.run(lambda: world.rollout.is_over)
    assert world.rollout.phase is Phase.TAKEN_BACK
    assert world.now <= 33


def test_paused_it_keeps_its_percent_and_is_not_judged() -> None:
    world = World(bad=1.0)
    world.rollout = paused(advanced(world.rollout, RolloutFacts(is_ready=True), 0.0), 0.0)
    world.run(lambda: world.now >= 100)
    assert world.rollout.phase is Phase.PAUSED
    assert world.rollout.percent == 1.0
    world.rollout = resumed(world.rollout, world.now)
    world.run(lambda: world.rollout.is_over)
    assert world.rollout.phase is Phase.TAKEN_BACK


def test_a_gradual_rollout_takes_its_time_whatever_happens() -> None:
    world = World(RolloutPlan(duration_s=60.0), bad=1.0)
    world.run(lambda: world.rollout.is_over)
    assert world.rollout.phase is Phase.PROMOTED
    assert world.now == pytest.approx(60, abs=8)
    assert world.percents[:3] == [1.0, 3.0, 5.0]


def test_a_third_revision_takes_over_from_a_ramp_under_way() -> None:
    world = World(RolloutPlan(duration_s=60.0))
    world.run(lambda: world.now >= 20)
    before = world.rollout
    third = Rollout(candidate=3, base=1, plan=before.plan, began_at=20.0)
    world.rollout = begun(third, before, 20.0)
    world.second()
    ramp = world.rollout.ramp
    assert ramp is not None
    assert [number for number, _ in ramp.parts] == [1, 2, 3]
    assert sum(percent for _, percent in ramp.parts) == 100
    world.run(lambda: world.rollout.is_over)
    assert world.rollout.ramp is not None
    assert world.rollout.ramp.parts == ((3, 100),)


def test_a_paused_ramp_does_not_catch_up() -> None:
    world = World(RolloutPlan(duration_s=60.0))
    world.run(lambda: world.rollout.percent >= 11)
    world.rollout = paused(world.rollout, world.now)
    world.run(lambda: world.now >= 100)
    world.rollout = resumed(world.rollout, world.now)
    world.run(lambda: world.rollout.percent != 11)
    assert world.rollout.percent == 13


def test_a_ramp_that_is_ready_again_says_so() -> None:
    world = World(RolloutPlan(duration_s=60_000.0))
    world.run(lambda: world.now >= 5)
    world.is_ready = False
    world.second()
    assert world.rollout.verdict.startswith("no replica is ready")
    world.is_ready = True
    world.second()
    assert (world.rollout.verdict, world.percents) == ("is ready again", [1.0])


def test_a_clock_that_was_set_back_holds_no_ramp() -> None:
    world = World(RolloutPlan(duration_s=60.0))
    world.now = 3600.0
    world.run(lambda: world.rollout.percent >= 11)
    assert aligned(world.rollout, world.now) is world.rollout, "what is due next stays so"
    world.rollout, world.now = aligned(world.rollout, 5.0), 5.0
    world.run(lambda: world.rollout.is_over)
    assert world.now < 60


def test_a_clock_that_was_set_back_lengthens_no_absence() -> None:
    away = advanced(
        advanced(rollout(at=3600.0), RolloutFacts(is_ready=True), 3601.0), RolloutFacts(is_ready=False), 3602.0
    )
    world = World()
    world.rollout, world.is_ready = aligned(away, 0.0), False
    world.run(lambda: world.rollout.is_over)
    assert world.now == 30


def test_a_shadow_has_copies_and_no_traffic_until_somebody_ends_it() -> None:
    world = World(RolloutPlan(shadow_percent=10.0))
    world.run(lambda: world.now >= 50)
    assert (world.rollout.percent, world.rollout.shadow_percent) == (0.0, 10.0)
    world.rollout = ended(world.rollout, Phase.ABORTED, world.now, "aborted", "by hand")
    assert world.rollout.shadow_percent == 0.0
    world.second()
    assert world.rollout.phase is Phase.ABORTED


def test_a_resumed_ramp_goes_on_one_period_later() -> None:
    ramp = Ramp(goal=100, parts=((1, 90), (2, 10)), began_at=0.0, step=10, period_s=4.0, next_at=8.0)
    going = resumed(replace(paused(rollout(), 5.0), ramp=ramp), 101.0)
    assert going.ramp is not None
    assert (going.ramp.next_at, going.since, going.phase) == (105.0, 101.0, Phase.RUNNING)


def test_a_new_step_begins_without_losses() -> None:
    world = World()
    world.run(lambda: world.rollout.step == 1)
    assert world.rollout.losses == 0
