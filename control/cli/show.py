"""``tidegate list``, ``status`` and ``explain``: the functions, their state, and the reasons of their scale."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.control.cli.cluster.elsewhere import Files, in_control_process
from tidegate.control.cli.cluster.options import ContextOption, NamespaceOption, check
from tidegate.control.cli.common import (
    EXIT_FAILED,
    PIPE_WIDTH,
    JsonOption,
    StateOption,
    connect,
    console,
    guarded,
    print_json,
    print_text,
    print_yaml,
    say,
    seconds,
    state_directory,
)

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

    from tidegate.control.sdk import Tidegate
    from tidegate.control.views.deployment import AcceleratorView, DeploymentView
    from tidegate.control.views.functions import (
        CrashView,
        FunctionView,
        GroupView,
        ReplicaView,
        RevisionView,
        TokensView,
        TrafficView,
    )

DECISIONS = 5
NARROW = ("FUNCTION", "STATE", "READY", "WANTED", "REQ/S", "TAIL", "SLA", "WAITING")
"""Columns of the list where not all of them fit, the most important first."""


def complete_function(incomplete: str) -> list[str]:
    """Returns the deployed functions that begin so, for the shell's completion; none if nothing answers at once."""
    from tidegate.control.cli.completion.names import function_names

    return [name for name in function_names(os.environ) if name.startswith(incomplete)]


NameArgument = Annotated[str, typer.Argument(help="Name of the function.", autocompletion=complete_function)]

_COLOURS = {
    "ready": "green",
    "asleep": "blue",
    "starting": "yellow",
    "draining": "yellow",
    "no-room": "red",
    "failed": "red",
}


class ListFormat(StrEnum):
    """Output of ``tidegate list``."""

    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


def list_functions(
    output: Annotated[
        ListFormat | None,
        typer.Option(
            "--output", "-o", help="All columns (wide), JSON, YAML, or names alone. Default: the columns that fit."
        ),
    ] = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> None:
    """List the deployed functions."""
    if check(context, namespace, state=state) is not None:
        from tidegate.control.cli.cluster import commands

        as_json = json or output is ListFormat.JSON
        as_yaml, as_names = output is ListFormat.YAML, output is ListFormat.NAME
        commands.show_all(context or "", namespace, as_json=as_json, as_yaml=as_yaml, as_names=as_names)
        return
    with connect(state) as tidegate:
        functions = tidegate.list()
    if json or output is ListFormat.JSON:
        print_json(functions)
    elif output is ListFormat.YAML:
        print_yaml(functions)
    elif output is ListFormat.NAME:
        for each in functions:
            print(each.name)
    elif not functions:
        say("no function is deployed; deploy one with `tidegate deploy FILE`")
    elif output is ListFormat.WIDE:
        console(PIPE_WIDTH).print(function_table(functions), *notes(functions), sep="\n")
    else:
        out = console()
        out.print(function_table(functions, out.width), *notes(functions), sep="\n")


def status(
    name: Annotated[
        str | None, typer.Argument(help="Name of a function (default: all).", autocompletion=complete_function)
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow the changes until interrupted.")] = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> None:
    """Show the deployment or one function: state, replicas, traffic, and why a start failed."""
    if check(context, namespace, state=state, watch=watch) is not None:
        from tidegate.control.cli.cluster import commands

        commands.show(context or "", namespace, name, json=json)
        return
    from tidegate.control.sdk import NotRunningError

    try:
        tidegate = connect(state)
    except NotRunningError as error:
        if name is not None:
            raise
        _leftovers(state, str(error), json)
        raise typer.Exit(EXIT_FAILED) from error
    with tidegate:
        if watch:
            _follow(tidegate, name, json)
            return
        view = tidegate.status() if name is None else tidegate.function(name)
    if json:
        print_json(view)
    else:
        out = console()
        out.print(_render(view, out.width))


def explain(
    name: NameArgument,
    last: Annotated[
        int | None, typer.Option(help="Number of decisions to show, with their figures (default: 5).", min=1, max=1000)
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the decisions with their figures, weights and limits.")
    ] = False,
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Read a decision log, such as one of a simulation.")
    ] = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> None:
    """Say why a function has as many replicas as it has."""
    count = DECISIONS if last is None else last
    if log is not None:
        _explain_log(log, name, count, json)
        return
    with connect(state) as tidegate:
        view = tidegate.explain(name, last=count)
    if json:
        print_json(view)
        return
    for line in view.summary:
        print_text(line)
    if verbose or last is not None or not view.summary:
        print_text(f"\n{view.text}" if view.summary else view.text)


def register(app: typer.Typer) -> None:
    app.command("list")(guarded(list_functions))
    app.command("status")(guarded(status))
    app.command("explain")(
        guarded(in_control_process(explain, Files(refused={"log": "the file is read here, and needs no cluster"})))
    )


def _explain_log(log: Path, name: str, last: int, json: bool) -> None:
    from tidegate.autoscaler.decisions.explain import explain_all
    from tidegate.autoscaler.replay.decision_log import read

    decisions = read(log, name)[-last:]
    if json:
        print_json(decisions)
    else:
        print_text("\n".join(explain_all(decisions)))


def _follow(tidegate: "Tidegate", name: str | None, json: bool) -> None:
    views: Iterator[DeploymentView | FunctionView] = tidegate.watch_all() if name is None else tidegate.watch(name)
    if json:
        from tidegate.records.codec import encode

        for view in views:
            print(encode(view).decode(), flush=True)
        return
    out = console()
    if not out.is_terminal:
        for view in views:
            out.print(_render(view), "")
            sys.stdout.flush()
        return
    from rich.live import Live

    with closing(views), Live(console=out, auto_refresh=False, screen=False) as live:  # type: ignore[type-var]  # a generator
        for view in views:
            live.update(_render(view, out.width), refresh=True)


def _leftovers(given: Path | None, why: str, json: bool) -> None:
    """Shows what the state directory alone contains when no control process answers."""
    from tidegate.deploy.local.records import RecordStore
    from tidegate.deploy.local.recovery import survey

    directory = state_directory(given)
    found = survey(RecordStore(directory.processes))
    if json:
        print_json(
            {
                "running": False,
                "message": why,
                "state_directory": str(directory.root),
                "processes": [{"id": each.id, "kind": each.kind.value, "pid": each.pid} for each in found.living],
            }
        )
        return
    say(why)
    for each in found.living:
        say(
            f"  left behind: {each.id} (process {each.pid}), still serving; "
            "`tidegate up` adopts it, `tidegate down` ends it"
        )


def _render(view: "DeploymentView | FunctionView", width: int = PIPE_WIDTH) -> "RenderableType":
    from tidegate.control.views.deployment import DeploymentView

    return deployment(view, width) if isinstance(view, DeploymentView) else function(view)


def deployment(view: "DeploymentView", width: int = PIPE_WIDTH) -> "Group":
    """Renders the whole deployment."""
    from rich.console import Group
    from rich.table import Table

    head = [
        f"[bold]tidegate {view.version}[/bold]  process {view.pid}, epoch {view.epoch}, up {seconds(view.since_s)}",
        f"gateway {view.gateway}   api {view.api}   state {view.state_directory}",
        *(() if view.metrics is None else (f"metrics {view.metrics}",)),
        *(f"[red]fault:[/red] {fault}" for fault in view.faults),
    ]
    workers = Table(box=None, pad_edge=False)
    for column in ("WORKER", "STATE", "PID", "RESTARTS", "TABLE", "CONNECTIONS"):
        workers.add_column(column)
    for each in view.gateways:
        row = (each.worker, each.state, each.pid, each.restarts, each.table or None, each.connections)
        workers.add_row(*("-" if cell is None else str(cell) for cell in row))
    devices = Table(box=None, pad_edge=False)
    for column in ("ACCELERATOR", "KIND", "IN USE", "PRICE/H", "BUSY", "BALANCE", "POWER", "UNIT"):
        devices.add_column(column)
    for kind in view.accelerators:
        held, price = f"{kind.in_use}/{kind.count}", f"{kind.price_per_hour:g}"
        devices.add_row(kind.name, kind.kind, held, price, *_use(kind), unit_facts(kind))
    return Group(
        "\n".join(head),
        "",
        workers,
        "",
        devices,
        "",
        function_table(view.functions, width),
        *notes(view.functions),
    )


def _use(kind: "AcceleratorView") -> tuple[str, str, str]:
    """Returns utilisation, its variation over the units, and power; ``-`` where they are not known."""
    known = [each for each in kind.utilization_percent if each is not None]
    return (
        f"{sum(known) / len(known):.0f} %" if known else "-",
        "-" if kind.utilization_variation is None else f"{kind.utilization_variation:.2f}",
        "-" if kind.power_w is None else f"{kind.power_w:.0f} W",
    )


def unit_facts(kind: "AcceleratorView") -> str:
    """Returns a unit in words: ``15 GiB, compute 7.5, driver 570.86.15, MPS``."""
    facts = (
        f"{kind.memory_bytes / 2**30:.3g} GiB",
        kind.compute_capability and f"compute {kind.compute_capability}",
        kind.driver and f"driver {kind.driver}",
        kind.mps and "MPS",
        kind.mig and "MIG",
    )
    return ", ".join(fact for fact in facts if fact)


def function_table(functions: "Iterable[FunctionView]", width: int = PIPE_WIDTH) -> "Table":
    """Returns the table of functions: all columns if ``width`` has room for them, else as many of :data:`NARROW` as
    fit. Nothing is cut, and FUNCTION and STATE are always there."""
    from rich.table import Table

    rows = [_row(each) for each in functions]
    columns = list(rows[0] if rows else NARROW)
    lengths = {column: max(len(column), *(len(row[column]) for row in rows), 0) for column in columns}
    if _width(columns, lengths) > width:
        columns = list(NARROW)
    while len(columns) > 2 and _width(columns, lengths) > width:
        columns.pop()
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True, min_width=lengths[column])
    for row in rows:
        table.add_row(*(_coloured(row[column]) if column == "STATE" else row[column] for column in columns))
    return table


def _width(columns: "Iterable[str]", lengths: "Mapping[str, int]") -> int:
    """Returns the width of a table: two blanks stand between two columns."""
    return sum(lengths[column] + 2 for column in columns) - 2


def _row(view: "FunctionView") -> dict[str, str]:
    traffic = view.traffic
    return {
        "FUNCTION": view.name,
        "STATE": view.state.value,
        "REVISION": view.revision,
        "READY": _ready(view),
        "WANTED": "-" if view.desired is None else str(view.desired),
        "WAITING": str(traffic.waiting),
        "REQ/S": f"{traffic.requests_per_s:.1f}",
        "INF/S": f"{traffic.inferences_per_s:.1f}",
        "P50": seconds(traffic.p50_s),
        "TAIL": f"p{view.percentile:g} {seconds(traffic.tail_s)}",
        "SLA": seconds(view.latency_s),
        "PRICE/H": f"{view.price_per_hour:g}",
    }


def notes(functions: "Iterable[FunctionView]") -> "list[RenderableType]":
    """Returns the lines below a table of functions: why one does not start or has no place, and the crashes of ready
    replicas within the last hour."""
    from rich.text import Text

    found: list[RenderableType] = []
    for each in functions:
        if each.message:
            found.append(Text(f"{each.name}: {short(each.message)}", style=_COLOURS[each.state.value]))
        found += [
            Text(f"{each.name}: {crash(revision.crash)}", style="yellow")
            for revision in each.revisions
            if revision.crash is not None
        ]
    return found


def short(message: str) -> str:
    """Returns why a start failed in one line: the first one, and the last one of the server's output."""
    first, *output = message.splitlines()
    return f"{first}: {output[-1].strip()}" if output else first


def held(view: "ReplicaView") -> str:
    """Returns ``<replica>: 1 of 4 slots is held by a call that goes on 12 s after its client was gone``."""
    slots = "" if not view.limit else f" of {view.limit}"
    verb = "slot is held by a call that goes on" if view.held == 1 else "slots are held by calls that go on"
    return f"{view.id}: {view.held}{slots} {verb}, {seconds(view.held_s)} after its client was gone"


def crash(view: "CrashView") -> str:
    """Returns ``1 crash in the last hour, 12 s ago: <replica>: <reason>``."""
    count = "1 crash" if view.count == 1 else f"{view.count} crashes"
    last = "" if view.count == 1 else "the last one "
    return f"{count} in the last hour, {last}{seconds(view.age_s)} ago: {view.replica}: {view.reason}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _ready(view: "FunctionView") -> str:
    """Returns ``3``, ``3 (2 emulated)`` if service times come from a profile, or ``0 (1 asleep)``."""
    groups = [group for revision in view.revisions for group in revision.groups]
    emulated = sum(group.ready for group in groups if group.emulated)
    asleep = sum(revision.sleeping for revision in view.revisions)
    notes = [f"{count} {word}" for count, word in ((emulated, "emulated"), (asleep, "asleep")) if count]
    return f"{view.ready} ({', '.join(notes)})" if notes else str(view.ready)


def tokens(view: "TokensView", percentile: float) -> str:
    """Describes the last minute's answers: tokens used, and the latencies of their streams."""
    guessed = f", {view.estimated} of {view.answers} answers estimated" if view.estimated else ""
    return (
        f"tokens: {view.prompt} of prompts ({view.cached} cached), {view.completion} of answers{guessed}; "
        f"first p50 {seconds(view.first_p50_s)}, p{percentile:g} {seconds(view.first_tail_s)}; "
        f"between p50 {seconds(view.between_p50_s)}, p{percentile:g} {seconds(view.between_tail_s)}"
    )


def _dropped(traffic: "TrafficView") -> str:
    return f" ({traffic.dropped} dropped: older than drop-after)" if traffic.dropped else ""


def function(view: "FunctionView") -> "Group":
    """Renders one function."""
    from rich.console import Group
    from rich.text import Text

    traffic = view.traffic
    sla = "no latency target" if view.latency_s is None else f"p{view.percentile:g} <= {seconds(view.latency_s)}"
    if view.per_token_s is not None:
        sla += f", {seconds(view.per_token_s)} per output token"
    lines = [
        f"[bold]{view.name}[/bold]  {_coloured(view.state.value)}  serving {view.revision}  {sla}",
        f"{view.path_url or view.url or 'its URL is not known'}   models {', '.join(view.models)} ({view.protocol})",
        f"last {seconds(traffic.window_s)}: {_count(traffic.requests, 'request')}, "
        f"{_count(traffic.inferences, 'inference')}, "
        f"{traffic.failed} failed, {traffic.refused} refused{_dropped(traffic)}, {traffic.expired} expired, "
        f"{traffic.cancelled} cancelled; p50 {seconds(traffic.p50_s)}, "
        f"p{view.percentile:g} {seconds(traffic.tail_s)}; {traffic.waiting} waiting",
    ]
    if view.stages:
        lines.insert(2, f"pipeline of {', '.join(view.stages)}")
        if view.attained is not None:
            lines.insert(3, f"SLA {view.attained}")
    if (variant := view.variant) is not None:
        lines.append(
            f"variant of {variant.family}, {variant.accuracy:g}% accurate; a loss of {variant.loss:g} points allowed; "
            f"{_count(traffic.switched, 'request')} served by other variants"
        )
    if traffic.tokens is not None:
        lines.append(tokens(traffic.tokens, view.percentile))
    if view.is_pinned:
        lines.append("the traffic is split by hand: newer revisions get none")
    if (rollout := view.rollout) is not None:
        lines.append(
            f"{rollout.strategy.value} rollout of {rollout.candidate}, {rollout.phase.value}: {rollout.verdict}"
        )
    parts: list[RenderableType] = ["\n".join(lines)]
    if view.message:
        parts.append(Text(view.message, style="red"))
    for revision in () if view.is_pipeline else view.revisions:
        parts += ["", *_revision(revision)]
    if view.last_log and view.message is None:
        parts += ["", "[bold]last lines of the server[/bold]", Text("\n".join(view.last_log), style="dim")]
    return Group(*parts)


def _revision(view: "RevisionView") -> "list[RenderableType]":
    from rich.table import Table
    from rich.text import Text

    wanted = "hold" if view.desired is None else str(view.desired)
    if not view.is_carried_out:
        wanted += ", dry run: not carried out"
    reasons = ", ".join(each.code for each in view.reasons) or "no decision yet"
    share = f"{view.percent:g}% of the traffic"
    if view.shadow_percent:
        share = f"copies of {view.shadow_percent:g}% of the traffic"
    if view.tags:
        share += f", tag {', '.join(view.tags)}"
    parts: list[RenderableType] = [
        f"{view.id}  {view.role.value}, {share}, {view.policy}: wanted {wanted} ({reasons}); "
        f"{view.ready} ready, {view.starting} starting, {view.leaving} leaving"
        + (f", {view.sleeping} asleep" if view.sleeping else "")
    ]
    parts += [Text(f"  not placed: {each}", style="yellow") for each in view.unplaced]
    if view.failure is not None:
        wait_s = view.failure.next_try_in_s
        again = f", next try in {seconds(wait_s)}" if wait_s else ""
        parts.append(Text(f"  failed {view.failure.failures} times{again}", style="red"))
    if view.crash is not None:
        parts.append(Text(f"  {crash(view.crash)}", style="yellow"))
    if view.groups:
        parts.append(_groups(view.groups))
    if len(view.groups) > 1:
        parts.append(Text(f"  {view.size_routing}", style="dim"))
    if not view.replicas:
        return parts
    table = Table(box=None, pad_edge=False)
    for column in ("  REPLICA", "STATE", "ON", "AGE", "IN FLIGHT", "LOAD", "PIDS"):
        table.add_column(column)
    for each in view.replicas:
        limit = "?" if each.limit is None else ("no limit" if each.limit == 0 else str(each.limit))
        table.add_row(
            f"  {each.id}",
            _coloured(each.state),
            each.accelerator + (" (emulated)" if each.emulated else ""),
            seconds(each.age_s),
            f"{'-' if each.in_flight is None else each.in_flight}/{limit}",
            seconds(each.phases.load_s),
            " ".join(str(pid) for pid in each.pids),
        )
    parts.append(table)
    parts += [Text(f"  {held(each)}", style="yellow") for each in view.replicas if each.held]
    return parts


def _groups(views: "Iterable[GroupView]") -> "RenderableType":
    """Renders each accelerator kind: replicas decided and running, measured rates, and the reasons of its limits."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for column in ("  GROUP", "WANTED", "READY", "LEFT", "WEIGHT", "MU/REPLICA", "INF/S", "BUSY", "TAIL", "LIMIT"):
        table.add_column(column)
    notes: list[RenderableType] = []
    for each in views:
        mu = "-" if each.mu_ips is None else f"{each.mu_ips:.4g}/s"
        how = "" if each.mu_source in (None, "learnt") else f" ({each.mu_source})"
        limit = "?" if each.limit is None else ("no limit" if each.limit == 0 else str(each.limit))
        share = "" if each.share == 100 else f" at {each.share} %"
        table.add_row(
            f"  {each.accelerator}" + (" (emulated)" if each.emulated else ""),
            ("hold" if each.wanted is None else str(each.wanted)) + share,
            str(each.ready),
            "-" if each.room is None else str(each.room),
            f"{100 * each.weight:.0f} %",
            mu + how,
            f"{each.ips:.1f}",
            f"{100 * each.busy:.0f} %",
            seconds(each.tail_s),
            limit,
        )
        if each.stored is not None:
            notes.append(Text(f"  {each.accelerator} runs the stored form {each.stored}", style="dim"))
        if each.idle_states is not None:
            notes.append(Text(f"  replicas on {each.accelerator}: {each.idle_states}", style="dim"))
        for pair in each.beside:
            slowed = f"{100 * pair.increase:.0f} % slower ({pair.requests:.0f} requests)"
            notes.append(Text(f"  {each.accelerator} beside {pair.model}: {slowed}", style="dim"))
        if each.limit_reason is not None:
            why = f"  limit on {each.accelerator}: {each.limit_reason.code} ({each.limit_reason.detail})"
            notes.append(Text(why, style="dim"))
    return Group(table, *notes)


def _coloured(state: str) -> str:
    colour = _COLOURS.get(state)
    return state if colour is None else f"[{colour}]{state}[/{colour}]"
