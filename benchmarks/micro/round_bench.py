"""Time of the control round over many functions, in process: no sockets, no processes, replicas that cost nothing.

    python -m benchmarks.micro.round_bench [--functions 1000] [--replicas 10] [--rounds 10]

Every function may use ten accelerator kinds and is deployed with its initial scale as its minimum. Measured are the
round that starts all of them (``start_ms``), all of them becoming ready at one moment, with the route table of that
(``ready_ms``), rounds in which nothing changes (``steady_ms``, median; ``steady_spread_ms``, smallest and largest), the
view of all functions as ``tidegate ls`` asks for it (``views_ms``), and the rounds that stop everything after all were
deleted (``stop_ms``, their sum). Gateways and replicas answer with samples that were encoded beforehand. Prints one
JSON line; times are milliseconds of processor time of one core. A figure to keep in mind: a round is due every second.
"""

import argparse
import asyncio
import json
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from benchmarks.micro.decider_bench import START, commit, gateway_sample, replica_sample
from tidegate.aio.loop.run import quiet_collector
from tidegate.clock import ManualClock
from tidegate.control.api.describe import views_of
from tidegate.control.predictor.link import PredictorHere
from tidegate.control.rounds.wiring import DecisionSettings, build_loop
from tidegate.control.state.notices import ChangeSignal, Faults
from tidegate.control.state.registry import Registry
from tidegate.control.watch.cold_starts import ColdStarts
from tidegate.control.watch.instruments import Instruments
from tidegate.control.watch.traffic import TrafficMeter
from tidegate.deploy.fake import FakeBackend
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind
from tidegate.function import Function, Revision, Scaling, Server, ServerKind
from tidegate.records.codec import encode
from tidegate.records.route_table import RouteTable
from tidegate.store.embedded import EmbeddedStore
from tidegate.traffic.table import TableBuilder

KINDS = 10
"""That one function may use; which ten of them differs."""


class Answers:
    """The front door's one worker and all replicas: what they answer in the next round."""

    def __init__(self) -> None:
        self.gateway = b""
        self.replicas: dict[str, bytes] = {}
        self.applied = (0, 0)

    def sources(self) -> Mapping[str, Callable[[], Awaitable[bytes]]]:
        return {"g0": self._sample}

    def versions(self) -> tuple[tuple[int, int], ...]:
        return (self.applied,)

    async def publish(self, table: RouteTable) -> None:
        self.applied = table.version

    async def _sample(self) -> bytes:
        return self.gateway


class Line:
    """To a replica's admin endpoint."""

    def __init__(self, answers: Answers, replica: str) -> None:
        self._answers = answers
        self._replica = replica

    async def get(self, path: str) -> bytes:
        return self._answers.replicas[self._replica]

    async def post(self, path: str, body: bytes = b"") -> bytes:
        return b"{}"

    async def close(self) -> None:
        return


class Bench:
    """A control process without its shell."""

    def __init__(self, registry: Registry, backend: FakeBackend, clock: ManualClock, folder: Path) -> None:
        self.registry, self.backend, self.clock = registry, backend, clock
        self.answers = Answers()
        self.ticks = 0
        faults = Faults()
        self.loop = build_loop(
            registry=registry,
            backend=backend,
            tables=TableBuilder(epoch=1, workers=1),
            gateways=self.answers,
            instruments=Instruments(
                traffic=TrafficMeter(),
                cold_starts=ColdStarts(folder / "cold-starts.jsonl", faults),
            ),
            predictor=PredictorHere(),
            faults=faults,
            changes=ChangeSignal(),
            clock=clock,
            rng=random.Random(7),
            settings=DecisionSettings(decisions=folder / "decisions"),
            reach=lambda replica, _: Line(self.answers, replica),
        )
        self.views = views_of(self.loop)

    def prepare(self, revisions: list[Revision]) -> None:
        """Prepares the answers of the next round, a second after the last one."""
        self.clock.advance(1.0)
        self.ticks += 1
        self.answers.gateway = encode(gateway_sample(revisions, KINDS, self.ticks, is_busy=False))
        self.answers.replicas = {
            each.id: encode(replica_sample(each.id, each.revision, each.accelerator, self.ticks, is_busy=False))
            for each in self.backend.replicas()
        }

    async def second(self) -> float:
        """Milliseconds of one round and of what it set off."""
        began = time.thread_time()
        await self.loop.round.second()
        await self.settle()
        return 1e3 * (time.thread_time() - began)

    async def settle(self) -> None:
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)

    async def ready(self) -> float:
        """Milliseconds until all that starts is ready and in the route table."""
        began = time.thread_time()
        self.backend.on_wakeup(self.clock.now())
        await self.settle()
        return 1e3 * (time.thread_time() - began)

    def look(self) -> float:
        """Milliseconds of one look at all functions."""
        began = time.thread_time()
        for deployed in self.registry.all():
            self.views.function(deployed, "http://127.0.0.1:8080", "localhost")
        return 1e3 * (time.thread_time() - began)


async def measure(functions: int, replicas: int, rounds: int) -> dict[str, object]:
    clock = ManualClock(START)
    kinds = [
        Accelerator(
            name=f"kind{index:02d}",
            kind=AcceleratorKind.EMULATED,
            count=(functions // KINDS + 1) * replicas,
            memory_bytes=1 << 34,
            price_per_hour=1.0 + index,
        )
        for index in range(2 * KINDS - 1)
    ]
    names = [each.name for each in kinds]
    with tempfile.TemporaryDirectory() as folder:
        store = await EmbeddedStore.open(Path(folder) / "state.db")
        registry = await Registry.load(store)
        revisions = []
        for index in range(functions):
            first = index % KINDS
            wanted = Function(
                name=f"f{index:05d}",
                server=Server(kind=ServerKind.MODEL, target="/m.onnx"),
                concurrency=4,
                accelerators=tuple(names[first : first + KINDS]),
                scaling=Scaling(min_scale=replicas, initial_scale=replicas),
            )
            record = await registry.deploy(wanted, manifest="", source="bench.yaml", now=START)
            revisions.append(record.revision)
        bench = Bench(registry, FakeBackend(kinds, clock, random.Random(1)), clock, Path(folder))
        bench.loop.round.begin()
        bench.prepare(revisions)
        start_ms = await bench.second()
        started = len(bench.backend.replicas())
        bench.prepare(revisions)
        ready_ms = await bench.ready()
        steady = []
        for _ in range(rounds + 2):
            bench.prepare(revisions)
            steady.append(await bench.second())
        steady = sorted(steady[2:])
        views_ms = bench.look()
        for name in [each.function.name for each in revisions]:
            await registry.delete(name)
        bench.loop.world.sync()
        stop_ms, stopping = 0.0, 0
        while bench.backend.replicas() and stopping < 10:
            bench.prepare(revisions)
            stop_ms += await bench.second()
            stopping += 1
        left = len(bench.backend.replicas())
        await bench.loop.close()
        await store.close()
    return {
        "started": started,
        "left": left,
        "start_ms": round(start_ms),
        "ready_ms": round(ready_ms),
        "steady_ms": round(statistics.median(steady)),
        "steady_spread_ms": [round(steady[0]), round(steady[-1])],
        "views_ms": round(views_ms),
        "stop_ms": round(stop_ms),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--functions", type=int, default=1000)
    parser.add_argument("--replicas", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    quiet_collector()
    result = {
        "benchmark": "round",
        "functions": args.functions,
        "replicas": args.replicas,
        **asyncio.run(measure(args.functions, args.replicas, args.rounds)),
        "commit": commit(),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
