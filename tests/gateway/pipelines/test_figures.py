"""The figures of stages, as a scrape shows them."""

from tests.gateway.pipelines.test_pipelines import ANSWER, KEPT, ask, opened
from tests.support.worlds.gateway_chain import Door
from tidegate.gateway.pipelines.figures import PipelineFigures
from tidegate.metrics import Exposition

COUNTED = ("tidegate_gateway_stage_latency_seconds_count", "tidegate_gateway_stage_failures_total")


def lines(figures: PipelineFigures) -> dict[str, str]:
    """The numbers of answers (a ``_count``) and of failures, by series."""
    into = Exposition()
    figures.expose(into, "g0")
    found = (line.rpartition(" ") for line in into.render().decode().splitlines() if line.startswith(COUNTED))
    return {series.removeprefix("tidegate_gateway_stage_"): value for series, _, value in found}


def of(door: Door) -> PipelineFigures:
    return door.core.pipelines._figures


def series(kind: str, stage: str) -> str:
    return f'{kind}{{worker="g0",pipeline="p",stage="{stage}"}}'


def test_each_stage_counts_its_answers_and_its_failures() -> None:
    door = opened()
    ask(door)
    door.stages[0].gets_answer(100.0, 200, KEPT, body=ANSWER)
    door.stages[1].gets_answer(100.0, 503, KEPT, body=b"oh")
    assert lines(of(door)) == {
        series("latency_seconds_count", "a"): "2",
        series("latency_seconds_count", "b"): "2",
        series("failures_total", "a"): "0",
        series("failures_total", "b"): "1",
    }


def test_a_stage_that_ends_with_its_request_counts_nowhere() -> None:
    door = opened()
    before = lines(of(door))
    client = ask(door)
    client.client_leaves(100.1)
    assert door.stages[0].is_ended and lines(of(door)) == before


def test_stages_that_no_pipeline_has_any_more_have_no_figures() -> None:
    figures = of(opened())
    figures.keep_only({("p", "b"), ("q", "a")})
    assert set(lines(figures)) == {series("latency_seconds_count", "b"), series("failures_total", "b")}
