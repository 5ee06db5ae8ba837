"""Timelines of one revision: deploy, load, zero and back, with the real collector and a world that obeys."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.support.worlds.autoscaling import T0, World, activation, codes, group, observation, revision
from tidegate.autoscaler.decider import Decider, UnknownRevisionError
from tidegate.autoscaler.measure.observation import GroupObservation
from tidegate.function import Revision, Scaling, Sla


def world(**options: Any) -> World:
    scaling = options.pop("scaling", Scaling())
    concurrency = options.pop("concurrency", 1)
    return World(revision(scaling=scaling, concurrency=concurrency), **options)


def test_a_deploy_starts_one_replica_and_without_requests_it_goes_to_zero() -> None:
    at = world(scaling=Scaling(scale_to_zero_after_s=30.0))
    first = at.second()
    assert (first.desired, codes(first)[-1]) == (1, "initial_scale")
    assert at.run(2) == [1, 1], "ready after two seconds"
    wanted = at.run(40)
    zero_at = wanted.index(0)
    assert 29 <= zero_at <= 31, "thirty seconds after it became ready, not after the deploy"
    assert "idle" in codes(at.decisions[3 + zero_at])
    assert set(wanted[zero_at:]) == {0}
    assert codes(at.decisions[-1])[-1] == "asleep"


def test_sleep_is_one_reason_under_every_policy() -> None:
    for policy in ("kpa", "hpa", "smif"):
        decider = Decider()
        sla = Sla(latency_s=0.1)
        decider.apply(revision(scaling=Scaling(policy=policy, initial_scale=0), sla=sla), T0)
        assert codes(decider.tick(T0, observation(group(), at=T0))).count("asleep") <= 1, policy


def test_initial_scale_zero_waits_for_the_first_request() -> None:
    at = world(scaling=Scaling(initial_scale=0))
    assert set(at.run(5)) == {0}
    assert at.push().desired == 1


def test_an_activation_starts_where_the_target_can_be_met_by_what_is_given() -> None:
    decider, seen = (
        Decider(),
        observation(
            group("t4", price_per_hour=0.5, room=2, one_s=0.01), group("v100", price_per_hour=3.0, room=2, one_s=0.004)
        ),
    )
    decider.apply(revision(scaling=Scaling(policy="kpa", initial_scale=0), sla=Sla(latency_s=0.008)), T0)
    decision = decider.activate(activation(), T0, seen)
    assert {row.accelerator: row.replicas for row in decision.groups or ()} == {"t4": 0, "v100": 1}
    assert codes(decision) == ["activation", "passed_over"]


def test_initial_scale_is_reached_once_and_then_the_load_decides() -> None:
    at = world(scaling=Scaling(initial_scale=3, scale_to_zero_after_s=600.0))
    assert at.second().desired == 3
    at.load = 0.5
    wanted = at.run(120)
    assert wanted[0] == 3
    assert wanted[-1] == 1


def test_a_redeploy_of_a_sleeping_function_after_a_restart_starts_nothing() -> None:
    at = world()
    at.decider = Decider()
    at.decider.apply(at.revision, at.now, fresh=False)
    assert set(at.run(3)) == {0}


def test_the_first_request_starts_one_replica_however_many_workers_push() -> None:
    at = world(scaling=Scaling(initial_scale=0))
    at.run(3)
    first, *others = [at.push(waiting=50) for _ in range(8)]
    assert (first.desired, codes(first)) == (1, ["activation"])
    assert {other.desired for other in others} == {None}
    assert {codes(other)[0] for other in others} == {"already_starting"}
    assert len(at.births) == 1


def test_a_tick_that_sees_the_crowd_first_still_starts_one() -> None:
    at = world(scaling=Scaling(initial_scale=0), room=100, start_up_s=5.0)
    at.run(3)
    at.load, at.arrivals = 200.0, 200
    assert at.second().desired == 1
    assert (at.second().desired or 0) > 50, "the load speaks as soon as a start is under way"


def test_between_decision_and_spawn_a_push_does_not_start_a_second_one() -> None:
    decider, now = Decider(), T0
    decider.apply(revision(), now, fresh=False)
    empty = observation(group(ready=0))
    assert decider.activate(activation(), now, empty).desired == 1
    again = decider.activate(activation(), now + 0.2, empty)
    assert (again.desired, codes(again)) == (None, ["already_starting"])
    tick = decider.tick(now + 0.3, empty)
    assert (tick.desired, codes(tick)[-1]) == (1, "activating"), "a tick before the spawn takes nothing back"


def test_an_activation_whose_replica_never_shows_up_may_be_asked_again() -> None:
    decider = Decider()
    decider.apply(revision(), T0, fresh=False)
    empty = observation(group(ready=0))
    decider.activate(activation(), T0, empty)
    assert decider.activate(activation(), T0 + 11, empty).desired == 1


def test_a_push_while_a_replica_is_ready_needs_nothing() -> None:
    decider = Decider()
    decider.apply(revision(), T0, fresh=False, ready=1)
    decision = decider.activate(activation(), T0, observation(group(ready=1)))
    assert (decision.desired, codes(decision)) == (None, ["already_ready"])


def test_a_push_while_the_last_replica_drains_wants_one_again() -> None:
    decider = Decider()
    decider.apply(revision(), T0, fresh=False, ready=1)
    idle = observation(group(ready=1), idle_s=100.0)
    decider.tick(T0 + 100, idle)
    going = decider.tick(T0 + 200, idle)
    assert going.desired == 0
    back = decider.activate(activation(), T0 + 200.1, observation(group(draining=1, room=0)))
    assert back.desired == 1, "the draining replica is room enough: the plan revives it"
    assert back.groups is not None
    assert back.groups[0].replicas == 1


def test_a_push_takes_nothing_from_replicas_that_the_last_decision_did_not_end() -> None:
    """Zero was all that there was room for. Then the accelerators and several replicas show up at once."""
    decider = Decider()
    decider.apply(revision(), T0, fresh=False)
    nowhere = observation(group(ready=0, room=0), at=T0, waiting=1, waiting_inferences=1)
    assert decider.tick(T0, nowhere).desired == 0
    found = decider.activate(activation(), T0 + 0.1, observation(group(ready=3, room=0), at=T0 + 0.1))
    assert (found.desired, codes(found)) == (None, ["already_ready"])


def test_a_replica_that_a_dry_run_would_end_is_still_ready() -> None:
    decider = Decider()
    decider.apply(dry(scale_to_zero_after_s=10.0), T0, fresh=False, ready=1)
    idle = observation(group(ready=1), idle_s=900.0)
    decider.tick(T0, idle)
    wish = decider.tick(T0 + 900, structs.replace(idle, at=T0 + 900))
    assert (wish.desired, wish.is_dry_run) == (0, True)
    decision = decider.activate(activation(), T0 + 901, idle)
    assert (decision.desired, codes(decision)) == (None, ["already_ready"])


@pytest.mark.parametrize("policy", ["kpa", "tide"])
@given(st.integers(0, 4), st.integers(0, 4), st.integers(0, 2), st.none() | st.integers(0, 4), st.booleans())
def test_a_push_with_a_full_view_takes_away_only_what_the_last_decision_ended(
    policy: str, before: int, ready: int, starting: int, room: int | None, is_dry_run: bool
) -> None:
    decider, sla = Decider(), Sla(latency_s=0.2)
    scaling = Scaling(policy=policy, scale_to_zero_after_s=1.0, dry_run=is_dry_run)
    decider.apply(revision(scaling=scaling, sla=sla), T0, fresh=False, ready=before)
    first = observation(group(ready=before, room=0), idle_s=900.0)
    decider.tick(T0, first)
    last = decider.tick(T0 + 900, structs.replace(first, at=T0 + 900))
    seen = observation(group(ready=ready, starting=starting, room=room), at=T0 + 901)
    decision = decider.activate(activation(), T0 + 901, seen)
    if decision.desired is not None and decision.desired < seen.existing:
        assert (last.desired, last.is_dry_run) == (0, False)
        assert seen.existing <= before


def test_activation_gives_the_activation_scale_within_max_and_room() -> None:
    decider = Decider()
    wide = revision(parameters={"activation-scale": "5"}, scaling=Scaling(max_scale=4))
    decider.apply(wide, T0, fresh=False)
    decision = decider.activate(activation(), T0, observation(group(ready=0)))
    assert (decision.desired, codes(decision)) == (4, ["activation", "capped_by_max"])
    full = decider.activate(activation(), T0 + 20, observation(group(ready=0, room=2)))
    assert (full.desired, codes(full)[-1]) == (2, "capped_by_capacity")


def test_load_scales_out_and_a_full_house_is_a_ceiling_with_a_reason() -> None:
    at = world(room=4)
    at.run(3)
    at.load, at.arrivals = 20.0, 20
    assert at.second().desired == 4
    assert "capped_by_capacity" in codes(at.decisions[-1])
    assert max(at.run(20), key=lambda n: n or 0) == 4


def test_a_burst_ends_many_replicas_go_to_one_and_then_to_zero_never_at_once() -> None:
    at = world(scaling=Scaling(scale_to_zero_after_s=60.0))
    at.run(3)
    at.load = 6.0
    at.run(30)
    peak = len(at.births)
    assert peak >= 6
    at.load = 0.0
    wanted = [n for n in at.run(300) if n is not None]
    assert wanted[-1] == 0
    assert 1 in wanted
    before_zero = wanted[wanted.index(0) - 1]
    assert before_zero == 1
    assert wanted == sorted(wanted, reverse=True), "nothing comes back while it is idle"


def test_short_scale_to_zero_does_not_wait_for_the_long_average() -> None:
    at = world(scaling=Scaling(scale_to_zero_after_s=10.0))
    at.run(4)
    at.load = 3.0
    at.run(20)
    at.load = 0.0
    wanted = at.run(14)
    assert wanted[-1] == 0, "idle for ten seconds, although the 60 s average still remembers"
    assert "one_before_zero" in {code for decision in at.decisions for code in codes(decision)}


def test_work_that_runs_without_new_arrivals_is_not_idle() -> None:
    at = world(scaling=Scaling(scale_to_zero_after_s=10.0))
    at.run(4)
    at.load = 0.4
    assert 0 not in at.run(60)


@pytest.mark.parametrize(
    ("scaling", "left_s", "kept_by"),
    [
        (Scaling(scale_to_zero_after_s=30.0), 20.0, ""),
        (Scaling(min_scale=1), None, "raised_to_min"),
        (Scaling(policy="kpa", parameters={"zero-protocol": "knative"}), None, "zero_protocol"),
    ],
    ids=["its time", "the minimum", "the policy's own steps"],
)
def test_an_idle_replica_is_there_for_a_reason(scaling: Scaling, left_s: float | None, kept_by: str) -> None:
    at = world(scaling=scaling)
    while not at.decisions or not at.decisions[-1].ready:
        at.second()
    at.run(10)
    found = at.decider.idleness(at.now, at.collector.observe(at.revision, at.fleet(), at.now))
    assert found is not None
    assert found.idle_s == pytest.approx(10.0, abs=1.1)
    assert found.zero_in_s == (None if left_s is None else pytest.approx(left_s, abs=1.1))
    assert found.kept_by == kept_by
    at.load = 3.0
    at.run(3)
    assert at.decider.idleness(at.now, at.collector.observe(at.revision, at.fleet(), at.now)) is None


def test_an_idle_replica_of_policy_tide_has_its_time_too() -> None:
    scaling = Scaling(policy="tide", scale_to_zero_after_s=30.0)
    at = World(revision(scaling=scaling, sla=Sla(latency_s=0.2), concurrency=1))
    while not at.decisions or not at.decisions[-1].ready:
        at.second()
    at.run(15)
    found = at.decider.idleness(at.now, at.collector.observe(at.revision, at.fleet(), at.now))
    assert found is not None
    assert found.zero_in_s == pytest.approx(15.0, abs=2.1)
    assert found.kept_by == ""


def test_retention_keeps_the_last_replica_longer() -> None:
    scaling = Scaling(scale_to_zero_after_s=10.0, parameters={"scale-to-zero-pod-retention-period": "20s"})
    at = world(scaling=scaling)
    wanted = at.run(60)
    assert 32 <= wanted.index(0) <= 34, "ready after 3 s, idle 10 s, kept 20 s"


def test_min_scale_is_held_without_load_and_without_data() -> None:
    at = world(scaling=Scaling(min_scale=2))
    assert set(at.run(100)) == {2}
    at.are_samples_lost = True
    at.births.popitem()
    at.run(5)
    assert at.second().desired == 2
    assert "raised_to_min" in codes(at.decisions[-1]) or "hold_stale_metrics" in codes(at.decisions[-1])


def test_loss_of_all_samples_for_a_minute_holds() -> None:
    at = world()
    at.run(3)
    at.load = 4.0
    at.run(60)
    size = len(at.births)
    at.are_samples_lost = True
    at.run(300)
    assert len(at.births) == size, "five minutes without data: neither less nor zero"
    assert {"hold_stale_metrics", "hold_no_data"} & set(codes(at.decisions[-1]))
    at.are_samples_lost = False
    at.load = 0.0
    assert at.run(200)[-1] == 0


def test_a_starting_replica_is_let_to_its_end_though_the_client_left() -> None:
    at = world(scaling=Scaling(initial_scale=0, scale_to_zero_after_s=5.0), start_up_s=30.0)
    at.run(2)
    at.push()
    wanted = at.run(29)
    assert set(wanted) == {1}
    assert "starting" in codes(at.decisions[-1])
    assert at.run(10)[-1] == 0


def test_a_crashed_replica_of_a_waiting_function_is_wanted_again() -> None:
    at = world()
    at.run(4)
    at.load = 1.0
    at.run(5)
    at.births.clear()
    assert (at.second().desired or 0) >= 1
    assert len(at.births) >= 1


def test_without_any_accelerator_the_reason_says_so() -> None:
    decider = Decider()
    decider.apply(revision(), T0)
    nothing = observation(at=T0)
    bare = type(nothing)(function="resnet", revision="resnet-00001", at=T0, complete=True)
    decision = decider.tick(T0, bare)
    assert (decision.desired, codes(decision)[-1]) == (0, "no_accelerator")


def test_a_policy_that_breaks_on_a_figure_holds_and_says_so() -> None:
    decider = Decider()
    decider.apply(revision(), T0, fresh=False, ready=1)
    seen = observation(group(ready=1), concurrency=1e308)
    *_, decision = [decider.tick(T0 + second, seen) for second in range(3)]
    assert (decision.desired, codes(decision)) == (None, ["policy_failed"])


def test_a_revision_none_applied_is_an_error_that_names_the_known_ones() -> None:
    decider = Decider()
    decider.apply(revision(), T0)
    with pytest.raises(UnknownRevisionError, match="known: resnet-00001"):
        decider.tick(T0, observation(revision="other-00001"))
    decider.forget("resnet-00001")
    decider.forget("resnet-00001")
    assert decider.revisions == ()
    assert decider.last("resnet-00001") is None


def test_applying_the_same_revision_again_keeps_what_is_known() -> None:
    decider = Decider()
    decider.apply(revision(), T0)
    decider.tick(T0, observation(group(ready=1)))
    decider.apply(revision(), T0 + 1)
    last = decider.last("resnet-00001")
    assert last is not None
    assert last.at == T0
    assert repr(decider) == "<Decider 1 revisions>"


def dry(**scaling: Any) -> Revision:
    return revision(scaling=Scaling(dry_run=True, **scaling))


def test_a_dry_run_decides_and_says_so_and_keeps_what_there_is() -> None:
    spec, decider = dry(), Decider()
    decider.apply(spec, T0, fresh=False)
    busy = group(ready=2, sampled=2)
    decision = decider.tick(T0, observation(busy, at=T0, concurrency=6.0))
    assert (decision.is_dry_run, decision.desired, decision.ready) == (True, 9, 2)
    gone = observation(structs.replace(busy, ready=1), at=T0 + 9, concurrency=6.0)
    replaced = decider.tick(T0 + 9, gone)
    assert (replaced.is_dry_run, replaced.desired) == (False, 2), "one broke: the size stays what it was"
    assert codes(replaced) == ["dry_run_start"]
    assert replaced.reasons[0].detail == "2 kept: 2; the policy wants 9"
    idle = observation(busy, at=T0 + 900, idle_s=800.0)
    assert decider.tick(T0 + 900, idle).is_dry_run, "and it does not go to zero either"


def test_a_dry_run_serves_what_waits_at_zero_with_one_replica() -> None:
    spec, decider = dry(parameters={"activation-scale": "5"}), Decider()
    decider.apply(spec, T0, fresh=False)
    asleep = observation(group(), at=T0)
    assert decider.tick(T0, asleep).is_dry_run
    started = decider.activate(activation(), T0 + 0.1, asleep)
    assert (started.is_dry_run, started.desired, codes(started)) == (False, 1, ["activation", "dry_run_start"])
    again = decider.tick(T0 + 1, structs.replace(asleep, at=T0 + 1, waiting=1))
    assert (again.is_dry_run, again.desired) == (False, 1)


def test_a_dry_run_starts_what_a_deploy_asks_for() -> None:
    decider = Decider()
    decider.apply(dry(initial_scale=2), T0)
    decision = decider.tick(T0, observation(group(), at=T0))
    assert (decision.is_dry_run, decision.desired) == (False, 2)
    floor = Decider()
    floor.apply(dry(min_scale=3), T0, fresh=False)
    decision = floor.tick(T0, observation(group(ready=1), at=T0))
    assert (decision.is_dry_run, decision.desired) == (False, 3)
    full = floor.tick(T0, observation(group(ready=1, room=0), at=T0))
    assert full.is_dry_run, "no room: nothing can be carried out"


def test_the_initial_scale_has_been_reached_with_what_the_limit_over_all_functions_leaves() -> None:
    decider = Decider()
    decider.apply(revision(scaling=Scaling(initial_scale=3, scale_to_zero_after_s=30.0)), T0)
    seen = structs.replace(observation(group(ready=1, sampled=1), at=T0), complete=True, most=1)
    assert decider.tick(T0, seen).desired == 1
    assert decider.tick(T0 + 40, structs.replace(seen, at=T0 + 40, idle_s=40.0)).desired == 0


def test_under_the_limit_over_all_functions_what_drains_is_taken_back_and_not_replaced_elsewhere() -> None:
    decider = Decider()
    decider.apply(revision(scaling=Scaling(policy="smif"), sla=Sla(latency_s=0.1)), T0, fresh=False)
    known: dict[str, Any] = {"limit": 1, "is_mu_learnt": True, "execution_s": 0.02}
    work = {"ips": 49.0, "rps": 49.0, "busy": 1.0, "concurrency": 1.0, "answers": 50, "late": 40, "latency_s": 0.3}
    cheap = group("t4", ready=1, sampled=1, price_per_hour=1.0, mu_ips=50.0, **known, **work)
    dear = group("v100", draining=1, price_per_hour=3.0, mu_ips=60.0, **known)
    seen = observation(cheap, dear, at=T0, lambda_ips=90.0, rps=90.0, waiting=9, concurrency=9.0, latency_s=0.3)
    wide = decider.tick(T0, structs.replace(seen, most=9))
    tight = decider.tick(T0, structs.replace(seen, most=3))
    assert [[each.replicas for each in decision.groups or ()] for decision in (wide, tight)] == [[3, 0], [2, 1]]


def test_a_dry_run_counts_in_the_limit_over_all_with_what_exists_and_with_what_it_starts() -> None:
    decider = Decider()
    decider.apply(dry(), T0, fresh=False)
    busy = observation(group(ready=2, sampled=2), at=T0, concurrency=6.0)
    decision = decider.tick(T0, busy)
    assert (decision.desired, decider.wanted("resnet-00001")) == (9, 2)
    shared = decider.tick(T0 + 1, structs.replace(busy, at=T0 + 1, most=2))
    assert (shared.desired, codes(shared)[-1]) != (2, "capped_by_total"), "its wish takes nothing from anybody"
    broken = structs.replace(busy, at=T0 + 2, groups=(group(ready=1, sampled=1),))
    assert decider.tick(T0 + 2, structs.replace(broken, most=2)).desired == 2
    assert decider.wanted("resnet-00001") == 2
    full = decider.tick(T0 + 3, structs.replace(broken, at=T0 + 3, most=1))
    assert (full.is_dry_run, codes(full)[-1]) == (True, "capped_by_total"), "no other function leaves it a place"


def shrunk(*groups: GroupObservation) -> list[dict[str, int]]:
    """Second by second what is decided for four replicas' worth of load, while ``groups`` (cheapest first) become what
    was decided, one second to start and one to drain."""
    decider, wanted = Decider(), []
    decider.apply(revision(scaling=Scaling(min_scale=4, max_scale=4)), T0, fresh=False, ready=4)
    fleet = {each.accelerator: each for each in groups}
    for second in range(5):
        decision = decider.tick(T0 + second, observation(*fleet.values(), at=T0 + second, concurrency=4.0))
        assert decision.groups is not None
        counts = {each.accelerator: each.replicas for each in decision.groups}
        wanted.append(counts)
        fleet = {name: _obeyed(each, counts[name]) for name, each in fleet.items()}
    return wanted


def _obeyed(each: GroupObservation, wanted: int) -> GroupObservation:
    ready = min(each.existing, wanted)
    starting, draining = max(0, wanted - each.existing), max(0, each.existing - wanted)
    room = (each.room or 0) + each.existing + each.draining - ready - starting - draining
    return structs.replace(each, ready=ready, starting=starting, draining=draining, room=room)


def test_replicas_of_a_smaller_accelerator_leave_when_others_are_ready() -> None:
    """Three of four places on t4 are gone; v100 has room."""
    t4 = group("t4", ready=4, room=-3, price_per_hour=1.0)
    both, *_, last = steps = shrunk(t4, group("v100", room=8, price_per_hour=3.0))
    assert both == {"t4": 4, "v100": 3}
    assert last == {"t4": 1, "v100": 3}
    assert all(each["v100"] == 3 for each in steps), "those that leave are replaced once"


def test_without_room_elsewhere_they_leave_at_once() -> None:
    assert shrunk(group("t4", ready=4, room=-4), group("v100", room=0))[0] == {"t4": 0, "v100": 0}
    assert shrunk(group("t4", ready=4, room=-1))[0] == {"t4": 3}


def test_the_sla_policy_replaces_what_leaves_once_too() -> None:
    wide = revision(sla=Sla(latency_s=0.2), scaling=Scaling(policy="smif"), concurrency=1)
    decider = Decider()
    decider.apply(wide, T0, fresh=False, ready=4)
    known = {"mu_ips": 10.0, "is_mu_learnt": True, "limit": 1, "execution_s": 0.1, "min_execution_s": 0.1}
    fleet = {
        "t4": group("t4", ready=4, room=-4, price_per_hour=1.0, ips=30.0, rps=30.0, busy=3.0, **known),
        "v100": group("v100", room=8, price_per_hour=3.0, **known),
    }
    counts: dict[str, int] = {}
    decision = None
    for second in range(30):
        seen = observation(*fleet.values(), at=T0 + second, lambda_ips=30.0, rps=30.0, concurrency=3.0)
        decision = decider.tick(T0 + second, seen)
        assert decision.groups is not None
        counts = {each.accelerator: each.replicas for each in decision.groups}
        assert counts["v100"] <= 6, "four, and what the load's error asks for"
        fleet = {name: _obeyed(each, counts[name]) for name, each in fleet.items()}
    assert counts["t4"] == 0
    assert counts["v100"] >= 4
    assert decision is not None
    assert "accelerator_shrunk" not in codes(decision)


def test_a_lost_replica_is_wanted_again_until_it_would_have_been_idle_for_long_enough() -> None:
    """At 10 s the ready replica breaks; without requests it would have stayed until 30 s."""
    decider, made = Decider(), revision(scaling=Scaling(scale_to_zero_after_s=30.0))
    decider.apply(made, T0, fresh=False)
    ready, broken = observation(group(ready=1), at=T0), observation(group(), at=T0)
    decider.tick(T0, structs.replace(ready, idle_s=0.0))
    lost = decider.tick(T0 + 10, structs.replace(broken, at=T0 + 10, idle_s=10.0, lost=1))
    assert (lost.desired, codes(lost)[-1]) == (1, "restart")
    kept = decider.snapshot(made.id)
    assert isinstance(kept, dict)
    assert kept["is_lost"] is True
    decider.restore(made, kept)
    starting = structs.replace(observation(group(starting=1), at=T0 + 12), idle_s=12.0)
    assert decider.tick(T0 + 12, starting).desired == 1
    failed = decider.tick(T0 + 20, structs.replace(broken, at=T0 + 20, idle_s=20.0))
    assert (failed.desired, codes(failed)[-1]) == (1, "restart"), "its successor did not start: it is wanted still"
    late = decider.tick(T0 + 31, structs.replace(broken, at=T0 + 31, idle_s=31.0))
    assert (late.desired, codes(late)[-1]) == (0, "asleep")
    kept = decider.snapshot(made.id)
    assert isinstance(kept, dict)
    assert "is_lost" not in kept, "as recordings of before have it"
