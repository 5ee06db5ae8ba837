"""Buckets of 1/8 octave: every duration lies in its bucket, and histograms add."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.histogram import (
    BUCKETS,
    FINE_BITS,
    Histogram,
    all_interpolated,
    bucket_index,
    bucket_upper_micros,
    fine_buckets,
    fine_index,
    interpolated,
    quantile,
)


@given(st.integers(min_value=0, max_value=2**38))
def test_a_duration_lies_below_its_upper_bound_and_not_in_the_bucket_before(micros: int) -> None:
    index = bucket_index(micros)
    assert micros < bucket_upper_micros(index)
    assert index == 0 or micros >= bucket_upper_micros(index - 1)


@given(st.integers(min_value=8, max_value=2**38))
def test_buckets_are_at_most_an_eighth_wide(micros: int) -> None:
    index = bucket_index(micros)
    assert bucket_upper_micros(index) - bucket_upper_micros(index - 1) <= max(1, micros // 8)


@given(st.integers(min_value=-3, max_value=2**38) | st.sampled_from([2**15 - 1, 2**15, 2**25 - 1, 2**25, 2**39]))
def test_a_duration_is_recorded_in_its_bucket_however_that_is_found(micros: int) -> None:
    """Up to 33 ms the bucket is looked up, up to 33 s ten octaves further down, beyond that it is computed."""
    histogram = Histogram()
    histogram.record((micros + 0.5) / 1e6)
    assert histogram.counts[bucket_index(micros)] == 1


def test_nonsense_durations_count_at_the_edges() -> None:
    assert bucket_index(-5) == 0
    assert bucket_index(2**60) == BUCKETS - 1


def test_quantiles_of_a_known_set() -> None:
    histogram = Histogram()
    for ms in range(1, 101):
        histogram.record(ms / 1000)
    assert histogram.quantile(0.5) == pytest.approx(0.050, rel=0.13)
    assert histogram.quantile(0.98) == pytest.approx(0.098, rel=0.13)
    assert Histogram().quantile(0.5) is None
    assert quantile((), 0.5) is None


def test_sparse_buckets_add_to_the_same_counts() -> None:
    one, other = Histogram(), Histogram()
    for seconds in (0.001, 0.002, 0.3):
        one.record(seconds)
    other.add(one.sparse())
    other.add(one.sparse())
    assert other.total == 6
    assert other.sparse() == tuple((index, 2 * count) for index, count in one.sparse())


@given(st.lists(st.floats(0.0, 2e6)))
def test_many_at_once_are_recorded_as_each_by_itself(durations: list[float]) -> None:
    one, other = Histogram(), Histogram()
    for seconds in durations:
        one.record(seconds)
    other.record_all(durations)
    assert (one.counts, one.sum_micros) == (other.counts, other.sum_micros)


def test_a_quantile_for_people_lies_on_the_line_between_the_bounds_of_its_bucket() -> None:
    low, high = bucket_upper_micros(bucket_index(1000) - 1), bucket_upper_micros(bucket_index(1000))
    assert interpolated([(bucket_index(1000), 10)], 0.5) == pytest.approx((low + high) / 2e6)
    assert interpolated([(bucket_index(1000), 10)], 1.0) == pytest.approx(high / 1e6)
    assert interpolated([(0, 1), (bucket_index(1000), 1)], 0.5) == pytest.approx(1e-6)
    assert interpolated([], 0.5) is None


@given(st.lists(st.integers(min_value=1, max_value=10**7), min_size=1, max_size=40), st.sampled_from([0.5, 0.98, 0.99]))
def test_a_quantile_for_people_is_within_an_eighth_of_the_real_one(micros: list[int], q: float) -> None:
    histogram = Histogram()
    for each in micros:
        histogram.record_whole(each)
    found, bound = interpolated(histogram.sparse(), q), histogram.quantile(q)
    assert found is not None
    assert bound is not None
    real = sorted(micros)[max(0, math.ceil(q * len(micros)) - 1)] / 1e6
    assert real - max(real / 8, 1e-6) <= found <= bound


@given(st.integers(min_value=0, max_value=1 << 40))
def test_a_fine_bucket_holds_its_duration_and_is_less_than_one_percent_wide(micros: int) -> None:
    index = fine_index(micros)
    low, high = bucket_upper_micros(index - 1, FINE_BITS) if index else 0, bucket_upper_micros(index, FINE_BITS)
    assert low <= micros < high
    assert high - low <= max(1, low / 128)


def test_quantiles_of_fine_buckets() -> None:
    sparse = fine_buckets([0.001] * 9 + [0.1])
    assert [count for _, count in sparse] == [9, 1]
    assert all_interpolated(sparse, (0.5, 0.99), FINE_BITS) == pytest.approx([0.001, 0.1], rel=0.008)
    assert fine_index(-1) == 0
