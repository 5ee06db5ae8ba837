"""Whatever samples say, the loop goes on and its decisions stay inside the bounds."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.searches import part
from tests.support.worlds.autoscaling import (
    T0,
    activation,
    demand,
    gateway_sample,
    group,
    observation,
    replica_sample,
    revision,
)
from tidegate.autoscaler.decider import Decider
from tidegate.autoscaler.decisions.limits import LimitContext, bounded
from tidegate.autoscaler.measure.collector import Collector
from tidegate.autoscaler.measure.observation import FleetGroup
from tidegate.autoscaler.policies import registry
from tidegate.autoscaler.policies.kpa.parameters import KpaParameters
from tidegate.autoscaler.policies.kpa.policy import KnativeScaler
from tidegate.autoscaler.policies.kpa.windows import LinearWindow
from tidegate.function import Scaling
from tidegate.records.gateway_sample import GroupTraffic

FIGURE = st.one_of(
    st.integers(-5, 10**6),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1.0, 0, 10**40]),
)
GROUP = st.fixed_dictionaries(
    {"group": st.sampled_from(["cpu", "gpu", ""]), "requests": FIGURE, "inferences": FIGURE, "failures": FIGURE},
    optional={"latency": st.lists(st.tuples(st.integers(-3, 400), FIGURE), max_size=3).map(tuple)},
).map(lambda values: GroupTraffic(**values))  # type: ignore[arg-type]  # the figures may be of any kind
DEMAND = st.fixed_dictionaries(
    {},
    optional={
        "arrivals": FIGURE,
        "arrivals_inferences": FIGURE,
        "answered": FIGURE,
        "within_sla": FIGURE,
        "waiting": FIGURE,
        "waiting_inferences": FIGURE,
        "oldest_waiting_s": FIGURE,
        "waiting_request_s": FIGURE,
        "latency": st.lists(st.tuples(st.integers(-3, 400), FIGURE), max_size=3).map(tuple),
        "groups": st.lists(GROUP, max_size=2).map(tuple),
    },
)
REPLICA = st.fixed_dictionaries(
    {},
    optional={
        "requests": FIGURE,
        "inferences": FIGURE,
        "in_flight": FIGURE,
        "queued": FIGURE,
        "limit": FIGURE,
        "busy_s": FIGURE,
        "in_flight_request_s": FIGURE,
        "in_flight_inference_s": FIGURE,
        "execution_s": FIGURE,
        "execution": st.lists(st.tuples(st.integers(-3, 400), FIGURE), max_size=3).map(tuple),
    },
)
STEP = st.fixed_dictionaries(
    {
        "passed": st.floats(0.0, 200.0),
        "sequence": st.integers(-2, 50),
        "uptime_s": FIGURE,
        "incarnation": st.sampled_from(["i1", "i2"]),
        "demand": DEMAND,
        "replica": REPLICA,
        "ready": st.integers(0, 2),
        "starting": st.integers(0, 2),
        "push": st.booleans(),
        "reported_mu": FIGURE,
        "metric": FIGURE,
    }
)


@pytest.mark.parametrize("policy", registry.names())
@given(st.lists(STEP, max_size=12), st.integers(0, 3), st.integers(0, 3))
@part(0.4)
def test_bad_samples_never_stop_the_loop(policy: str, steps: list[dict[str, Any]], low: int, more: int) -> None:
    parameters = {"metric": "gpu-memory"} if policy == "hpa" else {}
    scaling = Scaling(policy=policy, parameters=parameters, min_scale=low, max_scale=low + more)
    spec = revision(scaling=scaling)
    collector, decider, now = Collector(), Decider(), T0
    names = ("resnet-00001-aaaaa", "resnet-00001-bbbbb")
    collector.expect(["g0"], names)
    collector.apply(spec.id, now)
    decider.apply(spec, now)
    for step in steps:
        now += step["passed"]
        head = {"sequence": step["sequence"], "uptime_s": step["uptime_s"], "incarnation": step["incarnation"]}
        collector.gateway(gateway_sample(demand(**step["demand"]), **head), now)
        collector.replica(replica_sample(names[0], **head, **step["replica"]), now)
        mu_ips, metrics = step["reported_mu"], {"gpu-memory": step["metric"]}
        fleet = (
            FleetGroup(
                accelerator="cpu",
                ready=names[: step["ready"]],
                starting=step["starting"],
                room=2,
                mu_ips=mu_ips,
                metrics=metrics,
            ),
        )
        seen = collector.observe(spec, fleet, now)
        decision = decider.activate(activation(), now, seen) if step["push"] else decider.tick(now, seen)
        existing = step["ready"] + step["starting"]
        if decision.desired is not None:
            assert decision.desired <= existing + 2, "never more than there is room for"
            assert scaling.max_scale == 0 or decision.desired <= scaling.max_scale
            assert decision.desired >= min(low, existing + 2, scaling.max_scale or low)
            assert decision.groups is not None
            assert sum(row.replicas for row in decision.groups) == decision.desired
        if decision.desired == 0 and existing > 0:
            assert seen.complete, "zero is decided on complete data only"
        assert decision.reasons
        assert "policy_failed" not in {each.code for each in decision.reasons}, decision.reasons


@given(
    wish=st.none() | st.integers(0, 20),
    ready=st.integers(0, 5),
    starting=st.integers(0, 3),
    complete=st.booleans(),
    waiting=st.integers(0, 2),
    idle_s=st.floats(0, 200),
    low=st.integers(0, 3),
    initial=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_limits_hold_for_every_wish(
    wish: int | None, ready: int, starting: int, complete: bool, waiting: int, idle_s: float, low: int, initial: bool
) -> None:
    seen = observation(group(ready=ready, starting=starting), complete=complete, waiting=waiting)
    standing = LimitContext(idle_s=idle_s, is_initial=initial)
    desired, reasons = bounded(wish, seen, Scaling(min_scale=low), standing)
    if desired is None:
        assert seen.existing >= low
        return
    assert desired >= low
    if not complete:
        assert desired >= seen.existing, "blind: nothing is taken away"
    if desired == 0 and seen.existing > 0:
        assert (seen.existing, complete, waiting) == (1, True, 0)
        assert idle_s >= 60.0
    if desired == 0:
        assert reasons[-1].code in ("idle", "asleep")


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 500)), min_size=1, max_size=60), st.integers(1, 30))
@settings(max_examples=100, deadline=None)
def test_a_linear_average_lies_between_zero_and_the_largest_second(
    records: list[tuple[float, float]], seconds: int
) -> None:
    window, now = LinearWindow(seconds), T0
    by_second: dict[int, float] = {}
    for passed, value in records:
        now += passed
        window.record(now, value)
        by_second[math.floor(now)] = by_second.get(math.floor(now), 0.0) + value
    average = window.average(now)
    assert -1e-6 <= average <= max(by_second.values()) + 1e-6
    assert window.average(now + seconds + 1) == 0.0


@given(st.lists(st.tuples(st.floats(0, 1000), st.integers(0, 8)), min_size=1, max_size=80))
@settings(max_examples=100, deadline=None)
def test_panic_never_shrinks(loads: list[tuple[float, int]]) -> None:
    scaler, before = KnativeScaler(KpaParameters(target_value=7.0, total_value=10.0), T0, 1), 0
    for second, (load, ready) in enumerate(loads):
        scaler.record(T0 + second, load)
        result = scaler.evaluate(T0 + second, ready)
        assert result.valid
        if result.in_panic:
            assert result.desired >= before
        before = result.desired if result.in_panic else 0
