"""Tightness of the clairvoyant bound, and its run time.

Prints one JSON line per trace and start-up time: both bounds in dollars, their ratio, and the cost of feasible plans
that keep the SLA (99 % within the latency): the smallest constant fleet (``static``), and where the rate has a formula,
square-root staffing by that rate (``staffed``), each with the margin chosen in hindsight. Requests take 0.03 s + 0.07 s
per inference on one slot and have 0.3 s (``batches``: 1.7 s); ``constant-3`` has three groups instead, at 0.53, 0.80
and 3.50 dollars per hour.

    python -m benchmarks.micro.bound_bench [--hours H] [--trace NAME] [--start-s S] [--seed N]
"""

import argparse
import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from time import process_time

from tidegate.loadgen.arrivals.processes import mmpp, poisson
from tidegate.loadgen.bound.clairvoyant import Group, clairvoyant
from tidegate.loadgen.simulator.profiles import Line, Times

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
    rate: Callable[[float], float] | None = None
    """Arrivals per second at a time, where they follow a formula."""


def constant(duration_s: float, rng: random.Random) -> Arrivals:
    return [(at_s, 1) for at_s in poisson(lambda _: 60.0, duration_s, 60.0, rng)]


def diurnal_rate(at_s: float) -> float:
    return 55.0 - 53.0 * math.cos(2.0 * math.pi * at_s / 21_600.0)


def diurnal(duration_s: float, rng: random.Random) -> Arrivals:
    """2 to 108 per second; six hours are a day."""
    return [(at_s, 1) for at_s in poisson(diurnal_rate, duration_s, 108.0, rng)]


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
    "diurnal": Case(arrivals=diurnal, rate=diurnal_rate),
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


Stay = tuple[float, float]
"""A replica is ready from, until."""


def late(stays: Sequence[Stay], arrivals: Arrivals, times: Times, latency_s: float, seed: int) -> float:
    """Share of late requests of a fleet that serves first come first served."""
    sigma, rng = math.sqrt(math.log(1.0 + VARIATION**2)), random.Random(seed)
    coming, free, found = sorted(stays, reverse=True), list[Stay](), 0
    for at_s, batch in arrivals:
        while coming and coming[-1][0] <= at_s:
            heappush(free, coming.pop())
        while free and max(at_s, free[0][0]) >= free[0][1]:
            heappop(free)
        if not free:
            found += 1
            continue
        free_s, until_s = free[0]
        over_s = max(free_s, at_s) + times.seconds(batch) * rng.lognormvariate(-0.5 * sigma**2, sigma)
        heapreplace(free, (over_s, until_s))
        found += over_s > at_s + latency_s
    return found / max(1, len(arrivals))


def static_fleet(
    arrivals: Arrivals, groups: Sequence[Group], latency_s: float, duration_s: float, seed: int
) -> dict[str, float]:
    """The cheapest fleet of one group that keeps the SLA and never changes."""
    found = []
    for group in groups:
        replicas = max(1, math.ceil(sum(group.times.seconds(batch) for _, batch in arrivals) / duration_s))
        while (share := late([(0.0, math.inf)] * replicas, arrivals, group.times, latency_s, seed)) > 1.0 - QUANTILE:
            replicas += 1
        found.append((replicas * group.price_per_hour * duration_s / 3600.0, replicas, share))
    dollars, replicas, share = min(found)
    return {"dollars": dollars, "replicas": replicas, "late_percent": 100.0 * share}


def stays_of(wanted: Sequence[int], start_s: float) -> list[Stay]:
    """Replicas for so many in each second; one that is wanted again within a start-up time stays."""
    stays: list[Stay] = []
    ready: list[float] = []
    for second, count in enumerate(wanted):
        while len(ready) < count:
            ready.append(float(second))
        while len(ready) > max(wanted[second : second + math.ceil(start_s)]):
            stays.append((ready.pop(), float(second)))
    return stays + [(since_s, float(len(wanted))) for since_s in ready]


def staffed_fleet(
    arrivals: Arrivals,
    group: Group,
    latency_s: float,
    duration_s: float,
    seed: int,
    rate: Callable[[float], float],
) -> dict[str, float]:
    """Load a, known from the rate, has ``a + margin sqrt(a)`` replicas: the least margin in quarters that keeps the
    SLA. Starts are early enough, and paid."""
    loads = [rate(float(second)) * group.times.seconds(1) for second in range(math.ceil(duration_s))]
    share, margin, stays = 1.0, 0.0, list[Stay]()
    while share > 1.0 - QUANTILE:
        margin += 0.25
        wanted = [math.ceil(load + margin * math.sqrt(load)) for load in loads]
        stays = stays_of(wanted, group.start_s)
        share = late(stays, arrivals, group.times, latency_s, seed)
    paid_s = sum(until_s - since_s + (group.start_s if since_s else 0.0) for since_s, until_s in stays)
    return {"dollars": paid_s * group.price_per_hour / 3600.0, "late_percent": 100.0 * share}


def measure(name: str, start_s: float, duration_s: float, seed: int) -> dict[str, object]:
    case = CASES[name]
    arrivals = case.arrivals(duration_s, random.Random(seed))
    groups = groups_of(case, start_s)
    began = process_time()
    bound = clairvoyant(arrivals, groups, latency_s=case.latency_s, quantile=QUANTILE, duration_s=duration_s)
    used_s = process_time() - began
    plans = {"static": static_fleet(arrivals, groups, case.latency_s, duration_s, seed)}
    if case.rate is not None:
        plans["staffed"] = staffed_fleet(arrivals, groups[0], case.latency_s, duration_s, seed, case.rate)
    for plan in plans.values():
        plan["over_b0"], plan["over_bq"] = plan["dollars"] / bound.b0, plan.pop("dollars") / bound.bq
    return {
        "benchmark": "bound",
        "trace": name,
        "start_s": start_s,
        "duration_s": duration_s,
        "requests": len(arrivals),
        "b0_dollars": round(bound.b0, 5),
        "bq_dollars": round(bound.bq, 5),
        "b0_over_bq": round(bound.b0 / bound.bq, 3),
        **{f"{plan}_{what}": round(value, 3) for plan, figures in plans.items() for what, value in figures.items()},
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
