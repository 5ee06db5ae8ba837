"""Requests for three variants of a model on one machine, with and without a stated loss of accuracy (section 4.1)."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tidegate.function import Function, Scaling
from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.arrivals.processes import poisson
from tidegate.loadgen.experiments.outcome import ExperimentOutcome
from tidegate.loadgen.experiments.registry import setup
from tidegate.loadgen.experiments.setups.oltunes.dataset import DEVICES, MODELS, batch_time_s
from tidegate.loadgen.experiments.setups.worlds import deployed, fixed, function, kind
from tidegate.loadgen.experiments.tables import Count, Positive, Some, Word
from tidegate.loadgen.simulator.result import Everything, SimulationResult
from tidegate.loadgen.simulator.scenario import Scenario
from tidegate.loadgen.simulator.simulation import Simulation
from tidegate.records.route_table import ModelVariant

FAMILY: Final = "family"
SIZE: Final = 640.0
"""Input size: the one that OT-P's figures are for."""
SHARE_PCT: Final = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedVariant:
    model: Word
    """The name of one of OT-P's models."""
    accuracy: Positive
    """Top-1, in percent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantMix:
    variants: Some[StatedVariant]
    loss: Positive
    """Points of accuracy that each request may lose, where switching is enabled."""
    rate: Positive
    """Requests per second for each variant, while its load is low; ``burst`` times as many in every other minute, one
    variant after the other."""
    burst: Positive
    minutes: Count


@setup(VariantMix)
def variants(parameters: VariantMix, seed: int) -> ExperimentOutcome:
    """Runs the same requests without and with switching; reports the loss of the mean accuracy served."""
    without, own_latency = _run(parameters, 0.0, seed)
    switching, latency = _run(parameters, parameters.loss, seed)
    return ExperimentOutcome(
        figures={
            "loss_without": _mean_loss(parameters, without),
            "loss": _mean_loss(parameters, switching),
            "switched_pct": 100.0 * sum(switching.switched.values()) / switching.requests,
            "mean_latency_ratio": latency / own_latency,
        }
    )


def _run(parameters: VariantMix, loss: float, seed: int) -> tuple[SimulationResult, float]:
    """Returns the result and the mean latency in seconds."""
    times = {each.name: batch_time_s(each, DEVICES[0], 1, SHARE_PCT, SIZE, DEVICES[0].memory_gb) for each in MODELS}
    functions = [_function(each, loss) for each in parameters.variants]
    sink = Everything()
    scenario = Scenario(
        kinds=(kind(count=len(functions)),),
        functions=tuple(deployed(fixed(times[each.name]), of=each) for each in functions),
        arrivals=_arrivals(parameters, seed),
        keeps_scale=True,
    )
    result = Simulation(scenario, sink).run()
    latencies = [at - request[2] for request, _, at, *_ in sink.ended]
    return result, sum(latencies) / len(latencies)


def _function(stated: StatedVariant, loss: float) -> Function:
    return function(
        stated.model,
        variant=ModelVariant(family=FAMILY, accuracy=stated.accuracy, loss=loss),
        scaling=Scaling(policy="kpa"),
    )


def _arrivals(parameters: VariantMix, seed: int) -> Iterator[Arrival]:
    """Yields the requests of all variants in order of time."""
    found: list[tuple[float, str]] = []
    for index, stated in enumerate(parameters.variants):
        minutes = range(index, 2 * parameters.minutes, 2 * len(parameters.variants))

        def rate(at_s: float, minutes: range = minutes) -> float:
            return parameters.rate * (parameters.burst if int(at_s // 60.0) in minutes else 1.0)

        draw = random.Random(f"{seed} {stated.model}")
        times = poisson(rate, 60.0 * parameters.minutes, parameters.rate * parameters.burst, draw)
        found += [(at_s, stated.model) for at_s in times]
    return (Arrival(at_s, function=model) for at_s, model in sorted(found))


def _mean_loss(parameters: VariantMix, result: SimulationResult) -> float:
    """Returns by how many points the mean accuracy served is below that of the variants asked for; negative if it is
    above."""
    accuracies = {each.model: each.accuracy for each in parameters.variants}
    lost = sum((accuracies[own] - accuracies[other]) * count for (own, other), count in result.switched.items())
    return lost / result.requests
