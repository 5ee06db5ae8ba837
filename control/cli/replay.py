"""``tidegate record`` and ``tidegate replay``: save what a policy observed, and decide it again by this or another
policy."""

import gzip
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.control.cli.cluster.elsewhere import Files, in_control_process
from tidegate.control.cli.common import EXIT_FAILED, JsonOption, StateOption, connect, fail, guarded, print_json, say
from tidegate.control.cli.develop.activity import activity
from tidegate.errors import Fault, InvalidInputError

if TYPE_CHECKING:
    from tidegate.autoscaler.replay.player import Played


def record(
    name: Annotated[str, typer.Argument(help="Name of the function.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Output file (default: standard output)."),
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Revision (default: the serving one).")] = None,
    state: StateOption = None,
) -> None:
    """Save the autoscaler's latest observations and decisions, as JSON lines for `tidegate replay`."""
    with connect(state) as tidegate:
        pieces = tidegate.recording(name, revision=revision)
        if output is None:
            written = 0
            for piece in pieces:
                written += sys.stdout.buffer.write(piece)
            if not written:
                fail(f"no observations of {name} are recorded yet")
            return
        with activity(f"records of {name} are written to {output}") as shown:
            count = save(pieces, output, on_count=lambda done: shown.show(f"{done} records written to {output}"))
    if count == 0:
        fail(f"no observations of {name} are recorded yet")
    say(f"wrote {count} records to {output}; repeat the decisions with `tidegate replay {output}`")


def replay(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A recording, or a CSV file of observations; - for standard input.")
    ],
    policy: Annotated[str | None, typer.Option(metavar="NAME", help="Decide by this policy.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override a setting: policy.NAME, latency, max-scale, ... (repeatable)."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Repeat the decisions of a recording under its own clock, by its own policy or another one."""
    text = _read(file)
    with activity(f"decisions of {file} are repeated", is_silent=json):
        played, is_other = _play(text, policy, settings or [])
    from tidegate.autoscaler.replay import report

    if json:
        print_json(report.plain(played, is_other=is_other))
    else:
        print(report.text(played, is_other=is_other, given=settings or ()))
    if played.difference is not None and not is_other:
        raise typer.Exit(EXIT_FAILED)


def save(pieces: Iterator[bytes], output: Path, on_count: Callable[[int], None] = lambda count: None) -> int:
    """Writes the pieces to ``output`` and returns the number of lines; ``on_count`` is called with those so far. If
    nothing arrives, an existing file is kept: the name may be wrong."""
    first = next(pieces, b"")
    if not first:
        return 0
    count = first.count(b"\n")
    try:
        with output.open("wb") as file:
            file.write(first)
            for piece in pieces:
                count += piece.count(b"\n")
                file.write(piece)
                on_count(count)
    except OSError as error:
        raise InvalidInputError(
            "record", [Fault("--output", str(output), f"a file that can be written ({error.strerror})")]
        ) from error
    return count


def register(app: typer.Typer) -> None:
    app.command("record")(guarded(in_control_process(record, Files(written=("output",)))))
    app.command("replay")(guarded(replay))


def _read(file: Path) -> str:
    """Returns the text of a file, unpacked if it is compressed."""
    allowed = "a recording (`tidegate record`) or a CSV of observations"
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        if data.startswith(b"\x1f\x8b"):
            data = gzip.decompress(data)
        return data.decode("utf-8-sig")
    except OSError as error:
        raise InvalidInputError(
            "replay", [Fault("FILE", str(file), f"{allowed} ({error.strerror or error})")]
        ) from error
    except (UnicodeDecodeError, EOFError, zlib.error) as error:
        raise InvalidInputError("replay", [Fault("FILE", str(file), f"{allowed}: text in UTF-8 ({error})")]) from error


def _play(text: str, policy: str | None, settings: list[str]) -> "tuple[Played, bool]":
    from tidegate.autoscaler.replay import player, recording, trace
    from tidegate.autoscaler.replay.changes import changed, unrecorded

    if not text.lstrip().startswith("{"):
        played = trace.play(trace.parse(text.splitlines(keepends=True)), unrecorded(policy, settings))
        return played, policy is not None
    faults: list[Fault] = []
    lines = list(recording.read(text.split("\n"), faults))
    if faults:
        raise InvalidInputError("recording", faults)
    header = next(line for _, line in lines if isinstance(line, recording.Header))
    function = changed(header.function, policy, settings)
    if function == header.function:
        return player.again(lines), False
    return player.instead(lines, function), True
