"""A gateway worker between two revisions: one has the traffic, the other a tag, or copies of what the first gets."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.support.live.live_edge import Edge, Replica, begin, client, edge, infer, run, table
from tidegate.records.route_table import FunctionRoute, GroupRoute, RevisionRoute, RouteTable

pytestmark = pytest.mark.live


def two_revisions(number: int, first: Replica, *second: Replica, **revision: Any) -> RouteTable:
    """``f`` with a second revision without traffic of its own."""
    routes = table(number, first)
    (route,) = routes.functions
    group = GroupRoute(accelerator="cpu", weight=1.0, replicas=tuple(replica.route for replica in second))
    other = RevisionRoute(id="f-00002", percent=0.0, groups=(group,), **revision)
    fields = {name: getattr(route, name) for name in route.__dataclass_fields__}
    function = FunctionRoute(**fields | {"revisions": (*route.revisions, other)})
    return RouteTable(epoch=5, number=number, workers=1, functions=(function,))


async def started(world: Edge, **settings: Any) -> tuple[Replica, Replica]:
    world.start_gateway()
    first, second = world.start_replica(limit="4"), world.start_replica(limit="4", **settings)
    await world.gateway_ready()
    await asyncio.gather(*(world.replica_ready(replica) for replica in (first, second)))
    return first, second


async def shadow(world: Edge, *, compared: int) -> dict[str, Any]:
    """What the second revision's copies showed, once so many were compared."""
    while True:
        demands = (await world.sample(world.gateway_admin()))["demands"]
        for demand in demands:
            if demand["revision"] == "f-00002" and demand["shadow"]["requests"] >= compared:
                assert demand["arrivals"] == 0
                found: dict[str, Any] = demand["shadow"]
                return found
        await asyncio.sleep(0.02)


async def post(http: httpx.AsyncClient, size: int, **fields: str) -> httpx.Response:
    """A request whose body has so many bytes."""
    answer = await http.post(
        "/v2/models/m/infer",
        content=b"{" + b" " * (size - 2) + b"}",
        headers={k.replace("_", "-"): v for k, v in fields.items()},
    )
    assert answer.status_code == 200
    return answer


def test_a_tag_reaches_its_revision_and_wakes_it() -> None:
    async def main() -> None:
        async with edge() as world:
            first, second = await started(world)
            await world.put_table(two_revisions(1, first, tags=("blue",)))
            async with world.client() as http:
                assert (await infer(http)).status_code == 200
                sleeping = begin(infer(http, host="blue-f.localhost"))
                await world.arrived(2)
                await world.put_table(two_revisions(2, first, second, tags=("blue",)))
                assert (await sleeping).status_code == 200
                assert (await infer(http, tidegate_tag="blue")).status_code == 200
                unknown = await infer(http, host="f.localhost", tidegate_tag="green")
            assert (unknown.status_code, unknown.json()["error"]) == (404, "f has no tag 'green'; its tags: blue")
            assert (await world.stats(first))["total"] == 1
            seen = (await world.stats(second))["seen"]
            assert len(seen) == 2
            assert not any(name in one for one in seen for name in ("tidegate-tag", "tidegate-shadow"))

    run(main())


def test_a_shadow_gets_copies_and_its_answers_are_compared() -> None:
    async def main() -> None:
        async with edge() as world:
            first, second = await started(world)
            await world.put_table(two_revisions(1, first, second, shadow_percent=100.0))
            async with world.client() as http:
                await post(http, 10)  # Finds no link to the shadow, and has one made.
                while not (await world.sample(second.admin))["requests"]:
                    await post(http, 10, x_size="10")
                    await asyncio.sleep(0.02)
                before = await shadow(world, compared=1)
                for number in range(5):
                    await post(http, 900_000 if number == 4 else 100, x_size="300000", x_request_id=f"copied-{number}")
                found = await shadow(world, compared=before["requests"] + 5)
                assert found["output_differs"] == before["output_differs"] == 0
                assert (found["failed"], found["status_differs"]) == (0, 0)
                assert found["latency"]
                assert found["served_latency"]
                copies = (await world.stats(second))["seen"][-5:]
                assert [one["x-request-id"] for one in copies] == [f"copied-{number}" for number in range(5)]
                assert {one["tidegate-shadow"] for one in copies} == {"true"}
                assert copies[-1]["content-length"] == "900000", "more than is kept of a body otherwise"
                assert "tidegate-shadow" not in (await world.stats(first))["seen"][-1]
                second.proxy.kill()
                for _ in range(20):
                    await post(http, 100)
                async with client(world.gateway_admin()) as admin:
                    text = (await admin.get("/metrics")).text
            assert 'tidegate_gateway_shadow_requests_total{function="f",revision="f-00002"}' in text
            assert 'tidegate_gateway_within_sla_requests_total{function="f",revision="f-00002"} 0' in text

    run(main())


def test_a_slow_shadow_delays_none_and_takes_no_more_than_its_slots() -> None:
    async def main() -> None:
        async with edge() as world:
            world.start_gateway()
            first = world.start_replica(limit="16")
            second = world.start_replica(limit="1", model=False)
            second.model = world.start_model(second.upstream)
            await world.gateway_ready()
            await asyncio.gather(*(world.replica_ready(replica) for replica in (first, second)))
            await world.put_table(two_revisions(1, first, second, shadow_percent=100.0))
            async with world.client() as http:
                while not (await world.sample(second.admin))["requests"]:
                    await post(http, 10)
                    await asyncio.sleep(0.02)
                await asyncio.gather(*(infer(http, x_work_ms="50") for _ in range(40)))
                demands = {
                    demand["revision"]: demand for demand in (await world.sample(world.gateway_admin()))["demands"]
                }
                assert demands["f-00001"]["failed"] == 0
                assert demands["f-00002"]["shadow"]["skipped"] >= 20
            assert (await world.stats(second))["most"] == 1

    run(main())
