"""Age of the samples behind decisions, and the decisions when there are none.

*Steady*: load on two groups; the age of the samples at each decision, from the exported metric. *Blind*: gateways and
queue_proxies are stopped (SIGSTOP), also those that replace hanging ones, so no pull is answered for a minute, three
times as long as an idle function may stay awake. Missing data must not be taken for zero: not one replica starts or
stops, and everything serves afterwards.
"""

import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.autoscaling.lab import Kind, Lab, lab
from benchmarks.autoscaling.results import Judge, Row
from benchmarks.autoscaling.setup import Setup, client_rows
from benchmarks.autoscaling.timeline import Look
from tidegate.loadgen.arrivals.processes import poisson
from tidegate.loadgen.clients.bodies import v2_body
from tidegate.loadgen.clients.call import Request
from tidegate.loadgen.clients.outcomes import Shot

METRIC = "tidegate_decision_age_seconds"
KINDS = (Kind(name="v100", base_s=1 / 117.0, count=2), Kind(name="t4", base_s=1 / 65.25, count=2))
RATE = 90.0
IDLE_S = 20
LOOK_S = 1.0


def run(setup: Setup, judge: Judge) -> Iterator[Row]:
    with lab(KINDS) as world:
        annotations: dict[str, object] = {
            "latency": "300ms",
            "initial-scale": 3,
            "scale-to-zero-after": f"{IDLE_S}s",
            "policy.cooldown": "10s",
        }
        world.deploy("aged", replicas=3, annotations=annotations)
        before = buckets(world.client.metrics())
        found = world.open("aged", _shots(setup, setup.long(60, 8)), setup.long(60, 8))
        yield from client_rows(judge, "steady", found)
        yield _age_row(judge, difference(buckets(world.client.metrics()), before))
        yield from _blind(setup, judge, world)


def _shots(setup: Setup, seconds: float) -> list[Shot]:
    body = v2_body(1)
    return [(at_s, Request(body)) for at_s in poisson(lambda at_s: RATE, seconds, RATE, random.Random(setup.seed))]


# --- steady


def buckets(text: str) -> dict[float, float]:
    """Cumulative counts of the metric by upper bound, over all its series; empty where it is not exported."""
    found: dict[float, float] = {}
    for line in text.splitlines():
        if not line.startswith(f"{METRIC}_bucket"):
            continue
        labels, _, count = line.rpartition(" ")
        bound = float(labels.partition('le="')[2].partition('"')[0].replace("+Inf", "inf"))
        found[bound] = found.get(bound, 0.0) + float(count)
    return found


def difference(after: dict[float, float], before: dict[float, float]) -> dict[float, float]:
    return {bound: count - before.get(bound, 0.0) for bound, count in after.items()}


def quantile_bound(counts: dict[float, float], q: float) -> float | None:
    """The smallest upper bound of a bucket below which the share ``q`` lies; None without observations."""
    total = max(counts.values(), default=0.0)
    return next((bound for bound in sorted(counts) if counts[bound] >= q * total), None) if total > 0.0 else None


def _age_row(judge: Judge, counts: dict[float, float]) -> Row:
    bound = quantile_bound(counts, 0.99)
    total = max(counts.values(), default=0.0)
    note = f"upper bound of its bucket, {total:.0f} decisions" if bound is not None else f"{METRIC} is not exported"
    return judge.row("steady", "decision_age_p99_s", bound, most=1.0, note=note)


# --- blind


def _blind(setup: Setup, judge: Judge, world: Lab) -> Iterator[Row]:
    first = world.look("aged", 0.0)
    looks = []
    stopped: set[int] = set()
    try:
        began = time.monotonic()
        while (at_s := time.monotonic() - began) < setup.long(60, 6):
            for pid in _senders(world) - stopped:
                _signal(pid, signal.SIGSTOP)
                stopped.add(pid)
            looks.append(world.look("aged", at_s))
            time.sleep(LOOK_S)
        reasons = sorted({reason.code for each in world.client.function("aged").revisions for reason in each.reasons})
    finally:
        for pid in stopped:
            _signal(pid, signal.SIGCONT)
    moved = sum(each.present != first.present for each in looks)
    note = (
        f"{len(stopped)} processes stopped for {looks[-1].at_s:.0f} s; {_sizes(looks)}; reasons: {', '.join(reasons)}"
    )
    yield judge.row("blind", "looks_with_other_replicas", moved, most=0, always=True, note=note)
    time.sleep(2.0)  # The first samples after it, before the load comes back.
    found = world.open("aged", _shots(setup, 5.0), 5.0)
    yield from client_rows(judge, "after it", found)


def _sizes(looks: Sequence[Look]) -> str:
    sizes = sorted({sum(look.present.values()) for look in looks})
    return f"replicas: {', '.join(map(str, sizes))}"


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # A gateway worker that hangs is killed.
        os.kill(pid, number)


def _senders(world: Lab) -> set[int]:
    """Gateway workers and queue_proxies: all that samples come from."""
    status = world.client.status()
    pids = [pid for each in world.client.function("aged").revisions for one in each.replicas for pid in one.pids]
    proxies = [pid for pid in pids if b"queue_proxy" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return {each.pid for each in status.gateways if each.pid} | {*proxies}
