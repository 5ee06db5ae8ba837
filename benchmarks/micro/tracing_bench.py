"""What observing costs the gateway: metrics, access log and traces of 1% of the requests, against tracing and log off.

    python -m benchmarks.micro.tracing_bench [--load post] [--rounds 100] [--every 100] [--instructions]

The worlds of ``gateway_bench``, in turns in one process: ``off``; ``unsampled`` (tracing on, no request is sampled);
``traced`` (one of ``--every`` traced, their spans packed for the process that exports them); ``observed`` (as
``traced``, and every request is in the access log). Metrics are counted in all of them. Prints one JSON line:
microseconds in the best round, and the throughput of each as a ratio to ``off``.

With ``--instructions`` each world runs under callgrind instead, which no other program disturbs: instructions per
request, from the difference of two lengths of run. Needs ``valgrind``.
"""

import argparse
import asyncio
import json
import platform
import random
import time
from typing import Any, Final

from benchmarks.micro.callgrind import counted
from benchmarks.micro.engine_bench import LOADS, VARIANTS
from benchmarks.micro.gateway_bench import Bench, core_on
from tidegate.aio.allocator import keep_memory
from tidegate.aio.loop.run import quiet_collector
from tidegate.aio.loop.services import LoopServices
from tidegate.aio.upstream.pool import UpstreamPool
from tidegate.gateway.access_log.records import AccessLog
from tidegate.gateway.beside.batches import Batches
from tidegate.gateway.tracing.batches import SpanBatches
from tidegate.gateway.tracing.trace import Tracer

WORLDS: Final = ("off", "unsampled", "traced", "observed")
MODULE: Final = "benchmarks.micro.tracing_bench"
LENGTHS: Final = (2, 5)
"""Rounds of the two runs under callgrind."""


def _taken(batches: Batches[Any]) -> None:
    """Takes the batches, as the gateway does to send them to their process."""
    batches.all()


class World:
    """A gateway that observes so much."""

    def __init__(self, name: str, load: str, every: int, services: LoopServices) -> None:
        self._batches: list[Batches[Any]] = []
        tracer = log = None
        if name != "off":
            ratio = 0.0 if name == "unsampled" else 1.0 / every
            rng = random.Random(3)
            spans = SpanBatches(_taken)
            tracer = Tracer(ratio=ratio, rng=rng, offset=0.0, put=spans.add)
            self._batches.append(spans)
        if name == "observed":
            log = AccessLog(1.0, rng=random.Random(4), take=_taken)
            self._batches.append(log)
        pool = UpstreamPool("127.0.0.1:1", services)
        core = core_on(pool, 1, access_log=log, tracer=tracer)
        self._bench = Bench(core.chain, pool, load, services, sampled_every=0 if name == "unsampled" else every)

    def round(self) -> float:
        """Sends every request once; CPU seconds, with those of the last batches."""
        passed = self._bench.round()
        begun = time.process_time()
        for batches in self._batches:
            batches.pack()
            _taken(batches)
        return passed + time.process_time() - begun


async def in_turns(load: str, rounds: int, every: int) -> dict[str, float]:
    """Microseconds per request of each world, in its best round."""
    services = LoopServices(asyncio.get_running_loop())
    worlds = {name: World(name, load, every, services) for name in WORLDS}
    quiet_collector()
    best = dict.fromkeys(WORLDS, 1e9)
    for _ in range(rounds):
        for name, world in worlds.items():
            best[name] = min(best[name], world.round())
    services.close()
    return {name: seconds / VARIANTS * 1e6 for name, seconds in best.items()}


async def alone(name: str, load: str, rounds: int, every: int) -> None:
    """Runs one world: what callgrind counts."""
    services = LoopServices(asyncio.get_running_loop())
    world = World(name, load, every, services)
    quiet_collector()
    for _ in range(rounds):
        world.round()
    services.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--load", choices=LOADS, default="post")
    parser.add_argument("--rounds", type=int, default=100, help=f"of {VARIANTS} requests; the best one counts")
    parser.add_argument("--every", type=int, default=100, help="one request of so many is sampled")
    parser.add_argument("--instructions", action="store_true")
    parser.add_argument("--world", choices=WORLDS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    keep_memory()
    if arguments.world is not None:
        asyncio.run(alone(arguments.world, arguments.load, arguments.rounds, arguments.every))
        return
    if arguments.instructions:
        words = ["--load", arguments.load, "--every", str(arguments.every)]
        costs: dict[str, float] = {
            name: counted(MODULE, ["--world", name, *words], LENGTHS) // VARIANTS for name in WORLDS
        }
        unit = "instructions"
    else:
        costs = asyncio.run(in_turns(arguments.load, arguments.rounds, arguments.every))
        unit = "us"
    row = {
        "benchmark": "tracing",
        "load": arguments.load,
        "every": arguments.every,
        "unit": f"{unit} per request",
        **{name: round(cost, 2) for name, cost in costs.items()},
        "throughput": {name: round(costs["off"] / cost, 4) for name, cost in costs.items() if name != "off"},
        "python": platform.python_version(),
    }
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
