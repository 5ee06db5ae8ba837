"""What the demo concludes from what it saw, and the report that it writes."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.control.cli.test_commands import tidegate
from tidegate.control.cli.demo.conclusion import conclude
from tidegate.control.cli.demo.records import Look, Records, by_second, quantile
from tidegate.control.cli.demo.run import model_s
from tidegate.control.views.functions import ColdStartView
from tidegate.loadgen.clients.outcomes import RequestOutcome
from tidegate.loadgen.reports.demo_page import render
from tidegate.records.replica_state import ColdStartPhases


def look(at_s: float, ready: int, *, leaving: int = 0, desired: int | None = 1) -> Look:
    return Look(
        at_s=at_s, unix=at_s, ready=ready, starting=0, leaving=leaving, desired=desired, waiting=0, reasons=("load",)
    )


def outcome(at_s: float, latency_s: float = 0.02, status: int | None = 200, error: str | None = None) -> RequestOutcome:
    return RequestOutcome(at_s, latency_s, 2, status, error)


def records(*looks: Look, outcomes: tuple[RequestOutcome, ...] = ()) -> Records:
    return Records(latency_s=0.2, percentile=98.0, outcomes=list(outcomes), looks=list(looks))


WENT_AROUND = (look(-1.0, 0), look(1.0, 1), look(5.0, 2), look(9.0, 0))


def test_it_passes_when_nothing_was_lost_and_it_went_around() -> None:
    verdict = records(*WENT_AROUND, outcomes=(outcome(1.0), outcome(2.0))).verdict(True)
    assert verdict.passed
    assert verdict.text == "Passed: none of 3 requests lost; 0 -> 2 -> 0 replicas."


@pytest.mark.parametrize(
    ("looks", "outcomes", "first", "says"),
    [
        (WENT_AROUND, (outcome(1.0), outcome(2.0, status=503)), True, "1 of 2 requests were lost (status 503"),
        (WENT_AROUND, (outcome(1.0, status=None, error="cut"),), True, "1 of 1 requests were lost (no answer, cut)"),
        (WENT_AROUND, (), False, "the first request was not answered"),
        (WENT_AROUND[1:], (), True, "it did not begin at zero"),
        ((look(0, 0), look(1, 1), look(2, 0)), (), True, "it never had more than 1 ready"),
        ((look(0, 0), look(1, 2), look(2, 0, leaving=1)), (), True, "it did not return to zero"),
    ],
)
def test_it_fails_for_each_thing_that_went_wrong(
    looks: tuple[Look, ...], outcomes: tuple[RequestOutcome, ...], first: bool, says: str
) -> None:
    verdict = records(*looks, outcomes=outcomes).verdict(first)
    assert not verdict.passed
    assert says in verdict.text


def test_quantiles_are_of_exact_values() -> None:
    values = [float(number) for number in range(1, 101)]
    assert [quantile(values, q) for q in (0.0, 0.5, 0.98, 1.0)] == [1.0, 50.0, 98.0, 100.0]
    assert quantile([], 0.5) is None
    assert quantile([7.0], 0.98) == 7.0


def test_recent_outcomes_are_those_that_ended_lately() -> None:
    found = records(outcomes=(outcome(1.0), outcome(4.0, latency_s=3.0), outcome(6.9)))
    assert [each.at_s for each in found.recent(8.0)] == [6.9, 4.0]
    assert found.within_sla == pytest.approx(2 / 3)


def test_slices_are_by_the_second_of_sending() -> None:
    slices = by_second([outcome(0.1), outcome(0.9), outcome(2.5)], 3.0)
    assert [len(each) for each in slices] == [2, 0, 1, 0]


def test_the_model_time_is_read_from_the_answer() -> None:
    assert model_s("wait;dur=1.0, queue;dur=0.1, model;dur=12.5", 0.5) == 0.0125
    assert model_s("", 0.5) == 0.5


def test_the_report_is_one_file_with_four_plots() -> None:
    cold = ColdStartView(
        function="magika",
        revision="magika-00001",
        replica="magika-00001-aaaaa",
        accelerator="cpu",
        at=1.0,
        from_zero=True,
        phases=ColdStartPhases(decide_s=0.001, schedule_s=0.003, load_s=0.25, first_response_s=0.006),
        total_s=0.26,
    )
    found = records(*WENT_AROUND, outcomes=(outcome(1.0), outcome(2.0, latency_s=0.3)))
    result = conclude(found, True, "a <b> file", cold, "decided: 1 < 2", 4.0, ())
    text = render(result.report)
    assert text.count("<svg") == 4
    assert "a &lt;b&gt; file" in text
    assert "decided: 1 &lt; 2" in text
    assert "Passed: none of 3" in text
    assert "after 254 ms" in text
    assert not re.search(r"(src|href)=|https?://|<script", text), "self-contained"
    for picture in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(picture)
    assert "p98 within 200 ms: MISSED, 50.00% within" in text
    assert result.summary["within_sla"] == 0.5


def test_a_report_that_cannot_be_written_is_reported_before_the_demo_begins(tmp_path: Path) -> None:
    done = tidegate("demo", "--fast", "--report", str(tmp_path / "none" / "r.html"))
    assert done.exit_code == 2
    assert "--report: got " in done.output
