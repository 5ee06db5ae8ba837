"""OLTunes, Orion, and reserve and pack on one cluster under the same tasks (figures 11, 12 and 14 to 17)."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice, pairwise
from statistics import fmean
from typing import Final

from tidegate.loadgen.experiments.outcome import ExperimentOutcome
from tidegate.loadgen.experiments.registry import setup
from tidegate.loadgen.experiments.setups.oltunes.gpu import MEAN_S, SharedGpu
from tidegate.loadgen.experiments.setups.oltunes.schedules import (
    OLTUNES,
    ORION,
    POLICIES,
    RESERVE,
    Ended,
    TaskCluster,
    scheduler,
)
from tidegate.loadgen.experiments.setups.oltunes.testbed import Pattern, TaskTestbed
from tidegate.loadgen.experiments.tables import Count, Positive, Some
from tidegate.loadgen.metrics.power import IDLE_W, watts
from tidegate.loadgen.metrics.usage import variation

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "all": ("S", "M", "L", "XL", "XXL"),
    "small": ("S", "M"),
    "large": ("L", "XL", "XXL"),
    "language": ("L", "XXL"),
}
"""Sizes of models by group; nine tenths of the language models' tasks are throughput-oriented."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskGroup:
    """Figures of the tasks of some models."""

    p99_s: float
    mean_s: float
    queue_s: float
    """Mean time until a task begins."""
    in_time: float
    """Inputs per second that were answered within their deadlines."""
    answered: float
    late_percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerFigures:
    """Figures of one scheduler under one load."""

    groups: Mapping[str, TaskGroup]
    use: tuple[float, ...]
    """Mean use of each device, 0..1."""
    epc: float
    """Mean over devices and samples."""
    watts: float
    """Mean over devices."""

    @property
    def joules(self) -> float:
        """Energy of an input that is answered in time."""
        return self.watts * len(self.use) / self.groups["all"].in_time


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerRuns:
    patterns: Some[Pattern]
    duration_s: Positive
    tasks: Count | None = None
    """Tasks after which the load ends; None: those of the duration."""
    testbed: TaskTestbed = field(default_factory=TaskTestbed)


@setup(SchedulerRuns)
def schedulers(parameters: SchedulerRuns, seed: int) -> ExperimentOutcome:
    """Runs each scheduler under each pattern."""
    found = {
        pattern: {
            policy: measured(parameters.testbed, policy, pattern, parameters.duration_s, parameters.tasks, seed)
            for policy in POLICIES
        }
        for pattern in parameters.patterns
    }
    figures: dict[str, float] = {}
    for pattern, by_policy in found.items():
        figures.update({f"{pattern}_{name}": value for name, value in _figures(by_policy).items()})
    figures.update(_together(tuple(found.values()), figures))
    return ExperimentOutcome(figures=figures)


@lru_cache(maxsize=128)
def measured(
    testbed: TaskTestbed, policy: str, pattern: Pattern, duration_s: float, tasks: int | None, seed: int
) -> SchedulerFigures:
    """Runs one scheduler under one load."""
    load = list(islice(testbed.arrivals(pattern, duration_s, seed), tasks))
    cluster = TaskCluster(testbed, scheduler(policy, testbed), load, seed)
    cluster.run()
    until_s = load[-1][0] if tasks else duration_s
    use = tuple(_use(gpu, until_s) for gpu in cluster.gpus)
    tdp_w = [testbed.kinds[each.device.name].tdp_w for each in cluster.gpus]
    return SchedulerFigures(
        groups={
            name: _group([each for each in cluster.ended if each.model.size in sizes], until_s)
            for name, sizes in GROUPS.items()
        },
        use=use,
        epc=_epc(cluster.ended, tdp_w, until_s),
        watts=fmean(watts(each, most_w) for each, most_w in zip(use, tdp_w, strict=True)),
    )


def _group(ended: Sequence[Ended], until_s: float) -> TaskGroup:
    rising = sorted(each.latency_s for each in ended)
    within = [each for each in ended if each.ended_s <= until_s]
    return TaskGroup(
        p99_s=rising[math.ceil(0.99 * len(rising)) - 1],
        mean_s=fmean(rising),
        queue_s=fmean(each.began_s - each.arrived_s for each in ended),
        in_time=sum(each.model.items for each in within if not each.is_late) / until_s,
        answered=sum(each.model.items for each in within) / until_s,
        late_percent=100.0 * fmean(each.is_late for each in ended),
    )


def _use(gpu: SharedGpu, until_s: float) -> float:
    steps = [*gpu.used, (math.inf, 0.0)]
    return (
        math.fsum((min(end, until_s) - start) * used for (start, used), (end, _) in pairwise(steps) if start < until_s)
        / until_s
    )


def _epc(ended: Iterable[Ended], tdp_w: Sequence[float], until_s: float) -> float:
    """Returns Eq. 7, sampled on each device every 2 s, with what all tasks that run at that moment add."""
    samples = max(1, int(until_s / MEAN_S))
    added = math.fsum(
        (tdp_w[each.gpu] - IDLE_W) * each.draw * _samples(each.began_s, min(each.ended_s, until_s)) for each in ended
    )
    return IDLE_W + added / (samples * len(tdp_w))


def _samples(begin_s: float, end_s: float) -> int:
    """Returns how many samples fall between two times."""
    return max(0, math.floor(end_s / MEAN_S) - math.floor(begin_s / MEAN_S))


def _figures(by_policy: Mapping[str, SchedulerFigures]) -> dict[str, float]:
    """Returns the figures of one pattern."""
    figures: dict[str, float] = {}
    for policy, each in by_policy.items():
        name = policy.replace("-", "_")
        every = each.groups["all"]
        figures[f"{name}_p99_s"] = every.p99_s
        figures[f"{name}_mean_s"] = every.mean_s
        figures[f"{name}_in_time"] = every.in_time
        figures[f"{name}_late_percent"] = every.late_percent
        figures[f"{name}_use_percent"] = 100.0 * fmean(each.use)
        figures[f"{name}_use_variation"] = variation(each.use) or 0.0
        figures[f"{name}_epc"] = each.epc
        figures[f"{name}_watts"] = each.watts
    own, orion, reserve = (by_policy[each] for each in (OLTUNES, ORION, RESERVE))
    for group, rival, name in (
        ("small", reserve, "reserve"),
        ("large", reserve, "reserve"),
        ("language", orion, "orion"),
    ):
        of, theirs = own.groups[group], rival.groups[group]
        figures[f"{group}_p99_{name}_over_oltunes"] = theirs.p99_s / of.p99_s
        figures[f"{group}_queue_{name}_over_oltunes"] = theirs.queue_s / of.queue_s
        figures[f"{group}_in_time_oltunes_over_{name}"] = of.in_time / theirs.in_time
        figures[f"{group}_answered_oltunes_over_{name}"] = of.answered / theirs.answered
    every, theirs = own.groups["all"], orion.groups["all"]
    figures["oltunes_over_orion_p99"] = every.p99_s / theirs.p99_s
    figures["in_time_oltunes_over_orion"] = every.in_time / theirs.in_time
    figures["answered_oltunes_over_orion"] = every.answered / theirs.answered
    p99 = [each.groups["all"].p99_s for each in by_policy.values()]
    answered = [each.groups["all"].answered for each in by_policy.values()]
    figures["p99_spread"] = max(p99) / min(p99)
    figures["answered_spread_percent"] = 100.0 * (max(answered) / min(answered) - 1.0)
    rivals = (orion, reserve)
    figures["p99_oltunes_over_best_rival"] = every.p99_s / min(each.groups["all"].p99_s for each in rivals)
    late = [each.groups["all"].late_percent for each in rivals]
    figures["late_points_over_best_rival"] = every.late_percent - min(late)
    figures["late_cut_percent"] = 100.0 * (1.0 - every.late_percent / max(late)) if max(late) else 0.0
    uneven = {policy: variation(each.use) or 0.0 for policy, each in by_policy.items()}
    figures["variation_over_reserve"] = uneven[OLTUNES] / uneven[RESERVE]
    figures["variation_over_least_rival"] = uneven[OLTUNES] / min(uneven[ORION], uneven[RESERVE])
    figures["use_gain_over_reserve_percent"] = 100.0 * (fmean(own.use) / fmean(reserve.use) - 1.0)
    figures["epc_reserve_over_oltunes"] = reserve.epc / own.epc
    figures["epc_orion_over_oltunes"] = orion.epc / own.epc
    figures["epc_oltunes_over_least_rival"] = own.epc / min(each.epc for each in rivals)
    figures["watts_oltunes_over_orion"] = own.watts / orion.watts
    figures["watts_oltunes_over_least_rival"] = own.watts / min(each.watts for each in rivals)
    figures["joules_oltunes_over_least_rival"] = own.joules / min(each.joules for each in rivals)
    return figures


def _together(found: Sequence[Mapping[str, SchedulerFigures]], figures: Mapping[str, float]) -> dict[str, float]:
    """Returns the figures over all patterns, most of them of means against the mean of both rivals, or of Orion's."""

    def cut(value: Callable[[TaskGroup], float], *rivals: str) -> float:
        """Returns by how many percent OLTunes' mean is less."""

        def mean(policy: str) -> float:
            return fmean(value(each[policy].groups["all"]) for each in found)

        return 100.0 * (1.0 - mean(OLTUNES) / fmean(map(mean, rivals)))

    def each_pattern(name: str) -> list[float]:
        return [value for key, value in figures.items() if key.partition("_")[2] == name]

    return {
        "best_late_cut_percent": max(each_pattern("late_cut_percent")),
        "most_late_points_over_best_rival": max(each_pattern("late_points_over_best_rival")),
        "most_epc_oltunes_over_least_rival": max(each_pattern("epc_oltunes_over_least_rival")),
        "mean_latency_cut_percent": cut(lambda each: each.mean_s, ORION, RESERVE),
        "mean_latency_cut_over_orion_percent": cut(lambda each: each.mean_s, ORION),
        "p99_cut_percent": cut(lambda each: each.p99_s, ORION, RESERVE),
        "in_time_gain_percent": -cut(lambda each: each.in_time, ORION, RESERVE),
        "in_time_gain_over_orion_percent": -cut(lambda each: each.in_time, ORION),
        "answered_gain_percent": -cut(lambda each: each.answered, ORION, RESERVE),
    }
