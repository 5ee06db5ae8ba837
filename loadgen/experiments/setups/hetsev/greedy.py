"""The greedy rule against the integer program, on random scale-outs from nothing (section 4.1)."""

import random
import statistics
from dataclasses import dataclass
from typing import NamedTuple

from tidegate.autoscaler.policies.hetsev.exact import is_available, solve
from tidegate.autoscaler.policies.hetsev.greedy import scale_out
from tidegate.autoscaler.policies.hetsev.instances import InstanceType
from tidegate.loadgen.experiments.outcome import ExperimentError, ExperimentOutcome
from tidegate.loadgen.experiments.registry import setup
from tidegate.loadgen.experiments.tables import Count, Positive, Share


class Instance(NamedTuple):
    """One scale-out."""

    types: list[InstanceType]
    arrivals_ips: float
    weight: float
    """Of the launch latency, per second."""
    free: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyGap:
    instances: Count
    """Feasible ones; others are left out."""
    most_types: Count
    threshold: Share
    slo_s: Positive


def drawn(types: int, rng: random.Random) -> Instance:
    """Returns a random scale-out: types share memory and cores, prices rise with the throughput but not in proportion,
    and some types miss an SLO of 0.4 s."""
    made = []
    for _ in range(types):
        throughput = rng.uniform(5.0, 80.0)
        made.append(
            InstanceType(
                cost=round(throughput**0.8 * rng.uniform(0.02, 0.12), 3),
                launch_s=rng.uniform(5.0, 60.0),
                throughput_ips=throughput,
                latency_s=rng.choice((0.1, 0.2, 0.3, 0.4, 0.5)),
                needs={"memory": float(rng.randint(2, 12)), "cores": float(rng.randint(1, 4))},
            )
        )
    free = {"memory": float(rng.randint(40, 600)), "cores": float(rng.randint(16, 160))}
    return Instance(made, rng.uniform(20.0, 1500.0), rng.choice((0.0, 0.005, 0.01, 0.05)), free)


@setup(GreedyGap)
def gap(parameters: GreedyGap, seed: int) -> ExperimentOutcome:
    """Solves each instance both ways."""
    if not is_available():
        raise ExperimentError("the integer program needs scipy: pip install 'tidegate[ilp]'")
    rng = random.Random(seed)
    gaps: list[float] = []
    unsatisfied = below = 0
    while len(gaps) + unsatisfied < parameters.instances:
        given = drawn(rng.randint(1, parameters.most_types), rng)
        quick = scale_out(
            given.types, given.arrivals_ips, parameters.slo_s, given.weight, given.free, parameters.threshold
        )
        needed_ips = given.arrivals_ips / parameters.threshold
        best = solve(given.types, needed_ips, parameters.slo_s, given.weight, given.free)
        if best.objective is None:
            continue
        if not quick.is_satisfied:
            unsatisfied += 1
            continue
        below += quick.cost < best.objective - 1e-6
        gaps.append(100.0 * (quick.cost / best.objective - 1.0))
    return ExperimentOutcome(
        figures={
            "below_the_optimum": float(below),
            "gap_mean_percent": statistics.fmean(gaps),
            "gap_median_percent": statistics.median(gaps),
            "gap_largest_percent": max(gaps),
            "unsatisfied_percent": 100.0 * unsatisfied / parameters.instances,
        }
    )
