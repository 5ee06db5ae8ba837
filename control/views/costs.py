"""Views of device time and its price."""

from dataclasses import dataclass

from tidegate.control.costs.report import CostAmounts, CostReport
from tidegate.records.costs import GroupBy


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRowView:
    """Device time and its price. Prices are in the currency of the accelerators' prices."""

    name: str
    """Function, tenant or accelerator. Among tenants also ``(none)``: requests without a tenant; ``(other)``: tenants
    beyond those that are counted by themselves; ``(idle)`` and ``(starting)``: time that no request used."""
    device_s: float
    """Device seconds: a replica with half a device counts half of its time."""
    busy_s: float
    idle_s: float
    starting_s: float
    cost: float
    busy_cost: float
    idle_cost: float
    starting_cost: float
    requests: int
    inferences: int
    tokens: int
    cost_per_1k_requests: float | None
    """None without requests."""
    cost_per_million_tokens: float | None
    """None without tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostView:
    """The cost of some time, dearest row first; the rows add up to the total."""

    by: GroupBy
    function: str | None
    """The one function that is shown; None for all."""
    tenant: str | None
    spread: bool
    """Whether idle time and starts are divided among the tenants."""
    since: float
    """Start of what is counted, in Unix seconds: that of a stored bucket, at most one bucket before the wanted time."""
    until: float
    rows: tuple[CostRowView, ...]
    total: CostRowView


def cost_rows(report: CostReport) -> tuple[CostRowView, ...]:
    """Returns the rows of a report."""
    return tuple(cost_row(name, amounts) for name, amounts in report.rows.items())


def cost_row(name: str, amounts: CostAmounts) -> CostRowView:
    """Returns one row."""
    time = amounts.time
    return CostRowView(
        name=name,
        device_s=time.total_s,
        busy_s=time.busy_s,
        idle_s=time.idle_s,
        starting_s=time.starting_s,
        cost=time.total_cost,
        busy_cost=time.busy_cost,
        idle_cost=time.idle_cost,
        starting_cost=time.starting_cost,
        requests=time.requests,
        inferences=time.inferences,
        tokens=amounts.tokens,
        cost_per_1k_requests=amounts.per_1k_requests,
        cost_per_million_tokens=amounts.per_million_tokens,
    )
