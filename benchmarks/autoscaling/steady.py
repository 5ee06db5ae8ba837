"""Ten minutes of Poisson arrivals at 70 % of capacity: no scaling is needed, so which policy scales?

Two functions at once, each with four emulated devices of its own and half of them in use at first: one under ``smif``,
one under ``kpa``. A turn is a scale-up followed by a scale-down, or the other way round.
"""

import random
from collections.abc import Iterator
from functools import partial

from benchmarks.autoscaling.lab import Kind, lab
from benchmarks.autoscaling.results import Judge, Row
from benchmarks.autoscaling.setup import Setup, client_rows, write_timeline
from benchmarks.autoscaling.timeline import Run, flip_flops, latency_s, within
from tidegate.loadgen.arrivals.processes import poisson
from tidegate.loadgen.clients.bodies import v2_body
from tidegate.loadgen.clients.call import Request
from tidegate.loadgen.clients.runs import LoadRun as Load

TARGET_S = 0.25
REPLICAS = 2
USE = 0.7
POLICIES = ("smif", "kpa")


def run(setup: Setup, judge: Judge) -> Iterator[Row]:
    seconds = setup.long(600, 10)
    kinds = {policy: Kind(name=f"t4-{policy}", base_s=1 / 65.25, jitter=0.2, count=2 * REPLICAS) for policy in POLICIES}
    rate = USE * REPLICAS * kinds["smif"].mu_ips()
    body = v2_body(1)
    with lab(kinds.values()) as world:
        drives = {}
        for policy, kind in kinds.items():
            annotations: dict[str, object] = {"policy": policy, "latency": f"{TARGET_S:g}s", "initial-scale": REPLICAS}
            world.deploy(policy, on=[kind.name], replicas=REPLICAS, annotations=annotations)
            times = poisson(lambda at_s: rate, seconds, rate, random.Random(setup.seed))
            shots = [(at_s, Request(body)) for at_s in times]
            drives[policy] = partial(Load.open_loop, schedule=shots)
        runs = world.run(seconds, drives)
    for policy in POLICIES:
        yield from client_rows(judge, policy, runs[policy])
        yield from _rows(judge, policy, runs[policy], rate)
        write_timeline(setup, f"steady-{policy}", runs[policy], TARGET_S)


def _rows(judge: Judge, policy: str, found: Run, rate: float) -> Iterator[Row]:
    counts = sorted({look.replicas for look in found.looks})
    note = f"{rate:.0f} requests/s for {found.seconds:.0f} s; ready replicas between {counts[0]} and {counts[-1]}"
    most = 0 if policy == "smif" else None
    yield judge.row(policy, "turns", flip_flops(found.looks), most=most, note=note)
    yield judge.row(policy, "within_sla", within(found.outcomes, TARGET_S), least=0.98 if most == 0 else None)
    p98 = latency_s(found.outcomes, 0.98)
    yield judge.row(policy, "p98_ms", None if p98 is None else p98 * 1e3)
