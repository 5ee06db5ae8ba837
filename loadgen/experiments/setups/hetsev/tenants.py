"""Several replicas on one device: what they yield together (figure 1), and how much two of them slow each other
(figures 2 and 3).

Gains and slow-downs are the paper's measurements and enter as a profile; what comes out is what slots, placement and
waiting room leave of them.
"""

import math
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations_with_replacement, pairwise, product
from statistics import fmean, median, quantiles
from typing import NamedTuple

from tidegate.deploy.placement.queues import Pending, schedule
from tidegate.deploy.placement.strategies import WORST_FIT, WORST_FIT_SOFT, Cluster, Device, Free, Instance, StrategyRow
from tidegate.function import GpuNeeds
from tidegate.loadgen.experiments.outcome import ExperimentOutcome
from tidegate.loadgen.experiments.registry import setup
from tidegate.loadgen.experiments.setups.worlds import deployed, fixed, function, kind, run
from tidegate.loadgen.experiments.tables import Count, NotNegative, Positive, Share, Some, Word
from tidegate.loadgen.simulator.devices import Sharing
from tidegate.loadgen.simulator.profiles import Line, ServiceProfile
from tidegate.loadgen.simulator.result import Everything
from tidegate.loadgen.simulator.scenario import Callers, Scenario


class Yield(NamedTuple):
    rps: float
    executions: float
    """Mean number of executions at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    service_s: Positive
    jitter: Share
    callers: Count
    duration_s: Positive
    gains: Some[Positive]
    """Work of that many executions at once, in units of one: of one, of two, and so on."""
    uses: Some[Positive]
    """Utilisation of the device then, in the same way."""

    def __post_init__(self) -> None:
        if len(self.gains) != len(self.uses) or self.gains[0] != 1.0 or self.uses[0] != 1.0:
            raise ValueError("gains and uses of as many replicas, of one replica 1.0")


@setup(Replicas)
def replicas(parameters: Replicas, seed: int) -> ExperimentOutcome:
    """Runs one replica on a device, then two, and so on, always saturated."""
    found = [_saturated(parameters, number, seed) for number in range(1, len(parameters.gains) + 1)]
    rates = [each.rps / found[0].rps for each in found]
    uses = [_between(parameters.uses, each.executions) for each in found]
    steps = [later - before for before, later in pairwise(rates)]
    figures = {f"throughput_{number}_over_1": rate for number, rate in enumerate(rates, 1) if number > 1}
    figures |= {f"utilisation_{number}_over_1": use / uses[0] for number, use in enumerate(uses, 1) if number > 1}
    figures["last_step_over_first"] = steps[-1] / steps[0]
    return ExperimentOutcome(
        figures=figures,
        series={"throughput [of one replica]": tuple((float(number), rate) for number, rate in enumerate(rates, 1))},
    )


def _saturated(parameters: Replicas, number: int, seed: int) -> Yield:
    gain = {count: gained for count, gained in enumerate(parameters.gains, 1) if 1 < count <= number}
    of = function(gpu=GpuNeeds(mps=True, core_percentage=100 // number))
    scenario = Scenario(
        kinds=(kind(count=1, sharing=Sharing.MPS, gain=gain),),
        functions=(deployed(fixed(parameters.service_s, jitter=parameters.jitter), of=of, ready={"t4": number}),),
        seed=seed,
        callers=(Callers(function="f", callers=parameters.callers),),
        keeps_scale=True,
    )
    result, sink = run(scenario, parameters.duration_s)
    worked_s = math.fsum(at_s - sent_s for _, sent_s, at_s, *_ in sink.ended)
    return Yield(len(sink.ended) / result.simulated_s, worked_s / result.simulated_s)


def _between(points: tuple[float, ...], at: float) -> float:
    """Returns the value at a number of executions, on the line between two whole numbers."""
    low = max(1, min(len(points) - 1, int(at))) if len(points) > 1 else 1
    high = min(len(points), low + 1)
    return points[low - 1] + (points[high - 1] - points[low - 1]) * (at - low)


# --- pairs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedModel:
    name: Word
    base_s: Positive
    per_item_s: NotNegative
    """Time of a batch alone: base and items."""
    equal: Some[Share]
    """Lowest and highest increase beside itself."""

    def __post_init__(self) -> None:
        if len(self.equal) != 2 or self.equal[0] > self.equal[1]:
            raise ValueError("equal: the lowest and the highest increase")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Each pair of models with each pair of batches has an increase of its own, drawn once: of different models a
    lognormal one with this median and 90th percentile, at most ``largest``."""

    models: Some[PairedModel]
    batches: Some[Count]
    median: Positive
    p90: Positive
    largest: Positive
    requests: Count
    """Of each replica of a pair."""
    jitter: Share
    devices: Count
    instances: Count
    """Instances that are placed, of models drawn evenly, in each of ``rounds`` rounds."""
    rounds: Count


@setup(Pairs)
def pairs(parameters: Pairs, seed: int) -> ExperimentOutcome:
    """Runs each combination on one device, and places instances of all models on many."""
    rng = random.Random(seed)
    measured: dict[bool, list[float]] = {True: [], False: []}
    for one, other in combinations_with_replacement(parameters.models, 2):
        for batches in product(parameters.batches, repeat=2):
            increase = _drawn(parameters, one, other, rng)
            measured[one is other] += _measured(parameters, (one, other), batches, increase, rng.randrange(1 << 30))
    equal, different = measured[True], measured[False]
    return ExperimentOutcome(
        figures={
            "combinations": (len(equal) + len(different)) / 2.0,
            "different_p90_percent": 100.0 * quantiles(different, n=10)[-1],
            "different_median_percent": 100.0 * median(different),
            "different_mean_percent": 100.0 * fmean(different),
            "equal_mean_percent": 100.0 * fmean(equal),
            "equal_over_different": fmean(equal) / fmean(different),
            "all_p90_percent": 100.0 * quantiles([*equal, *different], n=10)[-1],
            "above_18_percent_of_all": 100.0 * fmean(each > 0.18 for each in (*equal, *different)),
            "equal_on_one_device": _equal_on_one_device(parameters, WORST_FIT, rng),
            "equal_on_one_device_soft": _equal_on_one_device(parameters, WORST_FIT_SOFT, rng),
        }
    )


def _drawn(parameters: Pairs, one: PairedModel, other: PairedModel, rng: random.Random) -> float:
    if one is other:
        return rng.uniform(*one.equal)
    sigma = math.log(parameters.p90 / parameters.median) / 1.2816  # The normal distribution's 90th percentile.
    return min(parameters.largest, parameters.median * math.exp(rng.gauss(0.0, sigma)))


def _measured(
    parameters: Pairs, models: tuple[PairedModel, PairedModel], batches: tuple[int, ...], increase: float, seed: int
) -> list[float]:
    """Returns the increase of the latency of both, over each alone."""
    names = ("a", "b")
    table = {(one, other): 1.0 + increase for one in names for other in names if one != other}
    together = _latencies(parameters, dict(zip(names, zip(models, batches, strict=True), strict=True)), table, seed)
    found = []
    for name, model, batch in zip(names, models, batches, strict=True):
        alone = _latencies(parameters, {name: (model, batch)}, {}, seed)
        found.append(together[name] / alone[name] - 1.0)
    return found


def _latencies(
    parameters: Pairs,
    tenants: Mapping[str, tuple[PairedModel, int]],
    interference: Mapping[tuple[str, str], float],
    seed: int,
) -> dict[str, float]:
    """Returns the mean latency of each tenant of one device, while all are at work."""
    functions = []
    for name, (model, _) in tenants.items():
        times = ServiceProfile(times=Line(base_s=model.base_s, per_item_s=model.per_item_s), jitter=parameters.jitter)
        of = function(name, gpu=GpuNeeds(mps=True, core_percentage=50))
        functions.append(deployed(times, of=of))
    scenario = Scenario(
        kinds=(kind(count=1, sharing=Sharing.MPS, gain={2: 2.0}, interference=interference),),
        functions=tuple(functions),
        seed=seed,
        callers=tuple(Callers(function=name, callers=1, inferences=batch) for name, (_, batch) in tenants.items()),
        keeps_scale=True,
    )
    slowest_s = max(model.base_s + model.per_item_s * batch for model, batch in tenants.values())
    _, sink = run(scenario, parameters.requests * slowest_s)
    return {name: fmean(_of(sink, name)) for name in tenants}


def _of(sink: Everything, name: str) -> list[float]:
    return [at_s - request[2] for request, _, at_s, *_ in sink.ended if request[1].startswith(f"{name}-")]


def _equal_on_one_device(parameters: Pairs, row: StrategyRow, rng: random.Random) -> float:
    """Returns how many instances share a device with one of their model, per round."""
    equal = 0
    for _ in range(parameters.rounds):
        devices = [
            Device(id=f"d{number}", node="n", kind="v100", memory=32.0, free=Free(32.0, 100.0))
            for number in range(parameters.devices)
        ]
        cluster = Cluster(devices)
        names = [rng.choice(parameters.models).name for _ in range(parameters.instances)]
        instances = [Instance(id=f"i{number}", model=name, memory=4.0) for number, name in enumerate(names)]
        schedule(cluster, row, [Pending(each, 0.0) for each in instances], 1.0)
        for device in cluster.devices:
            equal += sum(count - 1 for count in Counter(device.free.tenants).values())
    return equal / parameters.rounds
