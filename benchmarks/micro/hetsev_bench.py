"""HetSev's greedy rule against its integer program, on random scale-outs from nothing.

    python -m benchmarks.micro.hetsev_bench [--instances 200] [--types 6] [--seed 1]

One JSON line for the given number of types (times of both, and how much more the greedy rule costs than the optimum),
and one for ten types (times alone). Instances share two resources (memory and cores), and some types miss the SLO;
instances that nothing can carry do not count. Needs scipy (``pip install 'tidegate[ilp]'``).
"""

import argparse
import json
import random
import time
from statistics import fmean, median, quantiles

from tidegate.autoscaler.policies.hetsev.exact import solve
from tidegate.autoscaler.policies.hetsev.greedy import scale_out
from tidegate.autoscaler.policies.hetsev.instances import InstanceType
from tidegate.loadgen.experiments.setups.hetsev.greedy import Instance, drawn

THRESHOLD = 0.8
SLO_S = 0.4


def measured(types: int, instances: int, rng: random.Random) -> dict[str, float | int | str]:
    greedy_s: list[float] = []
    exact_s: list[float] = []
    exact_cpu_s: list[float] = []
    gaps: list[float] = []
    unsatisfied = tried = 0
    solve(*_program(drawn(2, rng)))  # imports scipy
    while len(exact_s) < instances:
        given = drawn(types, rng)
        tried += 1
        began = time.perf_counter()
        quick = scale_out(given.types, given.arrivals_ips, SLO_S, given.weight, given.free, THRESHOLD)
        between, at_work = time.perf_counter(), time.process_time()
        best = solve(*_program(given))
        ended, done = time.perf_counter(), time.process_time()
        if best.objective is None:
            assert not quick.is_satisfied, "the greedy rule found what the program did not"
            continue
        greedy_s.append(between - began)
        exact_s.append(ended - between)
        exact_cpu_s.append(done - at_work)
        if not quick.is_satisfied:
            unsatisfied += 1
            continue
        assert quick.cost >= best.objective - 1e-6, "the optimum costs more than the greedy rule"
        gaps.append(quick.cost / best.objective - 1.0)
    return {
        "benchmark": "hetsev",
        "types": types,
        "instances": instances,
        "infeasible_left_out": tried - instances,
        "greedy_ms_p50": round(1e3 * median(greedy_s), 4),
        "greedy_ms_max": round(1e3 * max(greedy_s), 4),
        "exact_ms_p50": round(1e3 * median(exact_s), 3),
        "exact_ms_p99": round(1e3 * quantiles(exact_s, n=100)[98], 3),
        "exact_ms_max": round(1e3 * max(exact_s), 3),
        "exact_cpu_ms_max": round(1e3 * max(exact_cpu_s), 3),
        "greedy_unsatisfied": unsatisfied,
        "gap_mean_pct": round(100.0 * fmean(gaps), 2),
        "gap_p50_pct": round(100.0 * median(gaps), 2),
        "gap_max_pct": round(100.0 * max(gaps), 2),
    }


def _program(given: Instance) -> tuple[list[InstanceType], float, float, float, dict[str, float]]:
    return given.types, given.arrivals_ips / THRESHOLD, SLO_S, given.weight, given.free


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--instances", type=int, default=200)
    parser.add_argument("--types", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    for types in sorted({arguments.types, 10}):
        print(json.dumps(measured(types, arguments.instances, random.Random(arguments.seed))))


if __name__ == "__main__":
    main()
