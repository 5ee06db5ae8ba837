"""Runs ``tidegate experiment``: progress on a terminal, results as they arrive, Ctrl-C."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import TYPE_CHECKING

from tidegate.control.cli.common import interruptible, say
from tidegate.loadgen.experiments import report as reports
from tidegate.loadgen.experiments import run as running
from tidegate.loadgen.experiments.definition import Experiment
from tidegate.loadgen.experiments.judge import Judgement
from tidegate.loadgen.plans.experiment import ExperimentPlan
from tidegate.records.codec import encode

if TYPE_CHECKING:
    from rich.progress import Progress


class Printed(Enum):
    """Format of each experiment's result on standard output."""

    TEXT = auto()
    MARKDOWN = auto()
    JSON = auto()


def run(plan: ExperimentPlan, printed: Printed) -> running.ExperimentReport:
    """Runs the experiments and prints each result when it is there. SIGTERM ends the run as Ctrl-C does."""
    with interruptible(), _progress(plan) as shown:
        report = running.run(plan.experiments, _Listener(printed, shown), seeds=plan.seeds, jobs=plan.jobs)
    if report.is_partial:
        say(reports.partial(report))
    if printed is Printed.TEXT:
        print(reports.summary(report.results))
    return report


class _Listener:
    def __init__(self, printed: Printed, shown: "Progress | None") -> None:
        self._printed = printed
        self._shown = shown

    def seed(self, experiment: Experiment, seed: int) -> None:
        if self._shown is not None:
            (task,) = self._shown.task_ids
            self._shown.update(task, advance=1, description=f"{experiment.name}, seed {seed}")

    def result(self, result: Judgement) -> None:
        if self._shown is not None:
            # Its line is rubbed out, so that both may go to the same terminal.
            self._shown.stop()
        print(self._text(result), flush=True)
        if self._shown is not None:
            self._shown.start()

    def _text(self, result: Judgement) -> str:
        if self._printed is Printed.JSON:
            return encode(reports.record(result)).decode()
        return reports.markdown(result) if self._printed is Printed.MARKDOWN else reports.text(result)


@contextmanager
def _progress(plan: ExperimentPlan) -> "Iterator[Progress | None]":
    """Shows a progress bar on standard error if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as shown:
        shown.add_task("experiments", total=plan.tasks)
        yield shown
