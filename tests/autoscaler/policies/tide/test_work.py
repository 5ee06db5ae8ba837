"""The work of requests, and the capacity of groups in slots of a reference group."""

import pytest
from msgspec import structs

from tidegate.autoscaler.measure.observation import (
    ArrivalCounts,
    GroupObservation,
    GroupTokenRate,
    Observation,
    TokenRates,
)
from tidegate.autoscaler.policies.tide.work import Arrivals, Reference, at

T4 = GroupObservation("t4", ready=2, price_per_hour=0.5, limit=1, services=((1.0, 0.1), (4.0, 0.31)))
V100 = GroupObservation("v100", ready=1, price_per_hour=1.0, limit=1, services=((1.0, 0.04), (4.0, 0.1)))
UNKNOWN = GroupObservation("a100", price_per_hour=3.0)


def seen(*groups: GroupObservation) -> Observation:
    return Observation(function="f", revision="f-00001", at=0.0, complete=True, groups=groups)


def test_a_time_per_output_token_leaves_a_replica_fewer_streams() -> None:
    # Alone a token takes 10 ms; sixteen streams share the replica. A stream: 0.1 s, then 100 tokens.
    llm = GroupObservation("llm", ready=1, price_per_hour=1.0, limit=16, services=((1.0, 1.0),))
    pace = ((2.0, 0.012), (16.0, 0.160))
    rate = GroupTokenRate(tps=1.0, mu_tps=None, first_s=0.1, pace=pace, between=100.0)
    tokens = TokenRates(lambda_tps=1.0, prompt_tps=1.0, completion_tps=1.0, per_inference=None, groups={"llm": rate})
    observed = structs.replace(seen(llm), tokens=tokens)
    free = Reference(1.0).read(observed, {1.0: 1.0}, False)
    paced = Reference(1.0).read(observed, {1.0: 1.0}, False, per_token_s=0.050)
    assert free is not None
    assert paced is not None
    assert (1.0 / free.unit, free.paced) == (16.0, ())
    # Of 50 ms nine tenths for the mean: 12 + 148 / 14 (n - 2) ms with n streams.
    assert 1.0 / paced.unit == pytest.approx(5.0)
    assert paced.paced == ("llm 5 of 16 streams",)
    assert paced.service.mean_s == pytest.approx(5.0 * max(1.0, (0.1 + 100 * (0.012 + 3 * 0.148 / 14)) / 5.0))
    assert not paced.is_infeasible
    never = Reference(1.0).read(observed, {1.0: 1.0}, False, per_token_s=0.004)
    assert never is not None
    assert never.is_infeasible


def test_requests_that_become_heavier_are_so_for_a_group_that_does_not_serve() -> None:
    """Else an idle group seems the quicker one, and all replicas move there to find that it is not."""
    reference = Reference(1.0)

    def slots(busy_s: float, idle_s: float, ready: int = 0) -> float:
        t4 = GroupObservation("t4", ready=2, price_per_hour=0.5, limit=1, services=((1.0, busy_s),), execution_s=busy_s)
        k80 = GroupObservation("k80", ready=ready, limit=1, services=((1.0, idle_s),), execution_s=idle_s or None)
        found = reference.read(seen(t4, k80), {1.0: 1.0}, False)
        assert found is not None
        return found.groups[1].slots

    assert slots(0.1, 0.2) == pytest.approx(0.5)
    assert slots(0.15, 0.2) == pytest.approx(0.5)
    assert slots(0.15, 0.2, ready=1) == pytest.approx(0.75), "it serves: this is measured"
    assert slots(0.3, 0.2) == pytest.approx(0.75)


def test_between_two_sizes_the_time_is_a_line() -> None:
    curve = ((1.0, 0.1), (4.0, 0.31), (16.0, 1.15))
    assert at(curve, 2.0) == pytest.approx(0.17)
    assert at(curve, 8.0) == pytest.approx(0.59)
    assert at(curve, 32.0) == pytest.approx(2.27)
    assert at(curve, 1.0) == 0.1


def test_one_known_size_stands_for_the_others() -> None:
    assert at(((4.0, 0.4),), 4.0) == pytest.approx(0.4)
    assert at(((4.0, 0.4),), 1.0) == pytest.approx(0.4 * (0.3 + 0.7 / 4))


def test_a_falling_line_is_never_negative() -> None:
    assert at(((1.0, 0.4), (2.0, 0.1)), 16.0) > 0.0


def test_slots_are_relative_to_the_group_of_best_value() -> None:
    found = Reference(1.0).read(seen(T4, V100, UNKNOWN), {1.0: 1.0}, False, load=10.0)
    assert found is not None
    # The v100 costs twice as much and is 2.5 times as quick: it is the reference.
    assert [each.slots for each in found.groups] == pytest.approx([0.4, 1.0, 0.0])
    assert found.work(1.0) == pytest.approx(0.04)
    assert found.service.mean_s == pytest.approx(0.04)


def test_a_small_load_is_for_the_group_whose_one_replica_is_cheapest() -> None:
    reference = Reference(1.0)
    found = reference.read(seen(T4, V100), {1.0: 1.0}, False, load=0.05)
    assert found is not None
    assert (found.best.seen.accelerator, found.service.mean_s) == ("t4", 0.1)
    assert found.unit == pytest.approx(0.4)
    assert found.mean_s == pytest.approx(0.04), "work stays in slots of the reference"


@pytest.mark.parametrize(("price", "best"), [(0.48, "t4"), (0.56, "v100"), (0.64, "v100")])
def test_slots_to_spare_count_in_whole_replicas_of_a_group(price: float, best: str) -> None:
    """For a load of one slot of the v100: 1 + 2 x 1 slots of it, or 2.5 + 2 x 1.6 of the t4, which has 0.4."""
    groups = seen(structs.replace(T4, price_per_hour=price), V100)
    found = Reference(1.0).read(groups, {1.0: 1.0}, False, load=1.0)
    assert found is not None
    assert found.best.seen.accelerator == best


def test_a_replicas_slots_do_not_jitter_with_its_measurements() -> None:
    reference = Reference(1.0)
    first = reference.read(seen(T4, V100), {1.0: 1.0}, False)
    near = reference.read(seen(structs.replace(T4, services=((1.0, 0.102),)), V100), {1.0: 1.0}, False)
    assert first is not None
    assert near is not None
    assert [each.slots for each in near.groups] == [each.slots for each in first.groups]


def test_the_reference_stays() -> None:
    reference = Reference(1.0)
    reference.read(seen(T4), {1.0: 1.0}, False)
    found = reference.read(seen(T4, V100), {1.0: 1.0}, False)
    assert found is not None
    assert [each.slots for each in found.groups] == pytest.approx([1.0, 2.5])


def test_a_group_whose_largest_batch_is_too_slow_serves_nothing() -> None:
    found = Reference(0.2).read(seen(T4, V100), {1.0: 0.5, 4.0: 0.5}, False)
    assert found is not None
    assert found.groups[0].slots == 0.0
    assert not found.is_infeasible


def test_if_none_is_quick_enough_the_quickest_serves_and_it_is_said() -> None:
    found = Reference(0.01).read(seen(T4, V100), {1.0: 1.0}, False)
    assert found is not None
    assert found.is_infeasible
    assert [each.slots for each in found.groups] == pytest.approx([0.0, 1.0])


def test_a_given_rate_counts_where_nothing_was_learnt() -> None:
    given = GroupObservation("t4", limit=1, mu_ips=10.0)
    found = Reference(1.0).read(seen(given), {1.0: 1.0}, False)
    assert found is not None
    assert found.work(1.0) == pytest.approx(0.1)


def test_the_spread_of_single_requests_comes_from_the_tail_of_the_groups_own() -> None:
    wide = structs.replace(T4, execution_s=0.1, tail_s=0.2)
    even = structs.replace(V100, execution_s=0.04, tail_s=0.0405)
    batches = structs.replace(wide, mean_batch=4.0)
    for groups, cv in (((wide,), 0.4), ((even, wide), 0.1), ((V100, wide), 0.15), ((batches,), 0.15)):
        found = Reference(1.0).read(seen(*groups), {1.0: 1.0}, False, load=10.0)
        assert found is not None
        assert found.best.seen.accelerator == groups[0].accelerator
        assert found.service.cv == pytest.approx(cv)


def test_slots_of_a_replica_count() -> None:
    wide = GroupObservation("t4", limit=4, services=((1.0, 0.1),))
    found = Reference(1.0).read(seen(wide), {1.0: 1.0}, False)
    assert found is not None
    assert found.unit == pytest.approx(0.25)
    assert found.service.mean_s == pytest.approx(0.4)


def test_work_is_in_seconds_of_a_whole_replica_however_many_requests_it_seems_to_run() -> None:
    """How many run at a time is an estimate that moves: a level that was measured before stays what it was."""
    reference = Reference(1.0)
    for unloaded_s, slots in ((0.4, 4.0), (0.2, 2.0), (0.1, 1.0)):
        seems = GroupObservation("t4", limit=4, services=((1.0, 0.1),), min_execution_s=unloaded_s)
        found = reference.read(seen(seems), {1.0: 1.0}, False)
        assert found is not None
        assert found.work(1.0) == pytest.approx(0.1)
        assert found.groups[0].slots == pytest.approx(1.0)
        assert found.unit == pytest.approx(1.0 / slots)
        assert found.service.mean_s == pytest.approx(unloaded_s)


def test_a_server_that_runs_one_at_a_time_behind_many_slots_has_one() -> None:
    """At its limit of 32 a request takes 3.2 s, of which 3.1 s are waiting inside the server."""
    serial = GroupObservation("t4", limit=32, services=((1.0, 0.1),), min_execution_s=0.1)
    found = Reference(0.3).read(seen(serial), {1.0: 1.0}, False)
    assert found is not None
    assert not found.is_infeasible
    assert found.work(1.0) == pytest.approx(0.1)
    assert found.groups[0].slots == 1.0


def test_a_server_that_forms_batches_has_as_many_as_pass_in_the_time_of_one() -> None:
    batching = GroupObservation("t4", limit=32, services=((1.0, 0.02),), min_execution_s=0.1)
    found = Reference(0.3).read(seen(batching), {1.0: 1.0}, False)
    assert found is not None
    assert found.unit == pytest.approx(0.2)
    assert found.service.mean_s == pytest.approx(0.1)


def test_without_any_rate_there_is_no_capacity() -> None:
    assert Reference(1.0).read(seen(UNKNOWN), {1.0: 1.0}, False) is None


def test_small_changes_of_the_service_time_keep_the_table() -> None:
    reference = Reference(1.0)
    first = reference.read(seen(T4), {1.0: 1.0}, False)
    near = reference.read(seen(GroupObservation("t4", limit=1, services=((1.0, 0.103),))), {1.0: 1.0}, False)
    far = reference.read(seen(GroupObservation("t4", limit=1, services=((1.0, 0.12),))), {1.0: 1.0}, False)
    assert first is not None
    assert near is not None
    assert far is not None
    assert near.service is first.service
    assert far.service.mean_s == pytest.approx(0.12)


def test_arrivals_are_differences_of_counts() -> None:
    arrivals = Arrivals()
    assert arrivals.new(ArrivalCounts(((1.0, 5.0),), 0.0)) == ({1.0: 5.0}, 0.0)
    assert arrivals.new(ArrivalCounts(((1.0, 7.0), (4.0, 1.0)), 2.0)) == ({1.0: 2.0, 4.0: 1.0}, 2.0)
    assert arrivals.new(ArrivalCounts(((1.0, 7.0), (4.0, 1.0)), 2.0)) == ({}, 0.0)


def test_counts_that_begin_again_are_no_arrivals() -> None:
    arrivals = Arrivals()
    arrivals.new(ArrivalCounts(((1.0, 50.0),), 3.0))
    assert arrivals.new(ArrivalCounts(((1.0, 2.0),), 0.0)) is None
    assert arrivals.new(ArrivalCounts(((1.0, 4.0),), 1.0)) == ({1.0: 2.0}, 1.0)


def test_shares_follow_the_last_thousands() -> None:
    arrivals = Arrivals()
    arrivals.new(ArrivalCounts(((1.0, 70.0), (4.0, 30.0)), 0.0))
    assert arrivals.shares == {1.0: 0.7, 4.0: 0.3}
    for count in range(1, 400):
        arrivals.new(ArrivalCounts(((1.0, 70.0), (4.0, 30.0 + 100.0 * count)), 0.0))
    assert arrivals.shares[4.0] > 0.99
