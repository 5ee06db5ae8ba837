"""How tight the clairvoyant bound is, and how long it takes.

Prints one JSON line per trace and start-up time: both bounds in dollars, their ratio, and what a plan costs that can be
carried out: the smallest fleet that never changes and keeps the SLA (99 % within the latency), chosen in hindsight.
Requests take 0.03 s + 0.07 s per inference on one slot and have 0.3 s (``batches``: 1.7 s); ``constant-3`` has three
groups instead, at 0.53, 0.80 and 3.50 dollars per hour.

    python -m benchmarks.micro.bound_bench [--hours H] [--trace NAME] [--start-s S] [--seed N]
"""

import argparse
import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from time import process_time

from loadgen.arrivals import mmpp, poisson
from loadgen.bound.clairvoyant import Group, clairvoyant
from loadgen.simulator.profiles import Line, Times

Arrivals = list[tuple[float, int]]
QUANTILE = 0.99
PRICE = 0.53
VARIATION = 0.15
"""Coefficient of variation of the service times that the played fleet meets, lognormal; the bound takes their mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    arrivals: Callable[[float, random.Random], Arrivals]
    latency_s: float = 0.3
    others: tuple[tuple[str, float, Line], ...] = ()
    """Further groups: name, price, times."""


def constant(duration_s: float, rng: random.Random) -> Arrivals:
    return [(at_s, 1) for at_s in poisson(lambda _: 60.0, duration_s, 60.0, rng)]


def diurnal(duration_s: float, rng: random.Random) -> Arrivals:
    """2 to 108 per second; six hours are a day."""

    def rate(at_s: float) -> float:
        return 55.0 - 53.0 * math.cos(2.0 * math.pi * at_s / 21_600.0)

    return [(at_s, 1) for at_s in poisson(rate, duration_s, 108.0, rng)]


def batches(duration_s: float, rng: random.Random) -> Arrivals:
    """8 to 20 requests per second of 1, 4 or 16 inferences."""

    def rate(at_s: float) -> float:
        return 14.0 - 6.0 * math.cos(2.0 * math.pi * at_s / 21_600.0)

    times = list(poisson(rate, duration_s, 20.0, rng))
    return list(zip(times, rng.choices((1, 4, 16), (0.7, 0.2, 0.1), k=len(times)), strict=True))


def modulated(duration_s: float, rng: random.Random) -> Arrivals:
    """30 or 120 per second, for 90 and 30 s on average."""
    return [(at_s, 1) for at_s in mmpp((30.0, 120.0), (90.0, 30.0), duration_s, rng)]


def switched(duration_s: float, rng: random.Random) -> Arrivals:
    """40 per second for 330 s, then nothing for 1560 s, both on average."""
    return [(at_s, 1) for at_s in mmpp((40.0, 0.0), (330.0, 1560.0), duration_s, rng)]


FASTER = (("t4", 0.80, Line(base_s=0.065, per_item_s=0.035)), ("v100", 3.5, Line(base_s=0.027, per_item_s=0.009)))
TIMES = Line(base_s=0.03, per_item_s=0.07)
SLOWER = Line(base_s=0.11, per_item_s=0.075)
CASES = {
    "constant": Case(arrivals=constant),
    "constant-3": Case(arrivals=constant, others=FASTER),
    "diurnal": Case(arrivals=diurnal),
    "batches": Case(arrivals=batches, latency_s=1.7),
    "mmpp": Case(arrivals=modulated),
    "on-off": Case(arrivals=switched),
}


def groups_of(case: Case, start_s: float) -> list[Group]:
    kinds = (("k80", PRICE, SLOWER if case.others else TIMES), *case.others)
    return [
        Group(name=name, times=times, slots=1, price_per_hour=price, start_s=start_s, max_replicas=10_000)
        for name, price, times in kinds
    ]


def late(replicas: int, arrivals: Arrivals, times: Times, latency_s: float, rng: random.Random) -> int:
    """Late requests of a fleet that serves first come first served."""
    sigma = math.sqrt(math.log(1.0 + VARIATION**2))
    free = [0.0] * replicas
    heapify(free)
    found = 0
    for at_s, batch in arrivals:
        over_s = max(free[0], at_s) + times.seconds(batch) * rng.lognormvariate(-0.5 * sigma**2, sigma)
        heapreplace(free, over_s)
        found += over_s > at_s + latency_s
    return found


def smallest(arrivals: Arrivals, group: Group, latency_s: float, duration_s: float, seed: int) -> tuple[int, float]:
    """(replicas, share of late requests) of the smallest fleet of one group that keeps the SLA, if it never changes."""
    replicas = max(1, math.ceil(sum(group.times.seconds(batch) for _, batch in arrivals) / duration_s))
    while True:
        share = late(replicas, arrivals, group.times, latency_s, random.Random(seed)) / max(1, len(arrivals))
        if share <= 1.0 - QUANTILE:
            return replicas, share
        replicas += 1


def static_fleet(
    arrivals: Arrivals, groups: Sequence[Group], latency_s: float, duration_s: float, seed: int
) -> tuple[float, int, float]:
    """(dollars, replicas, share of late requests) of the cheapest such fleet of one group."""
    found = []
    for group in groups:
        replicas, share = smallest(arrivals, group, latency_s, duration_s, seed)
        found.append((replicas * group.price_per_hour * duration_s / 3600.0, replicas, share))
    return min(found)


def measure(name: str, start_s: float, duration_s: float, seed: int) -> dict[str, object]:
    case = CASES[name]
    arrivals = case.arrivals(duration_s, random.Random(seed))
    groups = groups_of(case, start_s)
    began = process_time()
    bound = clairvoyant(arrivals, groups, latency_s=case.latency_s, quantile=QUANTILE, duration_s=duration_s)
    used_s = process_time() - began
    dollars, replicas, share = static_fleet(arrivals, groups, case.latency_s, duration_s, seed)
    return {
        "benchmark": "bound",
        "trace": name,
        "start_s": start_s,
        "duration_s": duration_s,
        "requests": len(arrivals),
        "b0_dollars": round(bound.b0, 5),
        "bq_dollars": round(bound.bq, 5),
        "b0_over_bq": round(bound.b0 / bound.bq, 3),
        "static_replicas": replicas,
        "static_late_percent": round(100.0 * share, 3),
        "static_over_b0": round(dollars / bound.b0, 3),
        "static_over_bq": round(dollars / bound.bq, 3),
        "cpu_s": round(used_s, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trace", action="append", choices=CASES, help="default: all")
    parser.add_argument("--start-s", action="append", type=float, help="default: 5, 30 and 120")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    for name in arguments.trace or CASES:
        for start_s in arguments.start_s or (5.0, 30.0, 120.0):
            print(json.dumps(measure(name, start_s, 3600.0 * arguments.hours, arguments.seed)), flush=True)


if __name__ == "__main__":
    main()
