"""Work of the control process for open pages of the console, in process: no sockets, no processes.

    python -m benchmarks.micro.console_bench [--functions 200] [--replicas 4] [--repeats 20]

The deployment is that of ``round_bench``, after some rounds with load. Measured are the view of
everything, which is made in slices (``view_ms``; the largest slice: ``slice_ms``), the overview and the accelerators'
page from it, encoded (``overview_ms``, ``accelerators_ms``), and the page of one function with its points of 3 s and
of 5 minutes (``function_ms``, ``function_first_ms``), with the bytes of each. The view is made for all browsers
together and then not for 20 times as long. Prints one JSON line; times are medians of processor time of one core.
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
from collections.abc import Callable
from pathlib import Path

from benchmarks.micro.decider_bench import START, commit, gateway_sample, replica_sample
from benchmarks.micro.round_bench import KINDS, Bench
from tidegate.aio.loop.run import quiet_collector
from tidegate.clock import ManualClock
from tidegate.control.console import pages
from tidegate.control.state.registry import Deployed, Registry
from tidegate.control.views.deployment import DeploymentView
from tidegate.control.views.functions import ExplainView, SeriesLineView, SeriesView, SplitView
from tidegate.deploy.fake import FakeBackend
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind
from tidegate.function import Function, Revision, Scaling, Server, ServerKind, Sla
from tidegate.records.codec import encode
from tidegate.store.embedded import EmbeddedStore

ROUNDS = 30


def deployment(bench: Bench) -> DeploymentView:
    """The whole deployment, as the API views it."""
    view = bench.views.function
    return DeploymentView(
        version="1",
        pid=1,
        epoch=1,
        since_s=1.0,
        state_directory="/s",
        api="",
        gateway="",
        table="1.1",
        faults=(),
        gateways=(),
        accelerators=bench.views.accelerators(),
        functions=tuple(view(each, "http://127.0.0.1:8080", "localhost") for each in bench.registry.all()),
    )


def function_page(bench: Bench, name: str, since_s: float) -> pages.FunctionPage:
    """The page of one function with the points of ``since_s`` seconds."""
    deployed = bench.registry.get(name)
    assert deployed is not None
    core = bench.loop.autoscaler.core
    core.explain(name, 20)
    found = bench.loop.instruments.history.query(
        name, bench.clock.now(), since_s=since_s, step_s=1, metric=None, group=None
    )
    lines = tuple(
        SeriesLineView(metric=each.metric, group=each.group, unit=each.unit, points=each.points) for each in found.lines
    )
    return pages.function_page(
        bench.views.function(deployed, "http://127.0.0.1:8080", "localhost"),
        ExplainView(function=name, text="", decisions=tuple(core.decisions(name, 20))),
        (),
        SplitView(function=name, is_pinned=False, parts=(), kept=(), candidate=None, is_returning=False),
        None,
        SeriesView(function=name, step_s=1, lines=lines, refused=0),
    )


def median_s(work: Callable[[], object], repeats: int) -> float:
    """Seconds of processor time."""
    found = []
    for _ in range(repeats):
        began = time.thread_time()
        work()
        found.append(time.thread_time() - began)
    return statistics.median(found)


def prepare(bench: Bench, revisions: list[Revision]) -> None:
    """Prepares the answers of the next round, of a deployment with load."""
    bench.clock.advance(1.0)
    bench.ticks += 1
    bench.answers.gateway = encode(gateway_sample(revisions, KINDS, bench.ticks, is_busy=True))
    bench.answers.replicas = {
        each.id: encode(replica_sample(each.id, each.revision, each.accelerator, bench.ticks, is_busy=True))
        for each in bench.backend.replicas()
    }


async def measure(functions: int, replicas: int, repeats: int) -> dict[str, object]:
    clock = ManualClock(START)
    count = functions * replicas
    kinds = [
        Accelerator(
            name=f"kind{index:02d}",
            kind=AcceleratorKind.EMULATED,
            count=count // KINDS + replicas,
            memory_bytes=1 << 34,
            price_per_hour=1.0 + index,
        )
        for index in range(KINDS)
    ]
    with tempfile.TemporaryDirectory() as folder:
        store = await EmbeddedStore.open(Path(folder) / "state.db")
        registry = await Registry.load(store)
        revisions = []
        for index in range(functions):
            wanted = Function(
                name=f"f{index:05d}",
                server=Server(kind=ServerKind.MODEL, target="/m.onnx"),
                concurrency=4,
                sla=Sla(latency_s=0.2),
                accelerators=tuple(each.name for each in kinds),
                scaling=Scaling(min_scale=replicas, max_scale=replicas, initial_scale=replicas),
            )
            revisions.append((await registry.deploy(wanted, manifest="", source="bench.yaml", now=START)).revision)
        bench = Bench(registry, FakeBackend(kinds, clock, random.Random(1)), clock, Path(folder))
        bench.loop.round.begin()
        for _ in range(ROUNDS):
            prepare(bench, revisions)
            await bench.second()
            await bench.ready()
        result = figures(bench, revisions[0].function.name, repeats)
        await bench.loop.close()
        await store.close()
    return result


def figures(bench: Bench, name: str, repeats: int) -> dict[str, object]:
    """Measures the documents of a deployment that runs."""

    view = deployment(bench)

    def overview() -> bytes:
        return encode(pages.overview(view, bench.clock.now()))

    def accelerators() -> bytes:
        return encode(pages.accelerators(view))

    def one(deployed: Deployed) -> Callable[[], object]:
        return lambda: bench.views.function(deployed, "http://127.0.0.1:8080", "localhost")

    return {
        "ready": sum(each.ready for each in view.functions),
        "requests_per_s": round(sum(each.traffic.requests_per_s for each in view.functions)),
        "view_ms": round(1e3 * median_s(lambda: deployment(bench), repeats), 2),
        "slice_ms": round(1e3 * max(median_s(one(each), 3) for each in bench.registry.all()), 2),
        "overview_ms": round(1e3 * median_s(overview, repeats), 2),
        "overview_bytes": len(overview()),
        "accelerators_ms": round(1e3 * median_s(accelerators, repeats), 2),
        "accelerators_bytes": len(accelerators()),
        "function_ms": round(1e3 * median_s(lambda: encode(function_page(bench, name, 3.0)), repeats), 2),
        "function_bytes": len(encode(function_page(bench, name, 3.0))),
        "function_first_ms": round(1e3 * median_s(lambda: encode(function_page(bench, name, 300.0)), repeats), 2),
        "function_first_bytes": len(encode(function_page(bench, name, 300.0))),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--functions", type=int, default=200)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    quiet_collector()
    result = {
        "bench": "console_bench",
        "functions": args.functions,
        "replicas": args.replicas,
        **asyncio.run(measure(args.functions, args.replicas, args.repeats)),
        "commit": commit(),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
