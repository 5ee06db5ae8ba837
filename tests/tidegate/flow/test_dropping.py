"""Dropping at a multiple of the latency target."""

from math import inf

from tidegate.flow.dropping import age_limit, is_dropped


def test_a_request_is_dropped_from_the_multiple_of_the_target_on() -> None:
    assert [is_dropped(3, age, 780) for age in (0.0, 2339.9, 2340.0, 9999.0)] == [False, False, True, True]


def test_binary_noise_at_the_limit_does_not_keep_it() -> None:
    assert is_dropped(3, 0.1 + 0.2, 0.1)
    assert is_dropped(1, 780 - 1e-10, 780) and not is_dropped(1, 780 - 1e-8, 780)


def test_without_a_multiple_or_a_target_nothing_is_dropped() -> None:
    assert age_limit(0, 780) == age_limit(None, 780) == age_limit(3, None) == inf
    assert not is_dropped(0, 1e9, 780) and not is_dropped(3, 1e9, None)
