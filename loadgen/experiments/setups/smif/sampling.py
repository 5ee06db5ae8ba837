"""Accuracy of a group's rate estimated from one sampled replica (section 4.4.1).

A group serves Poisson arrivals. Each second one replica in rotation reports its work of that second, times the number
of replicas: the paper's estimate. Beside it runs the same for as many replicas as the product samples
(``tidegate.autoscaler.measure.sampling``). Both are compared with all work of the group, over windows.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from tidegate.autoscaler.measure.sampling import round_robin, sample_size
from tidegate.function import Routing
from tidegate.loadgen.experiments.outcome import ExperimentOutcome
from tidegate.loadgen.experiments.registry import setup
from tidegate.loadgen.experiments.setups.worlds import deployed, fixed, function, kind, poisson, run
from tidegate.loadgen.experiments.tables import Count, Positive, Share, Some
from tidegate.loadgen.simulator.scenario import Scenario
from tidegate.records.route_table import Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    sizes: Some[Count]
    """Replicas of the group."""
    rate_rps: Positive
    """Requests per second of the whole group."""
    use: Share
    """Utilisation of its replicas."""
    jitter: Share
    spread: Spread
    """How a replica is chosen."""
    duration_s: Positive
    window_s: Positive
    error: Positive
    """Relative error up to which an estimate counts as right."""

    def __post_init__(self) -> None:
        if not 1.0 <= self.window_s <= self.duration_s:
            raise ValueError("a window_s from 1 to duration_s")


@setup(Sampled)
def sampling(parameters: Sampled, seed: int) -> ExperimentOutcome:
    """Returns the share of windows with a right estimate, over all sizes and at the worst of them."""
    figures: dict[str, float] = {}
    shares: dict[str, list[float]] = {"one": [], "asked": []}
    for size in parameters.sizes:
        served, names = _served(parameters, size, seed)
        for name, count in (("one", 1), ("asked", sample_size(size))):
            errors = _errors(parameters, served, names, count)
            shares[name].append(fmean(each <= parameters.error for each in errors))
            figures[f"{name}_{size}_mean_error"] = fmean(errors)
    for name, found in shares.items():
        figures |= {f"{name}_right_share": fmean(found), f"{name}_worst_right_share": min(found)}
    points = [(float(size), figures[f"one_{size}_mean_error"]) for size in parameters.sizes]
    return ExperimentOutcome(figures=figures, series={"mean error [share by replicas]: one sampled": points})


def _served(parameters: Sampled, size: int, seed: int) -> tuple[Mapping[tuple[int, str], int], list[str]]:
    """Returns (requests that ended by second and replica, the replicas)."""
    of = function(concurrency=4, routing=Routing(spread=parameters.spread))
    service = fixed(parameters.use * size / parameters.rate_rps, jitter=parameters.jitter)
    scenario = Scenario(
        kinds=(kind(count=size),),
        functions=(deployed(service, of=of, ready={"t4": size}),),
        seed=seed,
        arrivals=poisson(parameters.rate_rps, parameters.duration_s, seed * 1000 + size),
        keeps_scale=True,
    )
    _, sink = run(scenario, parameters.duration_s)
    names = sorted({each[4] for each in sink.ended})
    idle = [f"idle {number}" for number in range(size - len(names))]
    return Counter((int(each[2]), each[4]) for each in sink.ended if each[5] == "answered"), names + idle


def _errors(
    parameters: Sampled, served: Mapping[tuple[int, str], int], names: Sequence[str], count: int
) -> list[float]:
    """Returns the relative error of the estimate from ``count`` replicas in rotation, by window."""
    seconds, errors = int(parameters.window_s), []
    for first in range(0, int(parameters.duration_s) - seconds + 1, seconds):
        window = range(first, first + seconds)
        sampled = sum(served.get((second, name), 0) for second in window for name in _asked(names, second, count))
        truth = sum(served.get((second, name), 0) for second in window for name in names)
        errors.append(abs(sampled * len(names) / count - truth) / max(1, truth))
    return errors


def _asked(names: Sequence[str], second: int, count: int) -> Sequence[str]:
    """Returns the replicas sampled in a second: one, or as many as the product samples."""
    return (names[second % len(names)],) if count == 1 else round_robin(names, second)
