"""The catalogue and its text, read back with prometheus-client's own parser."""

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tidegate.histogram import BUCKETS, Histogram, bucket_upper_micros
from tidegate.metrics import (
    BATCH,
    CATALOGUE,
    DURATION,
    FILL,
    LINES_A_PART,
    PROXY_BATCH,
    PROXY_EXECUTION,
    PROXY_LIMIT,
    SIZE,
    Buckets,
    Exposition,
    Metric,
    MetricKind,
    number,
)

WHO = ("f", "f-00001", "cpu", "f-00001-abcde")


def test_names_follow_the_conventions_and_are_unique() -> None:
    assert len({metric.name for metric in CATALOGUE}) == len(CATALOGUE) > 30
    for metric in CATALOGUE:
        assert metric.name.startswith(("tidegate_", "http_server_")), metric
        assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER), metric
        assert (metric.buckets is not None) == (metric.kind is MetricKind.HISTOGRAM), metric
        assert ("quantile" in metric.labels) == (metric.kind is MetricKind.SUMMARY), f"{metric}: promtool refuses it"
        assert metric.help.endswith("."), metric


@pytest.mark.parametrize("buckets", [DURATION, SIZE, BATCH, FILL], ids=["duration", "size", "batch", "fill"])
def test_every_bound_is_an_edge_of_the_histogram_so_counts_are_exact(buckets: Buckets) -> None:
    edges = {bucket_upper_micros(index) for index in range(BUCKETS)}
    assert set(buckets.edges) <= edges
    assert sorted(buckets.edges) == list(buckets.edges)


def test_a_scrape_reads_back_as_it_was_counted() -> None:
    execution, batch = Histogram(), Histogram()
    for seconds in (0.001, 0.010, 0.100, 1000.0):
        execution.record(seconds)
    for inferences in (1, 8, 9):
        batch.record_whole(inferences)
    text = Exposition()
    text.add(PROXY_LIMIT, WHO, 4)
    text.add_histogram(PROXY_EXECUTION, WHO, execution)
    text.add_histogram(PROXY_BATCH, WHO, batch)
    text.add(PROXY_LIMIT, ("g", "g-00001", "cpu", "other"), 0)
    families = {family.name: family for family in text_string_to_metric_families(text.render().decode())}
    assert [sample.value for sample in families["tidegate_queue_proxy_limit"].samples] == [4.0, 0.0]
    found = {
        (sample.name.removeprefix("tidegate_queue_proxy_"), sample.labels.get("le")): sample.value
        for family in families.values()
        for sample in family.samples
    }
    assert found["execution_seconds_bucket", "0.001024"] == 1
    assert found["execution_seconds_bucket", "268.435456"] == 3
    assert found["execution_seconds_bucket", "+Inf"] == found["execution_seconds_count", None] == 4
    assert found["execution_seconds_sum", None] == pytest.approx(1000.111)
    assert (found["batch_inferences_bucket", "8"], found["batch_inferences_bucket", "17"]) == (2, 3)
    assert found["batch_inferences_sum", None] == 18


def test_label_values_and_help_are_escaped() -> None:
    metric = Metric("tidegate_x", MetricKind.GAUGE, "Two\nlines \\ here.", ("a",))
    text = Exposition()
    text.add(metric, ('q"uo\\te\n',), 1.5)
    (family,) = text_string_to_metric_families(text.render().decode())
    assert family.documentation == "Two\nlines \\ here."
    assert family.samples[0].labels == {"a": 'q"uo\\te\n'}


def test_wrong_use_is_refused() -> None:
    text = Exposition()
    with pytest.raises(ValueError, match="labels"):
        text.add(PROXY_LIMIT, ("f",), 1)
    with pytest.raises(ValueError, match="no buckets"):
        text.add_histogram(PROXY_LIMIT, WHO, Histogram())


def test_histograms_and_values_without_labels() -> None:
    histogram = Histogram()
    histogram.record_whole(3)
    text = Exposition()
    text.add_histogram(Metric("tidegate_y", MetricKind.HISTOGRAM, "Y.", (), BATCH), (), histogram)
    shown = text.render()
    assert b'tidegate_y_bucket{le="4"} 1\n' in shown
    assert b"tidegate_y_sum 3\n" in shown


def test_a_text_of_many_series_comes_in_parts_and_only_once() -> None:
    text = Exposition()
    metric = Metric("tidegate_x", MetricKind.GAUGE, "X.", ("a",))
    for index in range(3 * LINES_A_PART):
        text.add(metric, (str(index),), index)
    parts = list(text.parts())
    assert len(parts) == 3
    (family,) = text_string_to_metric_families(b"".join(parts).decode())
    assert [sample.value for sample in family.samples] == list(range(3 * LINES_A_PART))
    assert text.render() == b""


@pytest.mark.parametrize(
    ("value", "text"), [(3, "3"), (0.5, "0.5"), (math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN")]
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text
