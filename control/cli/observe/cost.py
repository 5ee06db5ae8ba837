"""``tidegate cost``: device time and its price, by function, tenant or accelerator."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidegate.control.cli.cluster.elsewhere import in_control_process
from tidegate.control.cli.common import JsonOption, StateOption, connect, console, guarded, print_json, say
from tidegate.control.cli.show import complete_function
from tidegate.records.costs import GroupBy

if TYPE_CHECKING:
    from rich.table import Table

    from tidegate.control.views.costs import CostRowView, CostView

DAY_S: Final = 24 * 3600.0
MAX_SINCE_S: Final = 31 * DAY_S


def cost(
    function: Annotated[
        str | None, typer.Argument(help="One function; default: all.", autocompletion=complete_function)
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="One tenant, by its name in the report; default: all.")] = None,
    since: Annotated[str, typer.Option(help="Time range: 30m, 1h, 7d.")] = "1h",
    by: Annotated[
        GroupBy | None, typer.Option(help="Rows; default: function, or tenant with a function given.")
    ] = None,
    spread: Annotated[
        bool, typer.Option("--spread", help="Divide idle time and starts among the tenants, as busy time is.")
    ] = False,
    state: StateOption = None,
    json: JsonOption = False,
) -> None:
    """Show what device time cost: busy, idle and starting, per 1,000 requests and per million tokens."""
    since_s = time_range_s(since)
    group = by or (GroupBy.FUNCTION if function is None else GroupBy.TENANT)
    with connect(state) as tidegate:
        view = tidegate.cost(function, tenant=tenant, since_s=since_s, by=group, spread=spread)
    if json:
        print_json(view)
    elif view.rows:
        console().print(table(view))
        if not view.total.cost:
            say("no accelerator has a price: set price-per-hour in the accelerators' file")
    else:
        of = "" if tenant is None else f" of tenant {tenant}"
        say(f"no device time{of} in the last {since}")


def register(app: typer.Typer) -> None:
    app.command("cost")(guarded(in_control_process(cost)))


def table(view: "CostView") -> "Table":
    from rich.table import Table

    found = Table(box=None, pad_edge=False)
    found.add_column(view.by.value.upper(), no_wrap=True)
    for column in ("DEVICE-S", "BUSY", "IDLE", "STARTING", "COST", "REQUESTS", "/1K REQ", "TOKENS", "/1M TOK"):
        found.add_column(column, no_wrap=True, justify="right")
    for row in (*view.rows, view.total):
        found.add_row(*_cells(row))
    return found


def _cells(row: "CostRowView") -> tuple[str, ...]:
    times = (row.device_s, row.busy_s, row.idle_s, row.starting_s)
    return (
        row.name,
        *(f"{each:,.1f}" for each in times),
        _price(row.cost),
        f"{row.requests:,}",
        _price(row.cost_per_1k_requests),
        f"{row.tokens:,}",
        _price(row.cost_per_million_tokens),
    )


def _price(price: float | None) -> str:
    return "-" if price is None else f"{price:,.2f}" if price >= 100.0 else f"{price:.4g}"


def time_range_s(text: str) -> float:
    """Returns a number of seconds. Raises InvalidInputError."""
    from tidegate.errors import Fault, InvalidInputError
    from tidegate.schema.units import UnreadableError, duration, number

    days = text.removesuffix("d")
    try:
        seconds = number(days) * DAY_S if days != text else duration(text, bare="s")
        if 1.0 <= seconds <= MAX_SINCE_S:
            return seconds
    except UnreadableError:
        pass
    raise InvalidInputError("cost", [Fault("--since", repr(text), "a duration of 1s to 31d: 30m, 1h, 7d")])
