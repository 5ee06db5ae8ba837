"""Traces: read, cut, scaled, turned into arrivals."""

import random

import pytest

from benchmarks.autoscaling.__main__ import TRACE
from benchmarks.autoscaling.trace import TraceError, arrivals, cut, parse, scaled, smoothed
from benchmarks.autoscaling.twitter import FIRST_S, SHORT_FIRST_S, read


def test_a_trace_is_one_whole_number_a_line() -> None:
    assert parse("# from somewhere\n3\n\n 14 \n0\n") == [3, 14, 0]
    with pytest.raises(TraceError, match=r"line 2 is '1\.5'"):
        parse("3\n1.5\n")
    with pytest.raises(TraceError, match="no second"):
        parse("# nothing\n")


def test_a_cut_beyond_the_end_says_how_long_the_trace_is() -> None:
    assert cut([1, 2, 3, 4], 1, 2) == [2, 3]
    with pytest.raises(TraceError, match="the trace has 4 s"):
        cut([1, 2, 3, 4], 3, 2)


def test_scaling_keeps_the_shape_between_two_rates() -> None:
    assert scaled([10, 30, 20], 20, 200) == [20, 200, 110]
    assert scaled([7, 7], 20, 200) == [110, 110]


def test_smoothing_is_a_centred_mean_that_keeps_a_flat_line() -> None:
    assert smoothed([0, 0, 9, 0, 0], 3) == [0, 3, 3, 3, 0]
    assert smoothed([5, 5, 5], 9) == [5, 5, 5]


def test_arrivals_rise_and_have_the_rate_of_their_second() -> None:
    times = list(arrivals([100.0, 0.0, 300.0] * 50, random.Random(3)))
    assert times == sorted(times)
    counts = [sum(int(at) % 3 == part for at in times) for part in range(3)]
    assert counts[1] == 0, "a second without load has no arrival"
    assert counts[0] == pytest.approx(5000, rel=0.05)
    assert counts[2] == pytest.approx(15000, rel=0.05)


def test_the_shipped_trace_has_the_burst_where_the_experiment_looks() -> None:
    counts = parse(read(TRACE))
    assert len(counts) == 2400
    calm, burst = cut(counts, FIRST_S, 120), cut(counts, SHORT_FIRST_S + 40, 60)
    assert sum(burst) / 60 > 4 * sum(calm) / 120
