"""Judgement of experiments: outcomes of several seeds to figures with their range, and verdicts."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidegate.errors import Fault, InvalidInputError
from tidegate.loadgen.experiments.definition import Check, Experiment, Reported
from tidegate.loadgen.experiments.outcome import ExperimentError, ExperimentOutcome

TIE = 1e-9
"""Relative tolerance: a bound that is reached but for rounding holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure over all seeds."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    check: Check
    measured: Figure
    holds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """An experiment that was run, and its verdicts."""

    experiment: Experiment
    seeds: tuple[int, ...]
    is_partial: bool
    """Whether the run was interrupted: fewer seeds than requested."""
    figures: Mapping[str, Figure]
    verdicts: tuple[Verdict, ...]
    reported: tuple[tuple[Reported, Figure], ...]
    series: Mapping[str, Sequence[tuple[float, float]]]
    """Curves of the first seed."""

    @property
    def holds(self) -> bool:
        return all(verdict.holds for verdict in self.verdicts)


def judge(experiment: Experiment, outcomes: Mapping[int, ExperimentOutcome], is_partial: bool = False) -> Judgement:
    """Judges ``outcomes`` by seed, at least one.

    Raises InvalidInputError for checks of figures that the setup does not give, ExperimentError if seeds give different
    figures or one that is not finite.
    """
    _check_figures(experiment, outcomes)
    first = next(iter(outcomes.values()))
    named = [(f"checks[{index}]", check.figure) for index, check in enumerate(experiment.checks)]
    named += [(f"reported[{index}]", each.figure) for index, each in enumerate(experiment.reported)]
    known_figures = ", ".join(first.figures)
    faults = [Fault(f"{where}.figure", name, known_figures) for where, name in named if name not in first.figures]
    if faults:
        raise InvalidInputError(experiment.name, faults)
    values = {name: [outcome.figures[name] for outcome in outcomes.values()] for name in first.figures}
    figures = {name: spread(each) for name, each in values.items()}
    verdicts = (
        Verdict(check=check, measured=figures[check.figure], holds=holds(check, values[check.figure]))
        for check in experiment.checks
    )
    return Judgement(
        experiment=experiment,
        seeds=tuple(outcomes),
        is_partial=is_partial,
        figures=figures,
        verdicts=tuple(verdicts),
        reported=tuple((each, figures[each.figure]) for each in experiment.reported),
        series=first.series,
    )


def spread(values: Sequence[float]) -> Figure:
    """Returns the mean and range of at least one value."""
    return Figure(mean=math.fsum(values) / len(values), low=min(values), high=max(values))


def holds(check: Check, values: Sequence[float]) -> bool:
    """Returns whether the mean of ``values``, or each one, lies within the bounds."""
    judged = values if check.each else [spread(values).mean]
    return all(_is_within(value, check.low, check.high) for value in judged)


def _is_within(value: float, low: float | None, high: float | None) -> bool:
    return (low is None or value >= low - TIE * abs(low)) and (high is None or value <= high + TIE * abs(high))


def _check_figures(experiment: Experiment, outcomes: Mapping[int, ExperimentOutcome]) -> None:
    names: Iterable[str] | None = None
    for seed, outcome in outcomes.items():
        if names is None:
            names = outcome.figures.keys()
        if outcome.figures.keys() != names:
            raise ExperimentError(f"{experiment.name}: seed {seed} gives other figures than the first one")
        wrong = [name for name, value in outcome.figures.items() if not math.isfinite(value)]
        if wrong:
            raise ExperimentError(f"{experiment.name}: seed {seed} gives no finite {', '.join(wrong)}")
