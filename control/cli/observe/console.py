"""``tidegate open``: the console in a browser."""

import os
import webbrowser
from collections.abc import Mapping
from typing import Annotated

import typer

from tidegate.control.cli.cluster.elsewhere import in_control_process
from tidegate.control.cli.common import JsonOption, StateOption, connect, guarded, print_json, print_text, say
from tidegate.control.cli.show import complete_function


def open_console(
    name: Annotated[
        str | None, typer.Argument(help="Open the page of this function.", autocompletion=complete_function)
    ] = None,
    print_link: Annotated[bool, typer.Option("--print", help="Print the link; start no browser.")] = False,
    state: StateOption = None,
    json: JsonOption = False,
) -> None:
    """Open the console in a browser, or print its link. The link works once, within 15 minutes."""
    with connect(state) as tidegate:
        if name is not None:
            tidegate.function(name)
        link = tidegate.console_link(name)
    if json:
        print_json(link)
    elif print_link or not has_display(os.environ):
        print_text(link.url)
    elif webbrowser.open(link.url):
        say("the console opens in your browser; `tidegate open --print` prints its link instead")
    else:
        print_text(link.url)


def has_display(environ: Mapping[str, str]) -> bool:
    """Returns whether a browser would be seen: a text browser would take the terminal."""
    return any(environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


def register(app: typer.Typer) -> None:
    app.command("open")(guarded(in_control_process(open_console)))
