"""Helpers shared by all commands: finding the deployment, printing, exit codes.

Exit codes: 0 success, 1 failure, 2 invalid input (every fault is printed), 130 interrupted. Modules of the command line
import at their top only what ``--help`` needs; everything else is imported where it is used.
"""

import errno
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from unicodedata import category

import typer

from tidegate.errors import InvalidInputError, TidegateError

if TYPE_CHECKING:
    from rich.console import Console, RenderHook

    from tidegate.control.sdk import Tidegate
    from tidegate.control.state.directory import StateDirectory

EXIT_FAILED = 1
EXIT_WRONG_INPUT = 2
EXIT_INTERRUPTED = 130
PIPE_WIDTH = 200
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
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
    from tidegate.control.state.directory import StateDirectory
    from tidegate.control.state.finding import find_directory

    return StateDirectory(find_directory(os.environ, Path.cwd(), given=given))


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


def console(width: int | None = None) -> "Console":
    """Returns a console on standard output, of ``width`` columns or the terminal's. Where that is no terminal it is
    wide, so that no line is cut before `grep`."""
    from rich.console import Console

    fixed = PIPE_WIDTH if width is None and not sys.stdout.isatty() else width
    made = Console(highlight=False, soft_wrap=True, width=fixed)
    made.push_render_hook(_escaping_hook())
    return made


def _escaping_hook() -> "RenderHook":
    """Returns the hook that escapes what is printed: rich itself lets ESC and the C1 controls through."""
    from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
    from rich.segment import Segment

    class Escaped:
        def __init__(self, inner: ConsoleRenderable) -> None:
            self._inner = inner

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            for text, style, control in console.render(self._inner, options):
                yield Segment(text if control else escaped(text), style, control)

    class Hook(RenderHook):
        def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
            return [Escaped(each) for each in renderables]

    return Hook()


def escaped(text: str) -> str:
    """Returns a text without characters that move a terminal's cursor, change its colours or reorder a line: each is
    written as in a string literal, ``\\x1b``. Line ends, tabs and wide blanks stay."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in "\n\t" or category(each) == "Zs" else ascii(each)[1:-1] for each in text
    )


def print_text(text: str) -> None:
    """Prints text for people on standard output, with control characters escaped."""
    print(escaped(text))


def say(text: str) -> None:
    """Prints one line on standard error, with control characters escaped: standard output holds results only."""
    print(escaped(text), file=sys.stderr)


def print_json(record: object) -> None:
    """Prints a record, or plain values, as JSON on standard output."""
    from tidegate.records.codec import encode

    print(json.dumps(json.loads(encode(record)), indent=2))


def print_yaml(record: object) -> None:
    """Prints a record, or plain values, as YAML on standard output."""
    from tidegate.records.codec import encode
    from tidegate.schema.yaml_nodes import dump

    print(dump(json.loads(encode(record))), end="")


def show_changes(changes: Mapping[str, list[str]]) -> None:
    """Prints the lines of a unified diff by function."""
    colours = {"+": "green", "-": "red", "@": "cyan"}
    out = console()
    for name, lines in changes.items():
        if not lines:
            say(f"{name}: nothing would change")
        for line in lines:
            out.print(line, style=colours.get(line[:1]), markup=False)


def fail(text: str, code: int = EXIT_FAILED) -> NoReturn:
    say(f"error: {text}")
    raise typer.Exit(code)


def write_file(path: Path, text: str) -> None:
    """Writes a file; exits with an error message if that fails."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"{path}: {error.strerror or error}")


def _discard_output() -> None:
    """Drops what has been printed and is not written, and all that follows."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turns expected errors into a message on standard error and an exit code."""
    try:
        yield
        sys.stdout.flush()
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
        _discard_output()
        raise typer.Exit(EXIT_FAILED) from None
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        _discard_output()
        fail(f"{error.filename or 'standard output'} cannot be written: {error.strerror}")
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


@contextmanager
def as_flags(flags: Mapping[str, str]) -> Iterator[None]:
    """Names the flags of a command in the faults that the control process finds: ``flags`` by the names of the API."""
    from tidegate.control.sdk import ApiError

    try:
        yield
    except ApiError as error:
        known = "|".join(map(re.escape, sorted(flags, key=len, reverse=True)))
        message = re.sub(
            rf"^(  )({known})(?=[: ])",
            lambda found: found[1] + flags[found[2]],
            error.detail.message,
            flags=re.MULTILINE,
        )
        raise ApiError(error.status, replace(error.detail, message=message)) from error.__cause__


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
    """Formats a duration with three digits: ``1.8 ms``, ``2.31 s``, ``60 s``, ``4 min``; a dash if it is unknown."""
    if value is None:
        return "-"
    if value < 0.0995:
        return "less than 0.1 ms" if 0.0 < value < 5e-5 else f"{round(value * 1e3, 1):g} ms"
    if value < 0.9995:
        return f"{value * 1e3:.0f} ms"
    if value < 120:
        return f"{value:.3g} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Decorates a command with :func:`exit_codes`."""
    import functools

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        with exit_codes():
            command(*args, **kwargs)

    return run
