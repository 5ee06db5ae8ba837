"""The utilisation policy under observations; the rule's worked cases are in tests/golden/test_papers.py."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.worlds.autoscaling import T0, function, group, observation
from tidegate.autoscaler.measure.observation import Observation
from tidegate.autoscaler.policies import registry
from tidegate.autoscaler.policies.hpa import (
    HpaParameters,
    HpaPolicy,
    HpaScaler,
    RollingUtilization,
    mean_metric,
    rolling_utilization,
)
from tidegate.function import Scaling
from tidegate.manifest.policy_parameters import Shrinking


def policy(**parameters: str) -> HpaPolicy:
    return HpaPolicy(function(scaling=Scaling(policy="hpa", parameters=parameters, max_scale=6)), T0, 1)


def busy(share: float, ready: int = 1, **values: Any) -> Observation:
    return observation(group(ready=ready, sampled=ready, busy=share * ready, limit=1, **values))


def test_it_is_registered() -> None:
    assert isinstance(registry.build(function(scaling=Scaling(policy="hpa")), T0, 1), HpaPolicy)


def test_twice_the_target_doubles_and_the_tolerance_keeps() -> None:
    grown = policy(target="40").decide(busy(0.8, ready=2), T0)
    assert (grown.desired, [r.code for r in grown.reasons]) == (4, ["utilization"])
    assert policy(target="40").decide(busy(0.43, ready=2), T0).desired == 2


def test_between_two_periods_the_last_wish_holds() -> None:
    p = policy(target="40", period="15s", window="1s")
    assert p.decide(busy(0.4), T0).desired == 1
    assert p.decide(busy(1.0), T0 + 14).desired == 1
    assert p.decide(busy(1.0), T0 + 15).desired == 3


def test_a_replica_that_starts_counts_as_idle() -> None:
    p = policy(target="50", window="1s", period="1s")
    assert p.decide(busy(1.0), T0).desired == 2
    assert p.decide(busy(1.0, starting=1), T0 + 1).desired == 2, "not four: one of the two has not begun"


@pytest.mark.parametrize("metric", ["gpu-memory", "cpu"])
def test_a_metric_that_none_tells_is_a_reason_to_hold(metric: str) -> None:
    wish = policy(metric=metric).decide(busy(0.9), T0)
    assert (wish.desired, wish.reasons[0].code) == (None, "hold_no_metric")
    assert metric in wish.reasons[0].detail
    decision = policy(metric=metric).decide(busy(0.1, metrics={metric: 90.0}), T0)
    assert decision.desired == 2


def after_traffic(metric: str, **quiet: Any) -> tuple[int | None, str]:
    """Returns how many of six replicas are wanted ten minutes after reports of 20 s."""
    p = policy(metric=metric, target="1", cooldown="60s")
    seen = observation(group(ready=6, sampled=6, metrics={metric: 1.0}), rps=9.0, concurrency=3.0)
    for second in range(20):
        p.decide(seen, T0 + second)
    later = observation(group(ready=6, sampled=6), **quiet)
    wish = [p.decide(later, T0 + second) for second in range(20, 620)][-1]
    return wish.desired, wish.reasons[0].code


@pytest.mark.parametrize("metric", ["queue-s", "request-s", "compute-s", "server-batch"])
def test_a_metric_per_request_is_zero_when_there_are_none(metric: str) -> None:
    assert after_traffic(metric) == (1, "utilization")
    held = (None, "hold_no_metric")
    for seen in ({"rps": 1.0}, {"waiting": 1}, {"concurrency": 0.5}, {"complete": False}):
        assert after_traffic(metric, **seen) == held, "there may be some"
    never = policy(metric=metric).decide(observation(group(ready=6, sampled=6)), T0)
    assert (never.desired, never.reasons[0].code) == held, "it was never reported"


def test_a_metric_of_devices_that_is_missing_is_never_zero() -> None:
    assert after_traffic("gpu-utilization") == (None, "hold_no_metric")


def test_missing_data_add_nothing_to_the_mean() -> None:
    p = policy(period="1s")
    blind = observation(group(ready=1), complete=False)
    assert p.decide(blind, T0).desired is None
    p.decide(busy(0.6), T0 + 1)
    assert p.decide(blind, T0 + 2).desired == 1, "the mean of what was heard"


def test_the_built_in_metrics() -> None:
    half = group(ready=2, sampled=2, busy=1.0, limit=4, concurrency=6.0)
    assert (mean_metric("busy", [half]), mean_metric("slots", [half])) == (50.0, 75.0)
    assert mean_metric("slots", [group(ready=1, sampled=1, limit=0)]) is None
    assert mean_metric("busy", [group(ready=1, sampled=0)]) is None
    assert mean_metric("cpu", [group(ready=1, metrics={"cpu": 20.0}), group(ready=3, metrics={"cpu": 60.0})]) == 50.0
    assert mean_metric("cpu", [group(ready=1, metrics={"cpu": float("nan")})]) is None


@pytest.mark.parametrize(
    ("metric", "warning"),
    [
        ("busy", ""),
        ("gpu-memory", ""),
        ("qpu-memory", "no source reports it, so the size will be held; known: busy, compute-s, cpu, "),
        ("queue-s", "only the model server reports it, and spec.metrics is not given"),
    ],
)
def test_a_metric_that_none_tells_is_warned_of_at_deploy(metric: str, warning: str) -> None:
    deployed = function(scaling=Scaling(policy="hpa", parameters={"metric": metric}))
    assert warning in " ".join(registry.row("hpa").warnings(deployed))
    assert bool(registry.row("hpa").warnings(deployed)) is bool(warning)
    assert not registry.row("hpa").warnings(replace(deployed, user_metrics=True)) or metric == "qpu-memory"
    assert not registry.row("kpa").warnings(deployed)


def test_both_ways_to_shrink() -> None:
    for shrinking, expected in ((Shrinking.STABILIZATION, [4, 4, 4, 1]), (Shrinking.COOLDOWN, [4, 4, 1, 1])):
        scaler = HpaScaler(HpaParameters(target=50.0, cooldown_s=60.0, shrinking=shrinking))
        replicas, seen = 2, []
        for t, metric in (
            (0, 100.0),
            (30, 5.0),
            (60, 50.0 if shrinking is Shrinking.STABILIZATION else 5.0),
            (130, 5.0),
        ):
            replicas = scaler.decide(t, replicas, metric)
            seen.append(replicas)
        assert seen == expected, shrinking


def test_the_rolling_mean_forgets() -> None:
    mean = RollingUtilization(60.0)
    mean.add(T0, {"g1": 90.0, "g2": None})
    mean.add(T0 + 30, {"g1": 10.0, "g2": 30.0})
    assert mean.mean(T0 + 30) == 55.0
    assert mean.mean(T0 + 61) == 20.0
    assert mean.mean(T0 + 999) is None
    assert "2 moments" in repr(mean)


def test_asleep_wants_nothing() -> None:
    assert policy().decide(observation(group(ready=0)), T0).desired == 0


@pytest.mark.parametrize("shrink", ["stabilization", "cooldown"])
def test_a_restart_does_not_shrink_before_a_cool_down(shrink: str) -> None:
    parameters = {"metric": "busy", "target": "50", "cooldown": "60s", "shrink": shrink, "window": "1s", "period": "1s"}
    policy = HpaPolicy(function(scaling=Scaling(policy="hpa", parameters=parameters)), T0, 6)
    idle = observation(group(ready=6, sampled=6, busy=0.6))
    wished = [policy.decide(idle, T0 + second).desired for second in range(90)]
    assert set(wished[:58]) == {6}
    assert 2 in wished[58:]


def scaler(**fields: Any) -> HpaScaler:
    return HpaScaler(HpaParameters(**{"target": 50.0, **fields}))


def test_the_defaults_of_the_rule() -> None:
    p = HpaParameters(target=50.0)
    assert (p.low, p.high, p.tolerance, p.cooldown_s, p.shrinking) == (1, 0, 0.10, 300.0, Shrinking.STABILIZATION)


@pytest.mark.parametrize(
    ("metric", "wanted"),
    [
        (55.0, 4),
        (55.0 + 1e-8, 4),
        (55.1, 5),
        (45.0, 4),
        (44.9, 4),
        (37.5, 3),
        (37.6, 4),
        (62.5, 5),
        (62.6, 6),
        (0.0, 0),
    ],
)
def test_the_ratio_asks_for_more_or_fewer_beyond_its_tolerance(metric: float, wanted: int) -> None:
    assert scaler().recommendation(4, metric) == wanted
    assert scaler(tolerance=0.3).recommendation(4, metric) == (wanted if abs(metric - 50.0) > 15.0 else 4)


@pytest.mark.parametrize(
    ("current", "metric", "low", "high", "count"),
    [(2, 500.0, 1, 6, 6), (2, 500.0, 1, 0, 20), (2, 150.0, 1, 6, 6), (2, 125.0, 1, 6, 5), (0, 50.0, 3, 6, 3),
     (1, 50.0, 3, 2, 2), (2, 100.0, 5, 0, 5)],
)  # fmt: skip
def test_the_number_keeps_to_its_bounds(current: int, metric: float, low: int, high: int, count: int) -> None:
    assert scaler(low=low, high=high).decide(T0, current, metric) == count


def test_an_unknown_metric_keeps_the_number_and_remembers_nothing() -> None:
    rule = scaler()
    assert rule.decide(T0, 3, None) == 3
    assert repr(rule) == "<HpaScaler target 50, 0 recommendations>"


def test_the_largest_recommendation_of_the_cool_down_stays() -> None:
    rule = scaler(cooldown_s=60.0)
    assert rule.decide(T0, 2, 100.0) == 4
    assert rule.decide(T0 + 10, 4, 37.5) == 4
    assert rule.decide(T0 + 59.9, 4, 5.0) == 4
    assert rule.decide(T0 + 60, 4, 5.0) == 3, "four were asked for exactly a cool-down ago"
    assert rule.decide(T0 + 70, 3, 5.0) == 1


def test_recommendations_of_the_future_are_forgotten() -> None:
    rule = scaler(cooldown_s=60.0)
    assert rule.decide(T0 + 1000, 2, 100.0) == 4
    assert rule.decide(T0, 4, 5.0) == 1, "the clock was set back"
    other = scaler(cooldown_s=60.0, shrinking=Shrinking.COOLDOWN)
    assert other.decide(T0 + 1000, 2, 100.0) == 4
    assert other.decide(T0, 4, 5.0) == 1


def test_a_cool_down_begins_with_a_change() -> None:
    rule = scaler(cooldown_s=60.0, shrinking=Shrinking.COOLDOWN)
    assert rule.decide(T0, 4, 5.0) == 1, "there was no change before"
    assert rule.decide(T0 + 1, 1, 100.0) == 2
    assert rule.decide(T0 + 30, 2, 50.0) == 2
    assert rule.decide(T0 + 60.9, 2, 5.0) == 2
    assert rule.decide(T0 + 61, 2, 5.0) == 1
    assert rule.decide(T0 + 62, 1, 100.0) == 2, "growing waits for nothing"
    begun = scaler(cooldown_s=60.0, shrinking=Shrinking.COOLDOWN)
    begun.begin(T0, 4)
    assert begun.decide(T0 + 59, 4, 5.0) == 4
    assert begun.decide(T0 + 60, 4, 5.0) == 1
    kept = scaler(cooldown_s=60.0)
    kept.begin(T0, 4)
    assert kept.decide(T0 + 59, 4, 5.0) == 4
    assert kept.decide(T0 + 60, 4, 5.0) == 1


def test_the_rolling_mean_is_over_moments_within_its_window() -> None:
    samples: list[tuple[float, dict[str, float | None]]] = [
        (T0, {"a": 10.0}),
        (T0 + 5, {"a": None}),
        (T0 + 10, {"a": 20.0, "b": 40.0}),
        (T0 + 11, {"a": float("nan")}),
    ]
    assert rolling_utilization(samples, 10.0, T0 + 9.9) == 10.0
    assert rolling_utilization(samples, 10.0, T0 + 10) == 30.0
    assert rolling_utilization(samples, 10.1, T0 + 10) == 20.0
    assert rolling_utilization(samples, 10.0, T0 + 20) is None
    assert rolling_utilization(samples, 99.0, T0 - 1) is None
    rolling = RollingUtilization(10.0)
    for at, devices in samples:
        rolling.add(at, devices)
    assert repr(rolling) == "<RollingUtilization 3 moments of 10 s>"
    assert rolling.mean(T0 + 11) == 30.0
    rolling.add(T0 + 5, {"a": 8.0})
    assert rolling.mean(T0 + 5) == 8.0, "the clock was set back"


def test_a_start_lowers_the_mean_to_the_target_at_most() -> None:
    p = policy(target="50", window="1s", period="1s")
    assert p.decide(busy(0.6, starting=9), T0).desired == 6, "as many as there may be, since they exist"
    p = HpaPolicy(function(scaling=Scaling(policy="hpa", parameters={"target": "50", "window": "1s"})), T0, 1)
    assert p.decide(busy(0.9, ready=2, starting=1), T0).desired == 4, "60 % of three"
    p = HpaPolicy(function(scaling=Scaling(policy="hpa", parameters={"target": "50", "window": "1s"})), T0, 1)
    wish = p.decide(busy(0.3, ready=3, starting=1), T0)
    assert wish.desired == 3, "below the target a start counts for nothing"
    assert wish.reasons[0].detail == "busy 30 %, target 50 %, 4 replicas: 3"
    assert wish.observed == {"busy": pytest.approx(30.0)}


def test_a_metric_is_the_mean_over_the_ready_replicas_that_report_it() -> None:
    one, three = group(ready=1, metrics={"cpu": 10.0}), group(ready=3, metrics={"cpu": 50.0})
    assert mean_metric("cpu", [one, three, group(ready=5), group(ready=0, metrics={"cpu": 99.0})]) == 40.0
    assert mean_metric("cpu", [group(ready=1, metrics={"cpu": 0.0})]) == 0.0
    assert mean_metric("cpu", [group(ready=1, metrics={"cpu": -1.0})]) is None
    assert mean_metric("busy", [group(ready=0, sampled=1, busy=1.0)]) is None
    assert mean_metric("slots", [group(ready=2, sampled=0, limit=4, concurrency=4.0)]) is None
    assert mean_metric("slots", [group(ready=0, sampled=1, limit=4, concurrency=4.0)]) is None
    assert mean_metric("cpu", []) is None


def test_at_zero_the_last_decision_is_forgotten() -> None:
    p = policy(target="40", period="15s", window="1s")
    assert p.decide(busy(1.0), T0).desired == 3
    assert p.decide(observation(group()), T0 + 1).desired == 0
    assert p.decide(busy(0.4), T0 + 2).desired == 1
    assert (p.activation_scale, p.retention_s) == (1, 0.0)


def test_a_clock_that_jumps_back_decides_at_once() -> None:
    p = policy(target="40", period="15s", window="1s")
    assert p.decide(busy(0.4), T0).desired == 1
    assert p.decide(busy(1.0), T0 - 1).desired == 3
