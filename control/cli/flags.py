"""Command-line flags made from a table, one option per row, so that there is no second list of them."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand


class GroupedCommand(TyperCommand):
    """A command whose help lists its options in groups: first those without one, then each ``rich_help_panel``."""

    groups: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """Further groups: names of parameters by title."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        titles = {name: title for title, names in self.groups.items() for name in names}
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            panel = titles.get(parameter.name or "") or getattr(parameter, "rich_help_panel", None)
            title = "Arguments" if parameter.param_type_name == "argument" else panel or "Options"
            if record is not None:
                sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def grouped(groups: Mapping[str, tuple[str, ...]]) -> type[GroupedCommand]:
    """Returns a command class with these groups: names of parameters by title."""
    return type("_Grouped", (GroupedCommand,), {"groups": groups})


@dataclass(frozen=True, slots=True)
class Flag:
    """``key`` is the key of ``given``, ``name`` the option without its dashes."""

    key: str
    name: str
    help: str
    panel: str | None = None


def in_place_of(
    command: Callable[..., None], run: Callable[..., None], parameters: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """Gives ``run`` the name and the help of a command, and these parameters, which Typer reads."""
    signature = inspect.signature(command, eval_str=True).replace(parameters=parameters)
    run.__signature__ = signature  # type: ignore[attr-defined]  # read by inspect
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__doc__, run.__name__ = command.__doc__, command.__name__
    return run


def with_flags(rows: Iterable[Flag]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds one text option per row to a command. Options that were given arrive as its ``given: dict[str, str]``."""
    flags = tuple(rows)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        added = [
            inspect.Parameter(
                _parameter(flag.name),
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[
                    str | None, typer.Option(f"--{flag.name}", help=flag.help, rich_help_panel=flag.panel)
                ],
            )
            for flag in flags
        ]

        def run(**arguments: Any) -> None:
            texts = {flag.key: arguments.pop(_parameter(flag.name)) for flag in flags}
            command(**arguments, given={key: text for key, text in texts.items() if text is not None})

        kept = [parameter for parameter in own.parameters.values() if parameter.name != "given"]
        return in_place_of(command, run, [*kept, *added])

    return decorate


def _parameter(name: str) -> str:
    return "flag_" + name.replace("-", "_").replace(".", "_")
