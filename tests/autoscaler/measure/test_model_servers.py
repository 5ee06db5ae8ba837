"""Metrics of model servers on their way from samples to policies."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.worlds.autoscaling import T0, function, gateway_sample, observation, replica_sample, revision
from tidegate.autoscaler.measure.collector import Collector
from tidegate.autoscaler.measure.model_servers import AppFigures, unit_of
from tidegate.autoscaler.measure.observation import FleetGroup, GroupObservation
from tidegate.autoscaler.policies.hpa import HpaPolicy
from tidegate.function import Scaling
from tidegate.records.replica_sample import AppSample

ONE, OTHER = "resnet-00001-aaaaa", "resnet-00001-bbbbb"


def app(second: int = 0, **values: Any) -> AppSample:
    """Each second: 10 requests of 4 inferences in 5 executions, 50 ms each, 20 of them waited, 30 at work."""
    base = AppSample(
        engine="triton",
        up=True,
        age_s=0.1,
        requests=10.0 * second,
        inferences=40.0 * second,
        executions=5.0 * second,
        request_s=0.5 * second,
        queue_s=0.2 * second,
        compute_s=0.3 * second,
        pending=2.0,
    )
    return replace(base, **values)


class World:
    """Two replicas of one group, sampled every second."""

    def __init__(self) -> None:
        self.collector = Collector()
        self.collector.apply("resnet-00001", T0)
        self.second = 0

    def next(self, **samples: AppSample | None) -> GroupObservation:
        self.second += 1
        now = T0 + self.second
        self.collector.expect(["g0"], [ONE, OTHER])
        self.collector.gateway(gateway_sample(sequence=self.second, uptime_s=100.0 + self.second), now)
        for name, sample in ((ONE, samples.get("one")), (OTHER, samples.get("other"))):
            self.collector.replica(
                replica_sample(
                    name,
                    sequence=self.second,
                    uptime_s=100.0 + self.second,
                    requests=100 + 10 * self.second,
                    inferences=400 + 40 * self.second,
                    execution_s=10.0 + 0.6 * self.second,
                    busy_s=10.0 + 0.5 * self.second,
                    queue_s=0.1 * self.second,
                    app=sample,
                ),
                now,
            )
        fleet = (FleetGroup(accelerator="cpu", ready=(ONE, OTHER), metrics={"gpu-memory": 70.0}),)
        (group,) = self.collector.observe(revision(), fleet, now).groups
        return group


def test_counters_become_means_of_the_last_seconds_and_levels_means_of_replicas() -> None:
    world = World()
    found = [world.next(one=app(n, gpu_utilization=80.0), other=app(n, pending=4.0)) for n in range(1, 6)][-1]
    assert found.metrics == pytest.approx(
        {"request-s": 0.05, "queue-s": 0.02, "compute-s": 0.03, "server-batch": 8.0}
        | {"pending": 3.0, "gpu-utilization": 80.0, "gpu-memory": 70.0}
    )
    assert found.min_execution_s == pytest.approx(0.03)
    assert found.queue_s == pytest.approx(0.01 + 0.02)
    assert found.execution_s == pytest.approx(0.06)


def test_devices_know_better_than_the_server() -> None:
    assert World().next(one=app(gpu_memory=10.0)).metrics["gpu-memory"] == 70.0


def test_stale_figures_leave_what_the_queue_proxy_saw() -> None:
    world = World()
    for second in range(1, 4):
        world.next(one=app(second), other=app(second))
    stale = app(3, up=False, pending=None)
    found = world.next(one=stale, other=stale)
    assert found.metrics == {"gpu-memory": 70.0}
    assert found.min_execution_s != pytest.approx(0.03)
    assert found.queue_s == pytest.approx(0.01)


def test_one_fresh_replica_speaks_for_the_group() -> None:
    world = World()
    found = [world.next(one=app(second), other=app(1, up=False, pending=None)) for second in range(1, 4)][-1]
    assert found.metrics["queue-s"] == pytest.approx(0.02)
    assert found.metrics["pending"] == 2.0


def test_a_mean_in_the_model_is_remembered_over_idle_seconds() -> None:
    figures = AppFigures(3)
    figures.note(app(1), app(0), T0)
    assert figures.metrics([app(1)], T0)["compute-s"] == pytest.approx(0.03)
    assert "compute-s" not in figures.metrics([app(1)], T0 + 10.0)
    assert figures.compute_s == pytest.approx(0.03)


def test_what_the_engine_does_not_tell_has_no_name() -> None:
    figures = AppFigures(3)
    quiet = {"executions": None, "compute_s": None, "queue_s": None}
    figures.note(app(2, **quiet, running=6.0), app(1, **quiet), T0)
    found = figures.metrics([app(2, **quiet, running=6.0)], T0)
    assert found == pytest.approx({"request-s": 0.05, "pending": 2.0, "running": 6.0, "server-batch": 6.0})


@pytest.mark.parametrize("value", [-5.0, 1e300, float("inf"), float("nan")])
def test_a_figure_that_cannot_be_adds_nothing(value: float) -> None:
    figures = AppFigures(3)
    figures.note(app(1, compute_s=value, pending=value), app(0), T0)
    found = figures.metrics([app(1, compute_s=value, pending=value)], T0)
    assert found == pytest.approx({"request-s": 0.05, "queue-s": 0.02, "compute-s": 0.0, "server-batch": 8.0})


def test_policy_hpa_scales_on_any_of_them() -> None:
    parameters = {"metric": "queue-s", "target": "0.01", "window": "1s"}
    policy = HpaPolicy(function(scaling=Scaling(policy="hpa", parameters=parameters)), T0, 2)
    world = World()
    found = [world.next(one=app(second), other=app(second)) for second in range(1, 4)][-1]
    wish = policy.decide(observation(found, at=T0 + 3), T0 + 3)
    assert wish.desired == 4
    assert wish.reasons[0].detail == "queue-s 0.02 s, target 0.01 s, 2 replicas: 4"


def test_units() -> None:
    assert [unit_of(name) for name in ("gpu-memory", "queue-s", "pending", "server-batch")] == [
        "%",
        "s",
        "requests",
        "inferences",
    ]
