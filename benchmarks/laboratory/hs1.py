"""HetSev, figure 1, on processors: one, two and three processes of a model on the same cores.

Each process has one core; the third one shares its core with another. All are deployed at once and loaded in turns, so
that what else the machine does falls on all alike.
"""

import tempfile
from collections.abc import Iterator
from statistics import median

from benchmarks.autoscaling.lab import Kind, Lab, lab
from benchmarks.autoscaling.timeline import throughput_ips
from benchmarks.laboratory.resnet import deploy, prepare
from benchmarks.laboratory.rows import Row
from benchmarks.laboratory.setup import Setup, lost

NAME = "hs1"
CALLERS = 8
MOST = 3
CORE = "cpu-1core"


def run(setup: Setup) -> Iterator[Row]:
    numbers = range(1, MOST + 1)
    with tempfile.TemporaryDirectory(prefix="laboratory-") as folder:
        prepare(folder)
        # More cores than the machine has: those that are not loaded cost it nothing.
        with lab((Kind(name=CORE, cores=1, count=sum(numbers)),)) as world:
            for number in numbers:
                deploy(world, f"of-{number}", CORE, number, folder)
            yield from _measured(setup, world)


def _measured(setup: Setup, world: Lab) -> Iterator[Row]:
    seconds = setup.long(8.0, 2.0)
    rates: dict[int, list[float]] = {number: [] for number in range(1, MOST + 1)}
    for turn in range(int(setup.long(5, 1))):
        for number in sorted(rates, reverse=bool(turn % 2)):
            found = world.closed(f"of-{number}", CALLERS, seconds)
            yield lost(NAME, f"{number} processes, round {turn + 1}", found)
            rates[number].append(throughput_ips(found.outcomes, 0.2 * seconds, seconds))
    means = {number: median(found) for number, found in rates.items()}
    for number, rate in means.items():
        yield Row(experiment=NAME, case=f"{number} processes", measure="throughput_ips", live=rate, simulated=None)
    first, second = means[2] - means[1], means[3] - means[2]
    yield Row(
        experiment=NAME,
        case="three processes over one",
        measure="throughput_ratio",
        live=means[3] / means[1] if means[1] else None,
        simulated=None,
        least=1.2,
        is_judged=not setup.smoke,
    )
    yield Row(
        experiment=NAME,
        case="the third process over the second",
        measure="step_ratio",
        live=second / first if first > 0.0 else None,
        simulated=None,
        most=0.99,
        is_judged=not setup.smoke,
    )
