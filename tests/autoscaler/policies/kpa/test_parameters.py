"""Knative's names and defaults, row by row; what they make of a revision."""

import math
from dataclasses import asdict
from typing import Any

import pytest

from tests.support.worlds.autoscaling import function
from tidegate.autoscaler.policies.kpa.parameters import (
    Derived,
    KnativeConfig,
    KpaParameters,
    config,
    derive,
    duration_s,
    integer,
    number,
    of_function,
)


def test_numbers_durations_and_their_absence() -> None:
    assert [number(text) for text in ("1.5", "-1", "1e3", "many", "", "NaN", "Inf")] == [1.5, -1.0, 1000.0, *[None] * 4]
    assert [integer(text) for text in ("7", "-1", "1.5", "x", "")] == [7, -1, None, None, None]
    assert [duration_s(text) for text in ("1m5s", "1500ms", "0", "60", "s", "")] == [65.0, 1.5, 0.0, None, None, None]


CLUSTER: dict[str, float | int | bool] = {
    "target_utilization": 0.7,
    "concurrency_target": 100.0,
    "rps_target": 200.0,
    "target_burst_capacity": 211.0,
    "stable_window_s": 60.0,
    "panic_window_percentage": 10.0,
    "panic_threshold_percentage": 200.0,
    "max_scale_up_rate": 1000.0,
    "max_scale_down_rate": 2.0,
    "retention_s": 0.0,
    "scale_down_delay_s": 0.0,
    "initial_scale": 1,
    "allow_zero_initial_scale": False,
    "min_scale": 0,
    "max_scale": 0,
    "activator_capacity": 100.0,
}


@pytest.mark.parametrize("settings", [{}, {"unknown": "1"}, dict.fromkeys(["stable-window", "max-scale"], "many")])
def test_a_cluster_without_settings_has_knatives(settings: dict[str, str]) -> None:
    assert asdict(config(settings)) == asdict(KnativeConfig()) == CLUSTER


@pytest.mark.parametrize(
    ("key", "text", "field", "value"),
    [
        ("container-concurrency-target-percentage", "65", "target_utilization", 0.65),
        ("container-concurrency-target-percentage", "0.5", "target_utilization", 0.5),
        ("container-concurrency-target-percentage", "1", "target_utilization", 1.0),
        ("container-concurrency-target-percentage", "1.5", "target_utilization", 0.015),
        ("container-concurrency-target-default", "50", "concurrency_target", 50.0),
        ("requests-per-second-target-default", "20", "rps_target", 20.0),
        ("target-burst-capacity", "-1", "target_burst_capacity", -1.0),
        ("stable-window", "30s", "stable_window_s", 30.0),
        ("panic-window-percentage", "20", "panic_window_percentage", 20.0),
        ("panic-threshold-percentage", "150", "panic_threshold_percentage", 150.0),
        ("max-scale-up-rate", "1.5", "max_scale_up_rate", 1.5),
        ("max-scale-down-rate", "3", "max_scale_down_rate", 3.0),
        ("scale-to-zero-pod-retention-period", "1m", "retention_s", 60.0),
        ("scale-down-delay", "2m", "scale_down_delay_s", 120.0),
        ("initial-scale", "3", "initial_scale", 3),
        ("allow-zero-initial-scale", "true", "allow_zero_initial_scale", True),
        ("allow-zero-initial-scale", "T", "allow_zero_initial_scale", True),
        ("allow-zero-initial-scale", "yes", "allow_zero_initial_scale", False),
        ("min-scale", "2", "min_scale", 2),
        ("max-scale", "9", "max_scale", 9),
        ("activator-capacity", "10", "activator_capacity", 10.0),
    ],
)
def test_each_setting_of_the_cluster_has_its_key(key: str, text: str, field: str, value: float) -> None:
    assert asdict(config({key: text})) == {**CLUSTER, field: value}


def test_the_camel_case_alias_counts_without_the_name() -> None:
    assert config({"stableWindow": "30s"}).stable_window_s == 30.0
    assert config({"stableWindow": "30s", "stable-window": "40s"}).stable_window_s == 40.0
    assert config({"stableWindow": "30s", "stable-window": "?"}).stable_window_s == 60.0


def test_the_defaults_of_a_decision() -> None:
    assert asdict(KpaParameters(target_value=7.0, total_value=10.0)) == {
        "metric": "concurrency",
        "target_value": 7.0,
        "total_value": 10.0,
        "target_burst_capacity": 211.0,
        "activation_scale": 0,
        "max_scale_up_rate": 1000.0,
        "max_scale_down_rate": 2.0,
        "reachable": True,
        "panic_threshold": 2.0,
        "stable_window_s": 60.0,
        "panic_window_s": 6.0,
        "scale_down_delay_s": 0.0,
        "is_weighted": False,
    }


@pytest.mark.parametrize(("burst", "has"), [(-1, False), (-1.0, False), (0.0, True), (211.0, True)])
def test_an_unlimited_burst_needs_no_samples(burst: float, has: bool) -> None:
    made = KpaParameters(target_value=7.0, total_value=10.0, target_burst_capacity=burst)
    assert made.has_scrape_target is has


def derived(
    concurrency: float = 10.0, *, reachable: bool = True, settings: dict[str, str] | None = None, **given: str
) -> Derived:
    annotations = {key.replace("_", "-"): value for key, value in given.items()}
    return derive(annotations, config(settings or {}), concurrency, reachable=reachable)


@pytest.mark.parametrize(
    ("concurrency", "given", "total", "target"),
    [
        (10.0, {}, 10.0, 7.0),
        (0.0, {}, 100.0, 70.0),
        (10.0, {"target": "4"}, 4.0, 2.8),
        (10.0, {"target": "40"}, 10.0, 7.0),
        (0.0, {"target": "40"}, 40.0, 28.0),
        (10.0, {"target_utilization_percentage": "50"}, 10.0, 5.0),
        (10.0, {"target_utilization_percentage": "0"}, 10.0, 0.01),
        (10.0, {"target": "0.02"}, 0.02, 0.014),
        (10.0, {"target": "0.01"}, 0.01, 0.01),
        (10.0, {"metric": "rps"}, 200.0, 140.0),
        (10.0, {"metric": "rps", "target": "40"}, 40.0, 28.0),
        (10.0, {"metric": "rps", "target_utilization_percentage": "50"}, 200.0, 100.0),
    ],
)
def test_the_target_is_a_share_of_what_a_replica_takes(
    concurrency: float, given: dict[str, Any], total: float, target: float
) -> None:
    made = derived(concurrency, **given).parameters
    assert made.total_value == total
    assert made.target_value == pytest.approx(target)
    assert made.metric == given.get("metric", "concurrency")


def test_the_clusters_share_does_not_apply_to_requests_per_second() -> None:
    settings = {"container-concurrency-target-percentage": "50", "requests-per-second-target-default": "100"}
    assert derived(settings=settings).parameters.target_value == 5.0
    assert derived(settings=settings, metric="rps").parameters.target_value == pytest.approx(70.0)


@pytest.mark.parametrize(
    ("window", "percentage", "panic_s"),
    [
        ("60s", "10", 6.0),
        ("15s", "10", 2.0),
        ("14s", "10", 1.0),
        ("6s", "10", 1.0),
        ("6s", "1", 1.0),
        ("100s", "0.4", 1.0),
        ("61s", "50", 31.0),
        ("60s", "100", 60.0),
    ],
)
def test_the_panic_window_is_a_share_of_the_window_half_a_second_rounded_up(
    window: str, percentage: str, panic_s: float
) -> None:
    assert derived(window=window, panic_window_percentage=percentage).parameters.panic_window_s == panic_s


def test_a_revision_has_its_own_annotations() -> None:
    made = derived(
        activation_scale="3", target_burst_capacity="0", panic_threshold_percentage="150", scale_down_delay="20s",
        metric_aggregation_algorithm="weighted-exponential", min_scale="2", max_scale="9", initial_scale="4",
        scale_to_zero_pod_retention_period="1m",
    )  # fmt: skip
    p = made.parameters
    assert (p.activation_scale, p.target_burst_capacity, p.panic_threshold, p.scale_down_delay_s) == (3, 0.0, 1.5, 20.0)
    assert (p.is_weighted, p.stable_window_s, p.panic_window_s, p.reachable) == (True, 60.0, 6.0, True)
    assert (made.min_scale, made.max_scale, made.initial_scale, made.retention_s) == (2, 9, 4, 60.0)
    plain = derived()
    assert (plain.min_scale, plain.max_scale, plain.initial_scale, plain.retention_s) == (0, 0, 1, 0.0)
    assert (plain.parameters.activation_scale, plain.parameters.is_weighted) == (0, False)
    assert derived(metric_aggregation_algorithm="weightedExponential").parameters.is_weighted
    assert not derived(metric_aggregation_algorithm="linear").parameters.is_weighted


def test_settings_of_the_cluster_hold_where_an_annotation_is_absent() -> None:
    settings = {"max-scale-up-rate": "3", "max-scale-down-rate": "4", "min-scale": "2", "max-scale": "7",
                "initial-scale": "5", "stable-window": "30s"}  # fmt: skip
    made = derived(settings=settings)
    assert (made.parameters.max_scale_up_rate, made.parameters.max_scale_down_rate) == (3.0, 4.0)
    assert (made.min_scale, made.max_scale, made.initial_scale, made.parameters.panic_window_s) == (2, 7, 5, 3.0)


def test_a_revision_without_routes_has_no_minimum() -> None:
    made = derived(reachable=False, min_scale="2", max_scale="9")
    assert (made.min_scale, made.max_scale, made.parameters.reachable) == (0, 9, False)


@pytest.mark.parametrize(("allowed", "initial"), [("false", 2), ("true", 0)])
def test_an_initial_scale_of_zero_must_be_allowed(allowed: str, initial: int) -> None:
    settings = {"allow-zero-initial-scale": allowed, "initial-scale": "2"}
    assert derived(settings=settings, initial_scale="0").initial_scale == initial
    assert derived(settings=settings, initial_scale="1").initial_scale == 1


def test_a_function_gives_both() -> None:
    made = of_function(function(parameters={"target": "4", "max-scale-up-rate": "1.5", "stable-window": "30s"}), 8)
    assert (made.parameters.total_value, made.parameters.max_scale_up_rate, made.parameters.stable_window_s) == (
        4,
        1.5,
        30,
    )
    assert of_function(function(), 8).parameters.total_value == 8
    assert math.isclose(of_function(function(), 0).parameters.target_value, 70.0)
