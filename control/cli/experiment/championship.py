"""``tidegate experiment championship``: every policy on the same traces, fleets and start-up times."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.control.cli.common import EXIT_INTERRUPTED, JsonOption, interruptible, say, write_file

if TYPE_CHECKING:
    from rich.progress import Progress

    from tidegate.loadgen.experiments.championship.row import Cell
    from tidegate.loadgen.experiments.championship.run import ChampionshipRow


def championship(
    policies: Annotated[str | None, typer.Option(metavar="NAME,...", help="Policies (default: all).")] = None,
    traces: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Traces (default: all for which there is data).")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, as for simulate (repeatable)."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder with the public traces (docs/inside/championship.md).")
    ] = None,
    groups: Annotated[
        str | None, typer.Option(metavar="N,...", help="Fleets, by their number of groups (default: 1,3).")
    ] = None,
    start_up: Annotated[
        str | None, typer.Option(metavar="SECONDS,...", help="Start-up times (default: 5,30,120).")
    ] = None,
    min_run: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time that a replica is paid for at least (default: none).")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Number of seeds: 1, 2, 3, ...")] = "1",
    learn: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time before anything is judged (default: each trace's own).")
    ] = None,
    judged: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="Judged time (default: each trace's own).")
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="An hour of each trace, with one group and 30 s to start unless they are given."),
    ] = False,
    static: Annotated[
        bool,
        typer.Option("--static", help="Add the constant fleet that keeps the SLA for the least, chosen in hindsight."),
    ] = False,
    no_bound: Annotated[bool, typer.Option("--no-bound", help="Skip the bounds: cost in dollars alone.")] = False,
    jobs: Annotated[str, typer.Option(help="Processes that run at once; the rows are the same.")] = "1",
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write one page with tables and plots.")] = None,
    json: JsonOption = False,
) -> None:
    """Compare every policy on the same traces: late requests, cost over the least possible, cold starts.

    With --json each row is one line of JSON, as soon as it is done.
    """
    from tidegate.loadgen.experiments.championship import report
    from tidegate.loadgen.experiments.championship.run import run
    from tidegate.loadgen.plans.championship import ChampionshipOptions, plan_of

    plan = plan_of(
        ChampionshipOptions(
            policies=policies,
            settings=tuple(settings or ()),
            traces=traces,
            groups=groups,
            start_up=start_up,
            seeds=seeds,
            jobs=jobs,
            data=data,
            learn=learn,
            judged=judged,
            min_run=min_run,
            is_quick=quick,
            has_static=static,
            html=html,
        )
    )
    for note in plan.notes:
        say(note)
    if not json:
        print(report.head(), flush=True)
    tasks = len(plan.cells) * (len(plan.entrants) + (not no_bound))
    with interruptible(), _progress(tasks) as shown:
        listener = _Listener(shown, is_json=json)
        result = run(plan.cells, plan.entrants, listener, jobs=plan.jobs, has_bound=not no_bound)
    if html is not None:
        write_file(html, report.html(result, plan.notes))
        say(f"page: {html.absolute()}")
    if result.missing:
        say(f"Interrupted: {result.missing} rows are missing")
        raise typer.Exit(EXIT_INTERRUPTED)


class _Listener:
    def __init__(self, shown: "Progress | None", *, is_json: bool) -> None:
        self._shown = shown
        self._is_json = is_json

    def task(self, cell: "Cell", policy: str | None) -> None:
        if self._shown is not None:
            words = f"{cell.trace}, groups {cell.groups}, start-up {cell.start_up_s:g} s: {policy or 'bound'}"
            (task,) = self._shown.task_ids
            self._shown.update(task, advance=1, description=words)

    def row(self, row: "ChampionshipRow") -> None:
        from tidegate.loadgen.experiments.championship import report
        from tidegate.records.codec import encode

        if self._shown is not None:
            self._shown.stop()  # Its line is rubbed out, so that both may go to the same terminal.
        print(encode(report.record(row)).decode() if self._is_json else report.text(row), flush=True)
        if self._shown is not None:
            self._shown.start()


@contextmanager
def _progress(tasks: int) -> "Iterator[Progress | None]":
    """Shows a progress bar on standard error if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as shown:
        shown.add_task("championship", total=tasks)
        yield shown
