"""Command-line flags made from a table, one option per row, so that there is no second list of them."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import typer


@dataclass(frozen=True, slots=True)
class Flag:
    """``key`` is the key of ``given``, ``name`` the option without its dashes."""

    key: str
    name: str
    help: str
    panel: str | None = None


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
        run.__signature__ = own.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]  # read by inspect
        run.__annotations__ = {each.name: each.annotation for each in (*kept, *added)}
        run.__doc__ = command.__doc__
        run.__name__ = command.__name__
        return run

    return decorate


def _parameter(name: str) -> str:
    return "flag_" + name.replace("-", "_").replace(".", "_")
