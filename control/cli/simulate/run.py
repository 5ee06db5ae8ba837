"""Runs ``tidegate simulate``: one run for each policy, its files, the bound, Ctrl-C."""

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, NamedTuple

from tidegate.control.cli.common import interruptible
from tidegate.control.cli.develop.activity import activity
from tidegate.loadgen.metrics.summary import RunSummary
from tidegate.loadgen.plans.simulation import SimulationPlan, Variant
from tidegate.loadgen.reports.simulation import (
    CSV_HEAD,
    CSV_HEAD_OF_SEVERAL,
    BoundFigures,
    FunctionFacts,
    PolicyRun,
    SimulationReport,
    csv_row,
    run_of,
)
from tidegate.loadgen.reports.timeline import ByFunction, Timeline, TimelineSlot
from tidegate.loadgen.simulator.counters import Ended
from tidegate.loadgen.simulator.devices import Busy
from tidegate.loadgen.simulator.lease import Lease
from tidegate.loadgen.simulator.result import FunctionSecond, SimulationResult, Sink, Start
from tidegate.loadgen.simulator.simulation import Simulation
from tidegate.records.codec import encode
from tidegate.records.decision import Decision

REDRAW_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Made:
    """The report and the data it is drawn from, one entry per policy in the same order."""

    report: SimulationReport
    timelines: tuple[tuple[Timeline, ...], ...]
    """One for each function."""


class _Run(NamedTuple):
    """The run of one variant."""

    policy: str
    figures: dict[str, float]
    of_functions: dict[str, dict[str, float]]
    """Figures by function, where there are several."""
    timelines: tuple[Timeline, ...]
    is_partial: bool
    notes: tuple[str, ...] = ()


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
    runs: list[_Run] = []
    with stop.by_signals(), contextlib.ExitStack() as files:
        decisions = None if log is None else files.enter_context(log.open("wb"))
        rows = None if csv is None else files.enter_context(csv.open("w", encoding="utf-8"))
        if rows is not None:
            rows.write((CSV_HEAD if len(plan.loads) == 1 else CSV_HEAD_OF_SEVERAL) + "\n")
        for variant in plan.variants:
            runs.append(_simulate(plan, variant, stop, decisions, rows, is_silent=is_silent))
            if stop.is_asked:
                break
    bound, note = (None, None) if stop.is_asked or not has_bound else _bound(plan, stop, is_silent)
    return Made(_report(plan, runs, bound, note, stop), tuple(each.timelines for each in runs))


def _report(
    plan: SimulationPlan,
    runs: Sequence[_Run],
    bound: BoundFigures | None,
    note: str | None,
    stop: Stop,
) -> SimulationReport:
    functions = (*plan.variants[0].functions, *plan.variants[0].pipelines)
    made: list[PolicyRun] = [
        run_of(
            each.policy,
            each.figures,
            sum(timeline.most_ready for timeline in each.timelines),
            bound,
            is_partial=each.is_partial,
            functions=each.of_functions,
        )
        for each in runs
    ]
    facts = tuple(
        FunctionFacts(
            function=function.name,
            load=part.source.mode or "no callers of its own",
            latency_s=function.sla.latency_s,
            percentile=function.sla.percentile,
        )
        for function, part in zip(functions, plan.loads, strict=True)
    )
    return SimulationReport(
        function=", ".join(each.function for each in facts),
        load="; ".join(dict.fromkeys(each.load for each in facts)),
        seed=plan.seed,
        latency_s=facts[0].latency_s if len(facts) == 1 else None,
        percentile=facts[0].percentile,
        functions=facts if len(facts) > 1 else (),
        is_partial=stop.is_asked,
        bound=bound,
        notes=(*plan.notes, *(() if note is None else (note,)), *(each for run in runs for each in run.notes)),
        policies=tuple(made),
    )


def _simulate(
    plan: SimulationPlan, variant: Variant, stop: Stop, log: IO[bytes] | None, csv: IO[str] | None, *, is_silent: bool
) -> _Run:
    """Simulates the functions under one policy."""
    policy, functions = variant.policy, (*variant.functions, *variant.pipelines)
    is_alone = len(functions) == 1

    def on_second(name: str) -> Callable[[TimelineSlot], None] | None:
        if csv is None:
            return None
        file, first = csv, policy if is_alone else f"{policy},{name}"

        def write(second: TimelineSlot) -> None:
            file.write(csv_row(first, second, has_units=is_alone) + "\n")

        return write

    timelines = {each.name: Timeline(each.sla.latency_s, on_second(each.name)) for each in functions}
    scenario = plan.scenario(variant)
    (first, *_) = timelines.values()
    summary = RunSummary(scenario, power=first.power if plan.has_power and is_alone else None)
    shown: Sink = first if is_alone else ByFunction(timelines)
    with _shown(plan, policy, is_silent) as show:
        sinks = _Sinks((summary, shown), stop, log, show)
        simulation = Simulation(scenario, sinks)
        sinks.end = simulation.kernel.stop
        result = simulation.run(plan.duration_s)
    for timeline in timelines.values():
        timeline.finish()
    of_functions = {} if is_alone else {name: _figures_of(name, summary, result, timelines[name]) for name in timelines}
    shown_of = tuple(timelines.values())
    return _Run(policy, dict(summary.figures(result)), of_functions, shown_of, stop.is_asked, _switched(policy, result))


def _switched(policy: str, result: SimulationResult) -> tuple[str, ...]:
    """Returns a note for each pair of variants of which one has served requests for the other."""
    return tuple(
        f"{policy}: {count} requests for {own} found no free slot and were served by {other} (accuracy-loss)"
        for (own, other), count in sorted(result.switched.items())
    )


def _figures_of(name: str, summary: RunSummary, result: SimulationResult, timeline: Timeline) -> dict[str, float]:
    """Returns the figures of one function of several."""
    found = dict(summary.of_function(name, result))
    if result.simulated_s > 0.0:
        found["mean_replicas"] = found["replica_seconds"] / result.simulated_s
    return found | {"most_ready_replicas": float(timeline.most_ready)}


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


def _bound(plan: SimulationPlan, stop: Stop, is_silent: bool) -> tuple[BoundFigures | None, str | None]:
    """Returns the bound. Ctrl-C and SIGTERM skip it, and the report is partial without it."""
    try:
        with interruptible(), activity("the least that any plan could cost is computed", is_silent=is_silent):
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

    total_s = plan.duration_s or plan.total_s
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
