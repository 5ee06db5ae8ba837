"""Policy ``tide`` over days of a trace of the championship, in a world of one queue: in minutes.

The policy is the product's, the trace is the championship's with the same requests, and so are the group of one
accelerator, the service times (lognormal) and the start-up times. What is left out is the request path: requests wait
in one line and take the replica that is free first; counts of arrivals and of late answers are exact, the service time
is known, and a decision is carried out at once. It is for choosing between variants of the policy; the figures that
count are the simulator's (``tidegate experiment championship``).

``--set level.LONGEST_S=128`` gives a constant of one of the policy's modules another value.

Prints one JSON line for each start-up time and seed: late share in percent, cost in dollars, mean replicas and starts a
day of the judged part, the share of its seconds in which the price of a late request was at its limit, and with
``--bound`` the cost over the clairvoyant bound.

    python -m benchmarks.micro.tide_days --trace twitter --data DIR [--judged-day 9] [--start-up 5,30,120] [--bound]
"""

import argparse
import importlib
import json
import math
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush, heapreplace
from itertools import cycle
from pathlib import Path
from time import process_time

from tidegate.autoscaler.measure.observation import ArrivalCounts, GroupObservation, Observation
from tidegate.autoscaler.policies.tide.policy import TidePolicy
from tidegate.loadgen.bound.clairvoyant import Group, clairvoyant
from tidegate.loadgen.experiments.championship.fleets import FLEETS, IMAGE, QUANTILE, UNITS, VARIATION
from tidegate.loadgen.experiments.championship.row import FIRST_S, Entrant
from tidegate.loadgen.experiments.championship.traces import DAY_S, HOUR_S, LEAGUES, League, Lengths

T0 = 1e9
"""Unix seconds at the beginning: any will do."""
DRAWN = 1 << 16
"""Service times that are drawn; then they come again."""
TRACES = tuple(name for name, league in LEAGUES.items() if league.service is IMAGE)


@dataclass(slots=True)
class Fleet:
    """Replicas of one slot behind one line. Times in seconds since the beginning."""

    latency_s: float
    services: Iterator[float]
    judged_from_s: float
    replicas: list[tuple[float, float, float]] = field(default_factory=list)
    """(free from, ready from, asked for) of each, as a heap."""
    line: deque[float] = field(default_factory=deque)
    """Arrival times of what waits."""
    late: int = 0
    """Late answers so far, and those of the judged part."""
    judged: int = 0
    judged_late: int = 0
    paid_s: float = 0.0

    def serve(self, until_s: float) -> None:
        """Begins what can begin before ``until_s``."""
        line, replicas, services, latency_s = self.line, self.replicas, self.services, self.latency_s
        while line and replicas:
            arrived_s = line[0]
            free_s, ready_s, asked_s = replicas[0]
            began_s = free_s if free_s > arrived_s else arrived_s
            if began_s >= until_s:
                break
            line.popleft()
            ended_s = began_s + next(services)
            heapreplace(replicas, (ended_s, ready_s, asked_s))
            is_late = ended_s - arrived_s > latency_s
            self.late += is_late
            if arrived_s >= self.judged_from_s:
                self.judged += 1
                self.judged_late += is_late

    def start(self, now: float, start_s: float) -> None:
        heappush(self.replicas, (now + start_s, now + start_s, now))

    def stop(self, now: float) -> None:
        """Stops the youngest one that starts; if none does, the one that is free first, when it has ended its work."""
        starting = [each for each in self.replicas if each[1] > now]
        if starting:
            gone = max(starting, key=lambda each: each[1])
            self.replicas.remove(gone)
            heapify(self.replicas)
            self.pay(gone[2], now)
        else:
            free_s, _, asked_s = heappop(self.replicas)
            self.pay(asked_s, max(now, free_s))

    def pay(self, asked_s: float, until_s: float) -> None:
        self.paid_s += max(0.0, until_s - max(asked_s, self.judged_from_s))


def play(league: League, lengths: Lengths, file: Path | None, start_s: float, seed: int) -> dict[str, float]:
    """Returns the figures of the judged part."""
    (group,), service = FLEETS[1], league.service
    mean_s, scatter = group.times.seconds(1), math.sqrt(math.log(1.0 + VARIATION**2))
    rng = random.Random(seed)
    drawn = [mean_s * rng.lognormvariate(-0.5 * scatter**2, scatter) for _ in range(DRAWN)]
    fleet = Fleet(service.latency_s, cycle(drawn), lengths.learn_s)
    arrivals = (each.at_s for each in league.arrivals(lengths, file, seed))
    coming, due_s = deque[float](), next(arrivals, math.inf)
    while due_s < FIRST_S:
        coming.append(due_s)
        due_s = next(arrivals, math.inf)
    load = mean_s * len(coming) / FIRST_S
    count = math.ceil(load + 2.0 * math.sqrt(load)) if load else 0
    for _ in range(count):
        fleet.start(0.0, 0.0)
    policy = TidePolicy(Entrant(policy="tide").function(service), T0, count)
    arrived, starts, at_limit, idle_s = 0, 0, 0, 0.0
    for second in range(1, int(lengths.total_s) + 1):
        now, before = float(second), arrived
        line = fleet.line
        while coming and coming[0] < now:
            line.append(coming.popleft())
            arrived += 1
        while not coming and due_s < now:
            line.append(due_s)
            arrived += 1
            due_s = next(arrivals, math.inf)
        fleet.serve(now)
        idle_s = 0.0 if arrived > before else idle_s + 1.0
        ready = sum([each[1] <= now for each in fleet.replicas])
        present = len(fleet.replicas)
        seen = GroupObservation(
            group.name, limit=1, services=((1.0, mean_s),), price_per_hour=group.price_per_hour, execution_s=mean_s,
            tail_s=mean_s * (1.0 + 2.33 * VARIATION), ready=ready, starting=present - ready, room=UNITS - present,
        )  # fmt: skip
        counts = ArrivalCounts(((1.0, float(arrived)),) if arrived else (), float(fleet.late))
        found = policy.decide(
            Observation(
                function="f", revision="f-00001", at=T0 + now, complete=True, groups=(seen,), waiting=len(line),
                counts=counts, idle_s=idle_s,
            ),
            T0 + now,
        )  # fmt: skip
        is_judged = now > lengths.learn_s
        at_limit += is_judged and any(each.code == "effort_limit" for each in found.reasons)
        wanted = present if found.desired is None else found.desired
        for _ in range(wanted - present):
            fleet.start(now, start_s)
            starts += is_judged
        for _ in range(present - wanted):
            fleet.stop(now)
    for _, _, asked_s in fleet.replicas:
        fleet.pay(asked_s, lengths.total_s)
    judged_s = lengths.judged_s
    return {
        "requests": fleet.judged,
        "late_percent": round(100.0 * fleet.judged_late / max(1, fleet.judged), 3),
        "cost_dollars": round(fleet.paid_s / HOUR_S * group.price_per_hour, 3),
        "mean_replicas": round(fleet.paid_s / judged_s, 3),
        "starts_per_day": round(starts * DAY_S / judged_s, 1),
        "at_limit_share": round(at_limit / judged_s, 3),
    }


def least(league: League, lengths: Lengths, file: Path | None, start_s: float, seed: int) -> tuple[float, float]:
    """Returns the bounds without a late request and with 1 % of them, in dollars."""
    (group,), service = FLEETS[1], league.service
    judged = (each for each in league.arrivals(lengths, file, seed) if each.at_s >= lengths.learn_s)
    kind = Group(
        name=group.name, times=service.bound_times(group), slots=1, price_per_hour=group.price_per_hour,
        start_s=start_s, max_replicas=UNITS,
    )  # fmt: skip
    found = clairvoyant(
        ((each.at_s - lengths.learn_s, service.work(each)) for each in judged),
        [kind],
        latency_s=service.latency_s,
        quantile=QUANTILE,
        duration_s=lengths.judged_s,
    )
    return found.b0, found.bq


def set_constant(setting: str) -> None:
    """Gives a constant another value. Raises ImportError, AttributeError or ValueError if there is no such number."""
    place, _, value = setting.partition("=")
    name, _, constant = place.partition(".")
    module = importlib.import_module(f"tidegate.autoscaler.policies.tide.{name}")
    setattr(module, constant, type(getattr(module, constant))(value))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", choices=TRACES, default="twitter")
    parser.add_argument("--data", type=Path, help="folder with the public traces")
    parser.add_argument("--judged-day", type=int, help="day of a trace from a file that the judged part begins with")
    parser.add_argument("--learn", type=float, help="hours before anything is judged")
    parser.add_argument("--for", dest="judged", type=float, help="hours that are judged")
    parser.add_argument("--start-up", default="30", help="seconds, separated by commas")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="MODULE.NAME=VALUE", help="repeatable")
    parser.add_argument("--bound", action="store_true", help="the cost over the clairvoyant bound as well")
    given = parser.parse_args()
    for each in given.set:
        try:
            set_constant(each)
        except (ImportError, AttributeError, ValueError) as error:
            parser.error(f"--set {each}: {error}; MODULE.NAME=NUMBER with a constant of autoscaler/policies/tide")
    league = LEAGUES[given.trace]
    usual = league.lengths
    lengths = Lengths(
        learn_s=usual.learn_s if given.learn is None else given.learn * HOUR_S,
        judged_s=usual.judged_s if given.judged is None else given.judged * HOUR_S,
    )
    if given.judged_day is not None:
        league = replace(league, begins_s=(given.judged_day - 1) * DAY_S)
    file = league.find(given.data)
    if league.made is None and file is None:
        parser.error(f"--trace {given.trace} needs --data FOLDER with {' or '.join(league.files)}")
    for start_s in map(float, given.start_up.split(",")):
        for seed in range(1, given.seeds + 1):
            row: dict[str, object] = {"trace": given.trace, "start_up_s": start_s, "seed": seed, "set": given.set}
            began = process_time()
            row |= play(league, lengths, file, start_s, seed)
            row["cpu_s"] = round(process_time() - began, 1)
            if given.bound:
                b0, bq = least(league, lengths, file, start_s, seed)
                row["cost_over_b0"] = round(float(str(row["cost_dollars"])) / b0, 3)
                row["cost_over_bq"] = round(float(str(row["cost_dollars"])) / bq, 3)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
