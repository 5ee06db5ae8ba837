"""Who goes first over two real gateway workers, and which replica equal keys meet at; counted at the model servers."""

import asyncio

import pytest

from tests.support.live.live_edge import Edge, edge, infer, run, table
from tidegate.records.route_table import QueueOrder, Spread

pytestmark = pytest.mark.live

HOLD_MS = "1500"
"""Long enough that all others have come before the slot frees, on a busy machine too."""


async def finished_in_order(world: Edge, requests: list[tuple[str, int, dict[str, str]]]) -> list[str]:
    """Names of the requests (name, worker, fields) in the order of their answers; a longer one holds the slot first."""
    order: list[str] = []

    async def ask(name: str, worker: int, fields: dict[str, str]) -> None:
        async with world.client(worker) as http:
            answer = await infer(http, 1, **fields)
        assert answer.status_code == 200, answer.text
        order.append(name)

    async with asyncio.TaskGroup() as group:
        # Of the best class, in case the next one comes before the first slot does.
        group.create_task(ask("first", 0, {"x_work_ms": HOLD_MS, "tidegate_priority": "0"}))
        await world.arrived(1)
        for number, (name, worker, fields) in enumerate(requests):
            group.create_task(ask(name, worker, {"x_work_ms": "60"} | fields))
            await world.arrived(2 + number)
    assert order.pop(0) == "first"
    return order


def test_a_high_priority_on_one_worker_goes_before_a_low_one_on_another() -> None:
    async def main() -> None:
        async with edge() as world:
            world.start_gateway(2, apart=True)
            replica = world.start_replica(limit="1")
            await world.gateway_ready()
            await world.replica_ready(replica)
            await world.put_table(table(1, replica, workers=2))
            order = await finished_in_order(
                world,
                [
                    ("bulk", 0, {"tidegate_priority": "0", "tidegate_task_class": "throughput-oriented"}),
                    ("low", 0, {"tidegate_priority": "9"}),
                    ("plain", 1, {}),
                    ("high", 1, {"tidegate_priority": "0"}),
                ],
            )
            assert order == ["high", "plain", "low", "bulk"]
            assert (await world.stats(replica))["most"] == 1

    run(main())


def test_by_deadline_who_has_less_time_goes_first_over_both_workers() -> None:
    async def main() -> None:
        async with edge() as world:
            world.start_gateway(2, apart=True)
            replica = world.start_replica(limit="1")
            await world.gateway_ready()
            await world.replica_ready(replica)
            await world.put_table(table(1, replica, workers=2, queue_order=QueueOrder.DEADLINE))
            order = await finished_in_order(
                world,
                [
                    ("patient", 0, {}),
                    ("hurried", 1, {"tidegate_timeout_ms": "10000"}),
                    ("between", 0, {"tidegate_timeout_ms": "15000"}),
                ],
            )
            assert order == ["hurried", "between", "patient"]

    run(main())


def test_by_urgency_who_has_less_time_for_its_size_goes_first() -> None:
    async def main() -> None:
        async with edge() as world:
            world.start_gateway(1)
            replica = world.start_replica(limit="1")
            await world.gateway_ready()
            await world.replica_ready(replica)
            await world.put_table(table(1, replica, queue_order=QueueOrder.URGENCY))
            order = await finished_in_order(
                world,
                [
                    ("small", 0, {"tidegate_timeout_ms": "15000"}),
                    ("large", 0, {"tidegate_batch_size": "8"}),
                    ("hurried", 0, {"tidegate_timeout_ms": "10000"}),
                ],
            )
            assert order == ["large", "hurried", "small"]

    run(main())


def test_equal_keys_meet_at_one_replica_through_either_worker() -> None:
    async def main() -> None:
        async with edge() as world:
            world.start_gateway(2, apart=True)
            replicas = [world.start_replica(limit="8") for _ in range(2)]
            await world.gateway_ready()
            for replica in replicas:
                await world.replica_ready(replica)
            await world.put_table(table(1, *replicas, workers=2, spread=Spread.HASH, hash_on="header:x-user"))
            clients = [world.client(0), world.client(1)]

            async def where(user: str) -> set[int]:
                """Places of the replicas that served six requests of this user, one after the other."""
                before = [(await world.stats(replica))["total"] for replica in replicas]
                for number in range(6):
                    assert (await infer(clients[number % 2], x_user=user)).status_code == 200
                after = [(await world.stats(replica))["total"] for replica in replicas]
                return {place for place, (old, new) in enumerate(zip(before, after, strict=True)) if new > old}

            for number in range(8):  # The first requests open the channels; until then only slots that free are known.
                await infer(clients[number % 2])
            served = [await where(f"user {number}") for number in range(8)]
            for http in clients:
                await http.aclose()
            assert all(len(places) == 1 for places in served), served
            assert set.union(*served) == {0, 1}, "and different keys at both"

    run(main())
