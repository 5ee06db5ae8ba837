"""How long a scrape holds the loop of a process: gateway worker and control process with many functions.

    python -m benchmarks.micro.scrape_bench [--functions 1000] [--workers 2] [--repeats 5]

A scrape works in slices with a turn of the loop in between. Measured is processor time of the longest slice
(``longest_ms``, the least of ``--repeats`` scrapes) and of the whole scrape (``total_ms``, likewise): of a gateway
worker's own exposition, of the control process's own figures, of the merged text of all workers, and of its form for
Prometheus. Prints one JSON line each. Nothing real is behind them: no sockets, no processes.
"""

import argparse
import asyncio
import gc
import json
import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from benchmarks.micro.decider_bench import START, commit
from benchmarks.micro.round_bench import Bench
from tidegate import metrics
from tidegate.aio.loop.slices import SLICE
from tidegate.clock import ManualClock
from tidegate.control.metrics.merged import MergedMetrics
from tidegate.control.metrics.own import OwnMetrics, Timings
from tidegate.control.metrics.scraping import PARTS_A_PIECE
from tidegate.control.state.registry import Registry
from tidegate.deploy.fake import FakeBackend
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind
from tidegate.function import Function, Scaling, Server, ServerKind, Sla
from tidegate.histogram import Histogram
from tidegate.metrics import Exposition, Metric, MetricKind
from tidegate.open_metrics import Form, part_in
from tidegate.store.embedded import EmbeddedStore


def of_worker(functions: int) -> Iterator[Exposition | None]:
    """Yields between functions, then the exposition of a gateway worker that has served each of them."""
    exposition, histogram = Exposition(), Histogram()
    for seconds in (0.0009, 0.005, 0.04):
        histogram.record(seconds)
    rows = [each for each in metrics.CATALOGUE if each.name.startswith("tidegate_gateway_") and _is_counted(each)]
    for index in range(functions):
        labels = (f"f{index:05d}", f"f{index:05d}-00001")
        for row in rows:
            if row.kind is MetricKind.HISTOGRAM:
                exposition.add_histogram(row, labels, histogram)
            else:
                exposition.add(row, labels, index)
        yield None
    yield exposition


def _is_counted(row: Metric) -> bool:
    return row.labels == ("function", "revision")


def slices(steps: Iterable[object], length: int) -> tuple[float, float]:
    """Returns the longest slice of ``length`` steps and the sum in milliseconds of processor time."""
    longest, began = 0.0, time.thread_time()
    first = since = began
    for number, _ in enumerate(steps, start=1):
        if number % length == 0:
            now = time.thread_time()
            longest, since = max(longest, now - since), now
    end = time.thread_time()
    return 1e3 * max(longest, end - since), 1e3 * (end - first)


def measured(what: str, steps: Callable[[], Iterable[object]], repeats: int, length: int = SLICE) -> dict[str, object]:
    gc.disable()
    found = [slices(steps(), length) for _ in range(repeats)]
    gc.enable()
    return {
        "bench": "scrape_bench",
        "what": what,
        "longest_ms": round(min(longest for longest, _ in found), 3),
        "total_ms": round(min(total for _, total in found), 1),
    }


async def control(functions: int, folder: Path) -> OwnMetrics:
    """Returns the own figures of a control process whose functions each have a replica that is ready."""
    clock = ManualClock(START)
    kind = Accelerator(
        name="cpu", kind=AcceleratorKind.EMULATED, count=functions, memory_bytes=1 << 34, price_per_hour=1.0
    )
    store = await EmbeddedStore.open(folder / "state.db")
    registry = await Registry.load(store)
    revisions = []
    for index in range(functions):
        wanted = Function(
            name=f"f{index:05d}",
            server=Server(kind=ServerKind.MODEL, target="/m.onnx"),
            concurrency=4,
            accelerators=("cpu",),
            sla=Sla(latency_s=0.2),
            scaling=Scaling(min_scale=1, initial_scale=1),
        )
        record = await registry.deploy(wanted, manifest="", source="bench.yaml", now=START)
        revisions.append(record.revision)
    bench = Bench(registry, FakeBackend([kind], clock, random.Random(1)), clock, folder)
    bench.loop.round.begin()
    for _ in range(3):
        bench.prepare(revisions)
        await bench.second()
        await bench.ready()
    await store.close()
    return OwnMetrics(bench.loop, bench.views, Timings(), epoch=1, gateways=tuple, faults=lambda: 0)


def scraped(own: OwnMetrics) -> Iterator[object]:
    exposition = Exposition()
    yield from own.zeros(exposition)
    yield from own.steps(exposition)
    yield from exposition.parts()


def run(functions: int, workers: int, repeats: int) -> Iterator[dict[str, object]]:
    exposition = next(found for found in of_worker(functions) if found is not None)
    yield measured("gateway worker", lambda: _worker(functions), repeats)
    with tempfile.TemporaryDirectory() as folder:
        own = asyncio.run(control(functions, Path(folder)))
    yield measured("control process", lambda: scraped(own), repeats)
    text = exposition.render()
    names = {f"f{index:05d}" for index in range(functions)}
    merged = MergedMetrics()
    texts = {f"g{number}/1": text for number in range(workers)}
    yield measured("merged", lambda: merged.steps(texts, names), repeats) | {"lines": text.count(b"\n")}
    parts = tuple(merged.steps(texts, names))
    starts = range(0, len(parts), PARTS_A_PIECE)
    pieces = lambda: (part_in(b"".join(parts[at : at + PARTS_A_PIECE]), Form.OPEN_METRICS) for at in starts)  # noqa: E731
    yield measured("as OpenMetrics", pieces, repeats, 1)


def _worker(functions: int) -> Iterator[object]:
    for found in of_worker(functions):
        yield found
        if found is not None:
            yield from found.parts()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--functions", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    for found in run(given.functions, given.workers, given.repeats):
        about = {"functions": given.functions, "workers": given.workers, "commit": commit()}
        sys.stdout.write(json.dumps(found | about | {"python": platform.python_version()}) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
