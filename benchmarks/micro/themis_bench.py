"""The programs of Themis: time of one solution, at the sizes of the paper and above.

Prints one JSON line per program: three stages (the published profile of the language pipeline), SLO 2550 ms, batches up
to 8, up to 8 cores; the median over loads of 1 to 60 requests/s, and the slowest. ``lambda_max`` are loads that the
instances do not carry. ``optima`` counts the costs that equal those of the paper's table over all milliseconds.

    python -m benchmarks.micro.themis_bench [--rounds N]
"""

import argparse
import json
import statistics
from collections.abc import Callable
from time import perf_counter

from tidegate.autoscaler.policies.themis.model import StageProfile
from tidegate.autoscaler.policies.themis.programs import Problem, horizontal, joint, vertical
from tidegate.autoscaler.policies.themis.transition import decide
from tidegate.loadgen.experiments.setups.themis.optimum import free, least_cost

LANGUAGE = (
    StageProfile(gamma=21.369, epsilon=53.785, delta=1.557, eta=27.775),
    StageProfile(gamma=304.596, epsilon=-13.469, delta=74.087, eta=11.631),
    StageProfile(gamma=263.936, epsilon=-1.007, delta=83.638, eta=23.574),
)
INSTANCES = (1, 4, 4)
OVERLOAD = 200.0

PROGRAMS: dict[str, Callable[[Problem], object]] = {
    "horizontal": horizontal,
    "vertical": lambda problem: vertical(problem, INSTANCES),
    "lambda_max": lambda problem: vertical(
        Problem(
            stages=problem.stages,
            slo_ms=problem.slo_ms,
            lambda_rps=OVERLOAD + problem.lambda_rps,
            b_max=problem.b_max,
            c_max=problem.c_max,
        ),
        INSTANCES,
    ),
    "joint": joint,
    "transition": lambda problem: decide(problem, [(n, 1) for n in INSTANCES], 1.2 * problem.lambda_rps),
}


FREE = {"horizontal": (horizontal, 1), "joint": (joint, 8)}
"""Programs with free instances, and the most cores of one."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    problems = [
        Problem(stages=LANGUAGE, slo_ms=2550, lambda_rps=float(load), b_max=8, c_max=8) for load in range(1, 61)
    ]
    for name, program in PROGRAMS.items():
        took = []
        for problem in problems:
            best = float("inf")
            for _ in range(rounds):
                began = perf_counter()
                program(problem)
                best = min(best, perf_counter() - began)
            took.append(1e3 * best)
        figures = {"median_ms": round(statistics.median(took), 3), "worst_ms": round(max(took), 3)}
        line = {
            "benchmark": "themis",
            "program": name,
            "stages": 3,
            "slo_ms": 2550,
            "solutions": len(problems),
            **figures,
        }
        if name in FREE:
            plan, c_max = FREE[name]
            costs = [
                (found and found.cost, least_cost(each, free(each, c_max)))
                for each in problems
                for found in (plan(each),)
            ]
            line["optima"] = sum(ours == theirs for ours, theirs in costs)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
