"""Real gateway workers, queue_proxies and model servers: requests through, bounds kept, failures reported."""

import asyncio
import json
from collections import Counter
from contextlib import aclosing
from typing import Any

import httpx
import pytest

from tests.support.deadline import within
from tests.support.live.live_edge import Edge, begin, edge, infer, run, table

pytestmark = pytest.mark.live


def test_a_request_goes_through_and_everybody_counted_it_once() -> None:
    async def main() -> None:
        async with edge() as world:
            world.start_gateway()
            replica = world.start_replica(limit="2")
            await world.gateway_ready()
            await world.replica_ready(replica)
            assert await world.put_table(table(1, replica)) == [{"epoch": 5, "number": 1}]
            async with world.client() as http:
                answer = await infer(http, 3, x_request_id="mine")
                assert answer.status_code == 200
                assert answer.headers["x-request-id"] == "mine"
                assert "model;dur=" in answer.headers["server-timing"]
                assert not [name for name in answer.headers if name.startswith("tidegate-")]
                stripped = await http.post("/functions/f/any/path?q=1", content=b"{}")
                assert stripped.status_code == 200
            seen = (await world.stats(replica))["seen"]
            assert [one["path"] for one in seen] == ["/v2/models/m/infer", "/any/path?q=1"]
            assert not {"tidegate-token", "tidegate-credit", "tidegate-want"} & seen[0].keys()
            gateway, proxy = await world.sample(world.gateway_admin()), await world.sample(replica.admin)
            (demand,) = gateway["demands"]
            assert (demand["arrivals"], demand["arrivals_inferences"], demand["answered"]) == (2, 4, 2)
            assert (proxy["requests"], proxy["inferences"], proxy["in_flight"], proxy["failures"]) == (2, 4, 0, 0)

    run(main())


@pytest.mark.parametrize("workers", [1, 4])
def test_the_limit_is_never_exceeded_by_200_at_once_from_zero(workers: int) -> None:
    """All of them wait for one start; the model counts what runs in it."""

    async def main() -> None:
        async with edge() as world:
            world.start_gateway(workers)
            await world.gateway_ready()
            await world.put_table(table(1, workers=workers))
            async with world.client() as http:
                requests = [begin(infer(http, x_work_ms="2")) for _ in range(200)]
                await world.arrived(100)
                replica = world.start_replica(limit="1")
                await world.put_table(table(2, replica, workers=workers))
                answers = await asyncio.gather(*requests)
            assert Counter(answer.status_code for answer in answers) == {200: 200}
            stats = await world.stats(replica)
            assert (stats["most"], stats["total"]) == (1, 200)

    run(main())


def test_at_zero_the_first_request_asks_for_activation_and_is_answered_after_the_start() -> None:
    async def main() -> None:
        async with edge() as world:
            world.start_gateway()
            await world.gateway_ready()
            await world.put_table(table(1))
            async with (
                httpx.AsyncClient(
                    transport=httpx.AsyncHTTPTransport(uds=world.gateway_admin()[5:]), base_url="http://x", timeout=10
                ) as admin,
                admin.stream("GET", "/activations") as stream,
                world.client() as http,
            ):
                lines = stream.aiter_lines()
                waiting = begin(infer(http, 8))
                first, again = json.loads(await anext(lines)), json.loads(await anext(lines))
                assert (first["function"], first["revision"], first["waiting"]) == ("f", "f-00001", 1)
                assert first["oldest_waiting_s"] < 0.2
                assert first["waiting_inferences"] == 8
                assert 0.15 < again["oldest_waiting_s"] < 1.5, "repeated every 200 ms while it waits"
                replica = world.start_replica(limit="1", delay_s=0.2)
                await world.put_table(table(2, replica))
                answer = await waiting
            assert answer.status_code == 200
            timing = answer.headers["server-timing"]
            for phase in ("cold-decide;dur=1.000", "cold-load;dur=", "cold-first-response;dur="):
                assert phase in timing
            (seen,) = (await world.sample(world.gateway_admin()))["cold_starts"]
            assert seen["replica"] == replica.id
            assert seen["phases"]["first_response_s"] < 1.0

    run(main())


async def demand_when(world: Edge, *, cancelled: int) -> dict[str, Any]:
    """The gateway's counts once so many clients have been seen to leave."""
    while True:
        (demand,) = (await world.sample(world.gateway_admin()))["demands"]
        if demand["cancelled"] >= cancelled:
            return dict(demand)
        await asyncio.sleep(0.01)


def test_health_does_not_wake_and_a_bound_is_a_bound() -> None:
    async def main() -> None:
        async with edge() as world:
            world.start_gateway()
            await world.gateway_ready()
            await world.put_table(table(1, queue_requests=3))
            async with world.client() as http:
                for path in ("/v2/health/ready", "/v2/models/m/ready", "/functions/f/v2/health/ready"):
                    assert (await http.get(path)).status_code == 200
                assert (await world.sample(world.gateway_admin()))["demands"] == []
                waiting = [begin(infer(http)) for _ in range(3)]
                await world.arrived(3)
                refused = await infer(http)
                assert refused.status_code == 429
                assert int(refused.headers["retry-after"]) >= 1
                assert refused.json()["code"] == "queue_full"
                late = await http.post("/functions/f/x", headers={"tidegate-timeout-ms": "100"})
                assert late.status_code == 429
                for one in waiting:
                    one.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)
                demand = await demand_when(world, cancelled=3)
                assert (demand["cancelled"], demand["waiting"], demand["refused"]) == (3, 0, 2)

    run(main())


def test_a_request_past_its_deadline_gets_504_and_never_runs() -> None:
    async def main() -> None:
        async with edge() as world:
            world.start_gateway()
            replica = world.start_replica(limit="1")
            await world.gateway_ready()
            await world.replica_ready(replica)
            await world.put_table(table(1, replica))
            async with world.client() as http:
                running = begin(infer(http, x_work_ms="2000"))
                await world.working(replica)
                late = await asyncio.gather(*(infer(http, tidegate_timeout_ms="200") for _ in range(5)))
                assert {answer.status_code for answer in late} == {504}
                assert {answer.json()["executed"] for answer in late} == {"false"}
                assert (await running).status_code == 200
                overrun = await infer(http, x_work_ms="3000", tidegate_timeout_ms="300")
                assert (overrun.status_code, overrun.json()["executed"]) == (504, "unknown")
                assert (await infer(http)).status_code == 200, "the slot is free again"
            assert (await world.stats(replica))["total"] == 3

    run(main())


def test_kill_of_a_model_server_502_for_what_ran_there_and_the_rest_goes_elsewhere() -> None:
    async def main() -> None:
        async with edge() as world:
            world.start_gateway()
            one, two = world.start_replica(limit="1"), world.start_replica(limit="1")
            await world.gateway_ready()
            await asyncio.gather(world.replica_ready(one), world.replica_ready(two))
            await world.put_table(table(1, one, two))
            async with aclosing(world.events(one)) as events, world.client() as http:
                assert (await anext(events))["state"] == "ready"
                requests = [begin(infer(http, x_work_ms="150")) for _ in range(12)]
                await world.working(one)
                assert one.model is not None
                one.model.kill()
                async with within(5.0):
                    event = await anext(events)
                assert event["state"] == "failed"
                assert "model server is gone" in event["message"]
                answers = await asyncio.gather(*requests)
            statuses = Counter(answer.status_code for answer in answers)
            assert statuses == {200: 11, 502: 1}
            (broken,) = [answer for answer in answers if answer.status_code == 502]
            assert (broken.json()["code"], broken.json()["executed"]) == ("replica_failed", "unknown")
            assert (await world.stats(two))["most"] == 1

    run(main())


def test_large_bodies_pass_both_ways_and_a_client_that_leaves_frees_the_slot() -> None:
    async def main() -> None:
        async with edge() as world:
            world.start_gateway()
            replica = world.start_replica(limit="1")
            await world.gateway_ready()
            await world.replica_ready(replica)
            await world.put_table(table(1, replica))
            async with world.client() as http:
                large = b"z" * 3_000_000
                answers = await asyncio.gather(
                    *(http.post("/functions/f/x", content=large, headers={"x-size": "2000000"}) for _ in range(3))
                )
                assert [len(answer.content) for answer in answers] == [2_000_000] * 3
                with pytest.raises(httpx.ReadTimeout):
                    await http.post("/functions/f/x", headers={"x-work-ms": "5000"}, timeout=0.2)
                answer = await asyncio.wait_for(infer(http), 4.0)
                assert answer.status_code == 200

    run(main())
