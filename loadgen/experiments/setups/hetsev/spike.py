"""Spikes: the throughput of both systems in one (figure 5), and the step that the threshold absorbs (section 4.1)."""

import random
from dataclasses import dataclass
from statistics import fmean

from tidegate.deploy.placement.strategies import WORST_FIT, WORST_FIT_SOFT, StrategyRow
from tidegate.loadgen.arrivals.changes import Placement
from tidegate.loadgen.arrivals.shapes import steps
from tidegate.loadgen.experiments.outcome import ExperimentOutcome
from tidegate.loadgen.experiments.registry import setup
from tidegate.loadgen.experiments.setups.hetsev.cluster import Testbed, named
from tidegate.loadgen.experiments.tables import Count, Positive, Share
from tidegate.loadgen.simulator.counters import ANSWERED
from tidegate.loadgen.simulator.result import Everything
from tidegate.loadgen.simulator.scenario import Callers

HETSEV, BASELINE = "hetsev-greedy", "k8s-baseline"
SLOT_S = 15.0
"""Interval of the largest ratio: the one at which the paper reads rates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoModels(Testbed):
    """Callers send at most one request a second each. ``peak_rps`` of a model: its callers in the spike."""

    low: Share
    """Callers before the spike, as a part of those in it."""
    lead_s: Positive
    """Time before the spike; its second half is measured."""
    spike_s: Positive
    measured_s: Positive
    """The end of the spike in which it is measured."""

    def __post_init__(self) -> None:
        Testbed.__post_init__(self)
        if self.measured_s > self.spike_s:
            raise ValueError("measured_s of at most spike_s")


@setup(TwoModels)
def spike(parameters: TwoModels, seed: int) -> ExperimentOutcome:
    """Runs both systems up to the end of the spike, and HetSev once more with equal models that may share a device."""
    runs = {policy: _run(parameters, policy, seed) for policy in (HETSEV, BASELINE)}
    soft = _run(parameters, HETSEV, seed, WORST_FIT_SOFT)
    begins_s, ends_s = parameters.lead_s, parameters.lead_s + parameters.spike_s
    before = {policy: _measured(sink, begins_s / 2.0, begins_s) for policy, sink in runs.items()}
    within = {policy: _measured(sink, ends_s - parameters.measured_s, ends_s) for policy, sink in runs.items()}
    within_soft = _measured(soft, ends_s - parameters.measured_s, ends_s)
    slots = [begins_s + SLOT_S * number for number in range(int(parameters.spike_s / SLOT_S))]
    curves = {
        policy: tuple((at_s, _measured(sink, at_s, at_s + SLOT_S)[0]) for at_s in slots)
        for policy, sink in runs.items()
    }
    largest = max(ours[1] / max(theirs[1], 1.0) for ours, theirs in zip(*curves.values(), strict=True))
    return ExperimentOutcome(
        figures={
            "throughput_ratio": within[HETSEV][0] / within[BASELINE][0],
            "response_ratio": within[BASELINE][1] / within[HETSEV][1],
            "before_ratio": before[HETSEV][0] / before[BASELINE][0],
            "largest_slot_ratio": largest,
            "soft_throughput_ratio": within_soft[0] / within[BASELINE][0],
            "soft_response_ratio": within[BASELINE][1] / within_soft[1],
            "hetsev_rps": within[HETSEV][0],
            "baseline_rps": within[BASELINE][0],
        },
        series={f"throughput [requests/s]: {policy}": curve for policy, curve in curves.items()},
    )


def _run(parameters: TwoModels, policy: str, seed: int, strategy: StrategyRow = WORST_FIT) -> Everything:
    ready = {each.name: max(1, each.count // 4) for each in parameters.gpus}
    services = tuple(parameters.deployed(each, policy, ready) for each in parameters.models)
    callers = []
    for each in parameters.models:
        low = max(1, round(parameters.low * each.peak_rps))
        callers.append(Callers(function=each.name, callers=low, rate=1.0))
        more = round(each.peak_rps) - low
        callers.append(Callers(function=each.name, callers=more, rate=1.0, start_s=parameters.lead_s))
    return parameters.run(
        services, parameters.lead_s + parameters.spike_s, seed, callers=tuple(callers), strategy=strategy
    )


def _measured(sink: Everything, since_s: float, until_s: float) -> tuple[float, float]:
    """Returns (requests answered per second, mean response time)."""
    times = [each[2] - each[0][2] for each in sink.ended if since_s <= each[2] < until_s and each[5] == ANSWERED]
    return len(times) / (until_s - since_s), fmean(times) if times else float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadStep(Testbed):
    """One service. ``peak_rps`` of its model is not read: rates are parts of the capacity of ``replicas``."""

    replicas: Count
    """On the first kind, from the beginning."""
    before: Share
    after: Share
    """Rates before and after the step, as parts of the capacity."""
    each_s: Positive
    """Time of each."""


@setup(LoadStep)
def step(parameters: LoadStep, seed: int) -> ExperimentOutcome:
    """Runs HetSev's policy through one step of the load."""
    model, kind = parameters.models[0], parameters.gpus[0].name
    capacity = parameters.replicas * model.throughput[kind]
    load = steps([(parameters.each_s, parameters.before * capacity), (parameters.each_s, parameters.after * capacity)])
    arrivals = named(load, model.name, Placement.POISSON, random.Random(seed))
    service = parameters.deployed(model, HETSEV, {kind: parameters.replicas})
    sink = parameters.run((service,), 2.0 * parameters.each_s, seed, arrivals=arrivals)
    times = [each[2] - each[0][2] for each in sink.ended]
    late = sum(each > model.rt_max_s + 1e-9 for each in times) + sum(each[5] != ANSWERED for each in sink.ended)
    return ExperimentOutcome(
        figures={
            "late_requests": float(late),
            "slowest_of_rt_max": max(times) / model.rt_max_s,
            "requests": float(len(times)),
        }
    )
