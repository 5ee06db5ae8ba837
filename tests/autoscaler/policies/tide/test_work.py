"""The work of requests, and the capacity of groups in slots of a reference group."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tidegate.autoscaler.measure.observation import (
    ArrivalCounts,
    GroupObservation,
    GroupTokenRate,
    Observation,
    TokenRates,
)
from tidegate.autoscaler.policies.tide.work import MOST_MOVED, Arrivals, Capacity, Reference, at

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


def test_streams_that_share_a_replica_are_as_many_as_keep_the_time_per_output_token() -> None:
    """Alone a stream takes 0.29 s, and as many pass with eight at a time: for waiting that is one after the other."""
    llm = GroupObservation(
        "llm", ready=1, price_per_hour=1.0, limit=8, services=((1.0, 0.2),), min_execution_s=0.24,
        min_execution_occupancy=1.0,
    )  # fmt: skip
    pace = ((1.0, 0.010), (8.0, 0.080))
    rate = GroupTokenRate(tps=1.0, mu_tps=None, first_s=0.05, pace=pace, between=19.0)
    tokens = TokenRates(lambda_tps=1.0, prompt_tps=1.0, completion_tps=1.0, per_inference=None, groups={"llm": rate})
    found = Reference(1.0).read(structs.replace(seen(llm), tokens=tokens), {1.0: 1.0}, False, per_token_s=0.050)
    assert found is not None
    assert found.unit == 1.0
    # 45 ms are four streams, each of 0.05 s and 19 tokens of 40 ms.
    assert found.paced == ("llm 4 of 8 streams",)
    assert found.service.mean_s == pytest.approx((0.05 + 19 * 0.040) / 4)


def test_requests_that_become_heavier_are_so_for_a_group_that_does_not_serve() -> None:
    """Else an idle group seems the quicker one, and all replicas move there to find that it is not."""
    reference = Reference(1.0)

    def slots(busy_s: float, idle_s: float, ready: int = 0) -> float:
        t4 = GroupObservation(
            "t4", ready=2, price_per_hour=0.5, limit=1, services=((1.0, busy_s),), execution_s=busy_s, rps=40.0
        )
        k80 = GroupObservation(
            "k80", ready=ready, limit=1, services=((1.0, idle_s),), execution_s=idle_s or None, rps=40.0
        )
        found = reference.read(seen(t4, k80), {1.0: 1.0}, False)
        assert found is not None
        return found.groups[1].slots

    assert slots(0.1, 0.2) == pytest.approx(0.5)
    assert slots(0.15, 0.2) == pytest.approx(0.5)
    assert slots(0.15, 0.2, ready=1) == pytest.approx(0.5), "it serves: how fast it is, many answers show"
    last = 0.0
    for _ in range(100):
        last = slots(0.15, 0.2, ready=1)
    assert last == pytest.approx(0.75, rel=0.05), "four thousand answers"
    assert slots(0.3, 0.2) == pytest.approx(last)


def test_of_a_group_that_has_just_begun_to_serve_the_first_answers_say_little() -> None:
    """Of long and short requests that begin together the short ones end first, so that a new replica seems quick."""
    reference = Reference(1.0)

    def slots(ready: int, seconds: float, rps: float = 0.0, *, is_learnt: bool = True) -> float:
        t4 = GroupObservation(
            "t4", ready=2, price_per_hour=0.5, limit=1, services=((1.0, 0.1),), execution_s=0.1, rps=40.0
        )
        k80 = GroupObservation(
            "k80",
            ready=ready,
            limit=1,
            services=((1.0, seconds),),
            execution_s=seconds,
            rps=rps,
            is_mu_learnt=is_learnt,
        )
        found = reference.read(seen(t4, k80), {1.0: 1.0}, False)
        assert found is not None
        return found.groups[1].slots

    assert slots(0, 0.2, is_learnt=False) == pytest.approx(0.5), "as given"
    assert slots(1, 0.1, rps=20.0) == pytest.approx(0.5)
    assert slots(1, 0.16, rps=20.0) == pytest.approx(0.5), "forty answers"
    last = 0.0
    for _ in range(100):
        last = slots(1, 0.16, rps=20.0)
    assert last == pytest.approx(0.625, rel=0.05), "two thousand answers"
    assert slots(0, 0.16) == pytest.approx(last)
    assert slots(1, 0.08, rps=20.0) == pytest.approx(last), "a spell later, the same again"
    assert slots(0, 0.08) == pytest.approx(last), "it has gone without more answers"


def test_what_a_group_served_before_does_not_make_it_quicker_now() -> None:
    """Its mean is of older requests, while those of now are heavier: all replicas would move there."""
    reference = Reference(10.0)

    def slots(t4: tuple[int, float, float], k80: tuple[int, float, float]) -> float:
        groups = [
            GroupObservation(
                name, ready=ready, price_per_hour=0.5, limit=1, services=((1.0, mean_s),), execution_s=1.0, rps=rps,
                is_mu_learnt=True,
            )
            for name, (ready, mean_s, rps) in (("t4", t4), ("k80", k80))
        ]  # fmt: skip
        found = reference.read(seen(*groups), {1.0: 1.0}, False)
        assert found is not None
        return found.groups[1].slots

    for _ in range(10):
        assert slots((4, 1.0, 40.0), (1, 2.0, 5.0)) == pytest.approx(0.5)
    for _ in range(10):
        assert slots((4, 1.4, 40.0), (0, 2.0, 0.0)) == pytest.approx(0.5)
    for _ in range(10):
        assert slots((4, 1.4, 40.0), (1, 2.0, 4.0)) == pytest.approx(0.5, rel=0.06)
    for mean_s in (2.0, 2.2, 2.4, 2.6, 2.8):
        assert slots((0, 1.4, 0.0), (6, mean_s, 20.0)) == pytest.approx(0.5, rel=0.06), "it leads now"


def test_what_the_leading_group_measured_wrongly_leaves_nothing_behind() -> None:
    """Its times rise tenfold for some seconds and fall again: the other group is as quick beside it as before."""
    reference = Reference(10.0)

    def slots(mean_s: float) -> float:
        t4 = GroupObservation(
            "t4", ready=4, price_per_hour=0.5, limit=1, services=((1.0, mean_s),), execution_s=mean_s, rps=40.0
        )
        k80 = GroupObservation("k80", price_per_hour=0.5, limit=1, services=((1.0, 0.2),), is_mu_learnt=True)
        found = reference.read(seen(t4, k80), {1.0: 1.0}, False)
        assert found is not None
        return found.groups[1].slots

    assert [slots(0.1) for _ in range(3)] == pytest.approx([0.5] * 3)
    assert [slots(1.0) for _ in range(3)] == pytest.approx([1.0 / (0.2 * MOST_MOVED)] * 3), "fourfold is believed"
    assert [slots(0.1) for _ in range(3)] == pytest.approx([0.5] * 3)


@pytest.mark.parametrize("others", [(), (V100,)])
def test_a_group_that_was_away_has_followed_the_others(others: tuple[GroupObservation, ...]) -> None:
    """Its accelerator was taken out of the list and is back, while requests became twice as heavy."""
    reference = Reference(10.0)

    def capacity(mean_s: float, *more: GroupObservation) -> Capacity:
        t4 = GroupObservation(
            "t4", ready=4, price_per_hour=0.1, limit=1, services=((1.0, mean_s),), execution_s=mean_s, rps=40.0
        )
        found = reference.read(seen(t4, *more, *others), {1.0: 1.0}, False)
        assert found is not None
        return found

    k80 = GroupObservation("k80", price_per_hour=0.5, limit=1, services=((1.0, 0.2),), is_mu_learnt=True)
    assert capacity(0.1, k80).groups[1].slots == pytest.approx(0.5)
    for mean_s in (0.1, 0.1, 0.2, 0.2):
        capacity(mean_s)
    assert capacity(0.2, k80).groups[1].slots == pytest.approx(0.5)


def test_answers_before_a_group_was_away_do_not_count() -> None:
    """Its first answers say as little as those of any group that has just begun to serve: short ones end first."""
    reference = Reference(10.0)

    def work_s(*seconds: float) -> float:
        groups = [
            GroupObservation(
                name, ready=2, price_per_hour=price, limit=1, services=((1.0, mean_s),), execution_s=mean_s, rps=rps,
                is_mu_learnt=True,
            )
            for (name, rps, price), mean_s in zip((("t4", 20.0, 0.1), ("k80", 25.0, 0.5)), seconds, strict=False)
        ]  # fmt: skip
        found = reference.read(seen(*groups), {1.0: 1.0}, False)
        assert found is not None
        return found.mean_s

    for _ in range(100):
        assert work_s(0.1, 0.2) == pytest.approx(0.1)
    work_s(0.1)
    assert work_s(0.1, 0.1) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("occupancy", "least_s", "width"),
    [(1.0, 0.4, 4.0), (2.0, 0.4, 4.0), (2.0, 0.2, 1.0), (2.0, 0.3, 2.0), (4.0, 0.4, 1.0)],
)
def test_the_time_of_one_request_alone_is_on_a_line(occupancy: float, least_s: float, width: float) -> None:
    """A full replica takes 0.4 s with four at a time: what it takes with two says what it takes with one."""
    llm = GroupObservation(
        "llm", ready=1, price_per_hour=1.0, limit=4, services=((1.0, 0.1),), min_execution_s=least_s,
        min_execution_occupancy=occupancy,
    )  # fmt: skip
    found = Reference(10.0).read(seen(llm), {1.0: 1.0}, False)
    assert found is not None
    assert 1.0 / found.unit == pytest.approx(width)


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


@given(st.lists(st.lists(st.sampled_from(range(8)), max_size=2), min_size=2, max_size=12))
def test_what_is_kept_from_second_to_second_is_what_would_be_found_again(changes: list[list[int]]) -> None:
    """In most seconds little changes: each one turns some of eight switches."""
    reference, afresh, is_on = Reference(0.3), Reference(0.3), [False] * 8
    for second, turned in enumerate(changes):
        for switch in turned:
            is_on[switch] = not is_on[switch]
        t4 = structs.replace(
            T4, services=V100.services if is_on[0] else T4.services, limit=4 if is_on[1] else 1, rps=40.0,
            execution_s=0.1, mean_batch=4.0 if is_on[2] else 1.0, min_execution_s=0.05 if is_on[3] else None,
            min_execution_occupancy=1.5 if is_on[4] else None, concurrency=1.0 + second, busy=1.0,
        )  # fmt: skip
        others = (V100, structs.replace(UNKNOWN, mu_ips=30.0 if is_on[5] else None))
        shares = {1.0: 0.5, 4.0: 0.5} if is_on[6] else {1.0: 1.0}
        known = seen(t4, *others[: 1 if is_on[7] else 2])
        afresh.resume(afresh.name)  # It keeps nothing.
        found = [each.read(known, shares, is_on[2], 3.0) for each in (reference, afresh)]
        assert found[0] == found[1]


def test_a_small_load_is_for_the_group_whose_one_replica_is_cheapest() -> None:
    reference = Reference(1.0)
    found = reference.read(seen(T4, V100), {1.0: 1.0}, False, load=0.05)
    assert found is not None
    assert (found.best.seen.accelerator, found.service.mean_s) == ("t4", 0.1)
    assert found.unit == pytest.approx(0.4)
    assert found.mean_s == pytest.approx(0.04), "work stays in slots of the reference"


@pytest.mark.parametrize(("price", "best"), [(0.48, "t4"), (0.51, "t4"), (0.56, "v100"), (0.64, "v100")])
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


def test_shares_are_a_mean_of_five_thousand_arrivals_by_hand() -> None:
    arrivals = Arrivals()
    arrivals.new(ArrivalCounts(((1.0, 75.0), (4.0, 25.0)), 0.0))
    arrivals.new(ArrivalCounts(((1.0, 75.0), (4.0, 525.0)), 0.0))
    assert arrivals.shares == {1.0: pytest.approx(0.9 * 0.75), 4.0: pytest.approx(0.9 * 0.25 + 0.1)}
    arrivals.new(ArrivalCounts(((1.0, 1075.0), (4.0, 4525.0)), 0.0))
    assert arrivals.shares == {1.0: pytest.approx(0.2), 4.0: pytest.approx(0.8)}
    arrivals.new(ArrivalCounts(((1.0, 1075.0), (4.0, 94525.0)), 0.0))
    assert arrivals.shares == {4.0: 1.0}, "more than are remembered"


@pytest.mark.parametrize(("rare", "is_kept"), [(1.0, False), (2.0, True)])
def test_a_size_with_less_than_a_ten_thousandth_is_forgotten(rare: float, is_kept: bool) -> None:
    arrivals = Arrivals()
    arrivals.new(ArrivalCounts(((1.0, 15_000.0), (4.0, rare)), 0.0))
    assert (4.0 in arrivals.shares) is is_kept
    assert repr(Arrivals()) == "<Arrivals {}>"


def test_late_answers_that_fall_are_no_news_either() -> None:
    arrivals = Arrivals()
    arrivals.new(ArrivalCounts(((1.0, 5.0),), 3.0))
    assert arrivals.new(ArrivalCounts(((1.0, 6.0),), 2.0)) is None
    assert arrivals.new(ArrivalCounts(((1.0, 6.0),), 2.0)) == ({}, 0.0)
    assert arrivals.new(ArrivalCounts(((1.0, 7.0), (4.0, 0.0)), 3.0)) == ({1.0: 1.0}, 1.0)


def test_lines_beyond_and_before_the_known_sizes() -> None:
    curve = ((2.0, 0.2), (4.0, 0.3), (8.0, 0.7))
    assert [at(curve, size) for size in (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0)] == pytest.approx(
        [0.15, 0.2, 0.25, 0.3, 0.5, 0.7, 0.9]
    )
    assert at(((1.0, 0.4), (2.0, 0.1)), 16.0) == pytest.approx(0.04), "a tenth of the lower one at least"
    assert at(((1.0, 0.1), (2.0, 0.4)), 0.5) == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("services", "work_s"),
    [
        (((1.0, 0.1), (4.0, 9e-8)), 0.1),
        (((1.0, 0.1), (4.0, 1e-7)), 0.1),
        (((1.0, 0.1), (2e6, 0.5)), 0.1),
        (((1.0, 2e6), (2.0, 0.17)), 0.17 * (0.3 + 0.7 / 2)),
        (((1.0, 1e6),), 1e6),
    ],
)
def test_figures_that_no_server_has_are_left_out(services: tuple[tuple[float, float], ...], work_s: float) -> None:
    found = Reference(1e7).read(seen(structs.replace(T4, services=services)), {1.0: 1.0}, False)
    assert found is not None
    assert found.work(1.0) == pytest.approx(work_s)
    nothing = structs.replace(T4, services=((1.0, 2e6),))
    assert Reference(1e7).read(seen(nothing), {1.0: 1.0}, False) is None


@pytest.mark.parametrize(
    ("factor", "moved"), [(2.0, 2.0), (4.0, 4.0), (5.0, 4.0), (0.5, 0.5), (0.25, 0.25), (0.2, 0.25)]
)
def test_requests_are_believed_to_have_moved_fourfold_at_most(factor: float, moved: float) -> None:
    reference = Reference(1e3)

    def read(busy_s: float) -> float:
        services = ((1.0, busy_s),)
        t4 = GroupObservation(
            "t4", ready=2, price_per_hour=0.5, limit=1, services=services, execution_s=busy_s, rps=40.0
        )
        k80 = GroupObservation("k80", limit=1, services=((1.0, 0.2),))
        found = reference.read(seen(t4, k80), {1.0: 1.0}, False)
        assert found is not None
        return 1.0 / found.groups[1].slots * found.mean_s

    assert read(0.1) == pytest.approx(0.2)
    assert read(0.1 * factor) == pytest.approx(0.2 * moved)


@pytest.mark.parametrize(("after_s", "is_kept"), [(0.105, True), (0.1051, False), (0.0951, True), (0.095, False)])
def test_slots_and_service_times_stay_within_a_twentieth(after_s: float, is_kept: bool) -> None:
    reference = Reference(1.0)
    first = reference.read(seen(T4), {1.0: 1.0}, False)
    again = reference.read(seen(structs.replace(T4, services=((1.0, after_s),))), {1.0: 1.0}, False)
    assert first is not None
    assert again is not None
    assert (again.service is first.service) is is_kept


@pytest.mark.parametrize(("unloaded_s", "width"), [(0.4, 4.0), (0.326, 4.0), (0.324, 3.0), (0.3, 3.0)])
def test_a_replica_runs_another_number_of_requests_only_if_that_is_clear(unloaded_s: float, width: float) -> None:
    group = GroupObservation("t4", limit=4, services=((1.0, 0.1),), min_execution_s=0.4)
    reference = Reference(9.0)
    reference.read(seen(group), {1.0: 1.0}, False)
    found = reference.read(seen(structs.replace(group, min_execution_s=unloaded_s)), {1.0: 1.0}, False)
    assert found is not None
    assert 1.0 / found.unit == pytest.approx(width)


@pytest.mark.parametrize(("mean_batch", "width"), [(1.0, 8.0), (0.5, 8.0), (2.0, 4.0), (16.0, 1.0)])
def test_a_limit_in_inferences_is_of_requests_by_their_size(mean_batch: float, width: float) -> None:
    group = GroupObservation("t4", limit=8, services=((1.0, 0.1),), mean_batch=mean_batch)
    found = Reference(9.0).read(seen(group), {1.0: 1.0}, True)
    assert found is not None
    assert 1.0 / found.unit == pytest.approx(width)
    by_requests = Reference(9.0).read(seen(group), {1.0: 1.0}, False)
    assert by_requests is not None
    assert 1.0 / by_requests.unit == pytest.approx(8.0)


@pytest.mark.parametrize(("tail_s", "cv"), [(0.1, 0.1), (0.1466, 0.2), (0.333, 1.0), (0.9, 1.0)])
def test_the_spread_is_that_of_a_normal_tail_in_tenths(tail_s: float, cv: float) -> None:
    found = Reference(1.0).read(seen(structs.replace(T4, execution_s=0.1, tail_s=tail_s)), {1.0: 1.0}, False)
    assert found is not None
    assert found.service.cv == pytest.approx(0.1 if tail_s == 0.1 else cv, abs=0.051 if tail_s == 0.1 else 1e-9)


@pytest.mark.parametrize(("price", "best"), [(1.09, "v100"), (1.11, "t4")])
def test_the_best_group_stays_unless_another_is_a_tenth_cheaper(price: float, best: str) -> None:
    reference = Reference(1.0)
    t4 = structs.replace(V100, accelerator="t4", price_per_hour=1.01)
    reference.read(seen(V100, t4), {1.0: 1.0}, False, load=10.0)
    found = reference.read(seen(structs.replace(V100, price_per_hour=price * 1.01), t4), {1.0: 1.0}, False, load=10.0)
    assert found is not None
    assert found.best.seen.accelerator == best


def test_a_group_without_a_price_counts_as_one() -> None:
    free = structs.replace(V100, price_per_hour=None)
    found = Reference(1.0).read(
        seen(free, structs.replace(V100, accelerator="x", price_per_hour=0.99)), {1.0: 1.0}, False
    )
    assert found is not None
    assert [each.price for each in found.groups] == [1.0, 0.99]
    assert found.best.seen.accelerator == "x"


def test_mean_work_is_over_the_shares() -> None:
    found = Reference(1.0).read(seen(T4), {1.0: 3.0, 4.0: 1.0}, False)
    assert found is not None
    assert found.mean_s == pytest.approx((3 * 0.1 + 0.31) / 4)
    assert found.service.sizes == ((0.75, 0.1), (0.25, 0.31))


def test_another_load_asks_again_which_group_is_best() -> None:
    """One `k80` is the cheapest replica; six slots cost $8.7 an hour on `t4`, $9.4 on `k80`: less than a tenth more."""
    k80 = GroupObservation("k80", ready=1, price_per_hour=0.53, limit=1, services=((1.0, 0.185),))
    t4 = GroupObservation("t4", ready=1, price_per_hour=0.8, limit=1, services=((1.0, 0.1),))
    reference = Reference(0.3)

    def best(load: float) -> str:
        found = reference.read(seen(k80, t4), {1.0: 1.0}, False, load)
        assert found is not None
        return found.best.seen.accelerator

    assert [best(load) for load in (0.0, 6.0, 6.2, 5.0)] == ["k80", "t4", "t4", "t4"]
    assert best(0.0) == "k80"


def test_a_load_that_is_half_as_much_again_asks_again() -> None:
    """From 0.8 slots on fleets of `t4` cost less than those of `k80`, by some percent."""
    k80 = GroupObservation("k80", ready=1, price_per_hour=0.53, limit=1, services=((1.0, 0.185),))
    t4 = GroupObservation("t4", ready=1, price_per_hour=0.8, limit=1, services=((1.0, 0.1),))
    reference = Reference(0.3)
    found = [reference.read(seen(k80, t4), {1.0: 1.0}, False, load) for load in (0.7, 1.0, 1.1)]
    assert [each and each.best.seen.accelerator for each in found] == ["k80", "k80", "t4"]


@pytest.mark.parametrize(("seconds", "mean_s"), [(1, 0.1), (2, 0.2)])
def test_a_group_leads_from_thirty_answers_on(seconds: int, mean_s: float) -> None:
    """Of twenty, short ones may have ended first, and what it needs is no news; of thirty it is."""
    reference = Reference(10.0)

    def read(busy_s: float) -> Capacity | None:
        t4 = GroupObservation(
            "t4", ready=1, price_per_hour=0.1, limit=1, services=((1.0, busy_s),), execution_s=busy_s, rps=10.0,
            is_mu_learnt=True,
        )  # fmt: skip
        return reference.read(seen(t4, structs.replace(t4, accelerator="k80", ready=0, rps=0.0)), {1.0: 1.0}, False)

    for _ in range(seconds):
        read(0.1)
    found = read(0.2)
    assert found is not None
    assert found.mean_s == pytest.approx(mean_s, rel=0.05)


@pytest.mark.parametrize(("token_s", "is_infeasible"), [(0.059, False), (0.061, True)])
def test_a_stream_that_misses_its_time_per_token_by_less_than_a_quarter_may_be_in_time(
    token_s: float, is_infeasible: bool
) -> None:
    llm = GroupObservation("llm", ready=1, price_per_hour=1.0, limit=4, services=((1.0, 0.5),))
    rate = GroupTokenRate(tps=1.0, mu_tps=None, first_s=0.1, pace=((1.0, token_s),), between=20.0)
    tokens = TokenRates(lambda_tps=1.0, prompt_tps=1.0, completion_tps=1.0, per_inference=None, groups={"llm": rate})
    # 45 ms are nine tenths of the target.
    found = Reference(1.0).read(structs.replace(seen(llm), tokens=tokens), {1.0: 1.0}, False, per_token_s=0.050)
    assert found is not None
    assert found.is_infeasible is is_infeasible
