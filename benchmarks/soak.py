"""A long mixed load on real processes: does anything grow that must not?

Two gateway workers, three queue_proxies with fast model servers; plain requests, pipelines and new connections for the
bulk, and beside them cancels mid-flight and mid-upload, slow readers and writers, streams, WebSockets, bad and half
requests. Every few seconds a process dies or retires and is replaced: model servers, queue_proxies and the second
worker. The first worker and the first replica live through all of it; theirs are the figures that are judged:

- resident memory: the slope after the warm-up (the first third), over the rest of the run, is below ``GROWTH_MB``;
- descriptors: once idle pools have closed, as many as before the load, give or take ``SPARE_FDS``;
- in-flight and waiting counters of all processes are zero, and every slot of every replica can be had again;
- no process has written a traceback; at least ``GOOD`` of the bulk were answered 200.

    python -m benchmarks.soak --requests 1000000 [--seed 1] [--settle 65] [--nasty 12] [--peace]

Prints one JSON line per process and sample, then one summary; exit code 1 where a judgement fails.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import uvloop

from benchmarks.soak_load import Clients, Counts
from tests.support.live.chaos import ChaosEdge

GROWTH_MB = 4.0
SPARE_FDS = 4
GOOD = 0.99
SAMPLE_S = 1.0
DEED_S = 2.0
LIMITS = [8, 8, 8]
BULK = 24
"""Connections of plain requests."""
SETTLE_S = 65.0
"""Idle upstream connections close after 60 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One process at one time, as the kernel has it."""

    at_s: float
    done: int
    """Requests of the whole run so far."""
    rss_mb: float
    fds: int
    threads: int


def read(pid: int, began: float, done: int) -> Reading:
    process = Path("/proc") / str(pid)
    pages = int((process / "statm").read_text().split()[1])
    return Reading(
        at_s=round(monotonic() - began, 1),
        done=done,
        rss_mb=round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 2),
        fds=len(list((process / "fd").iterdir())),
        threads=len(list((process / "task").iterdir())),
    )


def growth_mb(readings: list[Reading], requests: int) -> float:
    """Least-squares slope of the memory over requests done, after the first third, times the requests of the rest."""
    late = [each for each in readings if each.done >= requests / 3]
    if len(late) < 3:
        raise SystemExit("too few samples after the warm-up: ask for more requests")
    slope, _ = statistics.linear_regression([each.done for each in late], [each.rss_mb for each in late])
    return round(slope * (late[-1].done - late[0].done), 2)


class Soak:
    """One run."""

    def __init__(self, world: ChaosEdge, given: argparse.Namespace) -> None:
        self.world = world
        self.counts = Counts(given.requests)
        self.rng = random.Random(given.seed)
        self.given = given
        self.began = monotonic()
        self.readings: dict[str, list[Reading]] = defaultdict(list)
        self.deaths = 0

    def pids(self) -> dict[str, int]:
        found = {f"gateway {number}": worker.pid for number, worker in enumerate(self.world.workers)}
        for replica in self.world.living:
            assert replica.model is not None
            found |= {f"queue_proxy {replica.id}": replica.proxy.pid, f"model {replica.id}": replica.model.pid}
        return found

    async def sample(self) -> None:
        """Reads all processes and prints what it read, with the counters of those that have some."""
        for name, pid in self.pids().items():
            try:
                reading = read(pid, self.began, self.counts.done)
            except OSError:
                continue  # it died between two breaths
            self.readings[f"{name} {pid}"].append(reading)
            kept = {field: getattr(reading, field) for field in Reading.__slots__}
            print(json.dumps({"process": name, "pid": pid, **kept}), flush=True)
        for replica in self.world.living[:1]:
            level = await self.world.sample(replica.admin)
            print(json.dumps({"replica": replica.id, "in_flight": level["in_flight"], "queued": level["queued"]}))

    async def watch(self) -> None:
        while not self.counts.over.is_set():
            await self.sample()
            await _pause(self.counts.over, SAMPLE_S)

    async def kill(self) -> None:
        """Deaths and retirements in turn, never of the first worker or the first replica."""
        deeds = [self.kill_model, self.kill_worker, self.kill_proxy, self.retire_worker, self.replace_replica]
        number = 0
        while not self.counts.over.is_set():
            await _pause(self.counts.over, DEED_S)
            if self.counts.over.is_set():
                return
            await deeds[number % len(deeds)]()
            number += 1
            self.deaths += 1

    async def kill_model(self) -> None:
        await self.world.kill_replica(self.world.living[1], proxy=False)

    async def kill_proxy(self) -> None:
        await self.world.kill_replica(self.world.living[1], proxy=True)

    async def replace_replica(self) -> None:
        await self.world.replace_replica(self.world.living[1])

    async def kill_worker(self) -> None:
        await self.world.kill_worker(1)

    async def retire_worker(self) -> None:
        await self.world.retire_worker(1)

    async def run(self) -> list[str]:
        """The faults found, in words."""
        await self.world.begin(2, LIMITS)
        await self.world.quiet()
        before = {name: read(pid, self.began, 0) for name, pid in self.judged().items()}
        clients = Clients(self.world.ports, self.counts, self.rng)
        began = monotonic()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.watch())
            if not self.given.peace:
                group.create_task(self.kill())
            group.create_task(clients.run(bulk=BULK, nasty=self.given.nasty))
        took_s = monotonic() - began
        under_way = await self.world.quiet()
        await self.world.all_slots_work()
        await asyncio.sleep(self.given.settle)
        after = {name: read(pid, self.began, self.counts.done) for name, pid in self.judged().items()}
        faults = [f"still counted: {each}" for each in under_way]
        faults += [f"log: {each}" for each in self.world.complaints()]
        figures = {}
        for name, pid in self.judged().items():
            grown = growth_mb(self.readings[f"{name} {pid}"], self.counts.wanted)
            more = after[name].fds - before[name].fds
            figures[name] = {
                "rss_mb": [before[name].rss_mb, after[name].rss_mb],
                "growth_mb": grown,
                "fds": [before[name].fds, after[name].fds],
                "threads": [before[name].threads, after[name].threads],
            }
            if grown > GROWTH_MB:
                faults.append(f"{name} grew by {grown} MB after its warm-up, {GROWTH_MB} are allowed")
            if more > SPARE_FDS:
                faults.append(f"{name} has {more} descriptors more than before the load, {SPARE_FDS} are allowed")
        good = self.counts.bulk["200"] / max(1, self.counts.bulk.total())
        if good < GOOD:
            faults.append(f"{good:.2%} of the bulk were answered 200, {GOOD:.0%} are wanted")
        self.summarise(took_s, figures, faults)
        return faults

    def judged(self) -> dict[str, int]:
        """The processes that live through the whole run. The models are the benchmark's own."""
        first = self.world.living[0]
        return {"gateway 0": self.world.workers[0].pid, f"queue_proxy {first.id}": first.proxy.pid}

    def summarise(self, took_s: float, figures: dict[str, dict[str, object]], faults: list[str]) -> None:
        summary = {
            "benchmark": "soak",
            "requests": self.counts.done,
            "seconds": round(took_s, 1),
            "deaths": self.deaths,
            "bulk": dict(self.counts.bulk.most_common()),
            "nasty": dict(self.counts.nasty.most_common()),
            "processes": figures,
            "faults": faults,
        }
        print(json.dumps(summary), flush=True)


async def _pause(event: asyncio.Event, seconds: float) -> None:
    """Until the event or the end of so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


async def soak(given: argparse.Namespace) -> int:
    """The exit code. Asked to end, it takes its processes with it."""
    me = asyncio.current_task()
    assert me is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)
    with tempfile.TemporaryDirectory(prefix="soak-") as directory:
        world = ChaosEdge(Path(directory), journals=False)
        try:
            return 1 if await Soak(world, given).run() else 0
        finally:
            world.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--settle", type=float, default=SETTLE_S, help="seconds of silence before the last look")
    parser.add_argument("--nasty", type=int, default=12, help="clients that do everything but plain requests")
    parser.add_argument("--peace", action="store_true", help="nothing is killed: to see where a growth comes from")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(soak(parser.parse_args())))


if __name__ == "__main__":
    main()
