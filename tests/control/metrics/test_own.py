"""The control process's own figures."""

from pathlib import Path

from tests.control.watch.test_traffic import demand, sample
from tests.support.worlds.control_world import ControlWorld, function, in_world
from tidegate.function import Scaling, Sla
from tidegate.metrics import CATALOGUE


def test_a_functions_sla_price_and_replicas_are_shown(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function(sla=Sla(latency_s=0.25, percentile=99.0), scaling=Scaling(min_scale=2)))
        await world.advance(4.0)
        text = world.exposition()
        revision = 'function="echo",revision="echo-00001"'
        assert f"tidegate_sla_latency_seconds{{{revision}}} 0.25\n" in text
        assert f"tidegate_sla_objective_ratio{{{revision}}} 0.99\n" in text
        assert f'tidegate_replicas{{{revision},accelerator="cpu",state="ready"}} 2\n' in text
        price = world.backend.devices()[0].price_per_hour
        assert f'tidegate_group_price_per_hour{{{revision},group="cpu"}} {2 * price:g}' in text

    in_world(tmp_path, tell)


def test_quantiles_of_the_last_minute_are_those_of_the_console(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function(sla=Sla(latency_s=0.25, percentile=98.0)))
        assert "tidegate_latency_quantile_seconds{" not in world.exposition(), "no request yet"
        seen = (0.1,) * 9 + (0.4,)
        traffic = world.loop.instruments.traffic
        traffic.record(sample(1, demand(10, latencies=seen, recent=seen)), world.loop.clock.now())
        text, view = world.exposition(), traffic.view("echo", 98.0, world.loop.clock.now())
        for quantile, shown in (("0.5", view.p50_s), ("0.95", view.p95_s), ("0.98", view.tail_s), ("0.99", view.p99_s)):
            assert f'tidegate_latency_quantile_seconds{{function="echo",quantile="{quantile}"}} {shown}\n' in text

    in_world(tmp_path, tell)


def test_without_an_sla_no_objective_is_shown(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function(sla=Sla()))
        await world.advance(1.0)
        assert "tidegate_sla" not in world.exposition()

    in_world(tmp_path, tell)


def test_learnt_service_rates_are_shown_by_group_and_unknown_ones_are_not(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function(scaling=Scaling(min_scale=1)))
        await world.advance(2.0)
        assert "tidegate_group_service_rate{" not in world.exposition()
        core = world.loop.autoscaler.core
        core.mu_ips = lambda revision_id, accelerator: {"cpu": 65.25}.get(accelerator)  # type: ignore[method-assign]
        assert 'tidegate_group_service_rate{function="echo",revision="echo-00001",group="cpu"} 65.25\n' in (
            world.exposition()
        )

    in_world(tmp_path, tell)


def test_samples_of_the_predictor_are_counted_by_verdict(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        assert 'tidegate_prediction_samples_total{verdict="outlier"} 0\n' in world.exposition()

    in_world(tmp_path, tell)


def test_every_metric_is_a_row_of_the_catalogue(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function(scaling=Scaling(min_scale=1)))
        await world.advance(2.0)
        named = {line.split(" ")[2] for line in world.exposition().splitlines() if line.startswith("# TYPE")}
        assert named <= {each.name for each in CATALOGUE}

    in_world(tmp_path, tell)
