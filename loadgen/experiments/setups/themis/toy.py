"""A burst on one machine: cores a second later, or instances six seconds later (figures 1 and 2)."""

import math
from dataclasses import dataclass

from tidegate.autoscaler.policies.themis.model import StageProfile
from tidegate.autoscaler.policies.themis.programs import Problem, horizontal, vertical
from tidegate.loadgen.experiments.outcome import ExperimentError, ExperimentOutcome
from tidegate.loadgen.experiments.registry import setup
from tidegate.loadgen.experiments.tables import Count, Positive, Some


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyStep:
    rps: Positive
    seconds: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Toy:
    one_core_rps: Positive
    """Requests per second of an instance of one core."""
    most_cores: Count
    most_cores_rps: Positive
    """The same with ``most_cores``."""
    load: Some[ToyStep]
    cores_after_s: Positive
    """Time from a rise of the load until an instance has other cores."""
    instances_after_s: Positive
    """The same for further instances."""


@setup(Toy)
def toy(parameters: Toy, seed: int) -> ExperimentOutcome:
    """Sizes both with the product's programs. Requests beyond the capacity of their second are not served."""
    one_ms, all_ms, count = 1e3 / parameters.one_core_rps, 1e3 / parameters.most_cores_rps, parameters.most_cores
    gamma = (one_ms - all_ms) / (1.0 - 1.0 / count)
    stage = StageProfile(gamma=gamma, epsilon=0.0, delta=0.0, eta=one_ms - gamma)
    load = [each.rps for each in parameters.load for _ in range(each.seconds)]
    capacity = {"vertical": [0.0] * len(load), "horizontal": [0.0] * len(load)}
    cores = {"vertical": 0, "horizontal": 0}
    for at, rps in enumerate(load):
        problem = Problem(stages=(stage,), slo_ms=math.ceil(one_ms), lambda_rps=rps, b_max=1, c_max=count)
        up, out = vertical(problem, [1]).plan, horizontal(problem)
        if up is None or out is None:
            raise ExperimentError(f"{rps:g} requests/s are more than {count} cores carry")
        for name, plan, after_s in (
            ("vertical", up, parameters.cores_after_s),
            ("horizontal", out, parameters.instances_after_s),
        ):
            is_there = at < after_s or load[at - round(after_s)] == rps
            capacity[name][at] = (
                plan.stages[0].n * stage.throughput_rps(1, plan.stages[0].c) if is_there else capacity[name][at - 1]
            )
            cores[name] = max(cores[name], plan.cost)
    unserved = {
        name: sum(max(0.0, rps - there) for rps, there in zip(load, served, strict=True))
        for name, served in capacity.items()
    }
    return ExperimentOutcome(
        figures={
            "vertical_unserved": unserved["vertical"],
            "horizontal_unserved": unserved["horizontal"],
            "unserved_ratio": unserved["horizontal"] / max(1.0, unserved["vertical"]),
            "vertical_cores": float(cores["vertical"]),
            "horizontal_cores": float(cores["horizontal"]),
            "saved_percent": 100.0 * (1.0 - cores["horizontal"] / cores["vertical"]),
        }
    )
