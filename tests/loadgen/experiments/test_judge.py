"""Means, ranges, verdicts."""

import math

import pytest

from tests.loadgen.experiments.small import outcome, small
from tidegate.errors import InvalidInputError
from tidegate.loadgen.experiments.definition import Check
from tidegate.loadgen.experiments.judge import Figure, holds, judge
from tidegate.loadgen.experiments.outcome import ExperimentError

GOOD = {"kpa_total_s": 2.0, "hpa_mean_s": 0.1, "late_mean_s": 0.05}


def test_a_figure_is_the_mean_over_seeds_with_its_range() -> None:
    result = judge(small(), {1: outcome(**GOOD), 2: outcome(**GOOD | {"kpa_total_s": 5.0})})
    assert result.figures["kpa_total_s"] == Figure(mean=3.5, low=2.0, high=5.0)
    assert [verdict.holds for verdict in result.verdicts] == [False, True]
    assert not result.holds
    assert result.seeds == (1, 2)
    assert [(each.figure, figure.mean) for each, figure in result.reported] == [("late_mean_s", 0.05)]


def test_a_check_of_each_seed_fails_by_one_of_them() -> None:
    """The mean of 0.04 and 0.16 is the very middle of what is allowed."""
    seeds = {1: outcome(**GOOD | {"hpa_mean_s": 0.04}), 2: outcome(**GOOD | {"hpa_mean_s": 0.16})}
    assert [verdict.holds for verdict in judge(small(), seeds).verdicts] == [True, False]


@pytest.mark.parametrize(
    ("check", "value", "expected"),
    [
        (Check(figure="a", at_least=0.3), 0.1 + 0.2, True),
        (Check(figure="a", at_most=0.3), 0.1 + 0.2, True),
        (Check(figure="a", at_most=0.3), 0.3001, False),
        (Check(figure="a", at_most=0.0), 0.0, True),
        (Check(figure="a", at_most=0.0), 1e-12, False),
        (Check(figure="a", at_least=2.0, at_most=3.0), 1.99, False),
        (Check(figure="a", at_least=2.0, at_most=3.0), 3.0, True),
        (Check(figure="a", printed=200.0, within=0.02), 204.0, True),
        (Check(figure="a", printed=200.0, within=0.02), 195.9, False),
        (Check(figure="a", printed=-200.0, within=0.02), -203.9, True),
    ],
)
def test_bounds_hold_at_their_ends_but_for_rounding(check: Check, value: float, expected: bool) -> None:
    assert holds(check, [value]) is expected


def test_figures_that_a_setup_does_not_give_are_all_reported() -> None:
    with pytest.raises(InvalidInputError) as caught:
        judge(small(), {1: outcome(other=1.0)})
    assert [(fault.where, fault.value, fault.allowed) for fault in caught.value.faults] == [
        ("checks[0].figure", "kpa_total_s", "other"),
        ("checks[1].figure", "hpa_mean_s", "other"),
        ("reported[0].figure", "late_mean_s", "other"),
    ]


def test_what_cannot_be_judged_is_no_verdict() -> None:
    with pytest.raises(ExperimentError, match="seed 1 gives no finite hpa_mean_s"):
        judge(small(), {1: outcome(**GOOD | {"hpa_mean_s": math.nan})})
    with pytest.raises(ExperimentError, match="seed 2 gives other figures"):
        judge(small(), {1: outcome(**GOOD), 2: outcome(kpa_total_s=2.0)})
