"""The command line: ``tidegate COMMAND``. Each group of commands is one file of this folder."""

import sys
from typing import Annotated

import typer

from control.cli import deploy, doctor, invoke, logs, process, show

app = typer.Typer(
    name="tidegate",
    help="Serverless inference: deploy models, let them sleep at zero, keep their SLA.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for group in (process, deploy, show, invoke, logs, doctor):
    group.register(app)


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        from importlib.metadata import version as version_of

        print(version_of("tidegate"))
        raise typer.Exit


def main() -> None:
    """Entry point of ``tidegate``."""
    sys.exit(app())
