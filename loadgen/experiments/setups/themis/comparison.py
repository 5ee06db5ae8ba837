"""Themis against instances alone and cores alone, on the Twitter trace (figures 7 to 9, sections 6.2 to 6.4)."""

import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import geometric_mean

from tidegate.loadgen.experiments.outcome import ExperimentOutcome
from tidegate.loadgen.experiments.registry import setup
from tidegate.loadgen.experiments.setups.themis.pipeline import (
    HORIZONTAL,
    POLICIES,
    THEMIS,
    VERTICAL,
    PaperPipeline,
    PipelineRun,
    World,
    played,
)
from tidegate.loadgen.experiments.tables import Count, NotNegative, Some

SHORT = {THEMIS: "themis", HORIZONTAL: "horizontal", VERTICAL: "vertical"}
LATE_SECOND_PERCENT = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreePolicies(World):
    pipelines: Some[PaperPipeline]

    def ratio(self, themis: PipelineRun, other: PipelineRun) -> float:
        """Returns how often the other one misses the SLO for each miss of ``themis``, of which at least one counts."""
        least = 100.0 / max(1, len(themis.late))
        return other.late_percent() / max(least, themis.late_percent())


@dataclass(frozen=True, slots=True, kw_only=True)
class Surge(ThreePolicies):
    surge_s: NotNegative
    """When the load begins to rise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropping(ThreePolicies):
    multiples: Some[NotNegative]
    """Values of ``drop-after``, in the order in which misses are to grow."""
    counted_s: Count
    """Requests of this time count."""


@setup(ThreePolicies)
def violations(parameters: ThreePolicies, seed: int) -> ExperimentOutcome:
    """Plays each pipeline under the three policies and under ``horizontal-only`` as it comes."""
    figures: dict[str, float] = {}
    for pipeline in parameters.pipelines:
        before = "" if len(parameters.pipelines) == 1 else f"{pipeline.name}_"
        runs = {policy: played(parameters, pipeline, policy, seed) for policy in POLICIES}
        own = played(parameters, pipeline, HORIZONTAL, seed, settings=parameters.settings)
        for policy, run in runs.items():
            figures[f"{before}{SHORT[policy]}_late_percent"] = run.late_percent()
            figures[f"{before}{SHORT[policy]}_mean_cores"] = run.mean_cores()
        figures[f"{before}own_horizontal_late_percent"] = own.late_percent()
        figures[f"{before}horizontal_over_themis"] = parameters.ratio(runs[THEMIS], runs[HORIZONTAL])
        figures[f"{before}own_horizontal_over_themis"] = parameters.ratio(runs[THEMIS], own)
    return ExperimentOutcome(figures=figures)


@setup(ThreePolicies)
def ratios(parameters: ThreePolicies, seed: int) -> ExperimentOutcome:
    """Holds the misses of both readings of ``horizontal-only`` against those of ``themis``."""
    figures: dict[str, float] = {}
    found, own = [], []
    for pipeline in parameters.pipelines:
        themis = played(parameters, pipeline, THEMIS, seed)
        found.append(parameters.ratio(themis, played(parameters, pipeline, HORIZONTAL, seed)))
        as_it_comes = played(parameters, pipeline, HORIZONTAL, seed, settings=parameters.settings)
        own.append(parameters.ratio(themis, as_it_comes))
        figures[f"{pipeline.name}_horizontal_over_themis"] = found[-1]
        figures[f"{pipeline.name}_own_horizontal_over_themis"] = own[-1]
    means = {"ratio_mean": geometric_mean(found), "ratio_least": min(found), "own_ratio_mean": geometric_mean(own)}
    return ExperimentOutcome(figures=figures | means)


@setup(ThreePolicies)
def cores(parameters: ThreePolicies, seed: int) -> ExperimentOutcome:
    """Holds the cores of ``themis`` against those of ``horizontal-only`` with the same settings."""
    figures: dict[str, float] = {}
    ratios, more = [], []
    for pipeline in parameters.pipelines:
        themis = played(parameters, pipeline, THEMIS, seed)
        other = played(parameters, pipeline, HORIZONTAL, seed, settings=parameters.settings)
        ratios.append(themis.mean_cores() / other.mean_cores())
        last = (parameters.seconds - 60.0, float(parameters.seconds))
        more.append((themis.mean_cores(*last) - other.mean_cores(*last)) / len(pipeline.stages))
        figures[f"{pipeline.name}_cores_ratio"] = ratios[-1]
        figures[f"{pipeline.name}_last_minute_more_a_stage"] = more[-1]
    return ExperimentOutcome(figures={**figures, "cores_ratio": max(ratios), "last_minute_more_a_stage": max(more)})


@setup(Surge)
def recovery(parameters: Surge, seed: int) -> ExperimentOutcome:
    """Counts the seconds after the surge in which more than a tenth of the requests missed the SLO."""
    figures = {}
    for policy in (THEMIS, HORIZONTAL):
        runs = [played(parameters, each, policy, seed) for each in parameters.pipelines]
        late = [each.seconds_late(parameters.surge_s, LATE_SECOND_PERCENT) for each in runs]
        figures[f"{SHORT[policy]}_late_seconds"] = float(max(late) if policy == THEMIS else min(late))
    return ExperimentOutcome(figures=figures)


@setup(Dropping)
def dropping(parameters: Dropping, seed: int) -> ExperimentOutcome:
    """Plays each policy with each ``drop-after``."""
    figures: dict[str, float] = {}
    worst = -math.inf
    for policy in POLICIES:
        late = []
        for multiple in parameters.multiples:
            runs = [played(parameters, each, policy, seed, drop_after=multiple) for each in parameters.pipelines]
            late.append(max(each.late_percent(0.0, float(parameters.counted_s)) for each in runs))
            figures[f"{SHORT[policy]}_{multiple:g}x_late_percent"] = late[-1]
        worst = max(worst, *(before - after for before, after in pairwise(late)))
    return ExperimentOutcome(figures={**figures, "worst_step_points": worst})
