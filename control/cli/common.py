"""Helpers shared by all commands: finding the deployment, printing, exit codes.

Exit codes: 0 success, 1 failure, 2 invalid input (every fault is printed), 130 interrupted. Modules of the command line
import at their top only what ``--help`` needs; everything else is imported where it is used.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from tidegate.errors import InvalidInputError, TidegateError

if TYPE_CHECKING:
    from rich.console import Console

    from tidegate.control.sdk import Tidegate
    from tidegate.control.state.directory import StateDirectory

EXIT_FAILED = 1
EXIT_WRONG_INPUT = 2
EXIT_INTERRUPTED = 130
PIPE_WIDTH = 200
AWAITED_S = 5.0
"""Seconds that a command waits for a deployment that was started a moment ago."""
STARTING_S = 20.0
"""Seconds to wait once the control process holds the state directory: on a busy machine its start takes seconds."""

StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="DIR",
        help="State directory (default: $TIDEGATE_STATE, tidegate.toml, else $XDG_STATE_HOME/tidegate).",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def state_directory(given: Path | None) -> "StateDirectory":
    """Returns the state directory: from the option, the environment, ``tidegate.toml`` in this folder, or the
    default."""
    from tidegate.control.state.directory import StateDirectory, default_directory

    named = given or os.environ.get("TIDEGATE_STATE") or _in_settings_here() or default_directory(os.environ)
    return StateDirectory(Path(named).expanduser())


def _in_settings_here() -> str | None:
    path = Path("tidegate.toml")
    if not path.is_file():
        return None
    from tidegate.errors import Fault, InvalidInputError
    from tidegate.settings import read

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(str(path), [Fault("file", str(path), "a TOML file that can be read")]) from error
    return read(text, source=str(path), base=str(Path.cwd())).state.directory


def connect(given: Path | None, *, awaited_s: float = 0.0, authorities: Path | None = None) -> "Tidegate":
    """Returns a client of the running deployment.

    Raises NotRunningError if none answers within ``awaited_s`` seconds; the wait lets `tidegate up & tidegate deploy
    FILE` work. ``authorities`` is a PEM file of CA certificates that verify the front door.
    """
    from tidegate.control.sdk import PATIENCE_S, Tidegate

    return Tidegate.local(
        state_directory(given).root,
        awaited_s=awaited_s,
        patience_s=STARTING_S if awaited_s else PATIENCE_S,
        authorities=None if authorities is None else str(authorities),
    )


def console() -> "Console":
    """Returns a console on standard output. Where that is no terminal it is wide, so that no line is cut before
    `grep`."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def say(text: str) -> None:
    """Prints one line on standard error, so that standard output holds results only."""
    print(text, file=sys.stderr)


def print_json(record: object) -> None:
    """Prints a record, or plain values, as JSON on standard output."""
    from tidegate.records.codec import encode

    print(json.dumps(json.loads(encode(record)), indent=2))


def fail(text: str, code: int = EXIT_FAILED) -> NoReturn:
    say(f"error: {text}")
    raise typer.Exit(code)


def write_file(path: Path, text: str) -> None:
    """Writes a file; exits with an error message if that fails."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"{path}: {error.strerror or error}")


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turns expected errors into a message on standard error and an exit code."""
    try:
        yield
    except InvalidInputError as error:
        fail(str(error), EXIT_WRONG_INPUT)
    except TidegateError as error:
        detail: Any = getattr(error, "detail", None)
        if detail is not None and detail.faults and detail.code == "invalid_request":
            fail("\n".join([str(error), *(f"  {each.where}: {each.allowed}" for each in detail.faults)]))
        wrong = detail is not None and detail.code in ("invalid_input", "function_not_found", "cannot_run")
        fail(str(error), EXIT_WRONG_INPUT if wrong else EXIT_FAILED)
    except BrokenPipeError:
        # The reader of our output has gone (`tidegate logs -f | head`): nothing more can be printed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(EXIT_FAILED) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


@contextmanager
def interruptible() -> Iterator[None]:
    """Raises KeyboardInterrupt on SIGTERM as on SIGINT, also where a shell started the command in the background."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def seconds(value: float | None) -> str:
    """Formats a duration: ``1.8 ms``, ``2.31 s``, ``4 min``; a dash if it is unknown."""
    if value is None:
        return "-"
    if value < 0.0995:
        return f"{value * 1e3:.1f} ms"
    if value < 0.9995:
        return f"{value * 1e3:.0f} ms"
    if value < 120:
        return f"{value:.2f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Decorates a command with :func:`exit_codes`."""
    import functools

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        with exit_codes():
            command(*args, **kwargs)

    return run
