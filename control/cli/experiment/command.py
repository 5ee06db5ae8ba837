"""``tidegate experiment``: published results repeated in the simulator and compared with the printed figures."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from tidegate.control.cli.common import EXIT_FAILED, EXIT_INTERRUPTED, JsonOption, guarded, say, write_file
from tidegate.control.cli.experiment.championship import championship

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tidegate.loadgen.experiments.definition import Experiment
    from tidegate.loadgen.experiments.run import ExperimentReport


def experiment(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Experiments (see --list), or all.", show_default=False),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the experiments and run none.")] = False,
    definition: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Your own experiment, in TOML (repeatable).")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Number of seeds (default: each experiment's own).")] = None,
    jobs: Annotated[str, typer.Option(help="Processes that run seeds at once; the results are the same.")] = "1",
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write an HTML report with plots.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown instead of text.")] = False,
    json: JsonOption = False,
) -> None:
    """Compare published figures with the simulator's, with plots."""
    from tidegate.loadgen.plans.experiment import plan_of

    plan = plan_of(tuple(names or ()), tuple(definition or ()), seeds=seeds, jobs=jobs, report=report, is_list=list_)
    if list_:
        _list(plan.experiments, json=json)
        return
    from tidegate.control.cli.experiment.run import Printed, run

    printed = Printed.JSON if json else Printed.MARKDOWN if markdown else Printed.TEXT
    made = run(plan, printed)
    if report is not None:
        _write(made, report)
    if made.is_partial:
        raise typer.Exit(EXIT_INTERRUPTED)
    if not made.holds:
        raise typer.Exit(EXIT_FAILED)


class _Group(TyperGroup):
    """A group whose first command need not be named: ``tidegate experiment th1`` is ``tidegate experiment run th1``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        cls=_Group,
        rich_markup_mode=None,
        help="Compare published figures with the simulator's, and policies with each other. `run` need not be written.",
    )
    group.command("run")(guarded(experiment))
    group.command("championship")(guarded(championship))
    app.add_typer(group, name="experiment")


def _list(experiments: "Iterable[Experiment]", *, json: bool) -> None:
    from tidegate.control.cli.common import print_json

    if json:
        keys = ("name", "title", "source", "claim", "setup", "seeds")
        print_json([{key: getattr(each, key) for key in keys} for each in experiments])
        return
    for each in experiments:
        print(f"{each.name:6} {each.title} ({each.source})")


def _write(made: "ExperimentReport", report: Path) -> None:
    from tidegate.loadgen.experiments.report import html

    write_file(report, html(made))
    say(f"report: {report.absolute()}")
