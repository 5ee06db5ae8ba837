"""What follows from looks and outcomes, without a deployment."""

import pytest

from benchmarks.autoscaling.batches import phases_of, replicas
from benchmarks.autoscaling.timeline import (
    Look,
    Run,
    by_second,
    converged_s,
    cost,
    flip_flops,
    latency_s,
    replica_seconds,
    throughput_ips,
    turns,
    within,
)
from benchmarks.autoscaling.twitter import spans
from tidegate.loadgen.clients.outcomes import RequestOutcome


def look(at_s: float, t4: int = 1, v100: int = 0, *, weight: float = 0.5, price: float = 0.0) -> Look:
    sizes = {"t4": t4, "v100": v100}
    return Look(
        at_s=at_s, ready=sizes, present=sizes, desired=None, weights={"v100": weight}, price_per_hour=price, waiting=0
    )


def good(at_s: float, latency: float, inferences: int = 1, status: int | None = 200) -> RequestOutcome:
    return RequestOutcome(at_s, latency, inferences, status)


@pytest.mark.parametrize(
    ("sizes", "count"),
    [([1, 2, 3, 3], 0), ([1, 2, 1], 1), ([2, 1, 1, 2], 1), ([1, 2, 1, 2], 2), ([3, 2, 2, 1], 0), ([], 0)],
)
def test_a_turn_is_a_change_of_direction(sizes: list[int], count: int) -> None:
    assert turns(sizes) == count


def test_a_move_from_one_accelerator_to_another_is_no_flip_flop_and_back_is_two() -> None:
    there = [look(0, 1, 0), look(1, 1, 1), look(2, 0, 1)]
    assert flip_flops(there) == 0
    assert flip_flops([*there, look(3, 1, 1), look(4, 1, 0)]) == 2


def test_throughput_counts_good_answers_by_when_they_came() -> None:
    outcomes = [good(0.0, 0.9, 4), good(0.0, 1.0, 8), good(1.5, 0.4, 2), good(1.5, 0.5, 2), good(1.0, 0.1, 9, 503)]
    assert throughput_ips(outcomes, 1.0, 2.0) == 10.0


def test_within_counts_lost_and_late_requests_against_it() -> None:
    outcomes = [good(0.0, 9.0), good(1.0, 0.2), good(1.0, 0.3), good(1.0, 0.1, status=429), good(1.0, 0.1, status=None)]
    assert within(outcomes, 0.2) == 0.2
    assert within(outcomes, 0.2, since_s=1.0) == 0.25
    assert within([], 0.2) == 1.0
    assert latency_s(outcomes, 0.5) == 0.3
    assert latency_s([], 0.5) is None


def test_convergence_lasts_to_the_end_or_is_none() -> None:
    looks = [look(at_s, weight=weight) for at_s, weight in ((0, 0.5), (1, 0.64), (2, 0.5), (3, 0.64), (4, 0.65))]
    assert converged_s(looks, lambda each: each.weights["v100"] > 0.6) == 3
    assert converged_s(looks, lambda each: each.weights["v100"] < 0.65) is None


def test_cost_holds_each_price_until_the_next_look() -> None:
    looks = [look(0.0, price=3600.0), look(2.0, price=7200.0), look(5.0, price=0.0)]
    assert cost(looks, 4.0) == 2.0 + 2 * 2.0
    grown = [look(-1.0, 5), look(0.0, 1), look(2.0, 1, 2), look(5.0, 9)]
    assert replica_seconds(grown, 4.0) == 2 * 1 + 2 * 3


def test_seconds_count_late_and_lost_requests_where_they_were_due() -> None:
    seconds = by_second([good(0.2, 0.1, 3), good(1.9, 0.5), good(1.1, 0.1, status=None)], 0.2, 2.0)
    assert [(each.requests, each.inferences, each.late) for each in seconds] == [(1, 3, 0), (2, 2, 2), (0, 0, 0)]
    assert (seconds[1].p50_ms, seconds[2].p50_ms) == (500.0, None)


def test_phases_are_measured_in_their_second_half() -> None:
    first, second = phases_of((1, 64), 10.0)
    assert (first.settled_s, second.first_s, second.settled_s, second.last_s) == (5.0, 10.0, 15.0, 20.0)
    found = Run(looks=[look(2.0, 3), look(6.0, 1), look(12.0, 4), look(16.0, 2)])
    assert (replicas(found, first), replicas(found, second)) == (1, 2)


def test_spans_name_runs_of_seconds() -> None:
    assert spans([4, 2, 3, 9, 9]) == "2-4, 9"
