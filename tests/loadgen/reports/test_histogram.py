"""The stated error holds, for any durations; adding is counting together."""

import math

from hypothesis import given
from hypothesis import strategies as st

from tidegate.loadgen.histogram import MAX_MICROS, RELATIVE_ERROR, SUB_BUCKETS, FineHistogram, bucket, middle

durations = st.lists(st.floats(0.0, 86_400.0), min_size=1, max_size=200)


def histogram(found: list[float]) -> FineHistogram:
    made = FineHistogram()
    for each in found:
        made.record(each)
    return made


@given(durations, st.floats(0.0, 1.0))
def test_a_percentile_is_off_by_no_more_than_is_stated(found: list[float], q: float) -> None:
    exact = sorted(found)[max(0, math.ceil(q * len(found) - 1e-9) - 1)]
    estimate = histogram(found).quantile(q)
    assert estimate is not None
    assert abs(estimate - exact) <= RELATIVE_ERROR * exact + 1e-6


@given(durations)
def test_the_ends_and_the_mean_are_exact(found: list[float]) -> None:
    made = histogram(found)
    assert (made.smallest, made.largest, made.total) == (min(found), max(found), len(found))
    assert made.mean is not None
    assert math.isclose(made.mean, sum(found) / len(found), rel_tol=1e-9, abs_tol=1e-12)
    assert made.quantiles((0.1, 0.5, 0.99)) == tuple(made.quantile(q) for q in (0.1, 0.5, 0.99))


@given(durations, durations)
def test_two_of_them_add_up(first: list[float], second: list[float]) -> None:
    made = histogram(first)
    made.add(histogram(second))
    both = histogram(first + second)
    assert (made.counts, made.total, made.smallest, made.largest) == (
        both.counts,
        both.total,
        both.smallest,
        both.largest,
    )
    made.add(FineHistogram())
    assert made.smallest == both.smallest


@given(st.integers(-5, 1 << 45))
def test_buckets_rise_and_are_bounded(micros: int) -> None:
    assert bucket(micros) <= bucket(micros + 1) <= bucket(micros) + 1
    assert bucket(micros) <= bucket(MAX_MICROS) < 34 * SUB_BUCKETS
    assert middle(bucket(micros)) < middle(bucket(micros) + 1)


def test_nothing_has_no_percentiles() -> None:
    assert FineHistogram().quantile(0.5) is None
    assert FineHistogram().mean is None
