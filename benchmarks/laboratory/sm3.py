"""SMIF, figure 6a, live: two groups of different speed under a saturating closed loop, by weight (early binding).

Even weights, those of the paper, and those that the traffic manager learns from an even start; the simulated figures
are those of the experiment ``sm3``.
"""

from collections.abc import Iterator

from benchmarks.autoscaling.lab import Kind, Lab, lab
from benchmarks.autoscaling.timeline import Run, converged_s, throughput_ips
from benchmarks.laboratory.rows import Row
from benchmarks.laboratory.setup import Setup, lost
from tidegate.loadgen.experiments.definition import catalogue
from tidegate.loadgen.experiments.registry import known

NAME = "sm3"
FAST, SLOW = "v100", "t4"
CASES = (
    ("50:50", "equal", "even_ips", 0.95, 1.05),
    ("65:35", f"{FAST}=65,{SLOW}=35", "weighted_ips", 0.95, 1.05),
    ("learnt", "learnt", "found_ips", 0.97, None),
)
"""(name, weights, the simulated figure, least and most of what it should be)."""
GAIN = 1.35


def run(setup: Setup) -> Iterator[Row]:
    experiment = catalogue()[NAME]
    given = experiment.parameters
    kinds = (Kind(name=FAST, base_s=1.0 / given["fast_ips"]), Kind(name=SLOW, base_s=1.0 / given["slow_ips"]))
    simulated = known()[experiment.setup](given, setup.seed).figures
    sum_ips = given["fast_ips"] + given["slow_ips"]
    seconds = setup.long(40.0, 4.0)
    rates = {}
    with lab(kinds) as world:
        for name, weights, figure, low, high in CASES:
            found = _saturated(world, f"pair-{name.replace(':', '-')}", weights, given["callers"], seconds)
            rates[name] = throughput_ips(found.outcomes, seconds / 2.0, seconds)
            ideal = sum_ips if name == "learnt" else simulated[figure]
            yield lost(NAME, name, found)
            yield Row(
                experiment=NAME,
                case=name,
                measure="throughput_ips",
                live=rates[name],
                simulated=simulated[figure],
                least=low * ideal,
                most=None if high is None else high * ideal,
                is_judged=not setup.smoke,
            )
            if name == "learnt":
                yield from _learnt(setup, found, simulated["converged_s"], simulated["found_weight"], given)
    yield Row(
        experiment=NAME,
        case="65:35 over 50:50",
        measure="throughput_gain",
        live=rates["65:35"] / rates["50:50"] if rates["50:50"] else None,
        simulated=simulated["gain"],
        least=GAIN,
        is_judged=not setup.smoke,
    )


def _saturated(world: Lab, name: str, weights: str, callers: int, seconds: float) -> Run:
    annotations = {
        "policy": "kpa",
        "concurrency": 0,
        "binding": "early",
        "group-weights": weights,
        "min-scale": 2,
        "max-scale": 2,
    }
    world.deploy(name, on=[FAST, SLOW], replicas=2, annotations=annotations)
    found = world.closed(name, callers, seconds)
    world.delete(name)
    return found


def _learnt(
    setup: Setup, found: Run, simulated_s: float, simulated_weight: float, given: dict[str, float]
) -> Iterator[Row]:
    low, high = given["share_low"], given["share_high"]
    since = converged_s(found.looks, lambda look: low <= look.weights.get(FAST, 0.0) <= high)
    yield Row(
        experiment=NAME,
        case="learnt",
        measure="converged_s",
        live=found.seconds if since is None else since,
        simulated=simulated_s,
        most=30.0,
        is_judged=not setup.smoke,
        note="" if since is not None else "it never did",
    )
    weight = found.looks[-1].weights.get(FAST)
    yield Row(experiment=NAME, case="learnt", measure="weight_of_the_faster", live=weight, simulated=simulated_weight)
