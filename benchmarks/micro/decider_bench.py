"""Time of one autoscaler tick over many functions, in process, without IO.

    python -m benchmarks.micro.decider_bench [--functions 1000] [--groups 10] [--ticks 20]

One tick takes a gateway sample with a demand of every function, one sample of every replica, makes every observation
and every decision. Prints one JSON line; times are milliseconds, the figure to keep in mind is 250 ms for a tick.
"""

import argparse
import itertools
import json
import platform
import statistics
import subprocess
import sys
import time

from autoscaler.collector import Collector
from autoscaler.decider import Decider
from autoscaler.observation import FleetGroup
from tidegate.function import Function, Revision, Server, ServerKind
from tidegate.records import GatewaySample, ReplicaSample, RevisionDemand
from tidegate.replica import ReplicaState

START = 1_700_000_000.0


def gateway_sample(revisions: list[Revision], tick: int, is_busy: bool) -> GatewaySample:
    done = 40 * tick if is_busy else 0
    demands = tuple(
        RevisionDemand(
            function=revision.function.name,
            revision=revision.id,
            arrivals=done,
            arrivals_inferences=8 * done,
            refused=0,
            expired=0,
            cancelled=0,
            answered=done,
            failed=0,
            within_sla=done,
            waiting=2 if is_busy else 0,
            waiting_inferences=16 if is_busy else 0,
            oldest_waiting_s=0.01,
            waiting_request_s=2.0 * tick if is_busy else 0.0,
            waiting_inference_s=0.0,
            latency=tuple((80 + index, done) for index in range(20)),
        )
        for revision in revisions
    )
    return GatewaySample(
        worker="g0",
        incarnation="i",
        sequence=tick,
        uptime_s=float(tick),
        table_epoch=1,
        table_number=1,
        connections=0,
        demands=demands,
    )


def replica_sample(replica: str, revision: str, group: str, tick: int, is_busy: bool) -> ReplicaSample:
    done = 4 * tick if is_busy else 0
    return ReplicaSample(
        replica=replica,
        revision=revision,
        group=group,
        incarnation="i",
        sequence=tick,
        uptime_s=float(tick),
        state=ReplicaState.READY,
        limit=4,
        in_flight=3 if is_busy else 0,
        in_flight_inferences=24,
        queued=0,
        requests=done,
        inferences=8 * done,
        failures=0,
        cancelled=0,
        busy_s=0.8 * done,
        in_flight_request_s=3.0 * tick if is_busy else 0.0,
        in_flight_inference_s=24.0 * tick,
        execution_s=0.7 * done,
        queue_s=0.0,
    )


def measure(functions: int, groups: int, ticks: int, is_busy: bool) -> dict[str, float]:
    server = Server(kind=ServerKind.MODEL, target="/m.onnx")
    revisions = [Revision(Function(name=f"f{i}", server=server, models=(f"f{i}",)), 1) for i in range(functions)]
    names = [(revision, f"kind{g}", f"{revision.id}-{g:05d}") for revision in revisions for g in range(groups)]
    fleets = {
        revision.id: tuple(
            FleetGroup(accelerator=f"kind{g}", ready=(f"{revision.id}-{g:05d}",), room=2, price_per_hour=1.0 + g)
            for g in range(groups)
        )
        for revision in revisions
    }
    collector, decider = Collector(), Decider()
    collector.expect(["g0"], [replica for _, _, replica in names])
    for revision in revisions:
        collector.apply(revision.id, START)
        decider.apply(revision, START, fresh=False, ready=groups)
    spent: dict[str, list[float]] = {"gateway": [], "replicas": [], "decide": []}
    for tick in range(1, ticks + 1):
        now = START + tick
        seen = gateway_sample(revisions, tick, is_busy)
        replicas = [replica_sample(name, revision.id, group, tick, is_busy) for revision, group, name in names]
        marks = [time.perf_counter()]
        collector.gateway(seen, now)
        marks.append(time.perf_counter())
        for sample in replicas:
            collector.replica(sample, now)
        marks.append(time.perf_counter())
        for revision in revisions:
            decider.tick(now, collector.observe(revision, fleets[revision.id], now))
        marks.append(time.perf_counter())
        for part, (begin, end) in zip(spent.values(), itertools.pairwise(marks), strict=True):
            part.append(1e3 * (end - begin))
    medians = {f"{name}_ms": round(statistics.median(values[1:]), 2) for name, values in spent.items()}
    totals = [sum(parts) for parts in zip(*spent.values(), strict=True)][1:]
    return medians | {"tick_ms": round(statistics.median(totals), 2), "tick_max_ms": round(max(totals), 2)}


def commit() -> str:
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--functions", type=int, default=1000)
    parser.add_argument("--groups", type=int, default=10)
    parser.add_argument("--ticks", type=int, default=20)
    args = parser.parse_args()
    result = {
        "benchmark": "decider",
        "functions": args.functions,
        "groups": args.groups,
        "busy": measure(args.functions, args.groups, args.ticks, True),
        "idle": measure(args.functions, args.groups, args.ticks, False),
        "commit": commit(),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
