"""Traces made from traces."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.arrivals.changes import Placement, faster, joined, placed, scaled, sliced

TIMES = st.lists(st.floats(0.0, 100.0), max_size=30).map(sorted)


def of(times: list[float]) -> list[Arrival]:
    return [Arrival(at_s) for at_s in times]


def test_a_slice_begins_at_zero() -> None:
    assert [arrival.at_s for arrival in sliced(of([1.0, 2.0, 3.0, 4.0]), 2.0, 4.0)] == [0.0, 1.0]


def test_a_slice_reads_no_further_than_it_must() -> None:
    source = iter(of([1.0, 5.0, 6.0]))
    assert list(sliced(source, 0.0, 2.0)) == of([1.0])
    assert next(source).at_s == 6.0


def test_faster_is_the_same_in_less_time() -> None:
    assert [arrival.at_s for arrival in faster(of([2.0, 4.0]), 2.0)] == [1.0, 2.0]


@given(TIMES, TIMES)
def test_joined_traces_are_in_order_and_whole(one: list[float], other: list[float]) -> None:
    assert [arrival.at_s for arrival in joined(of(one), of(other))] == sorted(one + other)


@given(TIMES, st.floats(0.0, 5.0), st.integers(0, 99))
def test_scaling_keeps_the_order_and_the_whole_part(times: list[float], factor: float, seed: int) -> None:
    found = [arrival.at_s for arrival in scaled(of(times), factor, random.Random(seed))]
    assert found == sorted(found)
    assert len(times) * int(factor) <= len(found) <= len(times) * (int(factor) + 1)


@pytest.mark.parametrize("placement", list(Placement))
def test_counts_are_kept_within_their_period(placement: Placement) -> None:
    counts = [200.0, 0.0, 400.5]
    found = [arrival.at_s for arrival in placed(counts, random.Random(3), placement, 60.0)]
    assert found == sorted(found)
    in_period = [sum(int(at_s // 60.0) == period for at_s in found) for period in range(3)]
    assert in_period[1] == 0
    for wanted, seen in zip(counts, in_period, strict=True):
        spread = 4 * wanted**0.5 if placement is Placement.POISSON else 1
        assert abs(seen - wanted) <= spread
