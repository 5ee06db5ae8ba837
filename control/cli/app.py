"""The command line, ``tidegate COMMAND``. Each group of commands is one file or folder here."""

from copy import copy
from typing import Annotated

import typer

from tidegate.control.cli import deploy, doctor, invoke, job, replay, show, tenants, traffic
from tidegate.control.cli import up as process
from tidegate.control.cli.cluster.elsewhere import in_control_process
from tidegate.control.cli.common import JsonOption, StateOption, connect, guarded, print_json
from tidegate.control.cli.demo import command as demo
from tidegate.control.cli.develop import dev, init
from tidegate.control.cli.experiment import command as experiment
from tidegate.control.cli.gateway import command as gateway
from tidegate.control.cli.load import command as load
from tidegate.control.cli.observe import console, cost, logs, manifests, series
from tidegate.control.cli.profile import command as profile
from tidegate.control.cli.simulate import command as simulate

app = typer.Typer(
    name="tidegate",
    help="Serverless inference: deploy models, scale them to zero, keep their SLA.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for group in (
    process,
    gateway,
    init,
    deploy,
    dev,
    traffic,
    tenants,
    show,
    manifests,
    series,
    console,
    cost,
    replay,
    invoke,
    job,
    load,
    profile,
    simulate,
    experiment,
    logs,
    doctor,
    demo,
):
    group.register(app)


def with_command(name: str) -> typer.Typer:
    """Returns the command line with the command of this name alone, all of it if there is none: the parameters of all
    commands take 20 ms to build."""
    found = [each for each in app.registered_commands if each.name == name]
    if not found:
        return app
    one = copy(app)
    one.registered_commands, one.registered_groups = found, []
    return one


def _version() -> str:
    from importlib.metadata import version

    return version("tidegate")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(_version())
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    del version  # its callback has printed and left


def show_version(state: StateOption = None, json: JsonOption = False) -> None:
    """Print the version of this program, and of the deployment that runs."""
    from tidegate.control.sdk import NotRunningError

    try:
        with connect(state) as tidegate:
            running: str | None = tidegate.status().version
    except NotRunningError:
        running = None
    if json:
        print_json({"program": _version(), "deployment": running})
    else:
        print(f"tidegate    {_version()}\ndeployment  {running or 'none runs here'}")


app.command("version")(guarded(in_control_process(show_version)))
