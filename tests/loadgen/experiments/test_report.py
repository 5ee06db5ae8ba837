"""What is reported: records, tables, pages."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from tests.loadgen.experiments.small import small
from tidegate.loadgen.experiments.definition import Check
from tidegate.loadgen.experiments.judge import Figure, judge
from tidegate.loadgen.experiments.outcome import ExperimentOutcome
from tidegate.loadgen.experiments.report import (
    bound,
    html,
    markdown,
    measured,
    partial,
    plots,
    record,
    rows,
    summary,
    text,
)
from tidegate.loadgen.experiments.run import ExperimentReport

CURVES = {"Ready [replicas]: a": [(0.0, 1.0), (9.0, 2.0)], "Ready [replicas]: <b>": [(0.0, 1.0)]}
FIRST = ExperimentOutcome(figures={"kpa_total_s": 2.0, "hpa_mean_s": 0.1, "late_mean_s": 0.05}, series=CURVES)
SECOND = ExperimentOutcome(figures={"kpa_total_s": 5.0, "hpa_mean_s": 0.1, "late_mean_s": 0.06})
RESULT = judge(small(), {1: FIRST, 2: SECOND})


def test_the_table_has_checks_and_then_what_is_only_reported() -> None:
    assert list(rows(RESULT)) == [
        ("kpa_total_s", "1", "at least 1, at most 3", "3.5 (2 to 5)", "FAILS"),
        ("hpa_mean_s", "", "50 % off at most of 0.1, each seed", "0.1", "holds"),
        ("late_mean_s", "", "", "0.055 (0.05 to 0.06)", ""),
    ]


def test_the_record_has_figures_checks_and_parameters() -> None:
    found = record(RESULT)
    assert found["seeds"] == [1, 2] and found["holds"] is False and found["partial"] is False
    assert found["figures"]["kpa_total_s"] == {"mean": 3.5, "min": 2.0, "max": 5.0}
    assert found["checks"][0] == {
        "figure": "kpa_total_s",
        "printed": 1.0,
        "bound": {"at_least": 1.0, "at_most": 3.0},
        "each_seed": False,
        "measured": {"mean": 3.5, "min": 2.0, "max": 5.0},
        "verdict": "fails",
    }
    assert found["reported"][0]["measured"]["max"] == 0.06
    assert found["parameters"]["kpa"]["start_s"] == 1


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (Check(figure="a", at_most=1234567.0), "at most 1234567"),
        (Check(figure="a", at_least=6.0, at_most=6.0), "6"),
        (Check(figure="a", printed=3.0, within=0.005), "0.5 % off at most"),
    ],
)
def test_bounds_in_words(check: Check, words: str) -> None:
    assert bound(check) == words


def test_a_range_is_reported_where_digits_show_one() -> None:
    assert measured(Figure(mean=1.0, low=1.0 - 1e-9, high=1.0 + 1e-9)) == "1"
    assert measured(Figure(mean=1.5, low=1.0, high=2.0)) == "1.5 (1 to 2)"


def test_text_and_markdown_tell_the_whole_table() -> None:
    assert text(RESULT).splitlines()[0] == "small: A small one (Nowhere, table 1; 2 seeds)"
    page = markdown(RESULT)
    assert "| kpa_total_s | 1 | at least 1, at most 3 | 3.5 (2 to 5) | FAILS |" in page
    assert "*Our reading.* It is small." in page
    assert "- `hpa_mean_s`: Two at once take twice as long." in page


def test_the_summary_counts_checks_and_names_what_fails() -> None:
    assert summary([RESULT]) == "1 of 2 checks of 1 experiment hold; not all of small"
    assert summary([judge(small(), {1: FIRST})]) == "2 of 2 checks of 1 experiment hold"


def test_curves_of_one_plot_stand_together() -> None:
    one, other, plain = plots(CURVES | {"Rate [ips by callers]: x: y": [(1.0, 2.0)], "Waiting": [(0.0, 0.0)]})
    assert (one.title, one.unit, one.x_unit) == ("Ready", "replicas", "s")
    assert [each.name for each in one.series] == ["a", "<b>"]
    assert len({each.colour for each in one.series}) == 2
    assert (other.title, other.unit, other.x_unit, other.series[0].name) == ("Rate", "ips", "callers", "x: y")
    assert (plain.title, plain.unit, plain.series[0].name) == ("Waiting", "", "Waiting")


def test_the_page_is_one_file_that_is_well_formed() -> None:
    page = html(ExperimentReport(results=(RESULT,)))
    assert not re.search(r"(src|href)=|https?://|<script", page)
    body = ElementTree.fromstring(page[page.index("<body>") : page.index("</html>")])
    cells = ["".join(cell.itertext()) for cell in body.iter("td")]
    assert {"at least 1, at most 3", "3.5 (2 to 5)", "FAILS"} <= set(cells)
    assert [cell.get("class") for cell in body.iter("td") if cell.text == "FAILS"] == ["bad", "bad"]
    assert len(list(body.iter("svg"))) == 1
    parameters = "".join(body.iter("pre").__next__().itertext()).splitlines()
    assert "hpa.threshold = 30" in parameters
    assert "phases[0] = start_s 0, requests 20, workers 2, rate 15" in parameters


def test_a_partial_page_says_so() -> None:
    report = ExperimentReport(results=(replace(RESULT, is_partial=True),), not_run=("b", "c"))
    assert partial(report) == "Interrupted, this report is partial: small has 2 seeds only; not run: b, c"
    assert partial(report) in html(report)
    assert "2 seeds, interrupted" in text(report.results[0])
    assert html(ExperimentReport(results=(), not_run=("a",))).endswith("</html>\n")
