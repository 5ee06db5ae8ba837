"""``tidegate profile``: measures a model on the accelerators of the running deployment."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.control.cli.common import (
    AWAITED_S,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    JsonOption,
    StateOption,
    connect,
    console,
    guarded,
    print_json,
    say,
    write_file,
)
from tidegate.control.cli.deploy import FLAGS
from tidegate.control.cli.develop import options
from tidegate.control.cli.flags import GroupedCommand, with_flags

if TYPE_CHECKING:
    from tidegate.loadgen.profiling.points import Measured

BATCHES, SECONDS = "1,2,4,8", "3s"


@with_flags(FLAGS)
def profile(
    file: Annotated[
        str, typer.Argument(help="A manifest of one function, a model (model.onnx, ...), or file.py[:Class].")
    ],
    given: dict[str, str],
    name: options.Name = None,
    python: options.Python = None,
    env: options.Env = None,
    arg: options.Arg = None,
    accelerators: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Kinds to measure on, with commas (default: all it may use).")
    ] = None,
    batches: Annotated[str, typer.Option(metavar="SIZES", help="Inferences of a request, with commas.")] = BATCHES,
    cores: Annotated[
        str | None, typer.Option(metavar="NUMBERS", help="Cores of a replica, with commas (default: as it is).")
    ] = None,
    span: Annotated[
        str, typer.Option("--seconds", metavar="DURATION", help="Length of each run, two a cell.")
    ] = SECONDS,
    body: Annotated[Path | None, typer.Option(metavar="FILE", help="File with the body of every request.")] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The profile (default: NAME.profile.yaml here).")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write an HTML page with curves.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again what an earlier run measured.")] = False,
    state: StateOption = None,
    json: JsonOption = False,
) -> None:
    """Measure a model by accelerator, batch and cores, into a file that deploy and simulate read.

    Run again, it goes on where it was interrupted.
    """
    from tidegate.control.cli.profile.run import Bench, target_of
    from tidegate.loadgen.plans.profile import ProfileOptions, plan_of
    from tidegate.loadgen.profiling.points import measured_in
    from tidegate.loadgen.profiling.profile_page import profile_page
    from tidegate.loadgen.profiling.profile_text import profile_text

    target = target_of(file, name, given, python, env or [], arg or [])
    to = to or Path(f"{target.name}.profile.yaml")
    lines = to.with_suffix(".jsonl")
    with connect(state, awaited_s=AWAITED_S) as tidegate:
        here = [each.name for each in tidegate.status().accelerators]
        allowed = [each for each in here if not target.function.accelerators or each in target.function.accelerators]
        plan = plan_of(
            ProfileOptions(
                accelerators=accelerators,
                batches=batches,
                cores=cores,
                seconds=span,
                body=body,
                to=to,
                html=html,
                lines=lines,
            ),
            allowed,
        )
        before = [] if fresh or not lines.is_file() else lines.read_text(encoding="utf-8").splitlines()
        measured = measured_in(before, target.digest)
        bench = Bench(tidegate, target, plan, body, lines, measured, is_silent=json)
        is_whole = bench.run(is_fresh=not measured.points)
    if measured.points:
        write_file(to, profile_text(measured))
    if html is not None:
        write_file(html, profile_page(target.name, measured, is_partial=not is_whole))
    _print(measured, to, json)
    if not is_whole:
        raise typer.Exit(EXIT_INTERRUPTED)
    if not measured.points:
        raise typer.Exit(EXIT_FAILED)


def register(app: typer.Typer) -> None:
    app.command("profile", cls=GroupedCommand)(guarded(profile))


def _print(measured: "Measured", to: Path, json: bool) -> None:
    from tidegate.loadgen.profiling.profile_page import HEADS, figures
    from tidegate.loadgen.profiling.themis_fit import themis_fits

    if json:
        record = {
            "points": measured.rows(),
            "starts": [each for _, each in sorted(measured.starts.items())],
            "themis": dict(themis_fits(measured)),
            "left_out": measured.left_out,
            "file": str(to.absolute()) if measured.points else None,
        }
        print_json(record)
        return
    from rich.table import Table

    shown = Table(*HEADS, box=None, pad_edge=False)
    for each in measured.rows():
        shown.add_row(*figures(each, measured))
    console().print(shown)
    for name, fit in themis_fits(measured):
        say(f"{name}: for the policy themis, --policy-parameter profile={fit} (p95 by batch and cores)")
    for why, cells in _by_reason(measured.left_out).items():
        say(f"left out: {'; '.join(cells)}: {why}")
    if measured.points:
        say(f"profile: {to.absolute()}")


def _by_reason(left_out: list[str]) -> dict[str, list[str]]:
    """Returns the cells by why they were left out."""
    found: dict[str, list[str]] = {}
    for text in left_out:
        cell, _, why = text.partition(": ")
        found.setdefault(why, []).append(cell)
    return found
