"""``demo``: a real model from zero replicas, under load, and back to zero, on ports and a directory of its own."""

from pathlib import Path
from typing import Annotated

import typer

from control.cli.common import EXIT_FAILED, JsonOption, guarded, print_json, say


def demo(
    fast: Annotated[bool, typer.Option("--fast", help="20 seconds of load instead of two minutes.")] = False,
    report: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("demo-report.html"),
    json: JsonOption = False,
) -> None:
    """Show everything once: a real model from zero, under load, back to zero; writes a report with plots."""
    from control.cli.demo_report import render
    from control.cli.demo_run import FAST, FULL, run

    result = run(FAST if fast else FULL)
    report.write_text(render(result.report), encoding="utf-8")
    if json:
        print_json(result.summary)
    say(f"\n{result.report.verdict}\nreport: {report.absolute()}")
    if not result.report.passed:
        raise typer.Exit(EXIT_FAILED)


def register(app: typer.Typer) -> None:
    app.command("demo")(guarded(demo))
