"""Pipelines that are scaled live: policies over all stages under a burst, and a graph that meets its p99 and is divided
again when one of its models becomes twice as slow."""

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live.test_pipelines import Pipelines
from tests.support.live.deployment import deployment, places

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

WAIT = """\
import time

class Stage:
    arrays = "plain"
    inputs = {{"x": ("FP64", [-1, 1])}}
    outputs = {{"{output}": ("FP64", [-1, 1])}}
    concurrency = {concurrency}

    def predict(self, inputs):
        time.sleep({work_s})
        return {{"{output}": inputs["x"]}}
"""
JOINED = """\
import time

class Stage:
    arrays = "plain"
    inputs = {{"left": ("FP64", [-1, 1]), "right": ("FP64", [-1, 1])}}
    outputs = {{"{output}": ("FP64", [-1, 1])}}
    concurrency = 4

    def predict(self, inputs):
        time.sleep({work_s})
        return {{"{output}": [[a + b for a, b in zip(*each)] for each in zip(inputs["left"], inputs["right"])]}}
"""
SETTINGS = (
    "tidegate.dev/latency: 1500ms, tidegate.dev/percentile: '99', "
    "tidegate.dev/policy.stabilization: 2s, tidegate.dev/policy.load-window: 3s"
)
BODY = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP64", "data": [1.0]}]}


class OpenLoop:
    """Requests at a rate, whatever becomes of the ones before; latencies of those that were answered."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.latencies: list[float] = []
        self.failed: list[str] = []

    async def run(self, rate: Callable[[float], float], seconds: float) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        async with httpx.AsyncClient(trust_env=False, timeout=60.0, limits=limits) as http:
            began = due = time.monotonic()
            async with asyncio.TaskGroup() as group:
                while (at := due - began) < seconds:
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
                    group.create_task(self._one(http))
                    due += 1.0 / rate(at)

    async def _one(self, http: httpx.AsyncClient) -> None:
        began = time.monotonic()
        answer = await http.post(self.url, json=BODY)
        if answer.status_code == 200:
            self.latencies.append(time.monotonic() - began)
        else:
            self.failed.append(f"{answer.status_code} {answer.text[:200]}")

    def p99(self) -> float:
        return statistics.quantiles(self.latencies, n=100)[98]


def decisions(world: Pipelines, function: str) -> list[dict[str, Any]]:
    found = json.loads(world.place.cli("explain", function, "--last", "60", "--json").stdout)["decisions"]
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize(
    "policy",
    [
        "themis",
        pytest.param("horizontal-only", marks=pytest.mark.deep),
        pytest.param("vertical-only", marks=pytest.mark.deep),
    ],
)
def test_a_policy_over_all_stages_orders_both_for_one_burst(policy: str, tmp_path: Path) -> None:
    """50 and 20 ms of one core by their profiles: a burst of 40/s needs more than one of the first, or of its cores."""
    names = ("heavy", "light")
    with deployment(tmp_path, *places(tmp_path, 12)) as place:
        place.up()
        world = Pipelines(place, tmp_path)
        stages = [
            world.stage(name, work_s=work_s, code=WAIT.replace("{concurrency}", "4"))
            for name, work_s in zip(names, (0.05, 0.02), strict=True)
        ]
        whole = world.pipeline(
            "whole",
            '{function: heavy, profile: "50,0,0,0"}',
            '{function: light, profile: "20,0,0,0"}',
            annotations=f"{{tidegate.dev/policy: {policy}, {SETTINGS}}}",
        )
        world.deploy(*(each.replace('max-scale: "2"', 'max-scale: "6"') for each in stages), whole)
        world.until_ready(*names)
        load = OpenLoop(f"{place.gateway}/v2/models/whole/infer")
        asyncio.run(load.run(lambda at: 4.0 if at < 4.0 else 40.0, 12.0))
        assert not load.failed, load.failed[:3]
        found = {name: decisions(world, name) for name in names}
        assert all({each["policy"] for each in rows} == {policy} for rows in found.values())
        counts = {each["desired"] or 0 for each in found["heavy"]}
        cores = {each["cores"] or 0 for each in found["heavy"]}
        if policy == "horizontal-only":
            assert max(counts) >= 2 and max(cores) <= 1
        else:
            assert max(cores) >= 2, "cores are ordered, as far as the machine has them"
        assert policy != "vertical-only" or max(counts) == 1
        words = place.cli("explain", "light").stdout
        assert "a stage of whole, which scales it" in words
        sys.stdout.write(
            f"\n{policy}: {len(load.latencies)} answered, p99 {1e3 * load.p99():.0f} ms; of heavy up to {max(counts)}"
            f" replicas, {max(cores)} cores\n"
        )


@pytest.mark.deep
def test_a_graph_meets_its_p99_and_is_divided_anew_when_a_model_becomes_twice_as_slow(tmp_path: Path) -> None:
    """Two models beside each other and one that joins them: 60, 40 and 30 ms, under 600 ms for 99 % of 12/s."""
    with deployment(tmp_path, *places(tmp_path, 16)) as place:
        place.up()
        world = Pipelines(place, tmp_path)

        def manifests(left_s: float) -> list[str]:
            wait = WAIT.replace("{concurrency}", "1")
            stages = [
                world.stage("left", output="left", work_s=left_s, code=wait),
                world.stage("right", output="right", work_s=0.04, code=wait),
                world.stage("sum", work_s=0.03, code=JOINED),
            ]
            return [each.replace('max-scale: "2"', 'max-scale: "6"') for each in stages]

        whole = world.pipeline(
            "graph",
            "{function: left, after: []}",
            "{function: right, after: []}",
            "{function: sum, after: [left, right]}",
            annotations="{tidegate.dev/latency: 600ms, tidegate.dev/percentile: '99'}",
        )
        world.deploy(*manifests(0.06), whole)
        world.until_ready("left", "right", "sum")
        url = f"{place.gateway}/v2/models/graph/infer"

        def budgets() -> dict[str, float]:
            return {each["stage"]: each["budget_s"] for each in place.status("graph")["budgets"]}

        def loaded(seconds: float) -> OpenLoop:
            load = OpenLoop(url)
            asyncio.run(load.run(lambda _: 12.0, seconds))
            assert not load.failed, load.failed[:3]
            return load

        loaded(20.0)  # Until all stages are measured and scaled.
        before, first = budgets(), loaded(20.0)
        world.deploy(*manifests(0.12))
        loaded(40.0)
        after, second = budgets(), loaded(20.0)
        sys.stdout.write(
            f"\np99 {1e3 * first.p99():.0f} ms, budgets {before}; twice as slow: {1e3 * second.p99():.0f} ms, {after}\n"
        )
        assert first.p99() <= 0.6 and second.p99() <= 0.6
        for side in ("left", "right"):
            assert before[side] + before["sum"] <= 0.6 + 1e-6 and after[side] + after["sum"] <= 0.6 + 1e-6
        assert after["left"] > 1.1 * before["left"], "the slower model has more of the SLA"
        assert after["sum"] < before["sum"]
