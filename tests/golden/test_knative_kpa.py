"""Knative's own decisions, evaluation by evaluation: every number must come out the same."""

import math
from collections import defaultdict
from typing import Any

import pytest

from tests.golden.vectors import IS_OWN, load, near
from tidegate.autoscaler.policies.kpa.parameters import KpaParameters
from tidegate.autoscaler.policies.kpa.policy import KnativeScaler
from tidegate.autoscaler.policies.kpa.zero import Condition, ZeroRules, apply

CASES = load("knative_kpa.jsonl")


def parameters(spec: dict[str, Any]) -> KpaParameters:
    return KpaParameters(
        metric=spec["scaling_metric"],
        target_value=spec["target_value"],
        total_value=spec["total_value"],
        target_burst_capacity=spec["target_burst_capacity"],
        activation_scale=spec["activation_scale"],
        max_scale_up_rate=spec["max_scale_up_rate"],
        max_scale_down_rate=spec["max_scale_down_rate"],
        reachable=spec["reachable"],
        panic_threshold=spec["panic_threshold"],
        stable_window_s=spec["stable_window_s"],
        panic_window_s=spec["panic_window_s"],
        scale_down_delay_s=spec["scale_down_delay_s"],
        is_weighted=spec["aggregation"] == "weighted-exponential",
    )


def differences(case: dict[str, Any]) -> list[str]:
    start = case["t0_unix"]
    scaler = KnativeScaler(parameters(case["spec"]), start, case["spec"]["initial_ready_pods"])
    updates = {update["t"]: update["spec"] for update in case.get("updates", ())}
    ticks = defaultdict(list)
    for tick in case["ticks"]:
        ticks[tick["t"]].append(tick)
    events = [(t, 0, None) for t in updates] + [(t, 1, None) for t in ticks]
    events += [(expect["t"], 2, expect) for expect in case["expect"]]
    ready, wrong = case["spec"]["initial_ready_pods"], []
    for t, kind, expect in sorted(events, key=lambda event: event[:2]):
        if kind == 0:
            scaler.update(parameters(updates[t]), start + t)
        elif kind == 1:
            for tick in ticks[t]:
                ready = tick["ready_pods"]
                feed(scaler, tick, start)
        else:
            wrong += compare(scaler, start + t, ready, expect, case["spec"])
    return wrong


def feed(scaler: KnativeScaler, tick: dict[str, Any], start: float) -> None:
    name = scaler.parameters.metric
    if name in tick:
        scaler.record(start + tick.get("sample_t", tick["t"]), tick[name] - tick.get(f"proxied_{name}", 0))


def bounded(desired: int, spec: dict[str, Any]) -> int:
    """After min and max scale, of a revision that nothing else keeps from being as large."""
    rules = ZeroRules(min_scale=spec["min_scale"], max_scale=spec["max_scale"])
    applied = apply(desired, 0, Condition.ACTIVE, math.inf, None, rules, is_initialized=True, probe=lambda: True)
    return applied.wanted


def compare(
    scaler: KnativeScaler, now: float, ready: int, expect: dict[str, Any] | None, spec: dict[str, Any]
) -> list[str]:
    assert expect is not None
    result = scaler.evaluate(now, ready)
    pairs = {
        "scale_valid": result.valid,
        "desired_pod_count": result.desired,
        "excess_burst_capacity": result.excess_burst_capacity,
        "in_panic": result.in_panic,
        "max_panic_pods": result.max_panic_replicas,
    }
    if "bounded_pod_count" in expect:
        pairs["bounded_pod_count"] = bounded(result.desired, spec)
    wrong = [
        f"t={expect['t']} {key}: {got!r}, Knative {expect[key]!r}" for key, got in pairs.items() if got != expect[key]
    ]
    for key, average in (("stable_value", result.stable), ("panic_value", result.panic)):
        # Without data there is no average; the recordings write that as null, one of them as 0.
        expected = expect[key] if expect["scale_valid"] else None
        if not near(average, expected):
            wrong.append(f"t={expect['t']} {key}: {average!r}, Knative {expect[key]!r}")
    return wrong


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_decisions_are_those_of_knative(case: dict[str, Any]) -> None:
    assert differences(case) == []


def test_the_vectors_are_all_there() -> None:
    found = (len(CASES), sum(len(case["expect"]) for case in CASES))
    assert found == (130, 13964) if IS_OWN else min(found) > 0
