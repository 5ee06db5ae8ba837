"""Sums and histograms of the last seconds forget by themselves."""

import math

from hypothesis import given
from hypothesis import strategies as st

from tidegate.autoscaler.measure.series import NOTHING, UPPER_MICROS, RecentHistogram, RecentSums
from tidegate.histogram import bucket_index


def test_sums_cover_their_window_and_then_forget() -> None:
    sums = RecentSums(2, slots=3)
    for second in range(5):
        sums.add(second, (1.0, 10.0))
    assert sums.sums(4) == [3.0, 30.0]
    assert sums.sums(6) == [1.0, 10.0]
    assert sums.sums(9) == [0.0, 0.0]
    assert "0/3 slots" in repr(sums)


def test_the_span_grows_until_the_window_is_full_and_starts_anew_after_silence() -> None:
    sums = RecentSums(1, slots=10)
    sums.add(100, (1.0,))
    assert [sums.span_s(at) for at in (100, 104, 200)] == [1.0, 5.0, 10.0]
    sums.add(300, (1.0,))
    assert sums.span_s(301) == 2.0


def test_a_quantile_of_recent_observations() -> None:
    recent = RecentHistogram(slots=2, slot_s=5.0)
    assert recent.quantile(0, 0.5) is None
    recent.add(0, ((bucket_index(1_000_000), 9),))
    recent.add(6, ((bucket_index(1_000), 90),))
    slow, fast = recent.quantile(6, 0.99), recent.quantile(12, 0.99)
    assert slow is not None
    assert fast is not None
    assert slow > 0.9
    assert fast < 0.002
    assert recent.quantile(20, 0.5) is None
    assert "0/2 slots" in repr(recent)


def test_a_reading_counts_what_is_late() -> None:
    recent = RecentHistogram()
    recent.add(0, ((bucket_index(100_000), 90), (bucket_index(300_000), 10)))
    seen = recent.reading(0, 0.98, 0.2)
    assert (seen.total, seen.late) == (100, 10)
    assert seen.quantile_s is not None
    assert 0.28 < seen.quantile_s < 0.33
    assert recent.reading(0, 0.5, 0.2).late == 10, "the limit is looked at whatever quantile is asked for"
    assert recent.reading(40, 0.5, 0.2) == NOTHING


@given(st.lists(st.tuples(st.integers(0, 120), st.integers(1, 9)), min_size=1, max_size=20), st.floats(0, 1))
def test_the_quantile_lies_in_the_bucket_of_its_rank(entries: list[tuple[int, int]], q: float) -> None:
    recent = RecentHistogram()
    recent.add(0, entries)
    found = recent.quantile(0, q)
    assert found is not None
    values = sorted(index for index, count in entries for _ in range(count))
    rank = max(0, math.ceil(q * len(values) - 1e-9) - 1)
    index = values[rank]
    low, high = (UPPER_MICROS[index - 1] if index else 0) / 1e6, UPPER_MICROS[index] / 1e6
    assert low - 1e-12 <= found <= high + 1e-12


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.lists(st.tuples(st.integers(0, 12), st.integers(0, 9)), max_size=4)),
        max_size=30,
    )
)
def test_the_window_holds_what_came_in_its_slots_and_nothing_else(
    steps: list[tuple[int, list[tuple[int, int]]]],
) -> None:
    recent, now, came = RecentHistogram(slots=3, slot_s=5.0), 1_000, []
    for passed, entries in steps:
        now += passed
        recent.add(now, entries)
        came += [(now // 5, entry) for entry in entries]
        alone = RecentHistogram(slots=3, slot_s=5.0)
        alone.add(now, [entry for slot, entry in came if slot > now // 5 - 3])
        for q in (0.0, 0.5, 0.98):
            assert recent.reading(now, q, 4e-6) == alone.reading(now, q, 4e-6)
