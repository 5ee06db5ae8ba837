"""The console's figures beside the load client's."""

from typing import Any

import pytest

from tests.control.api.test_summary import GROUP
from tidegate.control.cli.demo.records import Look, Records
from tidegate.control.cli.demo.run import groups_at_most, shown_beside_client
from tidegate.control.cli.demo.shown import Pair, compare
from tidegate.control.views.functions import TrafficView
from tidegate.loadgen.clients.outcomes import RequestOutcome

LOAD_S = 40.0


def look(at_s: float, ready: int, rate: float, **counts: Any) -> Look:
    traffic = TrafficView(window_s=60.0, requests_per_s=rate, p50_s=0.02, tail_s=0.3, **counts)
    return Look(
        at_s=at_s, ready=ready, starting=0, leaving=0, desired=ready, waiting=0, traffic=traffic, groups=(GROUP,)
    )


def records(*looks: Look) -> Records:
    """Ten requests a second for 20 s, then 20; every tenth takes 0.3 s, against a target of 0.2 s."""
    times = [0.1 * number for number in range(200)] + [20.0 + 0.05 * number for number in range(400)]
    outcomes = [RequestOutcome(at_s, 0.3 if number % 10 == 0 else 0.02, 1, 200) for number, at_s in enumerate(times)]
    return Records(latency_s=0.2, percentile=98.0, outcomes=outcomes, looks=list(looks))


def test_each_number_of_replicas_has_its_means_in_the_order_of_the_story() -> None:
    found = compare(
        records(
            look(-1.0, 0, 99.0),
            look(3.0, 0, 99.0),
            look(10.0, 1, 10.0),
            look(15.0, 1, 10.4),
            look(30.0, 2, 20.0, answered=200, within_sla=180),
            look(50.0, 0, 99.0),
        ),
        LOAD_S,
    )
    assert [(each.ready, each.looks) for each in found] == [(1, 2), (2, 1)]
    one, two = found
    assert (one.requests_per_s.client, one.requests_per_s.console) == pytest.approx((10.0, 10.2))
    assert one.requests_per_s.difference == pytest.approx(0.02)
    assert two.requests_per_s.client == pytest.approx(20.0)
    assert (two.p50_s.client, two.tail_s.client) == (0.02, 0.3)
    assert two.within_sla.client == pytest.approx(0.9, abs=0.01) and two.within_sla.console == 0.9
    assert one.within_sla.console is None


def test_a_figure_without_a_client_has_no_difference() -> None:
    assert Pair(client=None, console=1.0).difference is None
    assert Pair(client=0.0, console=1.0).difference is None
    assert Pair(client=4.0, console=None).difference is None


def test_the_tables_name_both_figures_and_the_groups_at_the_peak() -> None:
    seen = records(look(10.0, 1, 10.0), look(12.0, 0, 10.0))
    table = shown_beside_client(compare(seen, LOAD_S), "p98")
    assert table.rows[0][:4] == ("1", "1", "10.0 / 10.0 (+0.0 %)", "20 ms / 20 ms")
    assert groups_at_most(seen).rows[0][0] == GROUP.accelerator
    assert groups_at_most(records()).rows == ()
