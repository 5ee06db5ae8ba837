"""``tidegate get``, ``describe`` and ``diff``: what was deployed, as manifests, and how a file differs from it."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.control.cli.cluster.options import ContextOption, NamespaceOption, check
from tidegate.control.cli.common import (
    EXIT_FAILED,
    PIPE_WIDTH,
    JsonOption,
    StateOption,
    connect,
    console,
    exit_codes,
    guarded,
    print_json,
    say,
    seconds,
    show_changes,
    state_directory,
)
from tidegate.control.cli.deploy import FLAGS, checked, flags_of
from tidegate.control.cli.develop import options
from tidegate.control.cli.develop.environments import interpreter, interpreter_for
from tidegate.control.cli.flags import GroupedCommand, with_flags
from tidegate.control.cli.show import NameArgument, complete_function, function, function_table, notes
from tidegate.errors import Fault, InvalidInputError

if TYPE_CHECKING:
    from tidegate.control.sdk import Tidegate
    from tidegate.control.views.functions import ManifestView
    from tidegate.function import Function

RevisionOption = Annotated[
    str | None, typer.Option("--revision", metavar="ID", help="A kept revision; default: the one deployed last.")
]


class GetFormat(StrEnum):
    """Output of ``tidegate get``."""

    YAML = "yaml"
    JSON = "json"
    NAME = "name"
    WIDE = "wide"


def get(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Functions (default: all).", autocompletion=complete_function),
    ] = None,
    output: Annotated[
        GetFormat | None,
        typer.Option("--output", "-o", help="Manifests (yaml, or json with the revision), names, or all columns."),
    ] = None,
    revision: RevisionOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> None:
    """Show functions as a table, or as the manifests that deploy them again (-o yaml)."""
    if check(context, namespace, state=state, revision=revision) is not None:
        from tidegate.control.cli.cluster import manifests as applied

        as_json, as_yaml = json or output is GetFormat.JSON, output is GetFormat.YAML
        as_names = output is GetFormat.NAME
        applied.get(context or "", namespace, names or [], as_yaml=as_yaml, as_json=as_json, as_names=as_names)
        return
    as_manifest = json or output in (GetFormat.YAML, GetFormat.JSON)
    if revision is not None and not as_manifest:
        raise InvalidInputError("get", [Fault("--revision", revision, "only with -o yaml, -o json or --json")])
    with connect(state) as tidegate:
        views = [tidegate.function(name) for name in dict.fromkeys(names)] if names else list(tidegate.list())
        manifests = [tidegate.manifest(each.name, revision=revision) for each in views] if as_manifest else []
    if json or output is GetFormat.JSON:
        print_json(manifests)
    elif output is GetFormat.YAML:
        for number, each in enumerate(manifests):
            if number:
                print("---")
            print(f"# {each.revision}, deployed from {_one_line(each.source)} at {_time(each.created_at)}")
            if (changed := _changed_since(each)) is not None:
                print(f"# the content of {changed} has changed since: a deploy of this text takes the new one")
            print(each.manifest, end="")
    elif output is GetFormat.NAME:
        for view in views:
            print(view.name)
    elif not views:
        say("no function is deployed; deploy one with `tidegate deploy FILE`")
    else:
        out = console(PIPE_WIDTH if output is GetFormat.WIDE else None)
        out.print(function_table(views, out.width), *notes(views), sep="\n")


def describe(
    name: NameArgument,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> None:
    """Show everything about one function: state, reasons, last starts and manifest."""
    if check(context, namespace, state=state) is not None:
        from tidegate.control.cli.cluster import manifests as applied

        applied.describe(context or "", namespace, name, json=json)
        return
    with connect(state) as tidegate:
        view, explained = tidegate.function(name), tidegate.explain(name)
        starts, manifest = tidegate.cold_starts(name)[-5:], tidegate.manifest(name)
    if json:
        print_json({"function": view, "explain": explained, "cold_starts": starts, "manifest": manifest})
        return
    out = console()
    out.print(function(view))
    out.print("\n[bold]why it has its size[/bold]")
    for line in explained.summary:
        out.print(f"  {line}", markup=False)
    out.print(f"\n[bold]last starts[/bold]{'' if starts else '  none yet'}")
    for start in starts:
        out.print(f"  {_time(start.at)}  {start.replica}  {start.accelerator}  {seconds(start.total_s)}")
    out.print(f"\n[bold]manifest[/bold] of {manifest.revision}, from {_one_line(manifest.source)}")
    out.print("".join(f"  {line}\n" for line in manifest.manifest.splitlines()), markup=False, end="")


@with_flags(FLAGS)
def diff(
    file: Annotated[str, typer.Argument(help="A manifest, an ONNX file, or file.py[:Class], as for `deploy`.")],
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
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> None:
    """Show what a deploy of FILE would change; it takes the options of `deploy`, and installs nothing. Exit code 1:
    something would change."""
    with exit_codes():
        faults: list[Fault] = []
        check(context, namespace, name=name, python=python, requirements=requirements, state=state)
        flags = flags_of(given, parameter, slo, gpu, python, env, arg, accelerators, faults)
        if context is not None:
            if faults:
                raise InvalidInputError("command line", faults)
            from tidegate.control.cli.cluster import manifests as applied

            applied.diff(context, namespace, file, flags, json=json)
            return
        functions = _functions(file, name, flags, faults)
        if requirements is not None:
            own = interpreter_for(state_directory(state).root, requirements, interpreter(python))
            functions = tuple(replace(each, python=str(own)) for each in functions)
        with connect(state) as tidegate:
            known = {each.name for each in tidegate.list()}
            changes = {each.name: list(_changes(tidegate, each, each.name in known)) for each in functions}
        if json:
            print_json({"changes": changes, "is_same": not any(changes.values())})
        else:
            show_changes(changes)
        if any(changes.values()):
            raise typer.Exit(EXIT_FAILED)


def register(app: typer.Typer) -> None:
    app.command("get")(guarded(get))
    app.command("describe")(guarded(describe))
    app.command("diff", cls=GroupedCommand)(diff)


def _functions(file: str, name: str | None, flags: dict[str, str], faults: list[Fault]) -> "tuple[Function, ...]":
    """Returns the functions that a deploy of ``file`` would make. Raises InvalidInputError with every fault."""
    from tidegate.autoscaler.policies import registry
    from tidegate.manifest.builder import ParseContext
    from tidegate.manifest.reader import read as read_manifest

    text, base, source = checked(file, name, flags, faults)
    context = ParseContext(base=str(base.absolute()), policies=registry.names(), flags=flags)
    return read_manifest(text, source=source, context=context).functions


def _changes(tidegate: "Tidegate", wanted: "Function", is_deployed: bool) -> Iterator[str]:
    """Yields the lines of a unified diff, and a line for a model or class whose content has changed."""
    import difflib

    from tidegate.manifest.writer import write

    deployed = tidegate.manifest(wanted.name) if is_deployed else None
    before = [] if deployed is None else deployed.manifest.splitlines()
    label = "not deployed" if deployed is None else deployed.revision
    yield from difflib.unified_diff(before, write(wanted).splitlines(), label, "to deploy", lineterm="")
    if deployed is not None and (changed := _changed_file(deployed, wanted)) is not None:
        yield f"the content of {changed} differs from what is deployed"


def _changed_since(deployed: "ManifestView") -> Path | None:
    """Returns the file that a manifest names if its content is not what was deployed."""
    from tidegate.autoscaler.policies import registry
    from tidegate.manifest.builder import ParseContext
    from tidegate.manifest.reader import read as read_manifest

    context = ParseContext(base=str(Path.cwd()), policies=registry.names(), flags={})
    try:
        (wanted,) = read_manifest(deployed.manifest, source=deployed.source, context=context).functions
    except InvalidInputError:
        return None  # Written for another machine: nothing can be compared.
    return _changed_file(deployed, wanted)


def _changed_file(deployed: "ManifestView", wanted: "Function") -> Path | None:
    """Returns the file of a model or class if its content is not that of the copy made at the deploy. For a module that
    the class imports it is the folder."""
    import hashlib

    from tidegate.control.api import local_modules
    from tidegate.control.api.copies import BUNDLE, file_of
    from tidegate.function import ServerKind

    path = file_of(wanted.server)
    if path is None or deployed.copy is None:
        return None
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return path
    if deployed.copy != f"{digest}{path.suffix}":
        return path
    if wanted.server.kind is not ServerKind.HANDLER:
        return None
    try:
        found = local_modules.find(path, path.read_bytes())
    except (OSError, local_modules.TooManyError):
        return path.parent
    return None if deployed.modules == (f"{found.digest}{BUNDLE}" if found.files else None) else path.parent


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, tz=UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _one_line(text: str) -> str:
    return " ".join(text.split())
