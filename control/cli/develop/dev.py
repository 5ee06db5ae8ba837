"""``tidegate dev``: deploys a file, and again whenever it is saved, with the server's lines and the errors inline."""

import json as jsons
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidegate.control.cli.common import AWAITED_S, JsonOption, StateOption, connect, exit_codes, interruptible, say
from tidegate.control.cli.deploy import (
    FLAGS,
    as_typed,
    checked,
    deployed_view,
    flags_of,
    installed,
)
from tidegate.control.cli.develop import options
from tidegate.control.cli.flags import with_flags
from tidegate.errors import Fault, InvalidInputError, TidegateError

if TYPE_CHECKING:
    from tidegate.control.sdk import Tidegate

LOOK_S: Final = 0.3
"""Time between two looks at the files."""
MOST_FILES: Final = 2000
"""Files that are watched in the folder of a handler, at most."""
MOST_LINES: Final = 1000
"""Lines that a revision may have written before its output is followed."""

Signature = tuple[tuple[str, int, int], ...]


@with_flags(FLAGS)
def dev(
    file: Annotated[str, typer.Argument(help="file.py[:Class], a model or a manifest.")],
    given: dict[str, str],
    name: options.Name = None,
    parameter: options.PolicyParameter = None,
    slo: options.Slo = None,
    gpu: options.Gpu = None,
    python: options.Python = None,
    requirements: options.Requirements = None,
    env: options.Env = None,
    arg: options.Arg = None,
    accelerators: options.Accelerators = None,
    replace: options.Replace = False,
    state: StateOption = None,
    json: JsonOption = False,
) -> None:
    """Deploy a file, and again whenever it is saved, until Ctrl-C. The function stays deployed."""

    def once(tidegate: "Tidegate") -> list[tuple[str, str]]:
        faults: list[Fault] = []
        flags = flags_of(given, parameter, slo, gpu, python, env, arg, accelerators, faults)
        text, base, source = checked(file, name, flags, faults)
        if requirements is not None:
            flags["spec.python"] = installed(state, requirements, python, is_silent=json)
            text, base, source = checked(file, name, flags, faults)
        with as_typed(gpu):
            made = deployed_view(tidegate, text, base, source, flags, replace, is_silent=json)
        return [(each.name, each.revision) for each in made.functions]

    with exit_codes(), interruptible():
        if file == "-":
            raise InvalidInputError("dev", [Fault("FILE", "-", "a file, which can be watched")])
        with connect(state, awaited_s=AWAITED_S) as tidegate:
            session = Session(tidegate, json=json)
            try:
                session.run(lambda: once(tidegate), lambda: signature(file, requirements))
            except KeyboardInterrupt:
                names = " ".join(session.names)
                say(f"{names} stays deployed; `tidegate delete {names}` ends it" if names else "nothing was deployed")


def register(app: typer.Typer) -> None:
    app.command("dev")(dev)


class Repeats:
    """Finds the output of further start attempts of a revision whose first one has failed: it says the same again."""

    def __init__(self) -> None:
        self._replicas: dict[str, set[str]] = {}
        """By revision: the replicas of which lines were printed."""
        self._failed: set[str] = set()

    def shows(self, replica: str) -> bool:
        """Returns whether a line of a replica (``handler-00001-ab12c``) is printed."""
        revision = replica.rpartition("-")[0]
        known = self._replicas.setdefault(revision, set())
        if revision not in self._failed:
            known.add(replica)
        return replica in known

    def ended(self, revision: str, *, is_ready: bool) -> None:
        """Notes how the start of a revision ended."""
        (self._failed.discard if is_ready else self._failed.add)(revision)


class Session:
    """Deploys again after every change until it is interrupted."""

    def __init__(self, tidegate: "Tidegate", *, json: bool) -> None:
        self._tidegate = tidegate
        self._json = json
        self._repeats = Repeats()
        self.names: dict[str, str] = {}
        """The functions that were deployed, each with its newest revision."""
        self._before = {revision.id for each in tidegate.list() for revision in each.revisions}
        """Revisions that were there when the session began."""

    def run(self, once: Callable[[], list[tuple[str, str]]], look: Callable[[], Signature]) -> None:
        """Runs until KeyboardInterrupt. ``once`` deploys and returns (function, revision); ``look`` returns the state
        of the files."""
        while True:
            seen = look()
            try:
                deployed = once()
            except (InvalidInputError, TidegateError) as error:
                self._report("failed", "", "", str(error))
                deployed = []
            for name, revision in deployed:
                self._follow(name, revision)
                self.names[name] = revision
                threading.Thread(target=self._wait, args=(name, revision), name=revision, daemon=True).start()
            while look() == seen:
                time.sleep(LOOK_S)

    def _wait(self, name: str, revision: str) -> None:
        """Reports how the start of a revision ended, unless a newer one has taken its place."""
        from tidegate.control.cli.develop.example import example
        from tidegate.control.cli.develop.waiting import result

        try:
            view = self._tidegate.wait_ready(name, revision)
            call = example(self._tidegate, view)[0] if view.ready else None
            words = result(self._tidegate, view, revision)
        except TidegateError as error:
            self._repeats.ended(revision, is_ready=False)
            if self.names[name] == revision:
                self._report("failed", name, revision, short(str(error)))
            return
        except RuntimeError:
            return  # the session has ended
        self._repeats.ended(revision, is_ready=True)
        self._report("ready", name, revision, words if call is None else f"{words}\n  {call}")

    def _follow(self, name: str, revision: str) -> None:
        """Prints what the function's servers write, from a thread that ends with the process: of a revision that this
        session has made also what was written before the thread began, since it may be ready by then."""
        if name in self.names:
            return
        is_made = revision not in self._before
        tail = MOST_LINES if is_made else 0

        def follow() -> None:
            try:
                for line in self._tidegate.logs(name, tail=tail, follow=True):
                    if is_made and line["replica"].rpartition("-")[0] in self._before:
                        continue
                    if self._repeats.shows(line["replica"]):
                        self._line(line["line"])
            except (TidegateError, RuntimeError):
                return  # the deployment or the session has ended

        threading.Thread(target=follow, name=f"lines of {name}", daemon=True).start()

    def _line(self, text: str) -> None:
        if self._json:
            self._print({"event": "line", "text": text})
        else:
            say(f"  | {text}")

    def _report(self, event: str, name: str, revision: str, text: str) -> None:
        if self._json:
            self._print({"event": event, "function": name, "revision": revision, "text": text})
        elif event == "failed":
            say(f"error: {text}")
        else:
            say(text)

    def _print(self, record: Mapping[str, str]) -> None:
        print(jsons.dumps(record), flush=True)


def short(reason: str) -> str:
    """Returns why a start failed without the server's output, which was printed line by line: the first line, and the
    server's own last one."""
    first, *others = reason.splitlines()
    return "\n".join([first, *(f"  {line.strip()}" for line in others[-1:])])


def signature(target: str, requirements: Path | None) -> Signature:
    """Returns the state of the files that a deploy of ``target`` reads: names, times and sizes. Modules in the folder
    of a handler are looked at too, environments and hidden folders are not."""
    main = Path(target.rpartition(":")[0] if ".py:" in target else target)
    files = [main] if requirements is None else [main, requirements]
    folder = main.absolute().parent
    if main.is_dir():  # A model that is a folder.
        files += [Path(place, name) for place, _, names in os.walk(main) for name in names][:MOST_FILES]
    if target.endswith(".py") or ".py:" in target:
        for place, folders, names in os.walk(folder):
            folders[:] = [each for each in folders if not _is_foreign(Path(place), each)]
            files += [Path(place, name) for name in names if name.endswith(".py")]
            if len(files) > MOST_FILES:
                break
    return tuple(sorted(_state(path) for path in dict.fromkeys(path.absolute() for path in files[:MOST_FILES])))


def _is_foreign(place: Path, folder: str) -> bool:
    """Returns whether a folder is hidden, an environment, or a state directory: a deploy writes there itself."""
    marks = ("pyvenv.cfg", "control.lock")
    return folder.startswith((".", "__")) or any((place / folder / mark).exists() for mark in marks)


def _state(path: Path) -> tuple[str, int, int]:
    try:
        found = path.stat()
    except OSError:
        return str(path), 0, -1
    return str(path), found.st_mtime_ns, found.st_size
