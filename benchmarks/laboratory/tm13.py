"""Themis, figure 6, on processors: the latency model fits a real model by batch and cores.

ResNet-50 by ONNX Runtime, every batch and number of cores in turns; the model is fitted to the medians.
"""

import os
import tempfile
from collections.abc import Iterator
from statistics import median

from benchmarks.laboratory.resnet import Session, prepare
from benchmarks.laboratory.rows import Row
from benchmarks.laboratory.setup import Setup
from tidegate.autoscaler.policies.themis.fit import fit, r_squared

NAME = "tm13"
BATCHES = (1, 2, 4)
LEAST_R2 = 0.95


def run(setup: Setup) -> Iterator[Row]:
    counts = [each for each in (1, 2, 4) if each <= (os.cpu_count() or 1)]
    taken: dict[tuple[int, int], list[float]] = {(b, c): [] for b in BATCHES for c in counts}
    with tempfile.TemporaryDirectory(prefix="laboratory-") as folder:
        prepare(folder)
        sessions = {cores: Session(folder, within=cores, between=1) for cores in counts}
        for _ in range(int(setup.long(40, 2))):
            for (batch, cores), found in taken.items():
                found.append(sessions[cores].seconds(batch))
    points = [(float(b), float(c), 1e3 * median(found)) for (b, c), found in taken.items()]
    if len(counts) < 2:
        yield Row(experiment=NAME, case="one core", measure="r_squared", note="the fit needs two numbers of cores")
        return
    profile = fit(points)
    yield Row(
        experiment=NAME,
        case=f"batches {', '.join(map(str, BATCHES))} on {', '.join(map(str, counts))} cores",
        measure="r_squared",
        live=r_squared(profile, points),
        least=LEAST_R2,
        is_judged=not setup.smoke,
        note=f"{profile.gamma:.1f}, {profile.epsilon:.1f}, {profile.delta:.1f}, {profile.eta:.1f} ms",
    )
