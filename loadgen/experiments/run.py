"""Runs experiments, one seed after the other or in several processes; finished results survive an interruption."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import StatisticsError
from typing import Any, Protocol

from tidegate.errors import TidegateError
from tidegate.loadgen.experiments.definition import Experiment
from tidegate.loadgen.experiments.judge import Judgement, judge
from tidegate.loadgen.experiments.outcome import ExperimentError, ExperimentOutcome
from tidegate.loadgen.experiments.pool import finished
from tidegate.loadgen.experiments.registry import known


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentReport:
    results: tuple[Judgement, ...]
    not_run: tuple[str, ...] = ()
    """Experiments without a finished seed."""

    @property
    def is_partial(self) -> bool:
        """Whether the run was interrupted."""
        return bool(self.not_run) or any(result.is_partial for result in self.results)

    @property
    def holds(self) -> bool:
        return all(result.holds for result in self.results)


class Listener(Protocol):
    """Receives progress while experiments run."""

    def seed(self, experiment: Experiment, seed: int) -> None:
        """Takes a finished seed."""
        ...

    def result(self, result: Judgement) -> None:
        """Takes an experiment that is finished, or was interrupted after at least one seed."""
        ...


def run(
    experiments: Sequence[Experiment], listener: Listener, *, seeds: int | None = None, jobs: int = 1
) -> ExperimentReport:
    """Runs all experiments with ``seeds`` seeds each (None: each experiment's own number), in ``jobs`` processes. The
    report does not depend on ``jobs``. KeyboardInterrupt ends it early: the report is partial then.

    Raises InvalidInputError for checks of figures that a setup does not give, and ExperimentError if a run cannot be
    judged.
    """
    tasks = [(each, seed) for each in experiments for seed in range(1, (seeds or each.seeds) + 1)]
    results: list[Judgement] = []
    outcomes: dict[int, ExperimentOutcome] = {}
    with closing(_outcomes(tasks, jobs)) as stream:
        try:
            for (experiment, seed), outcome in zip(tasks, stream, strict=True):
                outcomes[seed] = outcome
                is_last = seed == (seeds or experiment.seeds)
                # Also before the last one: a check of a figure that is not there need not wait for it.
                judged = judge(experiment, outcomes, is_partial=not is_last)
                listener.seed(experiment, seed)
                if is_last:
                    outcomes = {}
                    results.append(judged)
                    listener.result(judged)
        except KeyboardInterrupt:
            if outcomes:
                results.append(judge(experiments[len(results)], outcomes, is_partial=True))
                listener.result(results[-1])
    return ExperimentReport(results=tuple(results), not_run=tuple(each.name for each in experiments[len(results) :]))


def _outcomes(tasks: Sequence[tuple[Experiment, int]], jobs: int) -> Generator[ExperimentOutcome, None, None]:
    """Yields the outcomes in the order of ``tasks``."""
    calls = [(experiment.name, experiment.setup, experiment.parameters, seed) for experiment, seed in tasks]
    waiting: dict[int, ExperimentOutcome] = {}
    due = 0
    with closing(finished(_outcome, calls, jobs)) as stream:
        for index, outcome in stream:
            waiting[index] = outcome
            while due in waiting:
                yield waiting.pop(due)
                due += 1


def _outcome(name: str, setup: str, parameters: Mapping[str, Any], seed: int) -> ExperimentOutcome:
    """Runs one seed, also in other processes: raises only exceptions that can be sent between them."""
    try:
        return known()[setup](parameters, seed)
    except TidegateError as error:
        raise ExperimentError(f"{name}, seed {seed}: {error}") from None
    except (ArithmeticError, IndexError, StatisticsError) as error:  # A mean, a ratio or the last one of nothing.
        why = f"nothing can be measured with these parameters: too short a time, or too little load ({error})"
        raise ExperimentError(f"{name}, seed {seed}: {why}") from error
