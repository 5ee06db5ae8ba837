"""The world of one queue that plays policy tide over days."""

from itertools import repeat
from pathlib import Path

import pytest

from benchmarks.micro import tide_days
from benchmarks.micro.tide_days import Fleet, play
from tidegate.autoscaler.policies.tide import level
from tidegate.loadgen.experiments.championship.row import Cell, Entrant, Played
from tidegate.loadgen.experiments.championship.row import play as simulated
from tidegate.loadgen.experiments.championship.traces import LEAGUES, Lengths


def fleet() -> Fleet:
    return Fleet(latency_s=0.3, services=repeat(0.2), judged_from_s=10.0)


def test_requests_take_the_replica_that_is_free_first_and_are_late_by_their_whole_time() -> None:
    world = fleet()
    world.start(0.0, 0.0)
    world.line.extend([10.0, 10.0, 10.0])
    world.serve(10.5)
    assert (world.judged, world.judged_late, len(world.line)) == (3, 2, 0)


def test_a_replica_that_starts_serves_once_it_is_ready() -> None:
    world = fleet()
    world.start(10.0, 30.0)
    world.line.append(11.0)
    world.serve(40.0)
    assert list(world.line) == [11.0]
    world.serve(41.0)
    assert not world.line


def test_the_youngest_that_starts_goes_first_and_what_works_is_paid_until_it_has_ended() -> None:
    world = fleet()
    world.start(0.0, 0.0)
    world.start(12.0, 30.0)
    world.start(14.0, 30.0)
    world.stop(15.0)
    assert sorted(each[2] for each in world.replicas) == [0.0, 12.0]
    assert world.paid_s == pytest.approx(1.0)
    world.stop(16.0)
    world.line.append(16.9)
    world.serve(17.0)
    world.stop(17.0)
    # The first 10 s are not judged; its last request ends 0.1 s after the order.
    assert world.paid_s == pytest.approx(1.0 + 4.0 + 7.1)


def test_it_is_near_the_simulator() -> None:
    lengths = Lengths(learn_s=120.0, judged_s=240.0)
    found = play(LEAGUES["mmpp"], lengths, None, 30.0, 1)
    row = simulated(Cell(trace="mmpp", groups=1, start_up_s=30.0, seed=1, lengths=lengths), Entrant(policy="tide"))
    assert isinstance(row, Played)
    assert found["requests"] == pytest.approx(row.requests, rel=0.01)
    assert found["mean_replicas"] == pytest.approx(row.mean_replicas, rel=0.05)
    assert found["late_percent"] == pytest.approx(100.0 * row.late_share, abs=3.0)


def test_another_constant_is_set_by_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(level, "LONGEST_S", 512)
    tide_days.set_constant("level.LONGEST_S=128")
    assert vars(level)["LONGEST_S"] == 128


@pytest.mark.parametrize("setting", ["level.LONGST_S=1", "levels.LONGEST_S=1", "level.LONGEST_S=long", "LONGEST_S"])
def test_a_constant_that_there_is_not_is_refused(setting: str) -> None:
    with pytest.raises((ImportError, AttributeError, ValueError)):
        tide_days.set_constant(setting)


def test_a_trace_without_its_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.argv", ["tide_days", "--trace", "twitter", "--data", str(tmp_path)])
    with pytest.raises(SystemExit):
        tide_days.main()
