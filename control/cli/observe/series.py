"""``tidegate series``: time series of a function and its groups over the last minutes or hours."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.control.cli.cluster.elsewhere import in_control_process
from tidegate.control.cli.common import JsonOption, StateOption, connect, console, guarded, print_json, say
from tidegate.control.cli.show import NameArgument

if TYPE_CHECKING:
    from rich.table import Table

    from tidegate.control.views.functions import SeriesView

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 60
MAX_SINCE_S = 14_400.0
"""Retention of every metric (``autoscaler/measure/history.py``), in seconds."""


def series(
    name: NameArgument,
    metric: Annotated[str | None, typer.Option(help="One metric (latency_s, mu_ips, ...); default: all.")] = None,
    group: Annotated[str | None, typer.Option(help="One group, by accelerator; default: all.")] = None,
    since: Annotated[str, typer.Option(help="Time range: 90s, 5m, 4h.")] = "5m",
    step: Annotated[str | None, typer.Option(help="Interval between points; default: 60 points.")] = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> None:
    """Show the recent time series of a function and its groups: load, latency, replicas, rates, weights."""
    since_s, step_s = _times(since, step)
    with connect(state) as tidegate:
        view = tidegate.series(name, metric=metric, group=group, since_s=since_s, step_s=step_s)
    if json:
        print_json(view)
    elif view.lines:
        say(f"last {since}, one point every {view.step_s} s")
        console().print(table(view))
    else:
        what = " ".join(each for each in (group, metric) if each is not None)
        say(f"no data for {name}{what and ': ' + what} in the last {since}")


def register(app: typer.Typer) -> None:
    app.command("series")(guarded(in_control_process(series)))


def table(view: "SeriesView") -> "Table":
    from rich.table import Table

    found = Table(box=None, pad_edge=False)
    for column in ("GROUP", "METRIC", "NOW", "MEAN", "MAX", "UNIT", ""):
        found.add_column(column, no_wrap=True)
    for line in view.lines:
        values = [value for _, value in line.points]
        known = [value for value in values if value is not None]
        now = next(reversed(known), None)
        mean = sum(known) / len(known) if known else None
        figures = (_figure(value) for value in (now, mean, max(known, default=None)))
        found.add_row(line.group or "-", line.metric, *figures, line.unit, bars(values))
    return found


def bars(values: "Sequence[float | None]") -> str:
    """Returns one character per value, from 0 to the largest; a blank if a value is unknown."""
    most = max((value for value in values if value is not None), default=0.0) or 1.0
    return "".join(
        " " if value is None else BARS[min(len(BARS) - 1, int(max(0.0, value) / most * len(BARS)))] for value in values
    )


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _times(since: str, step: str | None) -> tuple[float, float]:
    """Returns (how far back, time between two points), in seconds. Raises InvalidInputError."""
    from tidegate.errors import Fault, InvalidInputError
    from tidegate.schema.units import UnreadableError, duration

    read, faults = dict[str, float](), list[Fault]()
    for option, text in (("--since", since), ("--step", step)):
        try:
            if text is not None:
                read[option] = duration(text, bare="s")
                if not 1.0 <= read[option] <= MAX_SINCE_S:
                    raise UnreadableError(text)
        except UnreadableError:
            faults.append(Fault(option, repr(text), "a duration of 1s to 4h: 90s, 5m"))
    if faults:
        raise InvalidInputError("series", faults)
    return read["--since"], read.get("--step", max(1.0, read["--since"] / WIDTH))
