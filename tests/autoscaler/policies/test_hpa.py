"""The utilisation policy under observations; the rule's worked cases are in tests/golden/test_papers.py."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.worlds.autoscaling import T0, function, group, observation
from tidegate.autoscaler.measure.observation import Observation
from tidegate.autoscaler.policies import registry
from tidegate.autoscaler.policies.hpa import HpaParameters, HpaPolicy, HpaScaler, RollingUtilization, mean_metric
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
    told = policy(metric=metric).decide(busy(0.1, metrics={metric: 90.0}), T0)
    assert told.desired == 2


def after_traffic(metric: str, **quiet: Any) -> tuple[int | None, str]:
    """Returns how many of six replicas are wanted ten minutes after reports of 20 s."""
    p = policy(metric=metric, target="1", cooldown="60s")
    told = observation(group(ready=6, sampled=6, metrics={metric: 1.0}), rps=9.0, concurrency=3.0)
    for second in range(20):
        p.decide(told, T0 + second)
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
    assert (never.desired, never.reasons[0].code) == held, "nobody has ever told it"


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
    ("metric", "told"),
    [
        ("busy", ""),
        ("gpu-memory", ""),
        ("qpu-memory", "no source reports it, so the size will be held; known: busy, compute-s, cpu, "),
        ("queue-s", "only the model server reports it, and spec.metrics is not given"),
    ],
)
def test_a_metric_that_none_tells_is_warned_of_at_deploy(metric: str, told: str) -> None:
    deployed = function(scaling=Scaling(policy="hpa", parameters={"metric": metric}))
    assert told in " ".join(registry.row("hpa").warnings(deployed))
    assert bool(registry.row("hpa").warnings(deployed)) is bool(told)
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
