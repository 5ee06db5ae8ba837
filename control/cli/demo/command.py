"""``tidegate demo``: a real model from zero replicas, under load, and back to zero, on ports and a directory of its
own."""

from pathlib import Path
from typing import Annotated

import typer

from tidegate.control.cli.common import EXIT_FAILED, JsonOption, guarded, print_json, say, write_file
from tidegate.loadgen.plans.outputs import check_files


def demo(
    fast: Annotated[bool, typer.Option("--fast", help="20 seconds of load instead of two minutes.")] = False,
    report: Annotated[Path, typer.Option(help="File of the report.")] = Path("demo-report.html"),
    json: JsonOption = False,
) -> None:
    """Show everything once: a real model from zero, under load, back to zero; writes a report with plots."""
    from tidegate.control.cli.demo.run import FAST, FULL, run
    from tidegate.loadgen.reports.demo_page import render
    from tidegate.schema.yaml_nodes import Faults

    faults = Faults("demo")
    check_files([("--report", report)], (), faults)
    faults.raise_any()
    result = run(FAST if fast else FULL)
    write_file(report, render(result.report))
    if json:
        print_json(result.summary)
    say(f"\n{result.report.verdict}\n{result.summary['figures']}\nreport: {report.absolute()}")
    if not result.report.passed:
        raise typer.Exit(EXIT_FAILED)


def register(app: typer.Typer) -> None:
    app.command("demo")(guarded(demo))
