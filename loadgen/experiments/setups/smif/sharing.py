"""Several replicas on one device: side by side by MPS, time-sliced, or one alone (figures 3 and 7).

The work that a device does with that many executions at once is the paper's measurement and enters as a profile. The
result is what the product's slots, placement and waiting room leave of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec

from tidegate.function import GpuNeeds
from tidegate.loadgen.experiments.outcome import ExperimentOutcome
from tidegate.loadgen.experiments.registry import setup
from tidegate.loadgen.experiments.setups.worlds import deployed, fixed, function, kind, latencies, run
from tidegate.loadgen.experiments.tables import Count, Positive, Share, Some
from tidegate.loadgen.simulator.devices import Sharing
from tidegate.loadgen.simulator.scenario import Callers, Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Work of ``replicas`` executions at once, in units of a single one."""

    replicas: Annotated[int, msgspec.Meta(ge=2)]
    mps: Positive
    turns: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    jitter: Share
    callers: Count
    duration_s: Positive
    gains: Some[Gain]

    def table(self, sharing: Sharing) -> Mapping[int, float]:
        if sharing is Sharing.EXCLUSIVE:
            return {}
        return {each.replicas: each.mps if sharing is Sharing.MPS else each.turns for each in self.gains}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes(Shared):
    service_s: Positive


@setup(Sizes)
def sharing(parameters: Sizes, seed: int) -> ExperimentOutcome:
    """Runs as many replicas on one device as each gain is for: by MPS, time-sliced, and one alone."""
    alone = throughput(parameters, parameters.service_s, 1, Sharing.EXCLUSIVE, seed)
    figures = {"exclusive_rps": alone}
    curves: dict[str, list[tuple[float, float]]] = {"MPS": [(1.0, alone)], "in turns": [(1.0, alone)]}
    for replicas in [each.replicas for each in parameters.gains]:
        together = throughput(parameters, parameters.service_s, replicas, Sharing.MPS, seed)
        turns = throughput(parameters, parameters.service_s, replicas, Sharing.TIME_MULTIPLEXED, seed)
        figures |= {
            f"mps_{replicas}_rps": together,
            f"turns_{replicas}_rps": turns,
            f"mps_{replicas}_over_exclusive": together / alone,
            f"mps_{replicas}_over_turns": together / turns,
            f"turns_{replicas}_over_exclusive": turns / alone,
        }
        curves["MPS"].append((float(replicas), together))
        curves["in turns"].append((float(replicas), turns))
    return ExperimentOutcome(
        figures=figures,
        series={f"throughput [requests/s by replicas]: {name}": curve for name, curve in curves.items()},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Models(Shared):
    replicas: Annotated[int, msgspec.Meta(ge=2, le=100)]
    service_s: Annotated[dict[str, Positive], msgspec.Meta(min_length=1)]
    """Seconds of one inference, by model."""


@setup(Models)
def models(parameters: Models, seed: int) -> ExperimentOutcome:
    """Runs each model with that many replicas on one device, by MPS and time-sliced."""
    gains = {}
    for name, service_s in parameters.service_s.items():
        together = throughput(parameters, service_s, parameters.replicas, Sharing.MPS, seed)
        turns = throughput(parameters, service_s, parameters.replicas, Sharing.TIME_MULTIPLEXED, seed)
        gains[f"{name}_mps_over_turns"] = together / turns
    return ExperimentOutcome(figures=gains | {"least_mps_over_turns": min(gains.values())})


def throughput(parameters: Shared, service_s: float, replicas: int, sharing: Sharing, seed: int) -> float:
    """Returns requests per second of ``replicas`` replicas on one device."""
    of = function(gpu=GpuNeeds(mps=True, core_percentage=100 // replicas))
    scenario = Scenario(
        kinds=(kind(count=1, sharing=sharing, gain=parameters.table(sharing)),),
        functions=(deployed(fixed(service_s, jitter=parameters.jitter), of=of, ready={"t4": replicas}),),
        seed=seed,
        callers=(Callers(function="f", callers=parameters.callers),),
        keeps_scale=True,
    )
    result, sink = run(scenario, parameters.duration_s)
    return len(latencies(sink)) / result.simulated_s
