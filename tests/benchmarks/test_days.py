"""The world of one queue that plays policies over days."""

import json
from dataclasses import replace
from itertools import repeat
from pathlib import Path

import pytest

from benchmarks.days import __main__ as days
from benchmarks.days.play import Row, _Run, least_cost, play, static
from benchmarks.days.rare import RARE
from benchmarks.days.world import ROOM, Group, World
from tidegate.autoscaler.measure.observation import ArrivalCounts
from tidegate.autoscaler.policies import registry
from tidegate.autoscaler.policies.tide import level
from tidegate.errors import InvalidInputError
from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.bound import clairvoyant
from tidegate.loadgen.experiments.championship.fleets import FLEETS, UNITS
from tidegate.loadgen.experiments.championship.row import STATIC, Cell, Entrant, Played
from tidegate.loadgen.experiments.championship.row import play as simulated
from tidegate.loadgen.experiments.championship.traces import DAY_S, LEAGUES, Lengths
from tidegate.loadgen.simulator.profiles import Line

SHORT = Lengths(learn_s=120.0, judged_s=240.0)


def world(*groups: Group) -> World:
    return World(groups, latency_s=0.3, factors=repeat(1.0), judged_from_s=10.0)


def group(name: str = "gpu", per_s: float = 0.2) -> Group:
    return Group(name, 1.0, Line(base_s=0.0, per_item_s=per_s), judged_from_s=10.0)


def row(trace: str, lengths: Lengths = SHORT, groups: int = 1, start_s: float = 30.0) -> Row:
    return Row(league=LEAGUES[trace], lengths=lengths, file=None, groups=groups, start_s=start_s, seed=1)


# --- the world


def test_requests_take_the_replica_that_is_free_first_and_are_late_by_their_whole_time() -> None:
    one = group()
    here = world(one)
    one.start(0.0, 0.0)
    here.arrive([10.0, 10.0, 10.0], 1)
    here.serve(10.5)
    assert (here.judged, here.judged_late, here.waiting) == (3, 2, 0)


def test_a_replica_that_starts_serves_once_it_is_ready() -> None:
    one = group()
    here = world(one)
    one.start(10.0, 30.0)
    here.arrive([11.0], 1)
    here.serve(40.0)
    assert here.waiting == 1
    here.serve(41.0)
    assert here.waiting == 0


def test_the_youngest_that_starts_goes_first_and_what_works_is_paid_until_it_has_ended() -> None:
    one = group()
    here = world(one)
    one.start(0.0, 0.0)
    one.start(12.0, 30.0)
    one.start(14.0, 30.0)
    one.stop(15.0)
    assert sorted(each[2] for each in one.replicas) == [0.0, 12.0]
    assert one.paid_s == pytest.approx(1.0)
    one.stop(16.0)
    assert one.starts == 0
    here.arrive([16.9], 1)
    here.serve(17.0)
    one.stop(17.0)
    # The first 10 s are not judged; its last request ends 0.1 s after the order.
    assert one.paid_s == pytest.approx(1.0 + 4.0 + 7.1)


def test_requests_beyond_the_room_are_refused_and_count_as_late() -> None:
    here = world(group())
    here.arrive([20.0] * (ROOM + 3), 1)
    assert (here.waiting, here.refused, here.judged_late) == (ROOM, 3, 3)


def test_a_policy_sees_refused_requests_as_late_ones() -> None:
    run = _Run(row("constant"), Entrant(policy="tide"), {})
    run._world.arrive([0.5] * (ROOM + 7), 1)
    counts = run._eyes.observe(1.0, {1: ROOM + 7}, 0.5 * ROOM).counts
    assert isinstance(counts, ArrivalCounts)
    assert counts.late == 7.0


def test_groups_take_requests_by_their_weights() -> None:
    slow, quick = group("slow", 0.2), group("quick", 0.05)
    here = world(slow, quick)
    for each in (slow, quick):
        for _ in range(4):
            each.start(0.0, 0.0)
    here.route({"slow": 0.25, "quick": 0.75}, {})
    for at in range(400):
        here.arrive([10.0 + at], 1)
    here.serve(500.0)
    assert (slow.begun, quick.begun) == (100, 300)


def test_a_request_waits_for_a_group_that_serves_its_size() -> None:
    small, large = group("small", 0.01), group("large", 0.01)
    here = world(small, large)
    small.start(0.0, 0.0)
    large.start(0.0, 20.0)
    here.route({"small": 0.5, "large": 0.5}, {"small": (1, 3), "large": (4, None)})
    here.arrive([10.0], 4)
    here.arrive([10.1], 1)
    here.serve(15.0)
    assert (small.begun, large.begun) == (1, 0)
    here.serve(25.0)
    assert (small.begun, large.begun) == (1, 1)


# --- runs


@pytest.mark.parametrize("policy", ["tide", "kpa", "smif", "hpa", "oltunes", "hetsev-greedy"])
def test_it_is_near_the_simulator(policy: str) -> None:
    found = play(row("mmpp"), Entrant(policy=policy))
    played = simulated(Cell(trace="mmpp", groups=1, start_up_s=30.0, seed=1, lengths=SHORT), Entrant(policy=policy))
    assert isinstance(played, Played)
    assert found["requests"] == pytest.approx(played.requests, rel=0.01)
    assert found["mean_replicas"] == pytest.approx(played.mean_replicas, rel=0.07)
    assert found["late_percent"] == pytest.approx(100.0 * played.late_share, abs=3.0)


def test_three_groups_are_near_the_simulator() -> None:
    lengths = Lengths(learn_s=120.0, judged_s=480.0)
    found = play(row("mmpp", lengths, groups=3), Entrant(policy="tide"))
    cell = Cell(trace="mmpp", groups=3, start_up_s=30.0, seed=1, lengths=lengths)
    played = simulated(cell, Entrant(policy="tide"))
    assert isinstance(played, Played)
    assert found["cost_dollars"] == pytest.approx(played.cost_dollars, rel=0.07)
    assert found["late_percent"] == pytest.approx(100.0 * played.late_share, abs=3.0)


def test_every_registered_policy_plays() -> None:
    for name in registry.names():
        try:
            found = play(row("constant", Lengths(learn_s=10.0, judged_s=20.0), groups=3), Entrant(policy=name))
        except InvalidInputError as error:
            assert "needs" in str(error)  # a solver that is not installed
            continue
        assert float(found["requests"]) > 500.0


def test_the_first_request_at_zero_starts_a_replica_at_once() -> None:
    lengths = Lengths(learn_s=390.0, judged_s=40.0)
    league = replace(LEAGUES["on-off"], made=lambda total_s, rng: iter([Arrival(400.4)]))
    found = play(replace(row("on-off", lengths), league=league), Entrant(policy="hpa"))
    # From its start call to the end, not from the end of that second.
    assert float(found["mean_replicas"]) == pytest.approx(29.6 / 40.0, abs=1e-3)
    assert found["requests"] == 0.0  # It is ready at the very end.


def test_a_static_fleet_is_the_smallest_that_keeps_the_sla() -> None:
    found = static(row("mmpp"))
    count = int(str(found["fleet"]).split()[0])
    assert float(found["late_percent"]) <= 1.0
    fewer = play(row("mmpp"), STATIC, {"gpu": count - 1})
    assert float(fewer["late_percent"]) > 1.0


def test_the_bound_is_the_clairvoyants() -> None:
    given = row("constant", Lengths(learn_s=30.0, judged_s=120.0))
    (kind,) = FLEETS[1]
    both = clairvoyant.clairvoyant(
        ((each.at_s - 30.0, 1) for each in given.judged()),
        [
            clairvoyant.Group(
                name="gpu",
                times=kind.times,
                slots=1,
                price_per_hour=kind.price_per_hour,
                start_s=30.0,
                max_replicas=UNITS,
            )
        ],
        latency_s=0.3,
        quantile=0.99,
        duration_s=120.0,
    )
    assert least_cost(given) == pytest.approx(both.b0)


# --- the command


def test_it_prints_a_line_for_each_row(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "days --trace constant,mmpp --policy kpa --static --start-up 5,30 --seeds 1-2 --learn 0.01 --for 0.02 --bound"
    )
    monkeypatch.setattr("sys.argv", words.split())
    days.main()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 2 * 2 * 2 * 2
    assert {(each["trace"], each["policy"]) for each in lines} == {
        (trace, policy) for trace in ("constant", "mmpp") for policy in ("kpa", "static")
    }
    assert all(each["cost_over_b0"] > 0.9 for each in lines)


@pytest.mark.parametrize(
    "words",
    [
        "--trace azure-llm",
        "--trace twitter --data .",
        "--trace mmpp --policy tida",
        "--trace mmpp --groups 2",
        "--trace mmpp --seeds x",
        "--trace mmpp --set level.LONGST_S=1",
    ],
)
def test_what_it_does_not_know_is_refused(words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["days", *words.split()])
    with pytest.raises(SystemExit):
        days.main()


def test_another_constant_is_set_by_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(level, "LONGEST_S", 512)
    days.set_constant("level.LONGEST_S=128")
    assert vars(level)["LONGEST_S"] == 128


@pytest.mark.parametrize("setting", ["level.LONGST_S=1", "levels.LONGEST_S=1", "level.LONGEST_S=long", "LONGEST_S"])
def test_a_constant_that_there_is_not_is_refused(setting: str) -> None:
    with pytest.raises((ImportError, AttributeError, ValueError)):
        days.set_constant(setting)


def test_traces_of_seldom_used_functions_have_their_requests_in_order() -> None:
    single, clumps = (
        [each.at_s for each in RARE[name].arrivals(Lengths(learn_s=0.0, judged_s=DAY_S), None, 1)]
        for name in ("rare-300", "clock-3600")
    )
    assert 200 < len(single) < 380
    assert all(times == sorted(times) for times in (single, clumps))
    assert {each // 3600 for each in clumps} == set(range(24))
    assert max(each % 3600 for each in clumps) <= 1808
