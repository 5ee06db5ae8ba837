"""Tenants whose connections all end at gateway workers of their own: real workers, one queue_proxy between them."""

import asyncio
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest

from tests.support.live.live_edge import edge, infer, run, table
from tidegate.records.tenants import AccessRule, Tenant, digest

pytestmark = [pytest.mark.live, pytest.mark.early]

KEYS = {"flood": "tg-key-of-the-one-that-floods", "small": "tg-key-of-the-one-with-little"}
WARM_S, RUN_S = 2.0, 12.0


def test_a_flood_of_large_requests_at_one_worker_leaves_the_other_its_part() -> None:
    """Batches of 20 (400 ms) from 40 callers at one worker, of 2 (40 ms) from 20 at the other, for two slots: so few
    requests a second that the callers, who share the machine with all this, always have some waiting."""
    tenants = tuple(Tenant(name=name, keys=(digest(key.encode()),)) for name, key in KEYS.items())
    had: Counter[str] = Counter()

    async def main() -> None:
        async with edge() as world:
            world.start_gateway(2, apart=True)
            replica = world.start_replica(limit="2")
            await world.gateway_ready()
            await world.replica_ready(replica)
            await world.put_table(
                replace(table(1, replica, workers=2, access=AccessRule(api_keys=True)), tenants=tenants)
            )
            begins = time.monotonic() + WARM_S

            async def loop(name: str, worker: int, batch: int, work_ms: str) -> None:
                async with world.client(worker) as http:
                    while True:
                        answer = await infer(http, batch, x_work_ms=work_ms, x_api_key=KEYS[name])
                        assert answer.status_code == 200, answer.text
                        had[name] += batch * (time.monotonic() >= begins)

            with suppress(TimeoutError):
                async with asyncio.timeout(WARM_S + RUN_S), asyncio.TaskGroup() as group:
                    for _ in range(40):
                        group.create_task(loop("flood", 0, 20, "400"))
                    for _ in range(20):
                        group.create_task(loop("small", 1, 2, "40"))
            assert (await world.stats(replica))["most"] == 2

    run(main())
    sys.stdout.write(f"inferences: {dict(had)}\n")
    assert 0.85 < had["flood"] / had["small"] < 1.2
