"""Verdicts of Knative's webhook on a revision's annotations."""

import pytest

from tidegate.manifest.foreign import knative_annotations as rules
from tidegate.schema.units import UnreadableError


@pytest.mark.parametrize(
    "annotations",
    [
        {},
        {"class": "hpa.autoscaling.knative.dev", "metric": "cpu"},
        {"class": "hpa.autoscaling.knative.dev", "metric": "requests_per_token"},
        {"class": "example.com/other", "metric": ""},
        {"metric": "rps", "target": "1e3"},
        {"target": "0.01", "target-utilization-percentage": "100"},
        {"target-burst-capacity": "-1"},
        {"target-burst-capacity": "10.5"},
        {"min-scale": "3", "max-scale": "0"},
        {"min-scale": "2", "max-scale": "2"},
        {"min-scale": "2147483647"},
        {"initial-scale": "0"},
        {"activation-scale": "3", "min-scale": "2", "max-scale": "5"},
        {"scale-down-delay": "1h"},
        {"window": "6s"},
        {"panic-window-percentage": "1", "panic-threshold-percentage": "110"},
        {"scale-to-zero-pod-retention-period": "1.5s"},
        {"metric-aggregation-algorithm": "weightedExponential"},
        {"metric-aggregation-algorithm": "median"},
    ],
    ids=str,
)
def test_valid_in_knative(annotations: dict[str, str]) -> None:
    assert rules.faults(annotations) == {}


@pytest.mark.parametrize(
    ("annotations", "wrong"),
    [
        ({"class": "foo.knative.dev"}, "class"),
        ({"metric": "memory"}, "metric"),
        ({"class": "kpa.autoscaling.knative.dev", "metric": "cpu"}, "metric"),
        ({"class": "hpa.autoscaling.knative.dev", "metric": ""}, "metric"),
        ({"target": "0.009"}, "target"),
        ({"target": "-5"}, "target"),
        ({"target-utilization-percentage": "0.5"}, "target-utilization-percentage"),
        ({"target-burst-capacity": "-0.5"}, "target-burst-capacity"),
        ({"min-scale": "3", "max-scale": "2"}, "max-scale"),
        ({"min-scale": "-1"}, "min-scale"),
        ({"max-scale": "2147483648"}, "max-scale"),
        ({"initial-scale": "3.0"}, "initial-scale"),
        ({"activation-scale": "0"}, "activation-scale"),
        ({"activation-scale": "3", "max-scale": "2"}, "activation-scale"),
        ({"activation-scale": "3", "min-scale": "4"}, "activation-scale"),
        ({"scale-down-delay": "1500ms"}, "scale-down-delay"),
        ({"scale-down-delay": "3601s"}, "scale-down-delay"),
        ({"window": "6500ms"}, "window"),
        ({"window": "60"}, "window"),
        ({"window": "1h1s"}, "window"),
        ({"panic-window-percentage": "101"}, "panic-window-percentage"),
        ({"panic-threshold-percentage": "109"}, "panic-threshold-percentage"),
        ({"scale-to-zero-pod-retention-period": "-1s"}, "scale-to-zero-pod-retention-period"),
        (
            {"class": "kpa.autoscaling.knative.dev", "metric-aggregation-algorithm": "median"},
            "metric-aggregation-algorithm",
        ),
    ],
    ids=str,
)
def test_refused_by_knative(annotations: dict[str, str], wrong: str) -> None:
    assert list(rules.faults(annotations)) == [wrong]


def test_the_clusters_settings_narrow_what_is_valid() -> None:
    assert "initial-scale" in rules.faults({"initial-scale": "0"}, allow_zero_initial_scale=False)
    assert "max-scale" in rules.faults({"max-scale": "0"}, max_scale_limit=10)
    assert "max-scale" in rules.faults({"max-scale": "11"}, max_scale_limit=10)
    assert rules.faults({"max-scale": "10"}, max_scale_limit=10) == {}
    assert rules.faults({"min-scale": "1"}, max_scale_limit=10) == {}


def test_dashes_win_over_camel_case_and_unknown_keys_are_left_out() -> None:
    assert rules.chosen({"minScale": "1", "min-scale": "2", "maxScale": "3", "foo": "4"}) == {
        "min-scale": "2",
        "max-scale": "3",
    }


def test_whole_seconds() -> None:
    assert rules.seconds("1m30s") == 90
    for text in ("1500ms", "-1s", "90"):
        with pytest.raises(UnreadableError):
            rules.seconds(text)
