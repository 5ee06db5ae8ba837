"""SMIF, figure 7, on processors: k processes with a k-th of the cores each against one process with all of them.

The model is real (ResNet-50 by ONNX Runtime, one image a request), its threads are those of its accelerator. Both are
deployed at once and loaded in turns, so that what else the machine does falls on both alike. What an
inference takes on one core and on all of them is measured with one caller and given to the simulator.
"""

import tempfile
from collections.abc import Iterator
from statistics import median

from benchmarks.autoscaling.lab import Kind, Lab, lab
from benchmarks.autoscaling.timeline import latency_s, throughput_ips
from benchmarks.laboratory.resnet import deploy, prepare
from benchmarks.laboratory.rows import Row
from benchmarks.laboratory.setup import Setup, lost
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind
from tidegate.loadgen.experiments.setups.worlds import deployed, fixed, function, latencies
from tidegate.loadgen.experiments.setups.worlds import run as simulate
from tidegate.loadgen.simulator.devices import DeviceKind as SimulatedKind
from tidegate.loadgen.simulator.scenario import Callers, Scenario

NAME = "sm5"
CORES = 2
CALLERS = 8
PARTS, WHOLE = "cpu-1core", "cpu-2core"
KINDS = (Kind(name=PARTS, cores=1, count=CORES), Kind(name=WHOLE, cores=CORES))


def run(setup: Setup) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="laboratory-") as folder:
        prepare(folder)
        with lab(KINDS) as world:
            deploy(world, "parts", PARTS, CORES, folder)
            deploy(world, "whole", WHOLE, 1, folder)
            yield from _measured(setup, world)


def _measured(setup: Setup, world: Lab) -> Iterator[Row]:
    """Rounds of both in turns, each first with one caller, which says what an inference takes, and then saturated."""
    seconds = setup.long(8.0, 2.0)
    rates: dict[str, list[float]] = {}
    alone: dict[str, list[float]] = {}
    rounds = int(setup.long(5, 1))
    for number in range(rounds):
        for name in ("parts", "whole") if number % 2 == 0 else ("whole", "parts"):
            one = world.closed(name, 1, seconds / 2.0)
            many = world.closed(name, CALLERS, seconds)
            yield lost(NAME, f"{name}, round {number + 1}", many)
            alone.setdefault(name, []).append(latency_s(one.outcomes, 0.5) or 0.0)
            rates.setdefault(name, []).append(throughput_ips(many.outcomes, 0.2 * seconds, seconds))
    part_s, whole_s = median(alone["parts"]), median(alone["whole"])
    simulated = {"parts": _simulated(PARTS, CORES, part_s), "whole": _simulated(WHOLE, 1, whole_s)}
    for name, found in rates.items():
        yield Row(
            experiment=NAME,
            case=f"{CORES} processes of one core" if name == "parts" else f"one process of {CORES} cores",
            measure="throughput_ips",
            live=median(found),
            simulated=simulated[name],
            note=f"an inference alone {1e3 * median(alone[name]):.1f} ms",
        )
    ratios = [part / whole for part, whole in zip(rates["parts"], rates["whole"], strict=True) if whole]
    yield Row(
        experiment=NAME,
        case=f"{CORES} processes over one",
        measure="throughput_ratio",
        live=median(ratios) if ratios else None,
        simulated=simulated["parts"] / simulated["whole"] if simulated["whole"] else None,
        least=1.0,
        is_judged=not setup.smoke,
        note=", ".join(f"{each:.2f}" for each in ratios),
    )


def _simulated(name: str, replicas: int, service_s: float) -> float:
    """Inferences per second of so many replicas, each with a unit of cores to itself."""
    accelerator = Accelerator(
        name=name, kind=AcceleratorKind.CPU, count=replicas, memory_bytes=1 << 30, cores=CORES // replicas
    )
    scenario = Scenario(
        kinds=(SimulatedKind(accelerator=accelerator),),
        functions=(deployed({name: fixed(service_s)}, of=function(), ready={name: replicas}),),
        callers=(Callers(function="f", callers=CALLERS),),
        keeps_scale=True,
    )
    result, sink = simulate(scenario, 10.0)
    return len(latencies(sink)) / result.simulated_s
