"""Runs ``tidegate simulate``: one run for each policy, its files, the bound, Ctrl-C."""

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from tidegate.control.cli.common import interruptible
from tidegate.function import Function
from tidegate.loadgen.metrics.summary import RunSummary
from tidegate.loadgen.plans.simulation import SimulationPlan
from tidegate.loadgen.reports.simulation import CSV_HEAD, BoundFigures, PolicyRun, SimulationReport, csv_row, run_of
from tidegate.loadgen.reports.timeline import Timeline, TimelineSlot
from tidegate.loadgen.simulator.counters import Ended
from tidegate.loadgen.simulator.devices import Busy
from tidegate.loadgen.simulator.lease import Lease
from tidegate.loadgen.simulator.result import FunctionSecond, Sink, Start
from tidegate.loadgen.simulator.simulation import Simulation
from tidegate.records.codec import encode
from tidegate.records.decision import Decision

REDRAW_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Made:
    """The report and the data it is drawn from, one entry per policy in the same order."""

    report: SimulationReport
    timelines: tuple[Timeline, ...]


class Stop:
    """A flag that requests the end of the run."""

    def __init__(self) -> None:
        self.is_asked = False

    def ask(self, *_: object) -> None:
        self.is_asked = True

    @contextlib.contextmanager
    def by_signals(self) -> Iterator[None]:
        """Sets the flag on Ctrl-C and SIGTERM while the block runs."""
        before = {each: signal.signal(each, self.ask) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)


def run(plan: SimulationPlan, *, has_bound: bool, log: Path | None, csv: Path | None, is_silent: bool) -> Made:
    """Simulates every policy. Raises OSError if a file cannot be written."""
    stop = Stop()
    runs: list[tuple[str, dict[str, float], Timeline, bool]] = []
    with stop.by_signals(), contextlib.ExitStack() as files:
        decisions = None if log is None else files.enter_context(log.open("wb"))
        rows = None if csv is None else files.enter_context(csv.open("w", encoding="utf-8"))
        if rows is not None:
            rows.write(CSV_HEAD + "\n")
        for function in plan.functions:
            runs.append(_simulate(plan, function, stop, decisions, rows, is_silent=is_silent))
            if stop.is_asked:
                break
    bound, note = (None, None) if stop.is_asked or not has_bound else _bound(plan, stop)
    return Made(_report(plan, runs, bound, note, stop), tuple(timeline for _, _, timeline, _ in runs))


def _report(
    plan: SimulationPlan,
    runs: Sequence[tuple[str, dict[str, float], Timeline, bool]],
    bound: BoundFigures | None,
    note: str | None,
    stop: Stop,
) -> SimulationReport:
    function = plan.functions[0]
    made: list[PolicyRun] = [
        run_of(policy, figures, timeline, bound, is_partial=is_partial)
        for policy, figures, timeline, is_partial in runs
    ]
    return SimulationReport(
        function=function.name,
        load=plan.source.mode,
        seed=plan.source.seed,
        latency_s=function.sla.latency_s,
        percentile=function.sla.percentile,
        is_partial=stop.is_asked,
        bound=bound,
        notes=plan.notes if note is None else (*plan.notes, note),
        policies=tuple(made),
    )


def _simulate(
    plan: SimulationPlan, function: Function, stop: Stop, log: IO[bytes] | None, csv: IO[str] | None, *, is_silent: bool
) -> tuple[str, dict[str, float], Timeline, bool]:
    """Returns (policy, figures, timeline, whether it was cut short)."""
    policy = function.scaling.policy
    on_second: Callable[[TimelineSlot], None] | None = None
    if csv is not None:
        file = csv

        def on_second(second: TimelineSlot) -> None:
            file.write(csv_row(policy, second) + "\n")

    timeline = Timeline(function.sla.latency_s, on_second)
    scenario = plan.scenario(function)
    summary = RunSummary(scenario, power=timeline.power if plan.has_power else None)
    with _shown(plan, policy, is_silent) as show:
        sinks = _Sinks((summary, timeline), stop, log, show)
        simulation = Simulation(scenario, sinks)
        sinks.end = simulation.kernel.stop
        result = simulation.run(plan.duration_s)
    timeline.finish()
    return policy, dict(summary.figures(result)), timeline, stop.is_asked


class _Sinks:
    """Passes everything on to several sinks and the log; ends the run when that is requested."""

    def __init__(self, sinks: Sequence[Sink], stop: Stop, log: IO[bytes] | None, show: Callable[[float], None]) -> None:
        self._sinks = sinks
        self._stop = stop
        self._log = log
        self._show = show
        self.end: Callable[[], None] = stop.ask

    def requests(self, ended: Sequence[Ended]) -> None:
        for each in self._sinks:
            each.requests(ended)

    def busy(self, spans: Sequence[Busy]) -> None:
        for each in self._sinks:
            each.busy(spans)

    def decision(self, decision: Decision) -> None:
        for each in self._sinks:
            each.decision(decision)
        if self._log is not None:
            self._log.write(encode(decision) + b"\n")

    def start(self, start: Start) -> None:
        for each in self._sinks:
            each.start(start)

    def lease(self, lease: Lease) -> None:
        for each in self._sinks:
            each.lease(lease)

    def second(self, second: FunctionSecond) -> None:
        for each in self._sinks:
            each.second(second)
        self._show(second.at_s)
        if self._stop.is_asked:
            self.end()


def _bound(plan: SimulationPlan, stop: Stop) -> tuple[BoundFigures | None, str | None]:
    """Returns the bound. Ctrl-C and SIGTERM skip it, and the report is partial without it."""
    try:
        with interruptible():
            from tidegate.loadgen.plans.bound import bound_of

            return bound_of(plan)
    except KeyboardInterrupt:
        stop.ask()
        return None, "no bound: interrupted"


# --- progress ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _shown(plan: SimulationPlan, policy: str, is_silent: bool) -> Iterator[Callable[[float], None]]:
    """Shows a progress bar on standard error if that is a terminal."""
    if is_silent or not sys.stderr.isatty():
        yield lambda at_s: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    total_s = plan.duration_s or plan.source.total_s
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f} s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task(policy, total=total_s)
        drawn = 0.0

        def show(at_s: float) -> None:
            nonlocal drawn
            now = time.monotonic()
            if now - drawn >= REDRAW_S:
                drawn = now
                bar.update(task, completed=at_s, refresh=True)

        yield show
