"""Commands of the control process, named with a context: what asks there takes their place.

The control process of a cluster has no address outside of its Pod, and its API needs the token of its state.
"""

import inspect
import shlex
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, Final

import typer

from tidegate.control.cli.cluster.options import NamedContextOption, NamespaceOption, check
from tidegate.control.cli.flags import in_place_of
from tidegate.errors import Fault, InvalidInputError

OURS: Final = ("context", "namespace")
STATE: Final = "state"


def in_control_process(command: Callable[..., None]) -> Callable[..., None]:
    """Adds ``--context`` and ``--namespace`` to a command that the control process alone can carry out. With them it is
    refused, and the command that runs it in the control process's Pod is named."""
    own = inspect.signature(command, eval_str=True)

    def run(**given: Any) -> None:
        typed, context, namespace = given.pop("typed"), *(given.pop(name) for name in OURS)
        if check(context, namespace, state=given.get(STATE)) is not None:
            raise refused(context, namespace, list(words(typed)))
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


def refused(context: str, namespace: str | None, command: list[str]) -> InvalidInputError:
    """Returns why a command is not carried out from here, with the one that does it."""
    # What a command reads of standard input goes through kubectl.
    exec_ = f"{kubectl(context, namespace)} exec {'-i ' if '@-' in command or '-' in command else ''}deploy/tidegate --"
    allowed = f"run it in the control process: {exec_} {shlex.join(('tidegate', *command))}"
    return InvalidInputError(command[0], [Fault("--context", context, allowed)])


def words(typed: typer.Context) -> Iterator[str]:
    """Yields a command as it was typed, without the options of a cluster: its name, arguments, options."""
    yield typed.info_name or ""
    given = [each for each in typed.command.params if _is_given(typed, each.name or "")]
    for each in sorted(given, key=lambda each: each.param_type_name != "argument"):
        value = typed.params[each.name or ""]
        option = max(each.opts, key=len) if each.param_type_name != "argument" else None
        for one in value if isinstance(value, list | tuple) else (value,):
            if option is not None:
                yield option
            if not isinstance(one, bool):
                yield str(one.value if isinstance(one, Enum) else one)


def _is_given(typed: typer.Context, name: str) -> bool:
    source = typed.get_parameter_source(name)
    return name not in OURS and source is not None and source.name == "COMMANDLINE"


def kubectl(context: str, namespace: str | None) -> str:
    """Returns the beginning of a command of kubectl for this context and namespace."""
    words = ["kubectl", "--context", context, *(() if namespace is None else ("-n", namespace))]
    return shlex.join(words)
