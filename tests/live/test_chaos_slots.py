"""What slots promise, counted in the model servers' journals: a start with a thousand waiting, a killed worker."""

import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic, monotonic_ns

import pytest

from tests.support.deadline import within
from tests.support.live.chaos import ChaosEdge
from tests.support.live.raw_clients import Ask, End, Outcome, Wire, exchange

pytestmark = [pytest.mark.live, pytest.mark.timeout(90)]

WAITING = 1000
PATIENT_S = 60.0
"""No deadline ends here: processes that start on a busy machine have their time."""


@asynccontextmanager
async def world_of(workers: int, limits: list[int]) -> AsyncIterator[ChaosEdge]:
    with tempfile.TemporaryDirectory(prefix="slots-") as directory:
        world = ChaosEdge(Path(directory))
        world.timeout_s = PATIENT_S
        try:
            await world.begin(workers, limits)
            yield world
            assert world.complaints() == []
        finally:
            world.close()


async def request(world: ChaosEdge, worker: int, name: str, work_ms: int) -> Outcome:
    outcome = Outcome(name=name, worker=worker, kind="small", began=monotonic())
    wire = Wire(world.ports[worker])
    await exchange(wire, Ask(kind="small", fields={"x-work-ms": str(work_ms)}), outcome, PATIENT_S * 1.5)
    wire.abort()
    return outcome


def tell_figures(what: str, **figures: float) -> None:
    sys.stdout.write(json.dumps({"what": what, **{name: round(value, 2) for name, value in figures.items()}}) + "\n")


def test_from_the_first_moment_of_the_model_to_its_first_request() -> None:
    """The model server listens: when is the request there that waits for it? The bound is for a busy machine. How long
    the server takes to listen says nothing here: what waits has the time for it."""

    async def main() -> None:
        delays_ms = []
        async with world_of(1, []) as world:
            for number in range(6):
                waiting = asyncio.get_running_loop().create_task(request(world, 0, f"first-{number}", 0))
                await asyncio.sleep(0.05)
                replica = world.start_replica(limit="1", model=False)
                world.limits_of[replica.id] = [(monotonic(), 1)]
                world.living.append(replica)
                await world.tell()
                await world.answered(replica.admin, "/healthz")
                await asyncio.sleep(0.3)
                replica.model = world.start_model(replica.upstream)
                outcome = await waiting
                assert (outcome.end, outcome.status) == (End.ANSWERED, 200), outcome
                journal = world.journal()
                delays_ms.append((journal.at["S", outcome.name] - journal.at["L", replica.id]) * 1e3)
                world.living.clear()
                await world.tell()
        tell_figures("listening to first request", p50_ms=statistics.median(delays_ms), max_ms=max(delays_ms))
        assert statistics.median(delays_ms) < 500.0

    asyncio.run(main())


def test_a_thousand_wait_for_one_new_replica_and_run_in_order_within_its_limit() -> None:
    async def main() -> None:
        async with world_of(4, []) as world, asyncio.TaskGroup() as group:
            tasks = []
            for number in range(WAITING):
                tasks.append(group.create_task(request(world, number % 4, f"w-{number:04d}", 4)))
                if number % 8 == 0:
                    await asyncio.sleep(0.004)
            await world.add_replica(4)
            await world.tell()
            outcomes = [await task for task in tasks]
            assert {(each.end, each.status) for each in outcomes} == {(End.ANSWERED, 200)}
            journal = world.journal()
            assert not journal.over
            assert not journal.twice
            assert journal.most == 4
            ran = sorted((name for name in journal.starts if name != "-"), key=lambda name: journal.at["S", name])
            assert len(ran) == WAITING
            off = [abs(place - int(name[2:])) for place, name in enumerate(ran)]
            tell_figures("places off arrival order", mean=statistics.mean(off), most=max(off))
            # 333 in random order, 500 where the last comes first; arrivals at four busy processes are not exact.
            assert statistics.mean(off) < 50

    asyncio.run(main())


def test_a_killed_workers_work_ends_at_the_model_and_its_slots_go_to_the_others_at_once() -> None:
    async def main() -> None:
        ended_ms, granted_ms = [], []
        async with world_of(2, [2]) as world, asyncio.TaskGroup() as group:
            for number in range(5):
                harmed = [group.create_task(request(world, 0, f"mine-{number}-{n}", 8000)) for n in range(2)]
                await running(world, 2)
                others = [group.create_task(request(world, 1, f"other-{number}-{n}", 50)) for n in range(2)]
                await asyncio.sleep(0.1)
                at_ns = monotonic_ns()
                world.workers[0].kill()
                for task in harmed:
                    assert (await task).end is End.CLOSED
                for task in others:
                    assert (await task).status == 200
                journal = world.journal()
                ended_ms += [journal.at["X", f"mine-{number}-{n}"] * 1e3 - at_ns / 1e6 for n in range(2)]
                granted_ms += [journal.at["S", f"other-{number}-{n}"] * 1e3 - at_ns / 1e6 for n in range(2)]
                await world.kill_worker(0)
        tell_figures("killed worker's work ends", p50_ms=statistics.median(ended_ms), max_ms=max(ended_ms))
        tell_figures("its slots serve others", p50_ms=statistics.median(granted_ms), max_ms=max(granted_ms))
        assert min(granted_ms) > 0.0, "they had to wait"
        assert statistics.median(granted_ms) < 100.0 + 400.0
        assert not world.journal().twice

    asyncio.run(main())


async def running(world: ChaosEdge, count: int) -> None:
    """Waits until so many requests run in the model server."""
    async with within(15.0):
        while True:
            if (await world.stats(world.living[0]))["running"] == count:
                return
            await asyncio.sleep(0.01)
