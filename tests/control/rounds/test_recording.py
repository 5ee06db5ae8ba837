"""What seconds of the world leave in the time series."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.worlds.autoscaling import demand
from tests.support.worlds.control_world import ControlWorld, function, in_world
from tidegate.autoscaler.measure.history import SeriesLine
from tidegate.control.rounds.recording import in_use
from tidegate.deploy.backend import ReplicaStatus
from tidegate.function import Scaling
from tidegate.histogram import Histogram, fine_buckets
from tidegate.records.gateway_sample import GroupTokens, TokensSeen
from tidegate.records.replica_state import ReplicaState


def line(world: ControlWorld, metric: str, group: str | None = None) -> SeriesLine:
    answer = world.loop.instruments.history.query("echo", world.clock.now(), since_s=5.0, metric=metric, group=None)
    return next(line for line in answer.lines if line.group == group)


def values(world: ControlWorld, metric: str, group: str | None = None) -> list[float | None]:
    return [value for _, value in line(world, metric, group).points]


def test_every_round_writes_a_second_of_each_function_and_group(tmp_path: Path) -> None:
    async def run(world: ControlWorld) -> None:
        await world.deploy(function(scaling=Scaling(min_scale=1)))
        for second in range(1, 8):
            reported = demand("echo-00001", arrivals=4 * second, arrivals_inferences=12 * second, waiting=3)
            world.gateways.demands["echo-00001"] = reported
            await world.advance(1.0)
        assert values(world, "rps") == [4.0] * 5
        assert values(world, "waiting") == [3.0] * 5
        assert values(world, "lambda_ips")[-1] == pytest.approx(12.0, rel=0.2)
        assert values(world, "ready") == values(world, "ready", "cpu")
        assert values(world, "devices", "cpu")[-1] == values(world, "devices")[-1] == len(world.replicas())
        assert values(world, "weight", "cpu")[-1] == 1.0
        assert values(world, "desired")[-1] == values(world, "desired", "cpu")[-1]

    in_world(tmp_path, run)


def test_rates_in_tokens_are_kept_where_they_are_reported(tmp_path: Path) -> None:
    async def run(world: ControlWorld) -> None:
        await world.deploy(function(scaling=Scaling(min_scale=1)))
        for second in range(1, 8):
            group = GroupTokens(group="cpu", inferences=4 * second, prompt=400 * second, completion=80 * second)
            seen = TokensSeen(arrived=500 * second, prompt=group.prompt, completion=group.completion, groups=(group,))
            reported = demand("echo-00001", arrivals=4 * second, arrivals_inferences=4 * second, tokens=seen)
            world.gateways.demands["echo-00001"] = reported
            await world.advance(1.0)
        assert values(world, "lambda_tps")[-1] == pytest.approx(500.0, rel=0.2)
        assert values(world, "tps")[-1] == values(world, "tps", "cpu")[-1] == pytest.approx(480.0, rel=0.2)
        assert line(world, "tps").unit == "tokens/s"

    in_world(tmp_path, run)


def test_latencies_are_the_percentiles_of_the_last_minute_that_status_shows(tmp_path: Path) -> None:
    """Nine in ten take 20 ms, the others 300 ms: p98 is 300 ms, in buckets of less than 1 %."""

    async def run(world: ControlWorld) -> None:
        await world.deploy(function(scaling=Scaling(min_scale=1)))
        latencies = [0.02] * 9 + [0.3]
        for second in range(1, 8):
            seen = Histogram()
            seen.record_all(latencies * second)
            world.gateways.demands["echo-00001"] = demand(
                "echo-00001",
                arrivals=10 * second,
                arrivals_inferences=10 * second,
                answered=10 * second,
                latency=seen.sparse(),
                recent=fine_buckets(latencies),
            )
            await world.advance(1.0)
        assert values(world, "p50_s")[-1] == pytest.approx(0.02, rel=0.01)
        assert values(world, "tail_s")[-1] == pytest.approx(0.3, rel=0.01)
        view = world.loop.instruments.traffic.view("echo", 98.0, world.clock.now())
        shown = values(world, "p50_s")[-1], values(world, "tail_s")[-1]
        assert shown == pytest.approx((view.p50_s, view.tail_s), rel=1e-4)
        await world.advance(61.0)
        world.gateways.demands.clear()
        await world.advance(61.0)
        assert values(world, "tail_s")[-1] is None

    in_world(tmp_path, run)


def test_a_deleted_function_leaves_nothing(tmp_path: Path) -> None:
    async def run(world: ControlWorld) -> None:
        await world.deploy(function())
        await world.advance(3.0)
        assert list(world.loop.instruments.history.functions) == ["echo"]
        await world.delete("echo")
        await world.advance(3.0)
        assert list(world.loop.instruments.history.functions) == []
        assert world.loop.instruments.history.size_bytes == 0

    in_world(tmp_path, run)


def test_shared_devices_count_by_their_share_and_ended_replicas_not_at_all() -> None:
    one = ReplicaStatus(
        id="a",
        function="f",
        revision="f-1",
        accelerator="t4",
        state=ReplicaState.READY,
        address="",
        admin="",
        created_at=0,
    )
    found = [
        replace(one, share=25),
        replace(one, share=50, state=ReplicaState.DRAINING),
        replace(one, accelerator="v100"),
        replace(one, state=ReplicaState.FAILED),
    ]
    assert in_use(found) == {"f": {"t4": 0.75, "v100": 1.0}}
