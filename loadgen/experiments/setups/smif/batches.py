"""Larger batches are more work for a replica (table 1), load that counting requests does not see (figure 5)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from tidegate.function import Sla
from tidegate.loadgen.experiments.outcome import ExperimentOutcome
from tidegate.loadgen.experiments.registry import setup
from tidegate.loadgen.experiments.setups.worlds import deployed, function, kind, latencies, run, scaling
from tidegate.loadgen.experiments.tables import Count, NotNegative, Positive, Share, Some
from tidegate.loadgen.simulator.profiles import ColdStart, Line, ServiceProfile
from tidegate.loadgen.simulator.result import Everything
from tidegate.loadgen.simulator.scenario import Callers, Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Table1:
    base_s: Positive
    per_item_s: NotNegative
    """A batch of b takes ``base_s + per_item_s * b``."""
    jitter: Share
    callers: Count
    window_s: Positive
    batches: Some[Count]
    """Rising batch sizes."""

    @property
    def profile(self) -> ServiceProfile:
        """Returns the profile: one request at a time, as on one device."""
        return ServiceProfile(times=Line(base_s=self.base_s, per_item_s=self.per_item_s), jitter=self.jitter, width=1)


@setup(Table1)
def table1(parameters: Table1, seed: int) -> ExperimentOutcome:
    """Runs one replica under callers that send as soon as they have their answer, once for each batch size.

    The rate covers the time up to the last answer inside the window: at batch 128 the request that the window cuts off
    is a twentieth of all.
    """
    figures: dict[str, float] = {}
    rates, times = [], []
    for batch in parameters.batches:
        sink = _one_replica(parameters, batch, seed)
        answered = latencies(sink)
        rates.append(len(answered) * batch / sink.ended[-1][2])
        times.append(fmean(answered))
        figures |= {
            f"throughput_{batch}_ips": rates[-1],
            f"throughput_{batch}_cut_ips": len(answered) * batch / parameters.window_s,
            f"latency_{batch}_s": times[-1],
        }
    figures |= {"least_throughput_step": _least_step(rates), "least_latency_step": _least_step(times)}
    points = tuple(map(float, parameters.batches))
    return ExperimentOutcome(
        figures=figures,
        series={
            "throughput [inferences/s by batch size]: simulated": tuple(zip(points, rates, strict=True)),
            "latency [s by batch size]: simulated": tuple(zip(points, times, strict=True)),
        },
    )


def _one_replica(parameters: Table1, batch: int, seed: int) -> Everything:
    scenario = Scenario(
        kinds=(kind(),),
        functions=(deployed(parameters.profile, of=function(concurrency=0)),),
        seed=seed,
        callers=(Callers(function="f", callers=parameters.callers, inferences=batch),),
        keeps_scale=True,
    )
    return run(scenario, parameters.window_s)[1]


def _least_step(values: Sequence[float]) -> float:
    """Returns the smallest ratio of a value to the one before it: above 1, they rise. 1 for a single value."""
    return min((after / before for before, after in pairwise(values)), default=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled(Table1):
    """Parameters. ``window_s`` is the measured time, at the end of ``duration_s``."""

    duration_s: Positive
    sla_factor: Positive
    """The latency target, in service times of the tested batch."""
    max_scale: Count
    start_s: NotNegative
    """Seconds from a decision to a ready replica."""

    def __post_init__(self) -> None:
        if self.window_s > self.duration_s:
            raise ValueError("a window_s of at most duration_s")


@setup(Scaled)
def autoscaling(parameters: Scaled, seed: int) -> ExperimentOutcome:
    """Runs the same callers under two policies, once for each batch size: Knative's, which counts requests in flight (a
    container without a limit, a target of 100), and the SLA policy. Both begin with one replica."""
    figures: dict[str, float] = {}
    series = {}
    gains = []
    for batch in parameters.batches:
        rates = {}
        for policy in ("kpa", "smif"):
            sink = scaled(parameters, policy, batch, seed)
            since = parameters.duration_s - parameters.window_s
            done = sum(each[2] > since and each[5] == "answered" for each in sink.ended)
            rates[policy] = done * batch / parameters.window_s
            figures[f"{policy}_{batch}_replicas"] = fmean(each.ready for each in sink.seconds if each.at_s > since)
            figures[f"{policy}_{batch}_ips"] = rates[policy]
            curve = tuple((each.at_s, float(each.ready)) for each in sink.seconds)
            series[f"ready replicas at batch {batch}: {policy}"] = curve
        gains.append(rates["smif"] / rates["kpa"])
        figures[f"gain_{batch}"] = gains[-1]
    replicas = [figures[f"kpa_{batch}_replicas"] for batch in parameters.batches]
    figures |= {"least_gain": min(gains), "kpa_replicas_apart": max(replicas) - min(replicas)}
    return ExperimentOutcome(figures=figures, series=series)


def scaled(parameters: Scaled, policy: str, batch: int, seed: int) -> Everything:
    """Runs one batch size under one policy."""
    target_s = parameters.sla_factor * parameters.profile.nominal(batch)
    of = function(
        concurrency=0,
        sla=Sla(latency_s=target_s),
        scaling=scaling(policy, max_scale=parameters.max_scale),
    )
    scenario = Scenario(
        kinds=(kind(count=parameters.max_scale),),
        functions=(deployed(parameters.profile, of=of, start=ColdStart(load_s=parameters.start_s)),),
        seed=seed,
        callers=(Callers(function="f", callers=parameters.callers, inferences=batch),),
    )
    return run(scenario, parameters.duration_s)[1]
