"""Tokens of the last minute, out of what gateways count since their start."""

from dataclasses import replace

import pytest

from tidegate.control.watch.tokens import TokenMeter
from tidegate.histogram import Histogram
from tidegate.records.gateway_sample import TokensSeen, difference


def times(*seconds: float) -> tuple[tuple[int, int], ...]:
    histogram = Histogram()
    for each in seconds:
        histogram.record(each)
    return histogram.sparse()


def test_the_last_minute_and_the_last_seconds() -> None:
    meter = TokenMeter(60.0)
    one = TokensSeen(arrived=500, prompt=100, completion=50, cached=10, answers=2, estimated=1, first=times(0.1, 0.4))
    two = replace(one, arrived=1500, prompt=1100, first=times(0.1, 0.4, 0.4), between=times(0.02, 0.02, 0.05))
    meter.record("f", one, None, 100.0)
    meter.record("f", two, one, 150.0)
    seen = meter.view("f", 98.0, 152.0)
    assert seen is not None
    assert (seen.prompt, seen.completion, seen.cached, seen.answers, seen.estimated) == (1100, 50, 10, 2, 1)
    assert (seen.arrived_per_s, seen.prompt_per_s, seen.completion_per_s) == (200.0, 200.0, 0.0)
    assert (seen.first_p50_s, seen.first_tail_s) == pytest.approx((0.4, 0.4), rel=1 / 8)
    assert seen.between_p50_s == pytest.approx(0.02, rel=1 / 8)
    assert seen.between_tail_s == pytest.approx(0.05, rel=1 / 8)
    later = meter.view("f", 98.0, 161.0)
    assert later is not None
    assert (later.prompt, later.completion, later.answers) == (1000, 0, 0), "the first pull is over a minute old"


def test_a_function_without_tokens_has_no_view_and_an_idle_one_an_empty_one() -> None:
    meter = TokenMeter(60.0)
    assert meter.view("f", 98.0, 100.0) is None
    seen = TokensSeen(prompt=5, answers=1)
    for second in range(1000):
        meter.record("f", seen, seen if second else None, 100.0 + second)
    assert len(meter._slices["f"]) == 0, "nothing came since"
    found = meter.view("f", 98.0, 1100.0)
    assert found is not None
    assert (found.prompt, found.first_p50_s) == (0, None)


def test_slices_are_of_one_window() -> None:
    meter = TokenMeter(60.0)
    before = TokensSeen()
    for second in range(1000):
        seen = TokensSeen(prompt=second)
        meter.record("f", seen, before, float(second))
        before = seen
    assert len(meter._slices["f"]) <= 60


def test_what_ran_backwards_is_nothing() -> None:
    gain = difference(
        TokensSeen(prompt=3, completion=7, first=((3, 1), (5, 4))),
        TokensSeen(prompt=5, completion=5, first=((3, 2), (5, 1))),
    )
    assert gain == TokensSeen(prompt=0, completion=2, first=((5, 3),))
