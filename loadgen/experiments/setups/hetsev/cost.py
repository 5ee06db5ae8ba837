"""The cost of four services at once (figure 7): HetSev against the baseline, and where the difference comes from."""

import math
import random
from dataclasses import dataclass
from statistics import fmean

from tidegate.loadgen.arrivals.changes import Placement, joined
from tidegate.loadgen.arrivals.shapes import Load
from tidegate.loadgen.experiments.outcome import ExperimentOutcome
from tidegate.loadgen.experiments.registry import setup
from tidegate.loadgen.experiments.setups.hetsev.cluster import Testbed, named
from tidegate.loadgen.experiments.tables import NotNegative, Positive, Share, Word
from tidegate.loadgen.metrics.cost import Accounting
from tidegate.loadgen.simulator.counters import ANSWERED
from tidegate.loadgen.simulator.result import Everything

HETSEV, BASELINE = "hetsev-greedy", "k8s-baseline"
ACCOUNTING = {HETSEV: Accounting.FOOTPRINT, BASELINE: Accounting.WHOLE_GPU}


@dataclass(frozen=True, slots=True, kw_only=True)
class FourServices(Testbed):
    duration_s: Positive
    valley: Share
    """Lowest rate of each service, as a part of its peak."""
    spike_at_s: Positive
    spike_s: Positive
    rise_s: NotNegative
    """Time from the valley to the peak, and back: half a cosine. The load is highest in the middle of the spike; with
    0 the spike is a step."""
    arrivals: Placement
    co_located: Word
    """The kind that both systems have alone in the run that shows what sharing a device brings by itself."""

    def load(self, peak_rps: float) -> Load:
        """Returns the load of one service."""
        low, top_s = self.valley * peak_rps, self.spike_at_s + self.spike_s / 2.0

        def rate(at_s: float) -> float:
            apart_s = abs(at_s - top_s)
            if not self.rise_s:
                return peak_rps if apart_s <= self.spike_s / 2.0 else low
            part = min(1.0, apart_s / self.rise_s)
            return low + (peak_rps - low) * (1.0 + math.cos(math.pi * part)) / 2.0

        return Load(rate, self.duration_s, peak_rps)


@setup(FourServices)
def cost(parameters: FourServices, seed: int) -> ExperimentOutcome:
    """Runs both systems on all devices, then both on one kind alone."""
    runs = {policy: _run(parameters, policy, seed, ()) for policy in ACCOUNTING}
    alone = {policy: _run(parameters, policy, seed, (parameters.co_located,)) for policy in ACCOUNTING}
    ratios = {each.name: _ratio(parameters, runs, each.name) for each in parameters.models}
    levels = {policy: _levels(parameters, sink) for policy, sink in runs.items()}
    alone_ratios = [_ratio(parameters, alone, each.name) for each in parameters.models]
    figures = {
        "cost_ratio_mean": fmean(ratios.values()),
        "cost_ratio_largest": max(ratios.values()),
        "cost_ratio_smallest": min(ratios.values()),
        "co_location_ratio_mean": fmean(alone_ratios),
        "hetsev_within_percent": min(levels[HETSEV]),
        "baseline_within_percent": min(levels[BASELINE]),
        "co_location_within_percent": min(_levels(parameters, alone[HETSEV])),
    }
    for name, ratio in ratios.items():
        figures[f"cost_ratio_{name}"] = ratio
    return ExperimentOutcome(figures=figures)


def _run(parameters: FourServices, policy: str, seed: int, only: tuple[str, ...]) -> Everything:
    first = only[0] if only else parameters.gpus[-1].name
    services = tuple(parameters.deployed(each, policy, {first: 1}, only) for each in parameters.models)
    arrivals = joined(
        *(
            named(
                parameters.load(each.peak_rps),
                each.name,
                parameters.arrivals,
                random.Random(f"{seed}/{each.name}"),
            )
            for each in parameters.models
        )
    )
    return parameters.run(services, parameters.duration_s, seed, arrivals=arrivals)


def _ratio(parameters: FourServices, runs: dict[str, Everything], model: str) -> float:
    """Returns the cost of the baseline over HetSev's."""
    costs = {policy: parameters.cost(runs[policy].leases, model, how) for policy, how in ACCOUNTING.items()}
    return costs[BASELINE] / costs[HETSEV]


def _levels(parameters: FourServices, sink: Everything) -> list[float]:
    """Returns by service the percentage of its requests that were answered within its largest response time."""
    limits = {each.name: each.rt_max_s for each in parameters.models}
    met, ended = dict.fromkeys(limits, 0), dict.fromkeys(limits, 0)
    for (_, revision, sent_s, *_), _, at_s, _, _, end in sink.ended:
        name = revision.rpartition("-")[0]
        ended[name] += 1
        met[name] += end == ANSWERED and at_s - sent_s <= limits[name] + 1e-9
    return [100.0 * met[name] / max(1, ended[name]) for name in limits]
