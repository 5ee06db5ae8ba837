"""Two groups of different speed: the value of weights (figure 6), and whether the traffic manager finds them.

Each request is bound to a group at its arrival, by weight (early binding), as in the paper's service mesh. Only the
weights decide, and a group that gets more than its share delays all callers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec

from tidegate.function import Routing
from tidegate.loadgen.experiments.outcome import ExperimentOutcome
from tidegate.loadgen.experiments.registry import setup
from tidegate.loadgen.experiments.setups.worlds import deployed, fixed, function, kind
from tidegate.loadgen.experiments.tables import Count, Positive, Share, Some
from tidegate.loadgen.simulator.result import Everything, FunctionSecond
from tidegate.loadgen.simulator.scenario import Callers, Scenario
from tidegate.loadgen.simulator.simulation import Simulation
from tidegate.records.route_table import Binding

FAST, SLOW = "v100", "t4"
EVEN = {FAST: 50.0, SLOW: 50.0}
Percent = Annotated[float, msgspec.Meta(gt=0.0, lt=100.0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    fast_ips: Positive
    """Inferences per second of the V100."""
    slow_ips: Positive
    """Inferences per second of the T4."""
    jitter: Share
    duration_s: Positive
    """Duration; the second half is measured."""
    fast_percent: Percent
    """The V100's weight in the run with fixed weights."""

    @property
    def sum_ips(self) -> float:
        return self.fast_ips + self.slow_ips

    @property
    def weighted(self) -> dict[str, float]:
        return {FAST: self.fast_percent, SLOW: 100.0 - self.fast_percent}


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighted(Pair):
    callers: Count
    share_low: Share
    share_high: Share
    """Upper end of the range in which the V100's share counts as found, once it stays there."""


class _Weights(Everything):
    """A sink that also keeps the weights in force at the end of each second."""

    def __init__(self) -> None:
        super().__init__()
        self.look: Callable[[], Mapping[str, float]] = dict
        self.weights: list[tuple[float, float]] = []
        """(second, weight of the V100)."""

    def second(self, second: FunctionSecond) -> None:
        super().second(second)
        self.weights.append((second.at_s, self.look().get(FAST, 0.0)))


@setup(Weighted)
def weights(parameters: Weighted, seed: int) -> ExperimentOutcome:
    """Runs a saturating closed loop with even weights, those of the paper, and those that the traffic manager finds."""
    load = Callers(function="f", callers=parameters.callers)
    even = loaded(parameters, load, seed, EVEN)
    given = loaded(parameters, load, seed, parameters.weighted)
    found = loaded(parameters, load, seed, None)
    even_ips, given_ips, found_ips = (_rate(parameters, each) for each in (even, given, found))
    since = parameters.duration_s / 2.0
    late = [each[3] for each in found.ended if each[2] > since]
    return ExperimentOutcome(
        figures={
            "even_ips": even_ips,
            "weighted_ips": given_ips,
            "gain": given_ips / even_ips,
            "found_ips": found_ips,
            "found_of_the_sum": found_ips / parameters.sum_ips,
            "found_weight": found.weights[-1][1],
            "found_share": late.count(FAST) / len(late),
            "converged_s": _converged_s(found.weights, parameters),
        },
        series={"weight of the V100 [fraction]: found": tuple(found.weights)},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Widening(Pair):
    callers: Some[Count]
    """Rising numbers of callers."""
    rate_rps: Positive
    """Maximum requests per second of a caller."""


@setup(Widening)
def concurrency(parameters: Widening, seed: int) -> ExperimentOutcome:
    """Measures the gain of weights over even ones, at more and more callers."""
    figures: dict[str, float] = {}
    curves: dict[str, list[tuple[float, float]]] = {"50:50": [], "weighted": []}
    gaps: list[float] = []
    for callers in parameters.callers:
        load = Callers(function="f", callers=callers, rate=parameters.rate_rps)
        even = _rate(parameters, loaded(parameters, load, seed, EVEN))
        given = _rate(parameters, loaded(parameters, load, seed, parameters.weighted))
        gap = given / even - 1.0
        figures |= {f"gap_{callers}": gap, f"even_{callers}_ips": even, f"weighted_{callers}_ips": given}
        if gaps:
            figures[f"gap_{callers}_grown"] = gap - gaps[-1]
        gaps.append(gap)
        curves["50:50"].append((float(callers), even))
        curves["weighted"].append((float(callers), given))
    return ExperimentOutcome(
        figures=figures | {"least_gap": min(gaps)},
        series={f"throughput [inferences/s by callers]: {name}": curve for name, curve in curves.items()},
    )


def loaded(parameters: Pair, load: Callers, seed: int, weights: Mapping[str, float] | None) -> _Weights:
    """Runs one V100 and one T4 under a closed loop; ``weights`` None: those of the traffic manager, even at first."""
    profiles = {
        FAST: fixed(1.0 / parameters.fast_ips, jitter=parameters.jitter, width=1),
        SLOW: fixed(1.0 / parameters.slow_ips, jitter=parameters.jitter, width=1),
    }
    of = function(concurrency=0, routing=Routing(binding=Binding.EARLY, group_weights=weights))
    each = deployed(profiles, of=of, ready={FAST: 1, SLOW: 1})
    scenario = Scenario(
        kinds=(kind(SLOW, 1), kind(FAST, 1)),
        functions=(each,),
        seed=seed,
        callers=(load,),
        keeps_scale=True,
    )
    sink = _Weights()
    simulation = Simulation(scenario, sink)
    sink.look = lambda: simulation.autoscaler.weights(each.revision.id)
    simulation.run(parameters.duration_s)
    return sink


def _rate(parameters: Pair, sink: Everything) -> float:
    """Returns inferences per second in the second half."""
    since = parameters.duration_s / 2.0
    return sum(each[2] > since and each[5] == "answered" for each in sink.ended) / (parameters.duration_s - since)


def _converged_s(weights: list[tuple[float, float]], parameters: Weighted) -> float:
    """Returns the time from which on the weight stayed in its range; the whole duration if it was outside at the
    end."""
    since = parameters.duration_s
    for at_s, weight in reversed(weights):
        if not parameters.share_low <= weight <= parameters.share_high:
            break
        since = at_s
    return since
