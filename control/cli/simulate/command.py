"""``tidegate simulate``: the decisions of a policy for a load, on hardware that need not be here."""

from pathlib import Path
from typing import Annotated, Final

import typer

from tidegate.control.cli.common import EXIT_INTERRUPTED, JsonOption, fail, guarded, print_json, say, write_file
from tidegate.control.cli.develop.activity import activity

OWN: Final = "[NAME=]VALUE"


def simulate(
    function: Annotated[
        list[Path], typer.Option(metavar="FILE", help="Manifest, as for deploy (repeatable; several documents).")
    ],
    accelerators: Annotated[Path, typer.Option(metavar="FILE", help="Its hardware, as for up.")],
    profile: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Service times where they are not emulated (docs/inside/simulator.md)."),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Decide by this policy (repeatable: compares them)."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, as for replay (repeatable)."),
    ] = None,
    trace: Annotated[
        list[str] | None, typer.Option(metavar=OWN, help="Load from a trace: FILE or sample:NAME.")
    ] = None,
    scale: Annotated[
        list[str] | None, typer.Option(metavar=OWN, help="Factor on the trace's rate, or the share used by a paper.")
    ] = None,
    first: Annotated[list[str] | None, typer.Option("--from", metavar=OWN, help="Start offset in the trace.")] = None,
    last: Annotated[list[str] | None, typer.Option("--to", metavar=OWN, help="End offset in the trace.")] = None,
    rate: Annotated[list[str] | None, typer.Option(metavar=OWN, help="Open loop: requests/s.")] = None,
    shape: Annotated[list[str] | None, typer.Option(metavar=OWN, help="Load of a shape (docs/use/load.md).")] = None,
    span: Annotated[
        list[str] | None, typer.Option("--for", metavar=OWN, help="How long the load lasts, such as 30m.")
    ] = None,
    arrivals: Annotated[
        list[str] | None, typer.Option(metavar=OWN, help="Of open loops: poisson (default), uniform or even.")
    ] = None,
    callers: Annotated[list[str] | None, typer.Option(metavar=OWN, help="Closed loop: number of callers.")] = None,
    phase: Annotated[
        list[str] | None, typer.Option(metavar="START:N:WORKERS:RATE", help="Closed loop paced like the tool hey.")
    ] = None,
    batches: Annotated[
        list[str] | None, typer.Option(metavar="SIZE:WEIGHT,...", help="Inferences per request.")
    ] = None,
    deadline: Annotated[
        list[str] | None, typer.Option(metavar=OWN, help="Deadline of each request (default: the timeout).")
    ] = None,
    duration: Annotated[
        str | None, typer.Option(help="Simulated time (default: until all requests have ended).")
    ] = None,
    ready: Annotated[
        list[str] | None,
        typer.Option(metavar=OWN, help="Replicas ready at the beginning, on the cheapest accelerator (default: 0)."),
    ] = None,
    seed: Annotated[str, typer.Option(help="Seed of all random draws.")] = "1",
    no_bound: Annotated[
        bool, typer.Option("--no-bound", help="Skip the lower bound of the cost (docs/inside/bound.md).")
    ] = False,
    log: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the decision log, as JSON lines.")] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write an HTML report with plots.")] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a CSV row for each second.")] = None,
    json: JsonOption = False,
) -> None:
    """Simulate functions under a load: the product's own decisions on virtual hardware.

    With several functions each option of the load is for all of them, or as NAME=VALUE for one.
    """
    from tidegate.control.cli.simulate.run import run
    from tidegate.control.predictor.graphs import figures_of
    from tidegate.loadgen.plans.loads import GivenLoads
    from tidegate.loadgen.plans.simulation import SimulationOptions, plan_of
    from tidegate.loadgen.reports import simulation

    loads = {
        "trace": trace,
        "scale": scale,
        "first": first,
        "last": last,
        "rate": rate,
        "shape": shape,
        "span": span,
        "arrivals": arrivals,
        "callers": callers,
        "phases": phase,
        "batches": batches,
        "deadline": deadline,
        "ready": ready,
    }
    options = SimulationOptions(
        functions=tuple(function),
        accelerators=accelerators,
        profile=profile,
        policies=tuple(policy or ()),
        settings=tuple(settings or ()),
        duration=duration,
        loads=GivenLoads({name: tuple(values) for name, values in loads.items() if values}),
        seed=seed,
        outputs=(("--log", log), ("--report", report), ("--csv", csv)),
        figures=figures_of,
    )
    with activity("function, accelerators and trace are read", is_silent=json):
        plan = plan_of(options)
    try:
        made = run(plan, has_bound=not no_bound, log=log, csv=csv, is_silent=json)
    except OSError as error:
        written = " or ".join(str(path) for path in (log, csv) if path is not None)
        fail(f"{error.filename or written}: {error.strerror}")
    if report is not None:
        write_file(report, simulation.html(made.report, made.timelines, has_power=plan.has_power))
        say(f"report: {report.absolute()}")
    if json:
        print_json(made.report)
    else:
        print(simulation.text(made.report))
    if made.report.is_partial:
        raise typer.Exit(EXIT_INTERRUPTED)


def register(app: typer.Typer) -> None:
    app.command("simulate")(guarded(simulate))
