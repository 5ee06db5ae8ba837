"""One system under one load, and its measurements."""

import math
import random
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean
from typing import Final

from tidegate.loadgen.experiments.outcome import ExperimentError
from tidegate.loadgen.experiments.setups.thesis.systems import Cluster, Hpa, Kpa, System, SystemPhase, scenario
from tidegate.loadgen.experiments.setups.worlds import run
from tidegate.loadgen.metrics.elasticity import Elasticity, Point, elasticity, workload_demand
from tidegate.loadgen.metrics.usage import activity
from tidegate.loadgen.simulator.result import Everything, FunctionSecond

SAMPLING_S: Final = 15.0
"""Sampling period of the figures over time."""
PERCENTS: Final = (10, 25, 50, 75, 90, 95, 99)
KEPT: Final = 128
"""Runs that are cached: several experiments read the same ones."""

Curve = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Results of a phase, or of all requests."""

    total_s: float
    """Seconds from its start to its last answer."""
    requests: int
    mean_s: float
    percentiles_s: Mapping[int, float]
    fastest_s: float
    slowest_s: float

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.requests / self.total_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ThesisRun:
    """Measurements of a run; times count from the beginning of the load."""

    whole: Served
    phases: tuple[Served, ...]
    own: Elasticity
    """Elasticity against the autoscaler's desired count."""
    workload: Elasticity
    """Elasticity against the load's demand."""
    active: tuple[float, ...]
    """Percent of the time in which each device executed something, the busiest first."""
    wanted: Curve
    """Desired replicas by the last decision."""
    ready: Curve
    latency: Curve
    """Mean latency of the requests that ended in each sampling period, at its end."""

    def fewest_wanted(self, start_s: float, end_s: float) -> float:
        """Minimum desired replicas in [``start_s``, ``end_s``)."""
        before = [value for at_s, value in self.wanted if at_s <= start_s][-1:]
        return min([*before, *(value for at_s, value in self.wanted if start_s < at_s < end_s)])


@lru_cache(maxsize=KEPT)
def measured(
    system: System, phases: tuple[SystemPhase, ...], cluster: Cluster, kpa: Kpa, hpa: Hpa, seed: int
) -> ThesisRun:
    """Runs the system. The load begins after the idle time, at a phase of the utilisation autoscaler's period that the
    seed draws."""
    begin_s = cluster.idle_s + random.Random(seed).uniform(0.0, hpa.period_s)
    _, sink = run(scenario(system, phases, cluster, kpa, hpa, begin_s, seed))
    served = _by_phase(sink, phases, begin_s)
    every = sorted(pair for ended in served for pair in ended)
    end_s = every[-1][0]
    supply = _Supply(sink.seconds, begin_s, end_s)
    needs = [
        (phase.start_s, ended[-1][0], phase.workers * phase.rate) for phase, ended in zip(phases, served, strict=True)
    ]
    in_flight = kpa.target * kpa.utilization

    def needed(at_s: float) -> float:
        rate = math.fsum(each for start_s, until_s, each in needs if start_s <= at_s < until_s)
        return workload_demand(rate, cluster.service_s, in_flight)

    return ThesisRun(
        whole=_served(every, 0.0),
        phases=tuple(_served(ended, phase.start_s) for phase, ended in zip(phases, served, strict=True)),
        own=elasticity([Point(at_s, row.wanted, row.ready) for at_s, _, row in supply.sampled()], end_s),
        workload=elasticity([Point(at_s, needed(mid_s), row.ready) for at_s, mid_s, row in supply.sampled()], end_s),
        active=_active(sink, cluster.devices, begin_s, end_s),
        wanted=supply.wanted(),
        ready=supply.ready(),
        latency=_means(every),
    )


Ended = list[tuple[float, float]]
"""(end time of a request, its latency), rising."""


def _by_phase(sink: Everything, phases: Sequence[SystemPhase], begin_s: float) -> list[Ended]:
    """Returns the results by phase. Raises ExperimentError if a request was not answered."""
    phase_of = [index for index, phase in enumerate(phases) for _ in range(phase.workers)]
    found: list[Ended] = [[] for _ in phases]
    for (_, _, sent_s, _, caller, *_), _, at_s, _, _, end in sink.ended:
        if end != "answered" or caller is None:
            raise ExperimentError(f"a request that was sent at {sent_s - begin_s:.1f} s was not answered: {end}")
        found[phase_of[caller]].append((at_s - begin_s, at_s - sent_s))
    return found


def _served(ended: Ended, start_s: float) -> Served:
    rising = sorted(took for _, took in ended)
    return Served(
        total_s=ended[-1][0] - start_s,
        requests=len(rising),
        mean_s=fmean(rising),
        percentiles_s={each: rising[math.ceil(each * len(rising) / 100) - 1] for each in PERCENTS},
        fastest_s=rising[0],
        slowest_s=rising[-1],
    )


def _means(ended: Ended) -> Curve:
    slots: dict[int, list[float]] = {}
    for at_s, took in ended:
        slots.setdefault(int(at_s // SAMPLING_S), []).append(took)
    return tuple(((slot + 1) * SAMPLING_S, fmean(times)) for slot, times in slots.items())


def _active(sink: Everything, devices: int, begin_s: float, duration_s: float) -> tuple[float, ...]:
    spans: list[list[tuple[float, float]]] = [[] for _ in range(devices)]
    for _, unit, since, until in sink.spans:
        spans[unit].append((since - begin_s, until - begin_s))
    return tuple(sorted((activity(each, duration_s) for each in spans), reverse=True))


class _Supply:
    """Replica counts second by second, from the beginning of the load to its end."""

    def __init__(self, seconds: Sequence[FunctionSecond], begin_s: float, end_s: float) -> None:
        self._rows = seconds
        self._times = [row.at_s - begin_s for row in seconds]
        self._end_s = end_s

    def sampled(self) -> Iterator[tuple[float, float, FunctionSecond]]:
        """Yields (start of a sampling period, its middle, the counts in the middle). Our choice: the thesis does not
        say where in a period it samples."""
        for number in range(math.ceil(self._end_s / SAMPLING_S)):
            start_s = number * SAMPLING_S
            middle_s = start_s + SAMPLING_S / 2.0
            yield start_s, middle_s, self._at(middle_s)

    def wanted(self) -> Curve:
        return self._steps([row.wanted for row in self._rows])

    def ready(self) -> Curve:
        return self._steps([row.ready for row in self._rows])

    def _at(self, at_s: float) -> FunctionSecond:
        return self._rows[max(0, bisect_right(self._times, at_s) - 1)]

    def _steps(self, values: Sequence[int]) -> Curve:
        """Returns a curve with both values at each change."""
        found: list[tuple[float, float]] = []
        for at_s, value in zip(self._times, values, strict=True):
            if at_s < 0.0:
                found = [(0.0, value)]
            elif at_s <= self._end_s and (not found or found[-1][1] != value):
                found += [(at_s, found[-1][1]), (at_s, value)] if found else [(at_s, value)]
        return (*found, (self._end_s, found[-1][1]))
