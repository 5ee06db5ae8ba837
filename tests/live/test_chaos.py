"""Three gateway workers before one function with three replicas, under load, and a monkey let loose on all of them.

Counted by the model servers' journals and by the clients: never over a limit, nothing runs twice, nothing hangs, a
killed worker harms only its own connections, graceful stops lose nothing; at the end every counter is at zero and every
slot is there.
"""

import asyncio
import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from tests.support.live.chaos import TIMEOUT_S, ChaosEdge, Monkey, faults, summary
from tests.support.live.raw_clients import Ask, Load, Outcome, Wire, exchange

WORKERS = 3
LIMITS = [4, 3, 2]


async def chaos(seed: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory(prefix="chaos-") as directory:
        world = ChaosEdge(Path(directory))
        try:
            await rage(world, random.Random(seed), seconds)
        finally:
            world.close()


async def rage(world: ChaosEdge, rng: random.Random, seconds: float) -> None:
    await world.begin(WORKERS, LIMITS)
    load = Load(world.ports, random.Random(rng.random()), patience_s=TIMEOUT_S * 2)
    monkey = Monkey(world, rng)
    await load.run(closed=6, open_rps=20.0, chaos=lambda: monkey.rage(seconds))
    under_way = await world.quiet()
    await world.all_slots_work()
    await world.end()
    journal = world.journal()
    sys.stdout.write(json.dumps(summary(world, monkey, journal, load.outcomes)) + "\n")
    assert not journal.twice
    assert not journal.over
    assert journal.most >= max(LIMITS), "the limits were reached"
    assert not (seen := faults(world, journal, load)), "\n".join([str(len(seen)), *seen[:20]])
    assert not under_way
    assert not (complaints := world.complaints()), "\n".join(complaints)
    assert set(world.exit_codes) == {"0"}, "who was asked to end has ended well"
    assert len(load.outcomes) > 10 * seconds


@pytest.mark.live
@pytest.mark.timeout(60)
def test_a_worker_that_retires_refuses_no_new_connection() -> None:
    """Its successor accepts on the same socket. Some clients send a moment after they have connected."""

    async def main() -> None:
        with tempfile.TemporaryDirectory(prefix="chaos-") as directory:
            world = ChaosEdge(Path(directory))
            rng = random.Random(3)
            outcomes: list[Outcome] = []
            done = asyncio.Event()

            async def newcomers() -> None:
                while not done.is_set():
                    outcome = Outcome(name=f"n{len(outcomes)}-{id(rng)}", worker=0, kind="newcomer", began=0.0)
                    outcomes.append(outcome)
                    wire = Wire(world.ports[0])
                    await wire.connect()
                    await asyncio.sleep(rng.uniform(0.0, 0.02))
                    await exchange(wire, Ask(kind="newcomer"), outcome, 5.0)
                    wire.abort()

            try:
                await world.begin(1, [8])
                async with asyncio.TaskGroup() as group:
                    for _ in range(16):
                        group.create_task(newcomers())
                    for _ in range(5):
                        await asyncio.sleep(0.3)
                        await world.retire_worker(0)
                    done.set()
                assert Counter(f"{each.end} {each.status}" for each in outcomes) == {"answered 200": len(outcomes)}
                assert len(outcomes) > 100
                for process in world.retired:
                    assert await world.ended(process, 30.0) == 0
            finally:
                world.close()

    asyncio.run(main())


@pytest.mark.live
@pytest.mark.early
@pytest.mark.timeout(150)
def test_twenty_seconds_of_chaos() -> None:
    asyncio.run(chaos(seed=1, seconds=20.0))


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_ten_minutes_of_chaos() -> None:
    asyncio.run(chaos(seed=2, seconds=600.0))
