"""Rows as JSON, text and one page."""

from dataclasses import replace

import pytest

from tidegate.autoscaler.policies.registry import names
from tidegate.loadgen.bound.clairvoyant import Bound
from tidegate.loadgen.experiments.championship.report import head, html, ranked, record, text
from tidegate.loadgen.experiments.championship.row import Cell, Failed, Played
from tidegate.loadgen.experiments.championship.run import ChampionshipResult, ChampionshipRow
from tidegate.loadgen.experiments.championship.traces import Lengths

CELL = Cell(trace="spike", groups=1, start_up_s=30.0, seed=1, lengths=Lengths(learn_s=0.0, judged_s=3600.0))
PLAYED = Played(
    requests=1000,
    late_share=0.004,
    failed_share=0.0,
    cost_dollars=3.0,
    p50_s=0.1,
    p99_s=0.25,
    cold_starts=7,
    cold_start_requests=3,
    starts_per_day=168.0,
    mean_replicas=5.0,
    most_replicas=9,
    ready=((0.0, 5.0), (0.5, 9.0)),
)


def row(policy: str, played: Played | Failed, start_up_s: float = 30.0) -> ChampionshipRow:
    return ChampionshipRow(
        cell=replace(CELL, start_up_s=start_up_s), policy=policy, played=played, bound=Bound(b0=2.0, bq=1.5)
    )


CHEAP = row("cheap", replace(PLAYED, late_share=0.3, cost_dollars=1.0))
GOOD = row("good", PLAYED)
DEAR = row("dear", replace(PLAYED, cost_dollars=4.0))
NONE = row("none", Failed(why="it takes one group only"))


def test_a_record_has_the_cost_over_both_bounds() -> None:
    found = record(GOOD)
    assert found["cost_over_b0"] == 1.5 and found["cost_over_bq"] == 2.0
    assert found["keeps_sla"] is True and record(CHEAP)["keeps_sla"] is False
    assert (found["trace"], found["groups"], found["start_up_s"], found["seed"]) == ("spike", 1, 30.0, 1)


@pytest.mark.parametrize("policy", names())
def test_the_columns_of_every_policy_stand_below_each_other(policy: str) -> None:
    assert len(text(row(policy, PLAYED))) == len(head())


def test_a_policy_that_cannot_play_is_said() -> None:
    assert record(NONE)["error"] == "it takes one group only"
    assert "failed: it takes one group only" in text(NONE)
    assert "it takes one group only" in html(ChampionshipResult(rows=(GOOD, NONE), missing=0), ())


def test_those_that_keep_the_sla_come_first_cheapest_first() -> None:
    assert [each.policy for each in ranked([CHEAP, NONE, DEAR, GOOD])] == ["good", "dear", "cheap", "none"]


def test_a_bound_that_cannot_be_computed_is_said() -> None:
    found = record(replace(GOOD, bound=Failed(why="no group is fast enough")))
    assert found["no_bound"] == "no group is fast enough" and found["cost_over_b0"] is None


def test_the_page_stands_alone_and_says_what_is_missing() -> None:
    rows = (GOOD, row("good", PLAYED, 120.0), CHEAP)
    page = html(ChampionshipResult(rows=rows, missing=5), ("left out: twitter, which needs --data FOLDER",))
    assert "Interrupted: 5 rows are missing." in page
    assert "left out: twitter" in page
    assert page.count("<svg") == 3
    assert "prefers-color-scheme: dark" in page
    assert "http" not in page.replace("http-equiv", "")
