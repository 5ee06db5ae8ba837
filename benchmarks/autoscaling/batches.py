"""Ever larger batches at a constant request rate: which policy sees the load? (SMIF, section 4.3 and Fig. 5)

Twelve callers, each with a request every two seconds; batches of 1, then 16, then 64, on emulated devices with the
service times of the paper's Table 1. Several functions at once, each with four devices of its own: the SLA policy
counts inferences; Knative's autoscaler counts requests, per second or in flight; ``hpa`` measures utilisation.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.autoscaling.lab import Drive, Kind, lab
from benchmarks.autoscaling.results import Judge, Row
from benchmarks.autoscaling.setup import Setup, client_rows, write_timeline
from benchmarks.autoscaling.timeline import Run, throughput_ips, within
from tidegate.loadgen.clients.bodies import v2_body
from tidegate.loadgen.clients.call import Request
from tidegate.loadgen.clients.runs import LoadRun as Load
from tidegate.loadgen.clients.workers import callers

CALLERS = 12
EVERY_S = 2.0
TABLE_1 = Kind(name="v100", base_s=0.00905, per_item_s=0.005532, count=4, start_up_s=1.0)
TARGET_S = 0.75
"""About twice the service time of a batch of 64."""
POLICIES: dict[str, dict[str, object]] = {
    "smif": {"policy": "smif"},
    "kpa-rps": {"policy": "kpa", "policy.metric": "rps"},
    "kpa-in-flight": {"policy": "kpa"},
    "hpa-busy": {"policy": "hpa"},
}


@dataclass(frozen=True, slots=True)
class Phase:
    batch: int
    first_s: float
    last_s: float

    @property
    def settled_s(self) -> float:
        """From when on it is measured."""
        return (self.first_s + self.last_s) / 2.0


def run(setup: Setup, judge: Judge) -> Iterator[Row]:
    phases = phases_of((1, 64), 8.0) if setup.smoke else phases_of((1, 16, 64), 80.0)
    seconds = phases[-1].last_s
    policies = {name: POLICIES[name] for name in (("smif", "kpa-rps") if setup.smoke else POLICIES)}
    kinds = [
        Kind(
            name=f"v100-{name}",
            base_s=TABLE_1.base_s,
            per_item_s=TABLE_1.per_item_s,
            count=TABLE_1.count,
            start_up_s=TABLE_1.start_up_s,
        )
        for name in policies
    ]
    with lab(kinds) as world:
        for name, annotations in policies.items():
            world.deploy(name, on=[f"v100-{name}"], annotations=annotations | {"latency": f"{TARGET_S:g}s"})
        runs = world.run(seconds, {name: _drive(phases) for name in policies})
    for name, found in runs.items():
        yield from client_rows(judge, name, found)
        write_timeline(setup, f"batches-{name}", found, TARGET_S)
    for phase in phases:
        yield from _rows(judge, phase, runs)
    yield from _reactions(judge, phases, runs)


def phases_of(batches: Sequence[int], each_s: float) -> list[Phase]:
    return [Phase(batch, index * each_s, (index + 1) * each_s) for index, batch in enumerate(batches)]


def _drive(phases: Sequence[Phase]) -> Drive:
    requests = {phase: Request(v2_body(phase.batch), phase.batch) for phase in phases}

    async def drive(load: Load) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()

        def draw() -> Request:
            at_s = loop.time() - began
            return requests[next((phase for phase in phases if at_s < phase.last_s), phases[-1])]

        await load.closed_loop(callers(CALLERS, phases[-1].last_s, every_s=EVERY_S), draw)

    return drive


def replicas(found: Run, phase: Phase) -> int:
    """The most that were ready at once, in the settled part of a phase."""
    inside = [look.replicas for look in found.looks if phase.settled_s <= look.at_s < phase.last_s]
    return max(inside, default=0)


def _rate(found: Run, phase: Phase) -> float:
    return throughput_ips(found.outcomes, phase.settled_s, phase.last_s)


def _rows(judge: Judge, phase: Phase, runs: dict[str, Run]) -> Iterator[Row]:
    for name, found in runs.items():
        case = f"{name}, batch {phase.batch}"
        yield judge.row(case, "replicas", replicas(found, phase))
        yield judge.row(case, "throughput_ips", _rate(found, phase))
        asked = [outcome for outcome in found.outcomes if phase.settled_s <= outcome.at_s < phase.last_s]
        yield judge.row(case, "within_sla", within(asked, TARGET_S), least=0.95 if name == "smif" else None)
    gain = _rate(runs["smif"], phase) / max(1e-9, _rate(runs["kpa-rps"], phase))
    least = 1.5 if phase.batch >= 64 else 0.95
    yield judge.row(f"smif over kpa-rps, batch {phase.batch}", "throughput_gain", gain, least=least)


def _reactions(judge: Judge, phases: Sequence[Phase], runs: dict[str, Run]) -> Iterator[Row]:
    first, last = phases[0], phases[-1]
    for name, found in runs.items():
        more = replicas(found, last) - replicas(found, first)
        least, most = (1, None) if name == "smif" else (0, 0) if name == "kpa-rps" else (None, None)
        yield judge.row(name, "replicas_gained", more, least=least, most=most)
