"""Knative's helpers, case by case. A kind without counterpart is listed by name with the reason."""

import random
from typing import Any

import pytest

from tests.golden import knative_config
from tests.golden.knative_activator import RequestReporter, capacity
from tests.golden.vectors import IS_OWN, load, near
from tidegate.activator.choice import Pick, replica_pick
from tidegate.autoscaler.measure.sampling import sample_size
from tidegate.autoscaler.policies.kpa import parameters as knative_parameters
from tidegate.autoscaler.policies.kpa.parameters import duration_s
from tidegate.autoscaler.policies.kpa.windows import Average, DelayWindow, LinearWindow, WeightedWindow
from tidegate.autoscaler.policies.kpa.zero import Condition, ZeroRules, active_condition, apply, rules
from tidegate.manifest.foreign import knative_annotations
from tidegate.queue_proxy.metrics import Identity, ReplicaCounters
from tidegate.records.rollout import Ramp
from tidegate.records.route_table import Spread
from tidegate.traffic.ramp import aimed, appeared, in_force, ticked

CASES = load("knative_aux.jsonl")
AUTOSCALING = knative_annotations.AUTOSCALING

COVERED = {
    "active_condition",
    "activator_capacity",
    "activator_reporter",
    "delay_window",
    "derive_spec",
    "lb_policy",
    "request_stats",
    "rollout",
    "sample_size",
    "scale_to_zero",
    "validate_annotations",
    "validate_config",
    "window_average",
}

NOT_BUILT = {
    "num_activators": "no activator deployment: every gateway worker has the waiting room",
    "choose_subset": "no activator subsets: every gateway worker knows every replica",
    "bucket_owner": "one control process owns all revisions",
    "assign_slice": "slots are granted by credits, not by slices of pods",
}
"""Kinds without a counterpart, with the reason."""


def of_kind(kind: str) -> list[Any]:
    return [pytest.param(case, id=case["name"]) for case in CASES if case["kind"] == kind]


def items(kind: str) -> list[Any]:
    return [
        pytest.param(item, id=f"{case['name']}-{index}")
        for case in CASES
        if case["kind"] == kind
        for index, item in enumerate(case["items"])
    ]


def test_every_kind_is_covered_or_listed() -> None:
    kinds = {case["kind"] for case in CASES}
    assert kinds <= COVERED | NOT_BUILT.keys()
    assert not IS_OWN or kinds == COVERED | NOT_BUILT.keys()
    assert not COVERED & NOT_BUILT.keys()


@pytest.mark.parametrize("case", of_kind("window_average"))
def test_window_average(case: dict[str, Any]) -> None:
    is_linear = case["algorithm"] == "linear"
    window: Average = (LinearWindow if is_linear else WeightedWindow)(case["window_s"])
    for name, t, *value in case["ops"]:
        now = case["t0_unix"] + t
        match name:
            case "record":
                window.record(now, value[0])
            case "resize":
                window.resize(now, value[0])
            case "is_empty":
                assert window.is_empty(now) == value[0], t
            case _:
                average = window.average(now)
                assert average == value[0] if is_linear else near(average, value[0]), t


@pytest.mark.parametrize("case", of_kind("delay_window"))
def test_delay_window(case: dict[str, Any]) -> None:
    window = DelayWindow(case["duration_s"], case["granularity_s"])
    for t, value, expected in case["ops"]:
        assert window.record(case["t0_unix"] + t, value) == expected, t


def derived(source: dict[str, Any]) -> dict[str, Any]:
    annotations = {key.removeprefix(AUTOSCALING): value for key, value in (source["annotations"] or {}).items()}
    settings = knative_parameters.config(source["config_autoscaler"] or {})
    result = knative_parameters.derive(
        annotations, settings, source["container_concurrency"], reachable=source["reachability"] != "Unreachable"
    )
    p = result.parameters
    return {
        "activation_scale": p.activation_scale,
        "activator_capacity": settings.activator_capacity,
        "aggregation": "weighted-exponential" if p.is_weighted else "linear",
        "initial_scale": result.initial_scale,
        "max_scale": result.max_scale,
        "max_scale_down_rate": p.max_scale_down_rate,
        "max_scale_up_rate": p.max_scale_up_rate,
        "min_scale": result.min_scale,
        "panic_threshold": p.panic_threshold,
        "panic_window_s": p.panic_window_s,
        "pod_retention_s": result.retention_s,
        "reachable": p.reachable,
        "scale_down_delay_s": p.scale_down_delay_s,
        "scaling_metric": p.metric,
        "stable_window_s": p.stable_window_s,
        "target_burst_capacity": p.target_burst_capacity,
        "target_value": p.target_value,
        "total_value": p.total_value,
    }


@pytest.mark.parametrize("item", [item for case in CASES if case["kind"] == "derive_spec" for item in case["items"]])
def test_derive_spec(item: dict[str, Any]) -> None:
    actual, expected = derived(item["source"]), item["expect"]
    assert actual.keys() == expected.keys()
    for key, value in expected.items():
        same = near(actual[key], value) if isinstance(value, float) else actual[key] == value
        assert same, (key, actual[key], value)


@pytest.mark.parametrize("case", of_kind("sample_size"))
def test_sample_size(case: dict[str, Any]) -> None:
    for population, expected in case["pairs"]:
        assert sample_size(population) == expected, population


@pytest.mark.parametrize(
    "item", [item for case in CASES if case["kind"] == "validate_annotations" for item in case["items"]]
)
def test_validate_annotations(item: dict[str, Any]) -> None:
    given = item["annotations"].items()
    texts = {key.removeprefix(AUTOSCALING): text for key, text in given if key.startswith(AUTOSCALING)}
    config = item["config_autoscaler"] or {}
    found = knative_annotations.faults(
        knative_annotations.chosen(texts),
        allow_zero_initial_scale=config.get("allow-zero-initial-scale") in knative_config.TRUE,
        max_scale_limit=int(config.get("max-scale-limit", "0")),
        pod_autoscaler_class=config.get("pod-autoscaler-class", knative_annotations.KPA_CLASS),
    )
    assert (not found) == item["valid"], found


def test_the_metric_is_that_of_the_class_which_the_cluster_gives() -> None:
    item = {"annotations": {f"{AUTOSCALING}metric": "cpu"}, "valid": True}
    test_validate_annotations(item | {"config_autoscaler": {"pod-autoscaler-class": knative_annotations.HPA_CLASS}})
    test_validate_annotations(item | {"config_autoscaler": {"pod-autoscaler-class": "example.com/x"}})
    test_validate_annotations(item | {"config_autoscaler": None, "valid": False})


class Second:
    """Knative's one-second averages out of the queue_proxy's integral. Arrivals are counted by the gateway here."""

    def __init__(self) -> None:
        self.measure = ReplicaCounters(
            Identity(function="f", revision="f-00001", group="cpu", replica="f-00001-aaaaa", incarnation="i"), 0.0
        )
        self.last = self.reported_at = self.reported = 0.0
        self.running: list[float] = []
        """When the requests in flight began; which of them ends makes no difference to the integral."""

    def event(self, began: bool, now: float) -> None:
        self.last = max(self.last, now)
        if began:
            self.running.append(self.last)
            self.measure.began(self.last, inferences=1)
        else:
            self.measure.ended(self.last, self.running.pop(), 1, 0.0, None, 200, broke=False)

    def average(self, now: float) -> float:
        self.last = max(self.last, now)
        integral = self.measure.in_flight_request_s(self.last)
        grown, elapsed = integral - self.reported, self.last - self.reported_at
        self.reported, self.reported_at = integral, self.last
        return grown / elapsed if elapsed > 0 else 0.0


@pytest.mark.parametrize("case", of_kind("request_stats"))
def test_request_stats_averages(case: dict[str, Any]) -> None:
    both, proxied = Second(), Second()
    for name, t, *value in case["ops"]:
        if name != "report":
            both.event(name.endswith("in"), t)
            if name.startswith("proxied"):
                proxied.event(name.endswith("in"), t)
            else:
                proxied.last = max(proxied.last, t)
            continue
        assert both.average(t) == pytest.approx(value[0]["average_concurrency"], rel=1e-9, abs=1e-12), t
        assert proxied.average(t) == pytest.approx(value[0]["average_proxied_concurrency"], rel=1e-9, abs=1e-12), t


@pytest.mark.parametrize("case", of_kind("rollout"))
def test_rollout(case: dict[str, Any]) -> None:
    ramp = Ramp(goal=0, parts=())
    for step in case["steps"]:
        now = step["t"]
        if step.get("ingress_became_ready"):
            ramp = in_force(ramp, case["rollout_duration_s"], now)
        if "goal_percent" in step:
            ramp = aimed(ramp, step["goal_percent"])
        if "goal_revision" in step:
            ramp = appeared(ramp, int(step["goal_revision"].removeprefix("r")), now)
        ramp = ticked(ramp, now)
        split = [(f"r{revision}", percent) for revision, percent in ramp.parts]
        assert split == [(part["revision"], part["percent"]) for part in step["split"]], now
        assert ramp.step == step["step_size"], now
        assert ramp.period_s == pytest.approx(step["step_duration_s"], abs=1e-9), now
        assert near(ramp.next_at, step.get("next_step_t")), now


def test_a_revision_that_appears_as_the_route_of_the_one_before_comes_into_force_begins_anew() -> None:
    """The steps are laid out first, for the two; then they are cleared, and the second one, emptied, has left."""
    done = {"step_size": 0, "step_duration_s": 0}
    first, third = {"revision": "r1", "percent": 99}, {"revision": "r3", "percent": 1}
    steps = [
        {"t": 0, "goal_revision": "r1", "goal_percent": 100, "split": [{"revision": "r1", "percent": 100}], **done},
        {"t": 10, "goal_revision": "r2", "split": [first, {"revision": "r2", "percent": 1}], **done},
        {"t": 12, "goal_revision": "r3", "ingress_became_ready": True, "split": [first, third], **done},
        {"t": 13, "ingress_became_ready": True, "split": [first, third], "step_size": 2, "step_duration_s": 1}
        | {"next_step_t": 14},
    ]
    test_rollout({"rollout_duration_s": 60, "steps": steps})


@pytest.mark.parametrize("item", items("validate_config"))
def test_validate_config(item: dict[str, Any]) -> None:
    found = knative_config.faults(item["config_autoscaler"] or {})
    assert (not found) == item["valid"], found


def zero_rules(item: dict[str, Any]) -> ZeroRules:
    """From annotations and cluster settings, as Knative derives them."""
    annotations = item["annotations"] or {}
    config = item["config_autoscaler"] or {}
    derived = knative_parameters.derive(
        {key.removeprefix(AUTOSCALING): value for key, value in annotations.items()},
        knative_parameters.config(config),
        0.0,
        reachable=not item["unreachable"],
    )
    deadline_s = duration_s(annotations.get("serving.knative.dev/progress-deadline", ""))
    return rules(
        derived,
        grace_s=duration_s(config.get("scale-to-zero-grace-period", "")) or 30.0,
        progress_deadline_s=600.0 if deadline_s is None else deadline_s,
        is_enabled=config.get("enable-scale-to-zero", "true") in knative_config.TRUE,
    )


@pytest.mark.parametrize("item", items("scale_to_zero"))
def test_scale_to_zero(item: dict[str, Any]) -> None:
    probes = []

    def probe() -> bool:
        probes.append(item["activator_probe"])
        return bool(item["activator_probe"] == "ok")

    in_path_s = None if item["sks_mode"] != "Proxy" else max(0.0, item["sks_proxy_for_s"])
    result = apply(
        item["desired_scale"],
        item["current_replicas"],
        Condition(item["active_condition"]),
        item["in_state_for_s"],
        in_path_s,
        zero_rules(item),
        is_initialized=item["scale_target_initialized"],
        probe=probe,
    )
    assert {
        "returned_scale": result.wanted,
        "applied_replicas": result.replicas,
        "requeue_after_s": [] if result.again_in_s is None else [result.again_in_s],
        "sync_probes": len(probes),
        "async_probe_started": int(result.is_probe_needed),
    } == item["expect"]


@pytest.mark.parametrize("item", items("active_condition"))
def test_active_condition(item: dict[str, Any]) -> None:
    bounds = ZeroRules(min_scale=int(item["min_scale"]), initial_scale=int(item["initial_scale"]))
    before = Condition(item["active_condition"])
    found = active_condition(
        item["want"], item["ready"], before, bounds, is_initialized=item["scale_target_initialized"]
    )
    assert {
        "active_condition": found.condition.value,
        "reason": found.reason,
        "scale_target_initialized": found.is_initialized,
    } == item["expect"]


@pytest.mark.parametrize("case", of_kind("activator_reporter"))
def test_activator_reporter(case: dict[str, Any]) -> None:
    reporter = RequestReporter()
    for name, t, *rest in case["ops"]:
        if name == "out":
            reporter.ended(t)
            continue
        sent = reporter.began(t) if name == "in" else reporter.report(t)
        expected = rest[-1] or []
        assert len(expected) == (sent is not None), (name, t)
        if sent is not None:
            assert near(sent.average_concurrency, expected[0]["average_concurrency"]), (name, t)
            assert sent.request_count == expected[0]["request_count"], (name, t)


@pytest.mark.parametrize("item", items("activator_capacity"))
def test_activator_capacity(item: dict[str, Any]) -> None:
    found = capacity(item["container_concurrency"], item["assigned_pods"], item["ready_backends"], item["activators"])
    assert found == item["capacity"]


class Pod:
    """A replica with so many slots, as the choice sees it."""

    def __init__(self, slots: int) -> None:
        self.free = slots

    def fits(self, inferences: int) -> bool:
        return self.free >= inferences


SPREADS = {
    "first-available": Spread.FIRST_AVAILABLE,
    "round-robin": Spread.ROUND_ROBIN,
    "random-choice-two": Spread.POWER_OF_TWO,
}


@pytest.mark.parametrize("case", of_kind("lb_policy"))
def test_lb_policy(case: dict[str, Any]) -> None:
    """The gateway's own choice. What is random there is not compared pod by pod: any pod with a free slot is right."""
    spread = SPREADS[case["policy"]]
    pick: Pick[Pod] = replica_pick(spread)
    pods, turn, rng = [Pod(case["container_concurrency"]) for _ in range(case["pods"])], 0, random.Random(1)
    for step, (name, index) in enumerate(case["ops"]):
        if name == "release":
            pods[index].free += 1
            continue
        taken = pick(pods, turn, 1, rng)
        if spread is Spread.POWER_OF_TWO:
            assert (taken is None) == (index is None), step
        else:
            assert (None if taken is None else pods.index(taken)) == index, step
        if index is not None:
            assert pods[index].free > 0, step
            pods[index].free -= 1
            turn = (index + 1) % len(pods)
