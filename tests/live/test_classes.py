"""Two functions on two kinds of accelerators, one of each class: the latency-critical one keeps its SLA while its load
rises and falls, and the other one gets what is left."""

import asyncio
import itertools
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tests.support.live.deployment import REQUEST, Deployment, deployment

pytestmark = [pytest.mark.live, pytest.mark.deep, pytest.mark.timeout(300)]

SERVICE_S = 0.2
SLA_S, PERCENTILE = 2.0, 95
LOW, HIGH = 1.5, 11.0
"""Requests per second of the latency-critical function: one replica carries the first, three the second."""
PLACES = {"cpu": 3, "far": 2}
ACCELERATORS = f"""accelerators:
- {{name: cpu, kind: cpu, cores: 1, count: {PLACES["cpu"]}, memory: 4Gi, price-per-hour: 0.1}}
- {{name: far, kind: emulated, count: {PLACES["far"]}, memory: 4Gi, price-per-hour: 0.2,
   profile: {{base: {SERVICE_S * 1e3:g}ms, per-item: 0ms}}}}
"""
BULK_CLIENTS = 12


def rate(at_s: float) -> float:
    """Returns the requests per second: low for 15 s, up within 30 s, high for 20 s, down within 10 s, low for 25 s."""
    points = [(0.0, LOW), (15.0, LOW), (45.0, HIGH), (65.0, HIGH), (75.0, LOW), (100.0, LOW)]
    for (since, low), (until, high) in itertools.pairwise(points):
        if at_s < until:
            return low + (high - low) * (at_s - since) / (until - since)
    return 0.0


@dataclass
class Seen:
    latencies: list[float] = field(default_factory=list)
    bulk: list[float] = field(default_factory=list)
    """Times of the throughput-oriented answers."""
    failed: list[str] = field(default_factory=list)


async def load(world: Deployment) -> Seen:
    seen, began = Seen(), time.monotonic()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=200)
    async with httpx.AsyncClient(timeout=60.0, trust_env=False, verify=False, limits=limits) as http:

        async def ask(name: str) -> bool:
            answer = await http.post(f"{world.gateway}/v2/models/{name}/infer", json=REQUEST)
            if answer.status_code != 200:
                seen.failed.append(f"{name}: {answer.status_code} {answer.text}")
            return answer.status_code == 200

        async def critical() -> None:
            sent = time.monotonic()
            if await ask("chat"):
                seen.latencies.append(time.monotonic() - sent)

        async def bulk() -> None:
            while rate(time.monotonic() - began):
                if await ask("bulk"):
                    seen.bulk.append(time.monotonic() - began)

        async with asyncio.TaskGroup() as group:
            for _ in range(BULK_CLIENTS):
                group.create_task(bulk())
            due = 0.0
            while now := rate(due):
                await asyncio.sleep(max(0.0, began + due - time.monotonic()))
                group.create_task(critical())
                due += 1.0 / now
    return seen


@pytest.mark.parametrize("policy", ["kpa", "tide"])
def test_the_latency_critical_one_keeps_its_sla_and_the_other_gets_what_is_left(tmp_path: Path, policy: str) -> None:
    file = tmp_path / "accelerators.yaml"
    file.write_text(ACCELERATORS)
    with deployment(tmp_path, "--accelerators-file", str(file)) as world:
        world.up()
        one = ("--concurrency", "1")
        bulk = world.handler(name="bulk", work_s=SERVICE_S)
        world.deploy(bulk, "--wait", "--task-class", "throughput-oriented", *one, "--min-scale", "1", name="bulk")
        chat = world.handler(name="chat", work_s=SERVICE_S)
        sla = ("--policy", policy, "--latency", f"{SLA_S:g}s", "--percentile", str(PERCENTILE), "--min-scale", "1")
        world.deploy(chat, "--wait", *sla, *one, name="chat")
        seen = asyncio.run(load(world))
        explained = world.ask("explain", "bulk")["text"]
    assert seen.failed == []
    late = sum(each > SLA_S for each in seen.latencies) / len(seen.latencies)
    # The best static division leaves the latency-critical one three places for as long as it runs.
    static = (sum(PLACES.values()) - 3) / SERVICE_S
    share = len(seen.bulk) / 100.0 / static
    print(f"{policy}: late {100 * late:.2f} % of {len(seen.latencies)}; bulk {share:.2f} of the static optimum")  # noqa: T201
    assert "place_given_up" in explained
    assert late <= 1.0 - PERCENTILE / 100.0
    assert share >= 0.9
