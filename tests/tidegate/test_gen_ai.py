"""OpenTelemetry's metrics for generative AI: the conventions' names and bounds, counted exactly."""

from prometheus_client.parser import text_string_to_metric_families

from tidegate import gen_ai
from tidegate.gen_ai import CATALOGUE, DURATION, FIRST_TOKEN, PER_TOKEN, USAGE
from tidegate.metrics import Exposition, StepHistogram

WHO = ("f", "f-00001", "chat", "openai", "m")


def test_the_bounds_are_the_conventions() -> None:
    assert [float(label) for label in DURATION.buckets.labels] == [0.01 * 2**power for power in range(14)]  # type: ignore[union-attr]  # it has buckets
    assert gen_ai.OPERATION.buckets == DURATION.buckets
    assert " ".join(FIRST_TOKEN.buckets.labels) == (  # type: ignore[union-attr]  # as above
        "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10"
    )
    assert " ".join(PER_TOKEN.buckets.labels) == "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5"  # type: ignore[union-attr]  # as above
    assert [int(label) for label in USAGE.buckets.labels] == [4**power for power in range(14)]  # type: ignore[union-attr]  # as above


def test_names_are_those_that_prometheus_gives_to_the_conventions() -> None:
    assert [metric.name for metric in CATALOGUE] == [
        "gen_ai_server_request_duration_seconds",
        "gen_ai_client_operation_duration_seconds",
        "gen_ai_server_time_to_first_token_seconds",
        "gen_ai_server_time_per_output_token_seconds",
        "gen_ai_client_token_usage",
    ]


def test_a_value_on_a_bound_is_in_the_bucket_that_it_ends() -> None:
    first, usage = StepHistogram(FIRST_TOKEN), StepHistogram(USAGE)
    for seconds in (0.0005, 0.02, 0.0200004, 0.021, 11.0):
        first.record_s(seconds)
    for tokens in (0, 1, 4, 5):
        usage.record(tokens)
    text = Exposition()
    text.add_steps(FIRST_TOKEN, WHO, first)
    text.add_steps(USAGE, (*WHO, "input"), usage)
    found = {
        (sample.name.rpartition("_")[2], sample.labels.get("gen_ai_token_type"), sample.labels.get("le")): sample.value
        for family in text_string_to_metric_families(text.render().decode())
        for sample in family.samples
    }
    assert [found["bucket", None, bound] for bound in ("0.001", "0.01", "0.02", "0.04", "10", "+Inf")] == [
        1, 1, 3, 4, 4, 5,
    ]  # fmt: skip
    assert (found["count", None, None], round(found["sum", None, None], 6)) == (5, 11.0615)
    assert [found["bucket", "input", bound] for bound in ("1", "4", "16", "+Inf")] == [2, 3, 4, 4]
    assert found["sum", "input", None] == 10
