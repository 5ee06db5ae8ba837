"""Commands of the control process, named with a context: what asks there takes their place.

The control process of a cluster has no address outside of its Pod, and its API needs the token of its state.
"""

import inspect
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import typer

from tidegate.control.cli.cluster.options import NamedContextOption, NamespaceOption, check
from tidegate.control.cli.flags import in_place_of
from tidegate.errors import Fault, InvalidInputError

OURS: Final = ("context", "namespace")
STATE: Final = "state"
STANDARD_INPUT: Final = "-"
FLAG: Final = "\0"
"""In place of the value of an option that has none; no argument of a program contains it."""


@dataclass(frozen=True, slots=True)
class Files:
    """Options of a command that name files of this machine, by their parameters. The Pod does not have the files, so a
    shell here reads and writes them, and kubectl passes standard input and output on."""

    read: Mapping[str, str] = field(default_factory=dict)
    """Pattern of what stands before the file's name in a value; one that does not begin so names no file."""
    written: Collection[str] = ()
    """Left out, the command writes to standard output."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Why the option has no meaning with a context."""


def in_control_process(command: Callable[..., None], files: Files = Files()) -> Callable[..., None]:
    """Adds ``--context`` and ``--namespace`` to a command that the control process alone can carry out. With them it is
    refused, and the command that runs it in the control process's Pod is named."""
    own = inspect.signature(command, eval_str=True)

    def run(**given: Any) -> None:
        typed, context, namespace = given.pop("typed"), *(given.pop(name) for name in OURS)
        if check(context, namespace, state=given.get(STATE)) is not None:
            raise refused(context, namespace, typed, files)
        command(**given)

    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(name, keyword, default=None, annotation=option)
        for name, option in zip(OURS, (NamedContextOption, NamespaceOption), strict=True)
    ]
    context = inspect.Parameter("typed", keyword, annotation=typer.Context)
    kept = [each.replace(kind=keyword) for each in own.parameters.values()]
    at = next((index for index, each in enumerate(kept) if each.name == STATE), len(kept))
    return in_place_of(command, run, [*kept[:at], *added, *kept[at:], context])


def refused(context: str, namespace: str | None, typed: typer.Context, files: Files) -> InvalidInputError:
    """Returns why a command is not carried out from here, with the one that does it."""
    name = typed.info_name or ""
    words, redirections, sent, faults = [name], list[str](), list[str](), list[Fault]()
    for parameter, option, value in _typed(typed):
        if parameter in files.written:
            redirections += [">", shlex.quote(value)]
            continue
        if parameter in files.refused:
            faults.append(Fault(option, value, f"no such option with --context: {files.refused[parameter]}"))
        found = re.match(files.read[parameter], value) if parameter in files.read else None
        if found is not None:
            file, value = value[found.end() :], found[0] + STANDARD_INPUT
            if sent:
                allowed = f"one file with --context, which goes through standard input: {sent[0]} is the first"
                faults.append(Fault(option, file, allowed))
            if file != STANDARD_INPUT:
                redirections += ["<", shlex.quote(file)]
            sent.append(file)
        words += [option] if option else []
        words += [value] if value != FLAG else []
    exec_ = f"{kubectl(context, namespace)} exec {'-i ' if sent else ''}deploy/tidegate --"
    command = " ".join((exec_, shlex.join(("tidegate", *words)), *redirections))
    there = Fault("--context", context, f"run it in the control process: {command}")
    return InvalidInputError(name, faults or [there])


def _typed(typed: typer.Context) -> Iterator[tuple[str, str, str]]:
    """Yields a command as it was typed, without the options of a cluster: the parameter, its option and a value of it.
    Arguments come first, without an option; a flag has the value FLAG."""
    given = [each for each in typed.command.params if _is_given(typed, each.name or "")]
    for each in sorted(given, key=lambda each: each.param_type_name != "argument"):
        value = typed.params[each.name or ""]
        option = max(each.opts, key=len) if each.param_type_name != "argument" else ""
        for one in value if isinstance(value, list | tuple) else (value,):
            text = FLAG if isinstance(one, bool) else str(one.value if isinstance(one, Enum) else one)
            yield each.name or "", option, text


def _is_given(typed: typer.Context, name: str) -> bool:
    source = typed.get_parameter_source(name)
    return name not in OURS and source is not None and source.name == "COMMANDLINE"


def kubectl(context: str, namespace: str | None) -> str:
    """Returns the beginning of a command of kubectl for this context and namespace."""
    words = ["kubectl", "--context", context, *(() if namespace is None else ("-n", namespace))]
    return shlex.join(words)
