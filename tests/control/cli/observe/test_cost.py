"""``tidegate cost``: rows, total and bad options."""

import pytest

from tests.control.cli.test_commands import tidegate
from tidegate.control.cli.observe.cost import table, time_range_s
from tidegate.control.costs.ledger import DeviceTime
from tidegate.control.costs.report import CostAmounts
from tidegate.control.views.costs import CostView, cost_row
from tidegate.records.costs import GroupBy


def test_rows_and_their_total_are_shown_with_what_a_request_cost() -> None:
    acme = CostAmounts(DeviceTime(busy_s=1234.56, busy_cost=0.25, requests=2000), tokens=500)
    idle = CostAmounts(DeviceTime(idle_s=10.0, idle_cost=125.0))
    rows = (cost_row("acme", acme), cost_row("(idle)", idle))
    view = CostView(
        by=GroupBy.TENANT, function="f", tenant=None, spread=False, since=0, until=1, rows=rows, total=rows[0]
    )
    found = table(view)
    assert [column.header for column in found.columns][:2] == ["TENANT", "DEVICE-S"]
    cells = [list(column.cells) for column in found.columns]
    first, second, last = ([column[number] for column in cells] for number in range(3))
    assert first == ["acme", "1,234.6", "1,234.6", "0.0", "0.0", "0.25", "2,000", "0.125", "500", "500.00"]
    assert second == ["(idle)", "10.0", "0.0", "10.0", "0.0", "125.00", "0", "-", "0", "-"]
    assert last == first


@pytest.mark.parametrize(("text", "seconds"), [("7d", 604_800.0), ("31d", 2_678_400.0), ("1h", 3600.0), ("90", 90.0)])
def test_a_time_range_may_be_in_days(text: str, seconds: float) -> None:
    assert time_range_s(text) == seconds


@pytest.mark.parametrize("text", ["soon", "0", "32d", "d", "-1d", "0d"])
def test_a_bad_time_range_is_reported_before_anything_is_asked(text: str) -> None:
    result = tidegate("cost", "--since", text)
    assert result.exit_code == 2
    assert f"--since: got '{text}'; allowed: a duration of 1s to 31d" in result.stderr


def test_rows_that_there_are_not_are_refused() -> None:
    result = tidegate("cost", "--by", "day")
    assert result.exit_code == 2
    assert "accelerator" in result.stderr
