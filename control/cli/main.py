"""The entry point ``tidegate``. It imports the commands only where a completion does not need less."""

import tidegate.aio.first_process  # noqa: F401

# isort: split
import os
import sys

from tidegate.control.cli.completion import names


def main() -> None:
    """Entry point of ``tidegate``."""
    if names.VARIABLE in os.environ and (answer := names.answer(os.environ)) is not None:
        sys.stdout.write(f"{answer}\n")
        return
    from tidegate.control.cli.app import app, with_command

    named = None if names.VARIABLE in os.environ else next(iter(sys.argv[1:]), None)
    sys.exit((app if named is None else with_command(named))(prog_name="tidegate"))
