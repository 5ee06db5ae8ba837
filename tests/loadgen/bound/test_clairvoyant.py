"""No plan is cheaper than the bound, some are nearly as cheap, and it moves as it must."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.loadgen.bound.plans import Replica, drawn, played, shaved
from tests.loadgen.simulator.worlds import deployed, function, kind
from tidegate.errors import InvalidInputError
from tidegate.function import Sla
from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.bound.clairvoyant import Bound, Group, clairvoyant
from tidegate.loadgen.metrics.summary import RunSummary
from tidegate.loadgen.simulator.profiles import Line, ServiceProfile, Table
from tidegate.loadgen.simulator.scenario import Scenario
from tidegate.loadgen.simulator.simulation import Simulation

TIMES = Line(base_s=0.03, per_item_s=0.07)


def group(name: str = "t4", *, price: float = 1.0, start_s: float = 5.0, slots: int = 1, **times: float) -> Group:
    line = Line(**times) if times else TIMES
    return Group(name=name, times=line, slots=slots, price_per_hour=price, start_s=start_s, max_replicas=1000)


FAST = group("v100", price=1.6, start_s=3.0, base_s=0.02, per_item_s=0.03)


def poisson(
    rate: float, duration_s: float, seed: int = 1, batches: Sequence[int] = (1,)
) -> Iterator[tuple[float, int]]:
    rng = random.Random(seed)
    at_s = rng.expovariate(rate)
    while at_s < duration_s:
        yield at_s, rng.choice(batches)
        at_s += rng.expovariate(rate)


def bound(
    arrivals: Sequence[tuple[float, int]],
    groups: Sequence[Group] = (),
    *,
    latency_s: float = 0.3,
    quantile: float = 0.99,
    duration_s: float = 20.0,
) -> Bound:
    return clairvoyant(arrivals, groups or [group()], latency_s=latency_s, quantile=quantile, duration_s=duration_s)


@given(
    st.integers(0, 10**6),
    st.sampled_from([2.0, 6.0, 15.0]),
    st.sampled_from([0.25, 0.5, 1.2]),
    st.booleans(),
    st.sampled_from([0.3, 2.0, 8.0]),
)
@settings(max_examples=15, deadline=None)
def test_no_plan_is_cheaper(seed: int, rate: float, latency_s: float, is_mixed: bool, start_s: float) -> None:
    """A plan with some requests late is held against the bound for just as many."""
    rng = random.Random(seed)
    groups = [group(start_s=start_s), FAST] if is_mixed else [group(start_s=start_s)]
    arrivals = list(poisson(rate, 8.0, seed, batches=(1, 1, 2)))
    plan = drawn(rng, groups, 8.0, rng.randint(1, 6))
    late, _ = played(plan, arrivals, latency_s)
    plan = shaved(plan, arrivals, latency_s, late, rng, 100)
    late, dollars = played(plan, arrivals, latency_s)
    share = late / max(1, len(arrivals))
    limits = bound(arrivals, groups, latency_s=latency_s, quantile=max(1e-6, 1.0 - share), duration_s=8.0)
    assert limits.bq <= dollars * (1 + 1e-9)
    assert late or limits.b0 <= dollars * (1 + 1e-9)
    assert limits.bq <= limits.b0


@given(st.integers(0, 10**6), st.sampled_from([1.0, 4.0, 10.0]), st.sampled_from([0.6, 4.0]))
@settings(max_examples=8, deadline=None)
def test_no_plan_without_lateness_is_cheaper(seed: int, rate: float, start_s: float) -> None:
    """Plans that never are late, cut down to what they need."""
    rng = random.Random(seed)
    arrivals, groups = list(poisson(rate, 10.0, seed)), [group(start_s=start_s)]
    plan = [Replica(groups[0], 0.0, 10.0, was_there=True) for _ in range(int(rate) + 3)]
    late, _ = played(plan, arrivals, 0.4)
    plan = shaved(plan, arrivals, 0.4, late, rng, 150)
    late, dollars = played(plan, arrivals, 0.4)
    limits = bound(arrivals, groups, latency_s=0.4, duration_s=10.0)
    assert late or limits.b0 <= dollars * (1 + 1e-9)


@pytest.mark.parametrize(("start_s", "least", "most"), [(5.0, 1.12, 1.26), (30.0, 1.05, 1.19), (120.0, 1.0, 1.14)])
def test_a_fleet_that_never_changes_is_near_the_bound_on_a_steady_load(
    start_s: float, least: float, most: float
) -> None:
    """60/s at 0.1 s each with 0.3 s allowed: eight replicas; on long traces they cost 1.19, 1.10 and 1.03 B0."""
    duration_s = 120.0
    arrivals = list(poisson(60.0, duration_s))
    scenario = Scenario(
        kinds=(kind(count=8, price=1.0),),
        functions=(deployed(ServiceProfile(times=TIMES), of=function(sla=Sla(latency_s=0.3)), ready={"t4": 8}),),
        arrivals=[Arrival(at_s) for at_s, _ in arrivals],
        keeps_scale=True,
    )
    summary = RunSummary(scenario)
    figures = summary.figures(Simulation(scenario, summary).run(duration_s))
    limits = bound(arrivals, [group(start_s=start_s)], duration_s=duration_s)
    assert figures["violations_share"] < 0.01
    assert least <= figures["cost_dollars"] / limits.b0 <= most
    assert 1.0 < limits.b0 / limits.bq <= 1.27


@given(
    st.integers(0, 10**6), st.sampled_from([2.0, 6.0]), st.booleans(), st.sampled_from([4.0, 12.0, 60.0]), st.booleans()
)
@settings(max_examples=12, deadline=None)
def test_no_plan_with_minimum_run_times_is_cheaper(
    seed: int, rate: float, is_mixed: bool, min_run_s: float, is_on_time: bool
) -> None:
    """Every replica that is started is paid for at least that long."""
    rng = random.Random(seed)
    kinds = [group(start_s=2.0), FAST] if is_mixed else [group(start_s=2.0)]
    groups = [replace(kinds[0], min_run_s=min_run_s), *(replace(each, min_run_s=6.0) for each in kinds[1:])]
    arrivals = list(poisson(rate, 10.0, seed, batches=(1, 1, 2)))
    plan = drawn(rng, groups, 10.0, rng.randint(1, 5))
    if is_on_time:
        plan = [Replica(groups[0], 0.0, 10.0, was_there=True) for _ in range(int(rate) + 3)]
    late, _ = played(plan, arrivals, 0.5)
    plan = shaved(plan, arrivals, 0.5, late, rng, 80)
    late, dollars = played(plan, arrivals, 0.5)
    share = late / max(1, len(arrivals))
    limits = bound(arrivals, groups, latency_s=0.5, quantile=max(1e-6, 1.0 - share), duration_s=10.0)
    assert limits.bq <= dollars * (1 + 1e-9)
    assert late or limits.b0 <= dollars * (1 + 1e-9)
    assert limits.bq <= limits.b0


def test_a_lone_request_costs_nearly_the_minimum_run_time() -> None:
    """A start of 5 s for one request long after the beginning: 4.75 s are paid at least, with a minute nearly that."""
    plain, minute = (
        bound([(1500.0, 1)], [replace(group(), min_run_s=each)], duration_s=1510.0).b0 * 3600.0 for each in (0.0, 60.0)
    )
    assert plain == pytest.approx(4.75)
    assert 0.95 * 60.0 < minute <= 60.0


def test_a_minimum_shorter_than_the_start_changes_nothing() -> None:
    arrivals = list(poisson(6.0, 20.0))
    assert bound(arrivals, [replace(group(), min_run_s=5.0)]) == bound(arrivals)


def test_a_minimum_run_time_never_makes_it_cheaper() -> None:
    arrivals = [(at_s + 40.0 * burst, 1) for burst in range(3) for at_s, _ in poisson(20.0, 3.0, burst)]
    costs = [bound(arrivals, [replace(group(), min_run_s=each)], duration_s=130.0).b0 for each in (0.0, 20.0, 60.0)]
    assert costs[0] < costs[1] < costs[2]


def test_some_plan_is_nearly_as_cheap() -> None:
    """Two requests a second, 8 s for a start: replicas stay, and the plan comes within a twentieth."""
    rng, arrivals = random.Random(43), list(poisson(2.0, 8.0, 43, batches=(1, 1, 2)))
    plan = [Replica(group(start_s=8.0), 0.0, 8.0, was_there=True) for _ in range(4)]
    plan = shaved(plan, arrivals, 0.5, 0, rng, 300)
    late, dollars = played(plan, arrivals, 0.5)
    limits = bound(arrivals, [group(start_s=8.0)], latency_s=0.5, duration_s=8.0)
    assert not late and 1.0 <= dollars / limits.b0 < 1.05


def test_one_request_costs_what_one_replica_costs_from_its_arrival_to_its_end() -> None:
    """After the first slot, alone: a start of 5 s less two slots, and the slots in which it has to be done."""
    found = bound([(10.0, 1)])
    assert found.b0 == pytest.approx((5.0 - 0.5 + 0.25) / 3600.0)
    assert bound([]).b0 == bound([]).bq == 0.0


def test_work_may_be_spread_up_to_the_deadline() -> None:
    """Three requests at once, each 0.1 s, due in 0.3 s: one replica does it, just."""
    arrivals, one = [(10.0, 1)] * 3, group()
    late, dollars = played([Replica(one, 5.0, 10.3)], arrivals, 0.3 + 1e-9)
    assert not late and dollars == pytest.approx(5.3 / 3600.0)
    assert 0.8 * dollars < bound(arrivals, latency_s=0.3 + 1e-9).b0 <= dollars


def test_a_group_counts_at_the_batch_that_suits_it_best() -> None:
    """The second group is as fast with one inference and four times as fast with two: one replica of it does all."""
    steep, flat = Table({1: 0.1, 2: 0.2}), Table({1: 0.1, 2: 0.05})
    first = Group(name="a", times=steep, slots=1, price_per_hour=1.0, start_s=5.0, max_replicas=9)
    second = Group(name="b", times=flat, slots=1, price_per_hour=1.5, start_s=5.0, max_replicas=9)
    arrivals = [(0.06 * each, 2) for each in range(300)] + [(19.0, 1)]
    late, dollars = played([Replica(second, 0.0, 20.0, was_there=True)], arrivals, 0.3)
    assert not late and bound(arrivals, [first, second]).b0 <= dollars


def test_a_load_that_keeps_one_replica_busy_needs_it_all_the_time() -> None:
    found = bound([(0.1 * each, 1) for each in range(200)])
    assert found.b0 == pytest.approx(20.0 / 3600.0, rel=0.03)


def test_a_looser_limit_is_no_dearer() -> None:
    arrivals = list(poisson(10.0, 20.0))
    found = [bound(arrivals, latency_s=latency_s) for latency_s in (0.11, 0.15, 0.2, 0.3, 0.5, 0.9)]
    assert [each.b0 for each in found] == sorted((each.b0 for each in found), reverse=True)
    assert found[-1].b0 < 0.9 * found[0].b0
    shares = [bound(arrivals, quantile=quantile) for quantile in (0.5, 0.9, 0.99, 0.999, 1.0)]
    assert [each.bq for each in shares] == sorted(each.bq for each in shares)
    assert shares[0].bq < 0.8 * shares[-1].bq


@given(st.floats(0.01, 100.0))
@settings(max_examples=10, deadline=None)
def test_prices_scale_it(price: float) -> None:
    arrivals = list(poisson(8.0, 10.0))
    one, other = bound(arrivals, duration_s=10.0), bound(arrivals, [group(price=price)], duration_s=10.0)
    assert other.b0 == pytest.approx(price * one.b0) and other.bq == pytest.approx(price * one.bq)


@given(st.integers(0, 10**6), st.sampled_from([3.0, 10.0, 30.0]))
@settings(max_examples=8, deadline=None)
def test_more_arrivals_cost_more(seed: int, rate: float) -> None:
    """Within the rounding to quanta. With a share of late requests more arrivals allow more of those, too."""
    few = list(poisson(rate, 15.0, seed))
    more = sorted([*few, *poisson(0.5 * rate, 15.0, seed + 1)])
    assert bound(few, duration_s=15.0).b0 <= 1.01 * bound(more, duration_s=15.0).b0


def test_another_group_can_only_make_it_cheaper() -> None:
    arrivals = list(poisson(12.0, 30.0, batches=(1, 2)))
    slow = group()
    both = bound(arrivals, [slow, FAST], duration_s=30.0)
    assert both.b0 <= 1.01 * min(bound(arrivals, [each], duration_s=30.0).b0 for each in (slow, FAST))
    assert both.b0 > 0.0


def test_requests_that_none_can_answer_in_time_leave_no_fleet() -> None:
    arrivals = [(1.0, 1)] * 97 + [(2.0, 9)] * 3
    assert bound(arrivals, quantile=0.99) == Bound(b0=math.inf, bq=math.inf)
    found = bound(arrivals, quantile=0.9)
    assert found.b0 == math.inf and 0.0 < found.bq < math.inf


def test_too_few_devices_leave_no_fleet_either() -> None:
    few = Group(name="t4", times=TIMES, slots=1, price_per_hour=1.0, start_s=5.0, max_replicas=2)
    assert bound(list(poisson(60.0, 10.0)), [few]).b0 == math.inf


def test_starts_that_take_no_time_leave_the_price_of_the_work() -> None:
    found = bound([(10.0, 1)] * 10, [group(start_s=0.0)])
    assert found.b0 == pytest.approx(10 * 0.1 / 3600.0)
    assert bound([(10.0, 1)] * 10, [group(start_s=0.0)], quantile=0.9).bq == pytest.approx(9 * 0.1 / 3600.0)


JOINED = Line(base_s=0.01, per_item_s=0.01)
"""An execution of B inferences takes 10 + 10 B ms: 12.5 ms for each of four, 15 ms for each of two."""


@pytest.mark.parametrize(
    ("batch", "latency_s", "each_s"),
    [
        (1, 1.0, 0.0125),  # four at once
        (1, 0.055, 0.0125),
        (1, 0.035, 0.015),  # of three or four at once all would be late
        (1, 0.025, 0.02),
        (2, 1.0, 0.025),
        (3, 1.0, 0.0375),  # and one of another request
        (3, 0.045, 0.04),
        (4, 1.0, 0.05),
        (6, 1.0, 0.07),  # more than are joined: alone
    ],
)
def test_a_request_that_is_joined_costs_its_part_of_the_best_batch_in_time(
    batch: int, latency_s: float, each_s: float
) -> None:
    joins = replace(group(start_s=0.0, slots=8), times=JOINED, joins=4)
    found = bound([(10.0, batch)] * 10, [joins], latency_s=latency_s)
    assert found.b0 == pytest.approx(10 * each_s / 3600.0)


def test_a_request_that_no_joined_execution_answers_in_time_leaves_no_plan() -> None:
    joins = replace(group(), times=JOINED, joins=4)
    assert bound([(10.0, 1)], [joins], latency_s=0.019).b0 == math.inf
    assert bound([(10.0, 5)], [joins], latency_s=0.059).b0 == math.inf


def test_among_groups_that_join_and_that_do_not_the_cheapest_work_counts() -> None:
    joins = replace(group("a", start_s=0.0), times=JOINED, joins=4)
    alone = replace(group("b", start_s=0.0, price=0.5), times=JOINED)
    arrivals = [(10.0, 1)] * 10
    assert bound(arrivals, [joins, alone], latency_s=1.0).b0 == pytest.approx(10 * 0.5 * 0.02 / 3600.0)
    assert bound(arrivals, [joins, replace(alone, price_per_hour=1.0)], latency_s=1.0).b0 == pytest.approx(
        10 * 0.0125 / 3600.0
    )


@pytest.mark.parametrize(("rate", "replicas"), [(40.0, 1), (60.0, 1), (100.0, 2)])
def test_a_fleet_that_joins_is_never_cheaper_than_its_bound(rate: float, replicas: int) -> None:
    """Eight at once take 13.75 ms each, so one replica does 73/s at most."""
    duration_s, times = 60.0, Line(base_s=0.03, per_item_s=0.01)
    arrivals = list(poisson(rate, duration_s))
    profile = ServiceProfile(times=times, width=1, joins=8)
    scenario = Scenario(
        kinds=(kind(count=replicas, price=1.0),),
        functions=(deployed(profile, of=function(sla=Sla(latency_s=0.5), concurrency=16), ready={"t4": replicas}),),
        arrivals=[Arrival(at_s) for at_s, _ in arrivals],
        keeps_scale=True,
    )
    summary = RunSummary(scenario)
    figures = summary.figures(Simulation(scenario, summary).run(duration_s))
    joins = replace(group(start_s=5.0), times=times, joins=8)
    limits = bound(arrivals, [joins], latency_s=0.5, duration_s=duration_s)
    assert figures["violations_share"] == 0.0
    assert 1.0 <= figures["cost_dollars"] / limits.b0 < 1.3
    alone = bound(arrivals, [replace(joins, joins=1)], latency_s=0.5, duration_s=duration_s)
    assert limits.b0 < alone.b0, "alone a replica does 25/s"


def test_quiet_times_and_long_traces_cost_no_rounding() -> None:
    """A request every 50 s for half an hour: each has a replica of its own, and pays its start."""
    arrivals = [(10.0 + 50.0 * each, 1) for each in range(36)]
    found = bound(arrivals, duration_s=1800.0)
    assert found.b0 == pytest.approx(36 * 4.75 / 3600.0)


def test_every_fault_is_reported_at_once() -> None:
    bad = Group(name="a", times=Line(base_s=0.0), slots=0, price_per_hour=-1.0, start_s=math.nan, max_replicas=0)
    with pytest.raises(InvalidInputError) as caught:
        clairvoyant([(1.0, 1), (-1.0, 1), (math.inf, 0)], [bad, bad], latency_s=0.0, quantile=1.5, duration_s=math.inf)
    places = [fault.where for fault in caught.value.faults]
    for name in ("slots", "price_per_hour", "start_s", "max_replicas", "times"):
        assert places.count(f"groups.a.{name}") == 2
    assert {"latency_s", "quantile", "duration_s", "groups.a", "arrival 2", "arrival 3"} <= set(places)
    with pytest.raises(InvalidInputError, match="groups: got none"):
        clairvoyant([], [], latency_s=1.0, quantile=0.9, duration_s=1.0)


def test_a_batch_for_which_a_group_has_no_time_is_reported() -> None:
    class Odd:
        def seconds(self, inferences: int) -> float:
            return 0.1 if inferences < 4 else 0.0

    odd = Group(name="a", times=Odd(), slots=1, price_per_hour=1.0, start_s=5.0, max_replicas=1)
    with pytest.raises(InvalidInputError, match=r"groups\.a\.times: got 0\.0 s for batch 4"):
        bound([(1.0, 4), (2.0, 4)], [odd])
