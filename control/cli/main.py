"""The command line, ``tidegate COMMAND``. Each group of commands is one file or folder here."""

import sys
from typing import Annotated

import typer

from tidegate.control.cli import deploy, doctor, invoke, logs, replay, series, show, tenants, traffic
from tidegate.control.cli import up as process
from tidegate.control.cli.demo import command as demo
from tidegate.control.cli.experiment import command as experiment
from tidegate.control.cli.load import command as load
from tidegate.control.cli.simulate import command as simulate

app = typer.Typer(
    name="tidegate",
    help="Serverless inference: deploy models, scale them to zero, keep their SLA.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for group in (
    process,
    deploy,
    traffic,
    tenants,
    show,
    series,
    replay,
    invoke,
    load,
    simulate,
    experiment,
    logs,
    doctor,
    demo,
):
    group.register(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(version("tidegate"))
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    del version  # its callback has printed and left


def main() -> None:
    """Entry point of ``tidegate``."""
    sys.exit(app())
