"""Themis, section 3.1, on processors: cores and threads of a running model change while it serves, and nothing fails.

ResNet-50 in one replica of the shipped runtime, under two callers; its cores go from one to two and back.
"""

import json
import os
import tempfile
import time
from collections.abc import Iterator
from math import prod
from pathlib import Path
from statistics import median

import httpx

from benchmarks.autoscaling.lab import Kind, lab
from benchmarks.laboratory.resnet import prepare
from benchmarks.laboratory.rows import Row
from benchmarks.laboratory.setup import Setup, lost
from tidegate.loadgen.clients.call import Request
from tidegate.loadgen.clients.workers import callers

NAME = "tm11"
MOST_MS = 100.0
CALLERS = 2
EVERY_S = 0.5
SHAPE = (1, 3, 224, 224)


def run(setup: Setup) -> Iterator[Row]:
    count = int(setup.long(40, 4))
    case = f"{count} resizes between 1 and 2 cores"
    if (os.cpu_count() or 1) < 2:
        yield Row(experiment=NAME, case=case, measure="largest_ms", note="there is no second core")
        return
    taken: list[float] = []
    with tempfile.TemporaryDirectory(prefix="laboratory-") as folder, lab([Kind(name="core", cores=1)]) as world:
        prepare(folder)
        world.client.deploy_file(Path(folder) / "model.onnx", name=NAME, wait=True, min_scale=1, max_scale=1)
        (given,) = httpx.get(f"{world.client.gateway}/v2/models/{NAME}").json()["inputs"]

        def resize(began: float) -> None:
            for number in range(count):
                time.sleep(max(0.0, began + (number + 0.5) * EVERY_S - time.monotonic()))
                asked = time.perf_counter()
                world.client.resize(NAME, cores=2 - number % 2)
                taken.append(time.perf_counter() - asked)

        body = {"inputs": [{"name": given["name"], "shape": SHAPE, "datatype": "FP32", "data": [0] * prod(SHAPE)}]}
        request = Request(json.dumps(body).encode())
        seconds = count * EVERY_S
        loads = {NAME: lambda load: load.closed_loop(callers(CALLERS, seconds), lambda: request)}
        found = world.run(seconds, loads, during=resize)[NAME]
    yield Row(experiment=NAME, case=case, measure="median_ms", live=1e3 * median(taken))
    yield Row(experiment=NAME, case=case, measure="largest_ms", live=1e3 * max(taken), most=MOST_MS)
    yield lost(NAME, f"{len(found.outcomes)} requests meanwhile", found)
