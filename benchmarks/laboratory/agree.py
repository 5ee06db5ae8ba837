"""Agreement of the simulator with a live run: under the same load, the same replicas in every second and the same
latency.

Replicas of an emulated accelerator (150 ms and 50 ms an inference), one request at a time each. Arrivals are even and
the same on both sides. Three things are measured on the live side: the start-up time, the time of a request on its way,
and where in the load's first second the control process decides. The simulator decides at whole seconds, so there the
load begins that much before one.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice

from benchmarks.autoscaling.lab import Kind, Lab, lab
from benchmarks.autoscaling.timeline import Run, latency_s
from benchmarks.laboratory.rows import Row, by_second, equal_share
from benchmarks.laboratory.setup import Setup, lost
from benchmarks.laboratory.twin import Machine, Twin, measured_start_s, shots, way_s
from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.arrivals.processes import even
from tidegate.loadgen.experiments.setups.worlds import latencies
from tidegate.loadgen.simulator.result import Everything

NAME = "agree"
T4 = Kind(name="t4", base_s=0.15, per_item_s=0.05, count=8, start_up_s=1.0)
KPA = {"policy": "kpa", "policy.window": "20s", "concurrency": 1, "max-scale": 4}
SMIF = {"policy": "smif", "latency": "600ms", "concurrency": 1, "max-scale": 8}
LATENCY_APART = 0.15
EQUAL_SHARE = 0.95


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    annotations: Mapping[str, object]
    ready: int
    """Replicas when the load begins."""
    rates: Sequence[tuple[float, float]]
    """(seconds, requests per second), one after the other."""
    batches: Sequence[int] = (1,)
    """Inferences of the requests, in turns."""

    @property
    def seconds(self) -> float:
        return sum(seconds for seconds, _ in self.rates)

    def arrivals(self) -> list[Arrival]:
        found: list[Arrival] = []
        began, sizes = 0.0, cycle(self.batches)
        for seconds, rate in self.rates:
            times = list(even(partial(_constant, rate), seconds))
            found += [Arrival(began + at_s, size) for at_s, size in zip(times, islice(sizes, len(times)), strict=True)]
            began += seconds
        return found


def _constant(rate: float, _: float) -> float:
    return rate


CASES = (
    Case("cold start", KPA, 0, ((60.0, 12.0),)),
    Case("step up and down", {**KPA, "min-scale": 2}, 2, ((20.0, 4.0), (40.0, 12.0), (60.0, 4.0))),
    Case("batches", KPA, 1, ((60.0, 6.6),), (1, 4, 8)),
    Case("SLA policy", SMIF, 1, ((60.0, 13.0),)),
)
SMOKE = (Case("cold start", KPA, 0, ((8.0, 12.0),)),)


def run(setup: Setup) -> Iterator[Row | Mapping[str, object]]:
    with lab([T4]) as world:
        hop_s = way_s(world, T4.name, T4.base_s + T4.per_item_s)
        for number, case in enumerate(SMOKE if setup.smoke else CASES):
            twin = Twin(name=f"twin{number}", kinds=(T4,), annotations=case.annotations, ready=case.ready)
            yield from _compared(setup, world, twin, case, hop_s)


def _compared(setup: Setup, world: Lab, twin: Twin, case: Case, hop_s: float) -> Iterator[Row | Mapping[str, object]]:
    arrivals, began = case.arrivals(), []
    twin.deploy(world)
    live = world.open(
        twin.name,
        shots(arrivals),
        case.seconds,
        during=lambda steady: began.append(time.time() - (time.monotonic() - steady)),
    )
    recorded = b"".join(world.client.recording(twin.name))
    world.delete(twin.name)
    machine = Machine(hop_s=hop_s, start_s=measured_start_s([live], T4.start_up_s))
    ahead_s = 1.0 - first_tick_s(recorded, began[0])
    later = [each._replace(at_s=each.at_s + ahead_s) for each in arrivals]
    simulated = twin.simulated(machine, case.seconds + ahead_s, arrivals=later)
    yield from rows(setup, case, live, simulated, machine, ahead_s)


def first_tick_s(recorded: bytes, began: float) -> float:
    """Seconds from ``began`` (Unix time) until the round of the control process that came next. ``recorded``: what the
    autoscaler saw and decided, as JSON lines; activations are decided upon at any time and do not count."""
    steps = (json.loads(line) for line in recorded.splitlines())
    times = (step["observation"]["at"] for step in steps if "observation" in step and not step.get("activation"))
    first = next((at for at in times if at > began), None)
    return 1.0 if first is None else (first - began) % 1.0


def rows(
    setup: Setup, case: Case, live: Run, simulated: Everything, machine: Machine, ahead_s: float = 0.0
) -> Iterator[Row | Mapping[str, object]]:
    """The figures of one case, and the replicas of both sides by second; the simulated load began at ``ahead_s``."""
    seconds = int(case.seconds)
    real = by_second([(look.at_s, look.replicas) for look in live.looks], seconds)
    virtual = by_second([(each.at_s - ahead_s, each.ready) for each in simulated.seconds], seconds)
    yield {"benchmark": "laboratory", "experiment": NAME, "case": case.name, "live": real, "simulated": virtual}
    yield lost(NAME, case.name, live)
    judged = not setup.smoke
    yield Row(
        experiment=NAME,
        case=case.name,
        measure="seconds_with_equal_replicas",
        live=equal_share(real, virtual),
        least=EQUAL_SHARE,
        is_judged=judged,
    )
    yield Row(experiment=NAME, case=case.name, measure="replica_seconds", live=sum(real), simulated=sum(virtual))
    times = sorted(latencies(simulated))
    measured = f"start {machine.start_s:.2f} s, way {1e3 * machine.hop_s:.1f} ms, begins at {ahead_s:.2f} s of a second"
    for measure, q, apart in (("median_latency_s", 0.5, LATENCY_APART), ("p95_latency_s", 0.95, None)):
        yield Row(
            experiment=NAME,
            case=case.name,
            measure=measure,
            live=latency_s(live.outcomes, q),
            simulated=times[min(len(times) - 1, int(q * len(times)))] if times else None,
            apart=apart,
            is_judged=judged,
            note=measured if apart else "",
        )
