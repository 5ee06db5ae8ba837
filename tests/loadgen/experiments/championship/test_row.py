"""One row: what is judged, and faults that become results."""

from dataclasses import replace

import pytest

from tidegate.errors import InvalidInputError
from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.bound.clairvoyant import Bound
from tidegate.loadgen.experiments.championship import row
from tidegate.loadgen.experiments.championship.fleets import CHAT, FLEETS, IMAGE
from tidegate.loadgen.experiments.championship.row import STATIC, Cell, Entrant, Failed, Played, bound, play
from tidegate.loadgen.experiments.championship.static import cheapest
from tidegate.loadgen.experiments.championship.traces import Lengths
from tidegate.loadgen.simulator.profiles import Line


def cell(trace: str = "constant", groups: int = 1, learn_s: float = 20.0, judged_s: float = 40.0) -> Cell:
    return Cell(trace=trace, groups=groups, start_up_s=5.0, seed=1, lengths=Lengths(learn_s=learn_s, judged_s=judged_s))


def test_only_the_judged_part_counts() -> None:
    found = play(cell(), Entrant(policy="tide"))
    assert isinstance(found, Played)
    assert found.requests == pytest.approx(40 * 60, rel=0.1)
    assert found.late_share < 0.05
    assert found.cost_dollars == pytest.approx(found.mean_replicas * 40.0 * 0.53 / 3600.0)
    assert found.ready[0][0] == 0.0


def test_equal_cells_give_equal_rows() -> None:
    assert play(cell(), Entrant(policy="kpa")) == play(cell(), Entrant(policy="kpa"))


def test_the_bound_is_below_what_a_policy_pays() -> None:
    found, least = play(cell(groups=3), Entrant(policy="tide")), bound(cell(groups=3))
    assert isinstance(found, Played) and isinstance(least, Bound)
    assert 0.0 < least.bq <= least.b0 < found.cost_dollars


def test_hpa_has_a_metric_that_the_simulator_measures() -> None:
    assert Entrant(policy="hpa").function(IMAGE).scaling.parameters == {"metric": "busy"}


def test_a_policy_that_fails_is_a_row_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Played:
        raise ZeroDivisionError("float division by zero")

    monkeypatch.setattr(row, "_play", broken)
    found = play(cell(), Entrant(policy="kpa"))
    assert isinstance(found, Failed)
    assert found.why.startswith("ZeroDivisionError: float division by zero (test_row.py:")


def test_settings_of_a_policy_are_checked() -> None:
    assert Entrant(policy="tide", settings=("policy.sla-effort=2",)).function(IMAGE).scaling.parameters
    with pytest.raises(InvalidInputError, match="sla-effort"):
        Entrant(policy="tide", settings=("policy.sla-effort=x",)).function(IMAGE)


def test_answers_take_as_long_as_their_tokens() -> None:
    (group,) = FLEETS[1]
    arrival = Arrival(0.0, 1, prompt_tokens=1000, completion_tokens=100)
    assert CHAT.work_s(arrival, group) == pytest.approx(0.15 + 0.1 + 1.2, abs=0.01)
    profile = CHAT.profile(group)
    assert profile.nominal(1) + profile.of_tokens(1000, 100) == pytest.approx(1.45)


def test_a_minimum_run_time_is_paid_and_is_in_the_bound() -> None:
    onset = cell("batches", learn_s=0.0, judged_s=120.0)
    minute = replace(onset, min_run_s=600.0)
    plain, longer = (play(each, Entrant(policy="kpa")) for each in (onset, minute))
    assert isinstance(plain, Played) and isinstance(longer, Played)
    assert longer.cold_starts == plain.cold_starts > 0
    assert longer.cost_dollars > plain.cost_dollars
    low, high = (bound(each) for each in (onset, minute))
    assert isinstance(low, Bound) and isinstance(high, Bound)
    assert low.b0 <= high.b0 <= longer.cost_dollars


def test_the_static_fleet_is_the_smallest_that_keeps_the_sla() -> None:
    found = play(cell(judged_s=600.0), STATIC)
    assert isinstance(found, Played)
    assert found.late_share <= 0.01
    assert found.cold_starts == 0
    assert found.mean_replicas == found.most_replicas == 7


def test_the_static_fleet_of_several_groups_is_of_the_one_that_costs_least() -> None:
    (group,) = FLEETS[1]
    dear, slow = replace(group, name="dear", price_per_hour=9.0), replace(group, name="slow", times=Line(base_s=0.31))
    arrivals = [Arrival(0.02 * count) for count in range(3000)]
    assert cheapest(IMAGE, (dear, group, slow), arrivals, 1) == ("gpu", 5), "evenly spaced, five are just enough"
    assert cheapest(IMAGE, (slow,), arrivals, 1) is None


def test_the_static_fleet_may_keep_its_sla_nowhere() -> None:
    assert cheapest(IMAGE, FLEETS[1], [], 1) is None
