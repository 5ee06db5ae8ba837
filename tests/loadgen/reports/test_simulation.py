"""Moments of a simulated run as slots of time, and what is written of them: figures that can be checked by hand."""

import pytest

from tidegate.loadgen.metrics.power import PowerSample
from tidegate.loadgen.reports.simulation import (
    BoundFigures,
    PolicyRun,
    SimulationReport,
    csv_row,
    plots,
    run_of,
    text,
    value,
)
from tidegate.loadgen.reports.timeline import MAX_SLOTS, Timeline, TimelineSlot
from tidegate.loadgen.simulator.counters import Ended
from tidegate.loadgen.simulator.result import FunctionSecond


def ended(arrived_s: float, at_s: float, how: str = "answered") -> Ended:
    return (0, "f-1", arrived_s, 1, None, 0, 0), arrived_s, at_s, "t4", "r", how


def second(at_s: float, ready: int = 1, waiting: int = 0) -> FunctionSecond:
    return FunctionSecond(
        at_s=at_s, function="f", wanted=ready + 1, ready=ready, starting=1, draining=0, waiting=waiting
    )


def timeline(seconds: int) -> Timeline:
    """Each second one request in time and one late, a unit at work for half of it."""
    made = Timeline(0.3)
    for at in range(seconds):
        made.requests([ended(at, at + 0.1), ended(at, at + 0.9)])
        made.busy([("t4", 0, at, at + 0.5)])
        made.second(second(at + 1.0, ready=1 + at % 2, waiting=at))
    made.finish()
    return made


def test_a_second_is_reported_when_it_is_over() -> None:
    rows: list[str] = []
    made = Timeline(0.3, lambda slot: rows.append(csv_row("kpa", slot)))
    made.requests([ended(0.0, 0.1), ended(0.0, 0.4), ended(0.0, 0.2, "failed")])
    made.busy([("t4", 0, 0.0, 0.25), ("t4", 1, 0.0, 0.5)])
    made.power(PowerSample(1.0, 120.0, {}))
    made.second(second(1.0, ready=2, waiting=3))
    made.second(second(2.0, ready=2))
    assert rows == [
        "kpa,0,3,2,1,0,3,3,2,2,100.096,400.000,0.75,120",
        "kpa,1,3,2,1,0,0,0,0,0,,,0,",
    ]


def test_slots_become_wider_and_lose_nothing() -> None:
    made = timeline(3 * MAX_SLOTS)
    assert made.slot_s == 4
    assert len(made.slots) <= MAX_SLOTS
    assert sum(slot.ended for slot in made.slots) == 6 * MAX_SLOTS
    assert sum(slot.broken for slot in made.slots) == 3 * MAX_SLOTS
    assert [slot.at_s for slot in made.slots[:3]] == [0.0, 4.0, 8.0]
    assert {slot.seconds for slot in made.slots} == {4}
    assert made.slots[-1].waiting == 3 * MAX_SLOTS - 1
    assert made.most_ready == 2


def test_what_ends_behind_the_last_whole_second_counts() -> None:
    made = timeline(2)
    made.requests([ended(2.0, 2.1)])
    made.finish()
    assert [slot.ended for slot in made.slots] == [2, 3]


def test_plots_show_means_shares_and_the_sla() -> None:
    found = {plot.title: plot for plot in plots(timeline(10), latency_s=0.3, has_power=False)}
    assert list(found) == [
        *("Replicas", "Waiting", "Latency, by when requests ended", "SLA violations per 5 s", "Utilisation"),
    ]
    assert found["SLA violations per 5 s"].series[0].points == ((0.0, 50.0), (5.0, 50.0))
    assert found["Utilisation"].series[1].points[0] == (0.0, 0.5)
    assert found["Latency, by when requests ended"].series[2].points == ((0.0, 300.0), (10.0, 300.0))
    without = plots(timeline(10), latency_s=None, has_power=False)
    assert "SLA violations per 5 s" not in {plot.title for plot in without}


def made_report(*runs: PolicyRun, bound: BoundFigures | None) -> SimulationReport:
    return SimulationReport(
        function="f",
        load="open loop",
        seed=1,
        latency_s=0.3,
        percentile=98.0,
        functions=(),
        is_partial=False,
        bound=bound,
        notes=("a note",),
        policies=runs,
    )


def test_cost_is_reported_as_a_multiple_of_the_bound() -> None:
    bound = BoundFigures(b0_dollars=0.5, bq_dollars=0.4)
    runs = [
        run_of(
            name,
            {"duration_s": 10.0, "replica_seconds": 25.0, "cost_dollars": cost},
            2,
            bound,
            is_partial=False,
        )
        for name, cost in (("kpa", 1.0), ("smif", 0.6))
    ]
    lines = text(made_report(*runs, bound=bound)).splitlines()
    cells = {line.split("  ")[0]: line.split()[-2:] for line in lines if line}
    assert cells["cost over B0"] == ["2.00", "1.20"]
    assert cells["cost over Bq"] == ["2.50", "1.50"]
    assert cells["replicas, mean"] == ["2.5", "2.5"]
    assert "note      a note" in lines
    assert len({len(line) for line in lines[lines.index("") + 1 :]}) == 1


def test_without_a_bound_nothing_is_reported_of_one() -> None:
    run = run_of("kpa", {"cost_dollars": 1.0}, 2, None, is_partial=True)
    printed = text(made_report(run, bound=None))
    assert "B0" not in printed
    assert "kpa (partial)" in printed


@pytest.mark.parametrize(
    ("name", "figure", "shown"),
    [
        ("cost_dollars", 0.44444, "$0.4444"),
        ("violations_share", 0.0382, "3.82 %"),
        ("utilisation_percent.t4", 71.44, "71.4 %"),
        ("energy_joules", 7200.0, "2 Wh"),
        ("p99_s", 0.0123, "12.3 ms"),
        ("p99_s", 1.2, "1200 ms"),
        ("p99_s", 75.0, "75.0 s"),
        ("requests", 40069.0, "40069"),
        ("requests", None, "-"),
        ("inferences_per_dollar", 242412.7, "242413"),
        ("mean_replicas", 1.8691, "1.869"),
    ],
)
def test_a_figure_is_shown_in_the_unit_of_its_name(name: str, figure: float | None, shown: str) -> None:
    assert value(name, figure) == shown


def test_a_slot_without_answers_has_no_latency() -> None:
    assert csv_row("kpa", TimelineSlot(5.0)) == "kpa,5,0,0,0,0,0,0,0,0,,,0,"
