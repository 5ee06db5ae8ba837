"""Scaling of pipelines: what a stage's policy sees, when budgets move, and decisions over all stages at once."""

from dataclasses import replace
from typing import Any

import pytest
from msgspec import UNSET, UnsetType

from tests.autoscaler.test_autoscaler import MemoryLog, Status
from tests.support.worlds.autoscaling import T0, function, group, observation
from tidegate.autoscaler.autoscaler import Autoscaler, StandaloneContext
from tidegate.autoscaler.measure.observation import AcceleratorRoom, Observation, StageOrder
from tidegate.autoscaler.pipelines.scaling import REVIEW_S, SOONEST_S, Pipelines
from tidegate.clock import ManualClock
from tidegate.function import Function, Revision, Scaling, Server, ServerKind, Sla
from tidegate.records.pipeline import Stage
from tidegate.records.replica_state import ReplicaState

A, B = (function(name, sla=Sla()) for name in "ab")


def pipeline(
    *stages: str, name: str = "p", latency_s: float | None = 0.4, policy: str = "tide", **parameters: str
) -> Function:
    profile = "100,0,0,0" if policy == "themis" else None
    return Function(
        name=name,
        server=Server(kind=ServerKind.STAGES, stages=tuple(Stage(function=each, profile=profile) for each in stages)),
        sla=Sla(latency_s=latency_s, percentile=98.0),
        scaling=Scaling(policy=policy, parameters=parameters),
    )


def seen(name: str, service_s: float | None, *, rps: float = 10.0, at: float = T0, **values: Any) -> Observation:
    there = group(ready=1, limit=4, min_execution_s=service_s, min_execution_occupancy=1.0, mean_batch=1.0, **values)
    return observation(there, function=name, revision=f"{name}-00001", at=at, rps=rps, lambda_ips=rps)


def known(*functions: Function) -> Pipelines:
    found = Pipelines()
    assert found.apply(functions)
    return found


def target(pipelines: Pipelines, stage: Function) -> float:
    return pipelines.scaled(stage).sla.latency_s or 0.0


def test_stages_are_scaled_by_the_pipelines_policy_under_a_part_of_its_sla() -> None:
    pipelines = known(pipeline("a", "b", policy="smif", cooldown="30s"))
    found = pipelines.scaled(A)
    assert (found.scaling.policy, found.scaling.parameters) == ("smif", {"cooldown": "30s"})
    assert found.sla.latency_s == pytest.approx(0.2)
    assert found.sla.percentile == 99.0
    other = function("c")
    assert pipelines.scaled(other) is other, "no stage: as it was deployed"


def test_a_stage_with_a_target_of_its_own_keeps_it_and_its_policy() -> None:
    own = function("a", sla=Sla(latency_s=0.1), scaling=Scaling(policy="smif"))
    pipelines = known(pipeline("a", "b"))
    assert pipelines.scaled(own) is own
    pipelines.review(T0)
    assert target(pipelines, B) == pytest.approx(0.3)


def test_a_pipeline_without_a_latency_changes_nothing() -> None:
    assert not Pipelines().apply([pipeline("a", "b", latency_s=None), A, B])


def test_of_several_pipelines_the_smallest_budget_counts() -> None:
    pipelines = known(pipeline("a", "b"), pipeline("a", "b", name="q", latency_s=0.2, policy="smif"))
    found = pipelines.scaled(A)
    assert found.sla.latency_s == pytest.approx(0.1)
    assert found.scaling.policy == "tide"


def test_budgets_follow_the_measured_times_at_most_each_ten_seconds() -> None:
    pipelines = known(pipeline("a", "b"))
    pipelines.review(T0)
    pipelines.seen(seen("a", 0.05), T0 + 1)
    pipelines.seen(seen("b", 0.01), T0 + 1)
    assert not pipelines.review(T0 + 1), "too soon"
    pipelines.seen(seen("a", 0.05), T0 + SOONEST_S)
    pipelines.seen(seen("b", 0.01), T0 + SOONEST_S)
    assert pipelines.review(T0 + SOONEST_S)
    first = target(pipelines, A)
    assert first > 0.25 and first + target(pipelines, B) == pytest.approx(0.4)
    pipelines.seen(seen("b", 0.02), T0 + 2 * SOONEST_S + 1)
    assert pipelines.review(T0 + 2 * SOONEST_S + 1), "it takes twice as long: divided again at once"
    assert target(pipelines, A) < first


def test_small_changes_wait_for_the_minute_and_do_not_move_a_budget() -> None:
    pipelines = known(pipeline("a", "b"))
    for name in "ab":
        pipelines.seen(seen(name, 0.05), T0)
    assert pipelines.review(T0)
    for name in "ab":
        pipelines.seen(seen(name, 0.052), T0 + REVIEW_S)
    before = target(pipelines, A)
    assert not pipelines.review(T0 + REVIEW_S)
    assert target(pipelines, A) == before
    budgets = pipelines.budgets("p")
    assert budgets is not None and budgets.stages[0].service_s == 0.052, "what it follows from is shown all the same"


def test_a_few_requests_are_enough_for_a_first_division() -> None:
    """A service time by itself is known after some requests; until then the mean execution time counts."""
    pipelines = known(pipeline("a", "b"))
    for name, execution_s in (("a", 0.06), ("b", 0.02)):
        busy = observation(group(ready=1, execution_s=execution_s), function=name, revision=f"{name}-00001", rps=0.2)
        pipelines.seen(busy, T0)
        pipelines.seen(seen(name, None), T0 + 5.0)
    assert pipelines.review(T0 + SOONEST_S)
    assert target(pipelines, A) == pytest.approx(0.3, abs=0.02)


def test_a_service_time_stays_known_while_a_stage_sleeps() -> None:
    pipelines = known(pipeline("a", "b"))
    for name in "ab":
        pipelines.seen(seen(name, 0.05), T0)
    pipelines.review(T0)
    assert not pipelines.review(T0 + REVIEW_S)
    budgets = pipelines.budgets("p")
    assert budgets is not None and budgets.is_measured


def test_a_policy_over_all_stages_decides_for_each_of_them() -> None:
    """35/s: 100 ms on one core each carry 10/s; 400 ms for both leave room for less than four one-core instances."""
    pipelines = known(pipeline("a", "b", policy="themis", headroom="1"))
    for stage in (A, B):
        pipelines.scaled(stage)
    found: list[StageOrder | UnsetType] = []
    for second, ready in ((1, "b"), (2, "ab")):
        now = T0 + second
        found = [pipelines.seen(seen(name, None, rps=35.0, at=now, cores=1), now).order for name in ready]
    orders = [order for order in found if isinstance(order, StageOrder)]
    assert [(each.pipeline, each.desired, each.cores) for each in orders] == [("p", 1, 4), ("p", 1, 4)]
    assert orders[1].reasons[0].code == "cores_for_burst"


def test_orders_go_stale_with_the_observations() -> None:
    pipelines = known(pipeline("a", "b", policy="themis"))
    pipelines.seen(seen("b", None, cores=1), T0)
    assert pipelines.seen(seen("a", None, cores=1), T0).order is not UNSET
    assert pipelines.seen(seen("b", None, cores=1), T0 + 60.0).order is UNSET, (
        "the first stage is not observed any more"
    )


def test_a_stage_that_is_not_ready_holds_the_others() -> None:
    pipelines = known(pipeline("a", "b", policy="themis"))
    starting = observation(group(starting=1, cores=0), function="b", revision="b-00001", at=T0)
    pipelines.seen(starting, T0)
    order = pipelines.seen(seen("a", None, cores=1, rps=50.0), T0).order
    assert order is not UNSET
    assert (order.desired, order.reasons[0].code, order.reasons[0].detail) == (1, "other_stage", "b")


class Scaler:
    """An autoscaler with the stages *a* and *b*."""

    def __init__(self) -> None:
        self.clock = ManualClock(T0)
        self.at = Autoscaler(self.clock, StandaloneContext(), MemoryLog())
        for stage in (A, B):
            self.at.apply(Revision(stage, 1), fresh=False, ready=1)
        rooms = {f"{name}-00001": (AcceleratorRoom(accelerator="cpu", room=3),) for name in "ab"}
        there = [Status(f"{name}-00001-x", ReplicaState.READY, revision=f"{name}-00001", cores=(1,)) for name in "ab"]
        self.at.fleet.put(there, rooms)

    def policies(self) -> list[str]:
        return [each.policy for each in self.at.decide(self.clock.now())]


def test_a_pipeline_that_comes_and_goes_changes_the_policies_of_what_runs() -> None:
    world = Scaler()
    assert world.policies() == ["kpa", "kpa"]
    world.at.pipelines([pipeline("a", "b"), A, B])
    assert world.policies() == ["tide", "tide"]
    assert world.at.scaled(A).sla.latency_s == pytest.approx(0.2)
    world.at.pipelines([A, B])
    assert world.policies() == ["kpa", "kpa"]


def test_a_new_revision_of_a_stage_is_scaled_by_the_pipeline_from_the_beginning() -> None:
    world = Scaler()
    world.at.pipelines([pipeline("a", "b")])
    world.at.apply(Revision(replace(A, timeout_s=1.0), 2))
    kept = world.at.decider.revision("a-00002")
    assert kept is not None and kept.function.scaling.policy == "tide"


def test_another_budget_keeps_what_a_policy_knows() -> None:
    world = Scaler()
    world.at.pipelines([pipeline("a", "b")])
    world.policies()
    before = world.at.decider._states["a-00001"].policy
    world.at.pipelines([pipeline("a", "b", latency_s=0.6)])
    assert world.at.decider._states["a-00001"].policy is before
    assert world.at.scaled(A).sla.latency_s == pytest.approx(0.3)
    world.at.pipelines([pipeline("a", "b", policy="smif")])
    assert world.at.decider._states["a-00001"].policy is not before
