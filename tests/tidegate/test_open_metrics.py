"""The forms of an exposition: OpenMetrics as its official parser reads it, and plain text without exemplars."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tidegate import metrics
from tidegate.histogram import Histogram
from tidegate.metrics import Exposition, Metric, MetricKind, bucket_of
from tidegate.open_metrics import Form, form_of, formed, part_in

TRACE = "0af7651916cd43dd8448eb211c80319c"
PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;"
    "q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


def exposition() -> Exposition:
    made, durations = Exposition(), Histogram()
    for seconds in (0.001, 0.05, 1.04):
        durations.record(seconds)
    exemplars = {bucket_of(metrics.DURATION, 1.04): (TRACE, 1.04, 1700000000.5)}
    made.add_histogram(metrics.GATEWAY_LATENCY, ("f", "f-1"), durations, exemplars)
    made.add(
        Metric("tidegate_odd_total", MetricKind.COUNTER, 'A "quoted" help.', ("name",)), ('a # {trace_id="x"} 1',), 3
    )
    made.add(metrics.CONTROL_EPOCH, (), 4)
    return made


async def whole(form: Form) -> str:
    async def parts() -> AsyncIterator[bytes]:
        for part in exposition().parts():
            yield part

    return b"".join([part async for part in formed(parts(), form)]).decode()


async def _texts() -> tuple[str, str]:
    return await whole(Form.OPEN_METRICS), await whole(Form.TEXT)


def test_the_official_parser_reads_counters_bounds_and_the_exemplar() -> None:
    text, plain = asyncio.run(_texts())
    assert text.endswith("# EOF\n")
    families = {family.name: family for family in parse(text)}  # type: ignore[no-untyped-call]  # it has no types
    assert families["tidegate_odd"].type == "counter"
    assert families["tidegate_odd"].documentation == 'A "quoted" help.'
    samples = families[metrics.GATEWAY_LATENCY.name].samples
    ((bound, exemplar),) = [(each.labels["le"], each.exemplar) for each in samples if each.exemplar is not None]
    assert (float(bound), exemplar.labels, exemplar.value) == (1.048576, {"trace_id": TRACE}, 1.04)
    assert exemplar.timestamp is not None
    assert 'trace_id="0af' not in plain
    assert "# EOF" not in plain
    found = {family.name: family for family in parse_text(plain)}
    assert found["tidegate_odd"].samples[0].labels == {"name": 'a # {trace_id="x"} 1'}
    assert len(found[metrics.GATEWAY_LATENCY.name].samples) == len(samples)


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", Form.TEXT),
        ("*/*", Form.TEXT),
        ("text/plain", Form.TEXT),
        (PROMETHEUS, Form.OPEN_METRICS),
        ("application/openmetrics-text; version=1.0.0", Form.OPEN_METRICS),
        ("application/openmetrics-text; version=9.0.0", Form.TEXT),
        ("application/openmetrics-text;version=1.0.0;q=0.1, text/plain;q=0.5", Form.TEXT),
        ("application/openmetrics-text;q=much", Form.TEXT),
    ],
)
def test_the_scraper_chooses_the_form(accept: str, form: Form) -> None:
    assert form_of(accept) is form


def test_whole_bounds_become_floating_point_numbers() -> None:
    line = b'a_bucket{f="x",le="17"} 3\na_bucket{le="0.5"} 3\na_bucket{le="+Inf"} 3\n'
    assert part_in(line, Form.OPEN_METRICS) == line.replace(b'"17"', b'"17.0"')


@pytest.mark.parametrize("value", [0.0, 0.0005, 0.05, 1.048575, 1.048576, 1e9])
def test_an_exemplar_lies_in_the_bucket_that_counts_it(value: float) -> None:
    durations = Histogram()
    durations.record(value)
    below = metrics.cumulative(durations, metrics.DURATION.edges)
    counted = next((label for label, count in zip(metrics.DURATION.labels, below, strict=True) if count), "+Inf")
    assert bucket_of(metrics.DURATION, value) == counted
