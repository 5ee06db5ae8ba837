"""Two waves of load over three models, on few instances (figure 6): how many requests come too late."""

import math
import random
from collections import Counter
from dataclasses import dataclass
from statistics import fmean

from tidegate.loadgen.arrivals.changes import Placement, joined
from tidegate.loadgen.arrivals.shapes import Load
from tidegate.loadgen.experiments.outcome import ExperimentOutcome
from tidegate.loadgen.experiments.registry import setup
from tidegate.loadgen.experiments.setups.hetsev.cluster import Testbed, named
from tidegate.loadgen.experiments.tables import Count, Positive, Share, Some
from tidegate.loadgen.simulator.counters import ANSWERED
from tidegate.loadgen.simulator.result import Everything

HETSEV = "hetsev-greedy"
SLOT_S = 5.0
"""Interval of the violations that are averaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    begins_s: float
    ends_s: Positive
    peak: Share
    """Its highest rate, as a part of what ``instances`` carry."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.begins_s < self.ends_s:
            raise ValueError("begins_s of 0 or more, and below ends_s")

    def height(self, at_s: float) -> float:
        """Returns 0 outside the wave and 1 at its top, which is in its middle; straight lines lead there and back."""
        half_s = (self.ends_s - self.begins_s) / 2.0
        return max(0.0, 1.0 - abs(at_s - self.begins_s - half_s) / half_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waves(Testbed):
    """``peak_rps`` of a model is not read: rates are parts of what ``instances`` carry on the first kind, each beside
    another tenant and at the threshold of the policy."""

    duration_s: Positive
    instances: Count
    """Of each model."""
    threshold: Share
    base: Share
    waves: Some[Wave]


@setup(Waves)
def waves(parameters: Waves, seed: int) -> ExperimentOutcome:
    """Runs the policy through all waves."""
    kind, models = parameters.gpus[0].name, parameters.models
    each_carries = parameters.threshold / (1.0 + parameters.interference)

    def load(rps: float) -> Load:
        def rate(at_s: float) -> float:
            return rps * max(
                parameters.base + (wave.peak - parameters.base) * wave.height(at_s) for wave in parameters.waves
            )

        return Load(rate, parameters.duration_s, rps)

    arrivals = joined(
        *(
            named(
                load(parameters.instances * each_carries * model.throughput[kind]),
                model.name,
                Placement.POISSON,
                random.Random(f"{seed}/{model.name}"),
            )
            for model in models
        )
    )
    ready = {kind: max(1, math.ceil(parameters.base * parameters.instances))}
    services = tuple(parameters.deployed(model, HETSEV, ready) for model in models)
    sink = parameters.run(services, parameters.duration_s, seed, arrivals=arrivals)
    return _outcome(parameters, sink)


def _outcome(parameters: Waves, sink: Everything) -> ExperimentOutcome:
    limits = {each.name: each.rt_max_s for each in parameters.models}
    ended, late = Counter[int](), Counter[int]()
    for (_, revision, sent_s, *_), _, at_s, _, _, end in sink.ended:
        slot = int(sent_s / SLOT_S)
        ended[slot] += 1
        late[slot] += end != ANSWERED or at_s - sent_s > limits[revision.rpartition("-")[0]] + 1e-9
    instances = Counter[float]()
    for each in sink.seconds:
        instances[each.at_s] += each.ready + each.starting
    shares = {slot: 100.0 * late[slot] / count for slot, count in sorted(ended.items())}
    figures = {
        "violations_percent": 100.0 * late.total() / ended.total(),
        "mean_slot_violations_percent": fmean(shares.values()),
        "largest_slot_violations_percent": max(shares.values()),
        "most_instances": float(max(instances.values())),
    }
    after = [*(wave.begins_s for wave in parameters.waves[1:]), parameters.duration_s]
    for number, (wave, until_s) in enumerate(zip(parameters.waves, after, strict=True), 1):
        here = [count for at_s, count in instances.items() if wave.begins_s <= at_s <= until_s]
        figures[f"removed_after_wave_{number}"] = float(max(here) - here[-1])
    return ExperimentOutcome(
        figures=figures,
        series={
            "instances": tuple((at_s, float(count)) for at_s, count in instances.items()),
            "violations in 5 s [%]": tuple((SLOT_S * slot, share) for slot, share in shares.items()),
        },
    )
