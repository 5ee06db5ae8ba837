"""``tidegate load``: sends requests to a function or a URL, by a schedule or in a loop, and reports the results."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.control.cli.common import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    JsonOption,
    StateOption,
    connect,
    fail,
    guarded,
    print_json,
    say,
    write_file,
)
from tidegate.control.cli.flags import grouped

if TYPE_CHECKING:
    from tidegate.loadgen.reports.record import LoadReport


GROUPS = {
    "Open loop": ("rate", "span", "arrivals", "trace", "scale", "first", "last", "shape", "connections"),
    "Closed loop": ("callers", "phase", "concurrency"),
    "Requests": (
        *("batches", "protocol", "model", "path", "method", "body", "header", "batch_header", "prompt_words", "tokens"),
        *("stream", "timeout"),
    ),
    "Report": ("sla", "report", "csv", "json"),
}


def load(
    target: Annotated[str, typer.Argument(metavar="URL_OR_FUNCTION", help="http://..., grpc://HOST:PORT, or a name.")],
    rate: Annotated[str | None, typer.Option(help="Open loop: requests/s.")] = None,
    span: Annotated[str | None, typer.Option("--for", help="Duration, such as 30s.")] = None,
    arrivals: Annotated[str, typer.Option(help="Arrivals of open loops: poisson, uniform or even.")] = "poisson",
    trace: Annotated[Path | None, typer.Option(help="Open loop from a trace: FILE or sample:NAME.")] = None,
    scale: Annotated[str, typer.Option(help="Factor on the trace's rate, or the share used by a paper.")] = "1",
    first: Annotated[str | None, typer.Option("--from", help="Start offset in the trace.")] = None,
    last: Annotated[str | None, typer.Option("--to", help="End offset in the trace.")] = None,
    shape: Annotated[
        str | None,
        typer.Option(help="Open loop: a rate that changes (docs/use/load.md).", metavar="SHAPE"),
    ] = None,
    callers: Annotated[
        str | None, typer.Option(help="Closed loop: number of callers, one request each at a time.")
    ] = None,
    phase: Annotated[
        list[str] | None,
        typer.Option(metavar="START:N:WORKERS:RATE", help="Closed loop paced like the tool hey (repeatable)."),
    ] = None,
    concurrency: Annotated[str | None, typer.Option(help="Closed loop: requests in flight at once.")] = None,
    batches: Annotated[
        str | None, typer.Option(metavar="SIZE:WEIGHT,...", help="Inferences per request, such as 1:0.5,8:0.5.")
    ] = None,
    protocol: Annotated[
        str | None, typer.Option(help="http, v2, openai or grpc (default: from the function or the URL).")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model named in the requests.")] = None,
    path: Annotated[str | None, typer.Option(help="Path of the requests, or of the gRPC call.")] = None,
    method: Annotated[str | None, typer.Option(help="HTTP method (default: GET, or POST with a body).")] = None,
    body: Annotated[Path | None, typer.Option(metavar="FILE", help="File with the body of every request.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME: VALUE", help="A header (repeatable).")
    ] = None,
    batch_header: Annotated[
        str | None, typer.Option(metavar="NAME", help="Header that carries each request's batch size.")
    ] = None,
    prompt_words: Annotated[str, typer.Option(help="OpenAI: words in the prompt.")] = "32",
    tokens: Annotated[str, typer.Option(help="OpenAI: maximum tokens of the answer.")] = "32",
    stream: Annotated[bool, typer.Option("--stream", help="gRPC: use ModelStreamInfer.")] = False,
    timeout: Annotated[str, typer.Option(help="Timeout of one request.")] = "60s",
    connections: Annotated[str, typer.Option(help="Maximum requests in flight (open loop).")] = "1024",
    seed: Annotated[str, typer.Option(help="Seed of all random draws.")] = "1",
    sla: Annotated[
        str | None,
        typer.Option(
            "--sla",
            "--slo",
            metavar="LATENCY[,TIME/token]@PERCENT",
            help="SLA to compare with, such as 200ms@98, p98=200ms or 500ms,50ms/token@99.",
        ),
    ] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write an HTML report with plots.")] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a CSV row for each second.")] = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> None:
    """Send load to a function or a URL, and report latencies, rates and failures."""
    from tidegate.control.cli.load.run import run
    from tidegate.control.cli.load.target import of_function, of_url
    from tidegate.loadgen.plans.load import LoadOptions, plan_of

    options = LoadOptions(
        target=target,
        rate=rate,
        span=span,
        arrivals=arrivals,
        trace=trace,
        scale=scale,
        first=first,
        last=last,
        shape=shape,
        callers=callers,
        phases=tuple(phase or ()),
        concurrency=concurrency,
        batches=batches,
        protocol=protocol,
        model=model,
        path=path,
        method=method,
        body=body,
        headers=tuple(header or ()),
        batch_header=batch_header,
        prompt_words=prompt_words,
        tokens=tokens,
        stream=stream,
        timeout=timeout,
        connections=connections,
        seed=seed,
        outputs=(("--report", report), ("--csv", csv)),
        sla=sla,
    )
    plan = plan_of(options)
    if "://" in target:
        found = of_url(options, plan)
    else:
        with connect(state) as tidegate:
            found = of_function(options, plan, tidegate)
    made = run(options, plan, found, is_silent=json)
    _write(made, report, csv, json)
    if made.is_partial:
        raise typer.Exit(EXIT_INTERRUPTED)
    if sla is not None and made.sla is not None and not made.sla.is_met:
        raise typer.Exit(EXIT_FAILED)
    ended = made.sent - made.unfinished
    if ended and 2 * made.good < ended:
        causes = ", ".join(f"{kind}: {count}" for kind, count in made.errors.items())
        fail(f"{'most requests' if made.good else 'all requests'} failed: {ended - made.good} of {ended} ({causes})")


def register(app: typer.Typer) -> None:
    app.command("load", cls=grouped(GROUPS))(guarded(load))


def _write(made: "LoadReport", report: Path | None, csv: Path | None, json: bool) -> None:
    from tidegate.loadgen.reports import text

    if json:
        print_json(made)
    else:
        print(text.text(made))
    if csv is not None:
        write_file(csv, text.csv(made))
    if report is not None:
        from tidegate.loadgen.reports.load_page import render

        write_file(report, render(made))
        say(f"report: {report.absolute()}")
