"""Sums and histograms of the last seconds forget by themselves."""

from autoscaler.series import RecentHistogram, RecentSums
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
