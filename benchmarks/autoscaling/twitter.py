"""Ten minutes of the Twitter trace at 20 to 200 requests a second, live, from zero replicas: the same requests under
``tide``, ``smif`` and ``kpa``, one after the other, each with a deployment of its own.

Two emulated groups: cheap slow devices and expensive fast ones. The slice has a calm, a burst to six times the rate
within a minute, and the way back. Counts are smoothed over 9 s before they are scaled, else the noise of a second would
be scaled too; arrivals are Poisson at that rate. The first cold start, until 5 s after the first replica was ready, is
reported separately.
"""

import gzip
import random
from collections.abc import Iterator
from pathlib import Path

from benchmarks.autoscaling.lab import Kind, lab
from benchmarks.autoscaling.results import Judge, Row
from benchmarks.autoscaling.setup import Setup, client_rows, write_timeline
from benchmarks.autoscaling.timeline import Run, cost, latency_s, replica_seconds, within
from benchmarks.autoscaling.trace import arrivals, cut, parse, scaled, smoothed
from tidegate.loadgen.clients.bodies import v2_body
from tidegate.loadgen.clients.call import Request

TARGET_S = 0.3
POLICIES = ("tide", "smif", "kpa")
LEAST = {"tide": 0.98, "smif": 0.98}
"""The share that must be in time; ``kpa`` knows no latency."""
LOW, HIGH = 20.0, 200.0
FIRST_S = 480
"""Where the slice begins: three minutes before the burst of the shipped trace."""
SMOKE_FIRST_S = 640
COLD_S = 5.0
KINDS = (
    Kind(name="t4", base_s=1 / 65.25, jitter=0.1, count=3, price=0.526, start_up_s=1.0),
    Kind(name="v100", base_s=1 / 117.0, jitter=0.1, count=3, price=3.06, start_up_s=1.0),
)


def run(setup: Setup, judge: Judge) -> Iterator[Row]:
    seconds = int(setup.long(600, 25))
    counts = parse(read(setup.trace))
    first = min(SMOKE_FIRST_S if setup.smoke else FIRST_S, max(0, len(counts) - seconds))
    rates = scaled(smoothed(cut(counts, first, seconds), 9), LOW, HIGH)
    body = v2_body(1)
    shots = [(at_s, Request(body)) for at_s in arrivals(rates, random.Random(setup.seed))]
    for policy in POLICIES:
        with lab(KINDS) as world:
            annotations: dict[str, object] = {
                "policy": policy,
                "latency": f"{TARGET_S:g}s",
                "percentile": "98",
                "initial-scale": 0,
            }
            world.deploy("tweets", replicas=0, annotations=annotations)
            found = world.open("tweets", shots, seconds)
            reasons = world.client.explain("tweets", last=200).text
        yield from client_rows(judge, policy, found)
        yield from _rows(judge, policy, found)
        page = write_timeline(setup, f"twitter-{policy}", found, TARGET_S)
        (setup.out / f"twitter-{policy}-decisions.txt").write_text(reasons)
        yield judge.row(policy, "seconds", seconds, note=f"from {first} s of {setup.trace.name}; plots: {page}")


def _rows(judge: Judge, policy: str, found: Run) -> Iterator[Row]:
    ready_s = next((look.at_s for look in found.looks if look.replicas), found.seconds)
    warm = [outcome for outcome in found.outcomes if outcome.at_s >= ready_s + COLD_S]
    note = f"{len(warm)} of {len(found.outcomes)} requests, from {ready_s + COLD_S:.1f} s on"
    yield judge.row(policy, "within_sla", within(warm, TARGET_S), least=LEAST.get(policy), note=note)
    yield judge.row(policy, "within_sla_with_the_cold_start", within(found.outcomes, TARGET_S))
    late = sorted(int(outcome.at_s) for outcome in warm if not outcome.is_good or outcome.latency_s > TARGET_S)
    yield judge.row(policy, "seconds_with_late_requests", len(set(late)), note=spans(late))
    for q in (0.5, 0.98):
        value = latency_s(warm, q)
        yield judge.row(policy, f"p{q * 100:g}_ms", None if value is None else value * 1e3)
    most = max((look.replicas for look in found.looks), default=0)
    yield judge.row(policy, "most_replicas", most)
    yield judge.row(policy, "replica_seconds", replica_seconds(found.looks, found.seconds))
    yield judge.row(policy, "cost", cost(found.looks, found.seconds), note="what the replicas cost, at list prices")


def spans(seconds: list[int]) -> str:
    """``81-84, 90``."""
    spans: list[list[int]] = []
    for second in sorted(set(seconds)):
        if spans and second <= spans[-1][1] + 1:
            spans[-1][1] = second
        else:
            spans.append([second, second])
    return ", ".join(f"{low}-{high}" if high > low else f"{low}" for low, high in spans)[:160]


def read(path: Path) -> str:
    data = path.read_bytes()
    return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
