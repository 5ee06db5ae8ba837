"""Rows of the live experiments: what was required, what was measured, what counts."""

import json
import math

import pytest

from benchmarks.autoscaling.results import Judge, Row, rounded, table


@pytest.mark.parametrize(
    ("value", "least", "most", "holds"),
    [
        (0.97, 0.97, None, True),
        (0.9699, 0.97, None, False),
        (1.05, 0.95, 1.05, True),
        (1.06, 0.95, 1.05, False),
        (0.0, None, 0, True),
        (1.0, None, None, None),
        (None, 0.97, None, None),
    ],
)
def test_bounds_hold_at_their_edges(
    value: float | None, least: float | None, most: float | None, holds: bool | None
) -> None:
    assert Judge("sm3", smoke=False).row("case", "measure", value, least=least, most=most).holds is holds


def test_a_smoke_run_shows_bounds_and_judges_only_what_holds_at_any_length() -> None:
    judge = Judge("sm3", smoke=True)
    slow = judge.row("case", "throughput", 0.5, least=0.97)
    lost = judge.row("case", "lost_requests", 1, most=0, always=True)
    assert (slow.holds, slow.is_missed, slow.record()["judged"]) == (False, False, False)
    assert (lost.holds, lost.is_missed) == (False, True)
    assert Judge("sm3", smoke=False).row("case", "throughput", 0.5, least=0.97).is_missed


def test_a_record_is_json_without_what_is_unknown() -> None:
    row = Row(experiment="mu", case="quick", measure="error", value=0.123456, most=0.05)
    assert json.loads(json.dumps(row.record())) == {
        "benchmark": "autoscaling",
        "experiment": "mu",
        "case": "quick",
        "measure": "error",
        "value": 0.1235,
        "required": "<= 0.05",
        "holds": False,
    }
    assert "MISSED" in table([row])


def test_rounding_keeps_four_digits_and_whole_numbers() -> None:
    assert [rounded(each) for each in (12345.6, 0.00123456, math.nan, None)] == [12346.0, 0.001235, None, None]
