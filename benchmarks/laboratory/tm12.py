"""Themis, figure 10, on processors: with one batch at a time the threads between operators do not matter.

ResNet-50 by ONNX Runtime with the threads within operators of all cores, and 1, 2 and 4 between them, in turns. The
quickest of each counts: what else the machine does only adds.
"""

import os
import tempfile
from collections.abc import Iterator

from benchmarks.laboratory.resnet import Session, prepare
from benchmarks.laboratory.rows import Row
from benchmarks.laboratory.setup import Setup

NAME = "tm12"
BETWEEN = (1, 2, 4)
SPREAD_PERCENT = 10.0


def run(setup: Setup) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="laboratory-") as folder:
        prepare(folder)
        cores = min(4, os.cpu_count() or 1)
        sessions = {between: Session(folder, within=cores, between=between) for between in BETWEEN}
        taken: dict[int, list[float]] = {between: [] for between in BETWEEN}
        for number in range(int(setup.long(150, 3))):
            for at in range(len(BETWEEN)):
                between = BETWEEN[(number + at) % len(BETWEEN)]
                taken[between].append(sessions[between].seconds(1))
    times = {between: min(found) for between, found in taken.items()}
    yield Row(
        experiment=NAME,
        case=f"{cores} cores, {', '.join(map(str, BETWEEN))} threads between operators",
        measure="spread_percent",
        live=100.0 * (max(times.values()) / min(times.values()) - 1.0),
        most=SPREAD_PERCENT,
        is_judged=not setup.smoke,
        note=", ".join(f"{each}: {1e3 * time_s:.1f} ms" for each, time_s in times.items()),
    )
