"""What the laboratory makes of looks and figures, without a deployment."""

import json
from itertools import pairwise
from typing import Any

import pytest

from benchmarks.autoscaling.lab import Kind
from benchmarks.autoscaling.timeline import Look, Run
from benchmarks.laboratory import agree
from benchmarks.laboratory.agree import CASES, Case, first_tick_s
from benchmarks.laboratory.rows import Row, by_second, equal_share, start_s, table
from benchmarks.laboratory.setup import Setup
from benchmarks.laboratory.twin import Machine, Twin, shots
from tidegate.function import ConcurrencyUnit
from tidegate.loadgen.clients.outcomes import RequestOutcome
from tidegate.loadgen.experiments.setups.worlds import latencies


def row(**values: Any) -> Row:
    return Row(experiment="e", case="c", measure="m", **values)


@pytest.mark.parametrize(
    ("values", "holds"),
    [
        ({"live": 6.0}, None),
        ({"live": 6.0, "least": 5.0, "most": 8.0}, True),
        ({"live": 9.0, "least": 5.0, "most": 8.0}, False),
        ({"live": 4.0, "least": 5.0}, False),
        ({"live": None, "least": 5.0}, False),
        ({"live": 1.14, "simulated": 1.0, "apart": 0.15}, True),
        ({"live": 0.84, "simulated": 1.0, "apart": 0.15}, False),
        ({"live": 1.0, "simulated": 0.0, "apart": 0.15}, False),
        ({"live": 1.0, "simulated": None, "apart": 0.15}, False),
    ],
)
def test_a_row_holds_inside_its_bounds_and_near_what_was_simulated(values: dict[str, Any], holds: bool | None) -> None:
    assert row(**values).holds is holds


def test_a_miss_counts_unless_the_run_was_too_short_for_it() -> None:
    missed = row(live=4.0, least=5.0)
    assert missed.is_missed
    assert not row(live=4.0, least=5.0, is_judged=False).is_missed
    assert row(live=4.0, least=5.0, is_judged=False).record()["judged"] is False


def test_a_record_has_what_is_known_with_four_digits() -> None:
    record = row(live=1.23456, simulated=1.2, apart=0.15, note="n").record()
    assert record["live"] == 1.235
    assert record["difference"] == 0.0288
    assert record["required"] == "within 15 % of simulated"
    assert "simulated" not in row(live=1.0).record()


def test_the_table_has_a_line_for_each_row() -> None:
    lines = table([row(live=1.0, least=2.0), row(simulated=3.0)]).splitlines()
    assert len(lines) == 3
    assert "MISSED" in lines[1]
    assert "3" in lines[2]


def test_counts_by_second_are_those_at_its_end() -> None:
    looks = [(0.1, 1), (0.9, 2), (2.5, 3), (3.0, 4)]
    assert by_second(looks, 4) == [2, 2, 4, 4]
    assert by_second([], 2) == [0, 0]


@pytest.mark.parametrize(
    ("live", "share"),
    [
        ([1, 1, 2, 2, 4, 4], 1.0),  # Equal.
        ([1, 2, 2, 4, 4, 4], 1.0),  # Each change a second sooner.
        ([1, 1, 1, 2, 2, 4], 1.0),  # A second later.
        ([2, 2, 2, 4, 4, 4], 5 / 6),  # Two seconds sooner, at first.
        ([1, 1, 3, 3, 4, 4], 4 / 6),  # Never three.
    ],
)
def test_replicas_may_come_and_go_a_second_sooner_or_later(live: list[int], share: float) -> None:
    assert equal_share(live, [1, 1, 2, 2, 4, 4]) == pytest.approx(share)


def test_each_replica_counts_once_for_the_time_of_a_start() -> None:
    assert start_s([{"a": 1.0}, {"a": 1.0, "b": 3.0}, {"a": 1.0, "b": 3.0, "c": 2.0}]) == 2.0
    assert start_s([{}]) is None


def test_the_round_of_the_control_process_is_read_from_its_recording() -> None:
    """Unix times; the load began at 100.25, an activation is decided upon in between."""
    steps = [{"function": {}}, *({"observation": {"at": at}, "activation": None} for at in (98.9, 99.9, 100.9, 101.9))]
    steps.insert(3, {"observation": {"at": 100.4}, "activation": {"revision": "f-00001"}})
    recorded = "\n".join(map(json.dumps, steps)).encode()
    assert first_tick_s(recorded, 100.25) == pytest.approx(0.65)
    assert first_tick_s(recorded, 99.9 + 1e-6) == pytest.approx(1.0, abs=1e-3)
    assert first_tick_s(b"", 100.0) == 1.0


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_arrivals_of_a_case_are_even_and_as_many_as_its_rates_say(case: Case) -> None:
    arrivals = case.arrivals()
    assert len(arrivals) == pytest.approx(sum(seconds * rate for seconds, rate in case.rates), abs=len(case.rates))
    assert all(before.at_s < after.at_s for before, after in pairwise(arrivals))
    assert {each.inferences for each in arrivals} == set(case.batches)
    assert [at_s for at_s, _ in shots(arrivals)] == [each.at_s for each in arrivals]


def test_the_simulated_twin_is_the_function_that_is_deployed() -> None:
    twin = Twin(name="f", kinds=(Kind(name="t4", base_s=0.1),), annotations={"policy": "kpa", "max-scale": 3}, ready=2)
    function = twin.function()
    assert (function.scaling.max_scale, function.scaling.initial_scale, function.accelerators) == (3, 2, ("t4",))
    assert function.concurrency_unit is ConcurrencyUnit.REQUESTS


def test_a_twin_agrees_with_itself() -> None:
    """The rows of a case, with a simulated run on both sides: nothing is apart, and a slower one is reported."""
    case = Case("self", agree.KPA, 0, ((10.0, 12.0),))
    twin = Twin(name="f", kinds=(agree.T4,), annotations=case.annotations)
    arrivals, machine = case.arrivals(), Machine(hop_s=0.002, start_s=1.0)
    simulated = twin.simulated(machine, case.seconds, arrivals=arrivals)
    assert max(each.ready for each in simulated.seconds) == 4
    found = {each.measure: each for each in _rows(case, simulated, machine, 1.0)}
    assert found["median_latency_s"].difference == pytest.approx(0.0, abs=0.02)
    assert found["seconds_with_equal_replicas"].live == 1.0
    assert not any(each.is_missed for each in found.values())
    slower = {each.measure: each for each in _rows(case, simulated, machine, 1.2)}
    assert slower["median_latency_s"].is_missed


def _rows(case: Case, simulated: Any, machine: Machine, slower: float) -> list[Row]:
    live = Run(seconds=case.seconds)
    for second in simulated.seconds:
        ready = {"t4": second.ready}
        live.looks.append(
            Look(at_s=second.at_s, ready=ready, present=ready, desired=None, weights={}, price_per_hour=0.0, waiting=0)
        )
    live.outcomes += [RequestOutcome(0.0, slower * each, 1, 200) for each in latencies(simulated)]
    rows = agree.rows(Setup(smoke=False, seed=1), case, live, simulated, machine)
    return [each for each in rows if isinstance(each, Row)]
