"""The thesis' first experiment, live and a tenth as long: six workers of 15 requests a second each, as ``hey`` paces
them.

A: Knative's policy with a target of one request in flight, at most six replicas of 49.5 ms. B: the one replica of
84.9 ms that GPU utilisation left there. Accelerators are emulated; B begins when A has ended.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from benchmarks.autoscaling.lab import Kind, Lab, lab
from benchmarks.autoscaling.timeline import Run, ended_s
from benchmarks.laboratory.rows import Row
from benchmarks.laboratory.setup import Setup, lost
from benchmarks.laboratory.twin import Machine, Twin, measured_start_s, way_s
from tidegate.loadgen.arrivals.pace import LoadPhase
from tidegate.loadgen.clients.bodies import v2_body
from tidegate.loadgen.clients.call import Request
from tidegate.loadgen.clients.workers import paced
from tidegate.loadgen.simulator.result import Everything
from tidegate.loadgen.simulator.scenario import Callers

NAME = "th1"
WORKERS, RATE = 6, 15.0
A = Twin(
    name="a",
    kinds=(Kind(name="a", base_s=0.0495, count=6, start_up_s=0.5),),
    annotations={
        "policy": "kpa",
        "policy.target": 1,
        "policy.target-utilization-percentage": 100,
        "concurrency": 1,
        "min-scale": 1,
        "max-scale": 6,
    },
    ready=1,
)
B = Twin(
    name="b",
    kinds=(Kind(name="b", base_s=0.0849),),
    annotations={"policy": "kpa", "concurrency": 1, "min-scale": 1, "max-scale": 1},
    ready=1,
)
BEGINS = {"a": "A", "b": "B"}
LEAST, MOST = 5.0, 8.0


@dataclass(frozen=True, slots=True)
class _Side:
    total_s: float
    mean_s: float
    replicas: int


def run(setup: Setup) -> Iterator[Row]:
    requests = int(setup.long(1500, 60))
    sides: dict[str, tuple[_Side, _Side]] = {}
    with lab([*A.kinds, *B.kinds]) as world:
        hop_s = way_s(world, B.kinds[0].name, B.kinds[0].base_s)
        for twin in (A, B):
            live = _live(world, twin, requests)
            machine = Machine(hop_s=hop_s, start_s=measured_start_s([live], twin.kinds[0].start_up_s))
            callers = Callers(function=twin.name, callers=WORKERS, requests=requests, rate=RATE)
            simulated = twin.simulated(machine, None, callers=(callers,), seed=setup.seed)
            sides[twin.name] = (_of_live(live), _of_simulated(simulated))
            yield lost(NAME, BEGINS[twin.name], live)
            yield from _rows(twin, *sides[twin.name])
    (a, a_virtual), (b, b_virtual) = sides["a"], sides["b"]
    yield Row(
        experiment=NAME,
        case="B over A",
        measure="total_time_ratio",
        live=b.total_s / a.total_s,
        simulated=b_virtual.total_s / a_virtual.total_s,
        least=LEAST,
        most=MOST,
        is_judged=not setup.smoke,
        note="printed 5.62",
    )


def _live(world: Lab, twin: Twin, requests: int) -> Run:
    request = Request(v2_body(1), 1)
    workers = paced([LoadPhase(0.0, requests, WORKERS, RATE)])
    twin.deploy(world)
    found = world.run(0.0, {twin.name: lambda load: load.closed_loop(workers, lambda: request)})[twin.name]
    world.delete(twin.name)
    return found


def _of_live(found: Run) -> _Side:
    return _Side(
        max(map(ended_s, found.outcomes)),
        fmean(each.latency_s for each in found.outcomes),
        max(look.replicas for look in found.looks),
    )


def _of_simulated(found: Everything) -> _Side:
    times = [at - request[2] for request, _, at, _, _, _ in found.ended]
    return _Side(found.ended[-1][2], fmean(times), max(each.ready for each in found.seconds))


def _rows(twin: Twin, live: _Side, simulated: _Side) -> Iterator[Row]:
    for measure in ("total_s", "mean_s", "replicas"):
        yield Row(
            experiment=NAME,
            case=BEGINS[twin.name],
            measure={"mean_s": "mean_latency_s"}.get(measure, measure),
            live=getattr(live, measure),
            simulated=getattr(simulated, measure),
        )
