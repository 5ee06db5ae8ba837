"""``tidegate logs``: output of model servers and queue-proxies."""

import sys
from typing import Annotated

import typer

from tidegate.control.cli.cluster.options import ContextOption, NamespaceOption, check
from tidegate.control.cli.common import JsonOption, StateOption, connect, escaped, guarded, say
from tidegate.control.cli.show import NameArgument
from tidegate.errors import Fault, InvalidInputError

SOURCES = ("server", "proxy", "all")


def logs(
    name: NameArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the output until interrupted.")] = False,
    tail: Annotated[int, typer.Option("--tail", "-n", help="Lines per replica to start with.", min=0)] = 100,
    replica: Annotated[str | None, typer.Option(help="Only this replica.")] = None,
    source: Annotated[str, typer.Option(help="Source: server, proxy or all.")] = "server",
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> None:
    """Print what the function's model servers wrote, of a pipeline those of its stages. On a terminal, control
    characters are escaped."""
    if source not in SOURCES:
        raise InvalidInputError("logs", [Fault("--source", repr(source), ", ".join(SOURCES))])
    if check(context, namespace, state=state) is not None:
        from tidegate.control.cli.cluster import commands

        if follow:
            raise commands.follow(context or "", namespace, name, tail=tail, replica=replica, source=source)
        commands.logs(context or "", namespace, name, tail=tail, replica=replica, source=source, json=json)
        return
    clean, is_silent = escaped if sys.stdout.isatty() else str, True
    with connect(state) as tidegate:
        for line in tidegate.logs(name, tail=tail, follow=follow, replica=replica, source=source):
            is_silent = False
            if json:
                from tidegate.records.codec import encode

                print(clean(encode(line).decode()), flush=follow)
            else:
                place = line["replica"] if source != "all" else f"{line['replica']} {line['source']}"
                print(clean(f"{place} | {line['line']}"), flush=follow)
    if is_silent and tail:
        say(f"no line is kept of {name} (--source {source}); what Pods print is in `kubectl logs`")


def register(app: typer.Typer) -> None:
    app.command("logs")(guarded(logs))
