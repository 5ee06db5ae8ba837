"""Time of one autoscaler tick over many functions, in process, without IO.

    python -m benchmarks.micro.decider_bench [--functions 1000] [--groups 10] [--ticks 20] [--policy kpa|smif|tide]

One tick takes a gateway sample with a demand of every function (latencies of every group included), one sample of
every replica, makes every observation and every decision. Prints one JSON line: medians, and of the whole tick also
the smallest, the lowest and highest tenth and the largest; times are milliseconds of processor
time of one core (what other processes do to the wall clock is not counted). Figures to keep in mind: 250 ms for a
tick, 5 ms for the longest piece that stops the loop (one part of the gateway's sample, one replica's sample, one
function's observation and decision). The cyclic garbage collector is set as in the data plane.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace

from tidegate.aio.loop.run import quiet_collector
from tidegate.autoscaler.decider import Decider
from tidegate.autoscaler.measure.collector import Collector
from tidegate.autoscaler.measure.observation import FleetGroup
from tidegate.autoscaler.policies import registry
from tidegate.function import Function, Revision, Scaling, Server, ServerKind, Sla
from tidegate.histogram import bucket_index
from tidegate.records.gateway_sample import GatewaySample, GroupTraffic, RevisionDemand
from tidegate.records.replica_sample import ReplicaSample
from tidegate.records.replica_state import ReplicaState

START = 1_700_000_000.0


def gateway_sample(revisions: list[Revision], groups: int, tick: int, is_busy: bool) -> GatewaySample:
    done = 40 * tick if is_busy else 0
    latency = tuple((80 + index, done) for index in range(20)) if is_busy else ()
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
            latency=latency,
            sizes=((bucket_index(8), done),) if is_busy else (),
            groups=tuple(
                GroupTraffic(group=f"kind{g}", requests=done, inferences=8 * done, failures=0, latency=latency)
                for g in range(groups if is_busy else 0)
            ),
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
        busy_s=0.8 * tick if is_busy else 0.0,
        in_flight_request_s=3.0 * tick if is_busy else 0.0,
        in_flight_inference_s=24.0 * tick,
        execution_s=0.7 * done,
        queue_s=0.0,
        execution=tuple((90 + index, done) for index in range(12)) if is_busy else (),
    )


def measure(functions: int, groups: int, ticks: int, policy: str, is_busy: bool) -> dict[str, float]:
    server = Server(kind=ServerKind.MODEL, target="/m.onnx")
    base = Function(name="f", server=server, concurrency=4, sla=Sla(latency_s=0.2), scaling=Scaling(policy=policy))
    revisions = [Revision(replace(base, name=f"f{i}", models=(f"f{i}",)), 1) for i in range(functions)]
    names = [(revision, f"kind{g}", f"{revision.id}-{g:05d}") for revision in revisions for g in range(groups)]
    fleets = {
        revision.id: tuple(
            FleetGroup(accelerator=f"kind{g}", ready=(f"{revision.id}-{g:05d}",), room=2, price_per_hour=1.0 + g)
            for g in range(groups)
        )
        for revision in revisions
    }
    collector, decider = Collector(by_size=registry.by_size()), Decider()
    collector.expect(["g0"], [replica for _, _, replica in names])
    for revision in revisions:
        collector.apply(revision.id, START)
        decider.apply(revision, START, fresh=False, ready=groups)
    spent: dict[str, list[float]] = {"gateway": [], "replicas": [], "decide": []}
    pieces: dict[str, list[float]] = {"gateway": [], "decide": []}
    for tick in range(1, ticks + 1):
        now = START + tick
        seen = gateway_sample(revisions, groups, tick, is_busy)
        replicas = [replica_sample(name, revision.id, group, tick, is_busy) for revision, group, name in names]
        gateway = timed(collector.gateway_parts(seen, now))
        began = time.thread_time()
        for sample in replicas:
            collector.replica(sample, now)
        spent["replicas"].append(1e3 * (time.thread_time() - began))
        decide = timed(decider.tick(now, collector.observe(each, fleets[each.id], now)) for each in revisions)
        for part, took in (("gateway", gateway), ("decide", decide)):
            spent[part].append(sum(took))
            pieces[part].append(sorted(took)[-2] if len(took) > 1 else took[0])
    medians = {f"{name}_ms": round(statistics.median(values[2:]), 2) for name, values in spent.items()}
    totals = [sum(parts) for parts in zip(*spent.values(), strict=True)][2:]
    longest = {f"longest_{name}_piece_ms": round(statistics.median(values[2:]), 3) for name, values in pieces.items()}
    ordered = sorted(totals)
    spread = [round(ordered[int(part * (len(ordered) - 1))], 2) for part in (0.0, 0.1, 0.9, 1.0)]
    return medians | {"tick_ms": round(statistics.median(totals), 2), "tick_spread_ms": spread} | longest


def timed(steps: Iterable[object]) -> list[float]:
    """Milliseconds of processor time of each step, the last one (until the end) included."""
    took, began = [], time.thread_time()
    for _ in steps:
        ended = time.thread_time()
        took.append(1e3 * (ended - began))
        began = ended
    return [*took, 1e3 * (time.thread_time() - began)]


def commit() -> str:
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--functions", type=int, default=1000)
    parser.add_argument("--groups", type=int, default=10)
    parser.add_argument("--ticks", type=int, default=20)
    parser.add_argument("--policy", default="kpa", choices=registry.names())
    args = parser.parse_args()
    quiet_collector()
    result = {
        "benchmark": "decider",
        "functions": args.functions,
        "groups": args.groups,
        "policy": args.policy,
        "busy": measure(args.functions, args.groups, args.ticks, args.policy, True),
        "idle": measure(args.functions, args.groups, args.ticks, args.policy, False),
        "commit": commit(),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
