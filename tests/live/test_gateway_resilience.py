"""Real replicas that break off or are slow behind a real gateway worker: ejection, retry storms, hedges, access log."""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import pytest

from tests.support.live.live_edge import Edge, Replica, client, edge, infer, run, table
from tidegate.flow.retry_budget import FLOOR_PER_S, WINDOW_S
from tidegate.records.route_table import HeaderMatch, Hedging, OutlierRules, RouteMatch, Spread

pytestmark = pytest.mark.live
MODEL = Path(__file__).resolve().parents[1] / "support" / "models" / "scripted_server.py"


def start(world: Edge, limit: int) -> Replica:
    """A replica whose model server has moods."""
    replica = world.start_replica(limit=str(limit), model=False)
    replica.model = subprocess.Popen([sys.executable, str(MODEL), "--listen", replica.upstream, "--work-ms", "10"])
    return replica


async def two(world: Edge, limit: int, **settings: Any) -> tuple[Replica, Replica]:
    world.start_gateway()
    one, other = start(world, limit), start(world, limit)
    await world.gateway_ready()
    await asyncio.gather(*(world.replica_ready(replica) for replica in (one, other)))
    await world.put_table(table(1, one, other, **settings))
    return one, other


async def mood(replica: Replica, **mood: Any) -> None:
    async with client(replica.upstream) as http:
        assert (await http.post("/mood", json=mood)).status_code == 200


async def metric(world: Edge, name: str) -> int:
    async with client(world.gateway_admin()) as http:
        text = (await http.get("/metrics")).text
    start = f'tidegate_gateway_{name}{{function="f",revision="f-00001"}} '
    (value,) = [line.removeprefix(start) for line in text.splitlines() if line.startswith(start)]
    return int(value)


async def together(http: httpx.AsyncClient, requests: int, lanes: int) -> tuple[Counter[int], float]:
    """So many requests, at most ``lanes`` at once: their statuses, and the longest time that one took."""
    statuses: Counter[int] = Counter()
    left, longest = iter(range(requests)), 0.0

    async def lane() -> None:
        nonlocal longest
        for _ in left:
            begun = monotonic()
            statuses[(await infer(http)).status_code] += 1
            longest = max(longest, monotonic() - begun)

    await asyncio.gather(*(lane() for _ in range(lanes)))
    return statuses, longest


def test_a_replica_that_breaks_off_every_request_is_ejected_and_comes_back_when_it_is_well() -> None:
    async def main() -> None:
        rules = OutlierRules(failures=3, ejection_s=1.0)
        async with edge() as world:
            settings: dict[str, Any] = {"outlier": rules, "probe_path": "/probe", "spread": Spread.ROUND_ROBIN}
            sick, well = await two(world, 4, **settings)
            async with world.client() as http:
                assert await together(http, 20, 2) >= (Counter({200: 20}), 0.0)
                assert (await world.stats(sick))["total"] >= 1
                await mood(sick, breaks=True)
                statuses, _ = await together(http, 60, 1)
                assert statuses == {502: 3, 200: 57}, "so many in a row, and then no client sees it"
                assert await metric(world, "ejected_replicas") == 1
                until = monotonic() + 3.0
                while (
                    monotonic() < until
                ):  # Its time is over more than once meanwhile, but probes tell that it is sick.
                    assert (await infer(http)).status_code == 200
                before = (await world.stats(sick))["total"]
                await mood(sick, breaks=False)
                while (await world.stats(sick))["total"] == before:
                    assert (await infer(http)).status_code == 200
                assert (await metric(world, "ejected_replicas"), await metric(world, "ejections_total")) == (0, 1)
            assert (await world.stats(well))["total"] > 60

    run(main())


def test_when_all_replicas_fail_retries_stay_within_the_budget() -> None:
    async def main() -> None:
        async with edge() as world:
            settings: dict[str, Any] = {"idempotent": True, "retry_percent": 20.0, "outlier": OutlierRules(failures=0)}
            one, other = await two(world, 100, **settings)
            for replica in (one, other):
                await mood(replica, breaks=True)
            begun = monotonic()
            async with world.client() as http:
                statuses, _ = await together(http, 300, 100)
            assert statuses == {502: 300}
            attempts = (await world.stats(one))["total"] + (await world.stats(other))["total"]
            assert 300 < attempts <= 300 * 1.2 + FLOOR_PER_S * (WINDOW_S + monotonic() - begun)
            assert await metric(world, "retries_total") == attempts - 300
            assert await metric(world, "denied_retries_total") > 0

    run(main())


def test_when_all_replicas_fail_most_requests_fail_fast_until_one_is_answered() -> None:
    async def main() -> None:
        async with edge() as world:
            one, other = await two(world, 4, outlier=OutlierRules(failures=2, ejection_s=60.0))
            for replica in (one, other):
                await mood(replica, breaks=True)
            async with world.client() as http:
                statuses, _ = await together(http, 200, 1)
                assert set(statuses) == {502, 503}
                assert statuses[503] > 100
                while (refused := await infer(http)).status_code == 502:
                    pass  # One request in a while is let through.
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
                for replica in (one, other):
                    await mood(replica, breaks=False)
                while (await infer(http)).status_code != 200:
                    pass
                assert await together(http, 50, 4) >= (Counter({200: 50}), 0.0)

    run(main())


def test_hedges_cut_the_tail_of_a_slow_replica_and_nothing_runs_on() -> None:
    async def main() -> None:
        async with edge() as world:
            hedging = Hedging(percentile=None, after_s=0.05)
            slow, fast = await two(world, 4, idempotent=True, hedging=hedging, retry_percent=100.0)
            await mood(slow, delay_s=14.0)
            async with world.client() as http:
                statuses, longest = await together(http, 60, 2)
            assert statuses == {200: 60}
            assert longest < 12.0, "without hedges every request to the slow replica takes 14 s"
            won, copies = await metric(world, "won_hedges_total"), await metric(world, "hedges_total")
            assert 1 <= won <= copies
            while (counts := await world.stats(slow))["running"]:
                pass
            assert counts["cancelled"] == counts["total"], "every request there lost and was aborted"
            # A copy whose first answer came at the same moment is withdrawn before it is read.
            assert 60 + won <= counts["total"] + (await world.stats(fast))["total"] <= 60 + copies
            sample = await world.sample(world.gateway_admin())
            (demand,) = sample["demands"]
            assert (demand["arrivals"], demand["answered"], demand["cancelled"]) == (60, 60, 0)
            for replica in (slow, fast):
                assert (await world.sample(replica.admin))["in_flight"] == 0

    run(main())


def test_hedges_stay_within_the_budget() -> None:
    async def main() -> None:
        async with edge() as world:
            hedging = Hedging(percentile=None, after_s=0.01)
            one, other = await two(world, 60, idempotent=True, hedging=hedging, retry_percent=5.0)
            for replica in (one, other):
                await mood(replica, delay_s=0.5)
            async with world.client() as http:
                statuses, _ = await together(http, 100, 50)
            assert statuses == {200: 100}
            attempts = (await world.stats(one))["total"] + (await world.stats(other))["total"]
            assert 100 < attempts <= 100 * 1.05 + FLOOR_PER_S * WINDOW_S

    run(main())


def test_rules_priorities_and_the_access_log_of_one_worker() -> None:
    async def main() -> None:
        async with edge() as world:
            world.is_logged = True
            world.config = {"access_sampling": 1.0, "log_format": "json"}
            world.start_gateway()
            replica = world.start_replica(limit="1")
            await world.gateway_ready()
            await world.replica_ready(replica)
            rule = RouteMatch(path_prefix="/predict", headers=(HeaderMatch(name="x-tier", value="gold"),))
            await world.put_table(table(1, replica, matches=(rule,)))
            async with world.client() as http:
                assert (await http.post("/predict/now?key=secret", content=b"{}")).status_code == 404
                gold = {"x-tier": "gold", "x-request-id": "mine"}
                assert (await http.post("/predict/now?key=secret", content=b"{}", headers=gold)).status_code == 200
                assert (await infer(http, tidegate_priority="10")).status_code == 400
                assert (await infer(http, tidegate_priority="0")).status_code == 200
            assert all("tidegate-priority" not in seen for seen in (await world.stats(replica))["seen"])
            lines: list[str] = []
            while len(lines) < 4:
                await asyncio.sleep(0.05)
                lines = world.logs[0].read_text().splitlines()
        said = [json.loads(line) for line in lines]
        assert [(line["status"], line["function"], line["ending"]) for line in said] == [
            (404, None, "answered"),
            (200, "f", "answered"),
            (400, "f", "answered"),
            (200, "f", "answered"),
        ]
        assert (said[1]["request_id"], said[1]["path"], said[1]["replica"]) == ("mine", "/predict/now", replica.id)
        assert said[1]["bytes_in"] == 2
        assert said[1]["total_ms"] >= said[1]["first_byte_ms"] >= said[1]["wait_ms"] >= 0

    run(main())
