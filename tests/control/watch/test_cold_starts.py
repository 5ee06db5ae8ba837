"""One record per start of a replica, complete with the first answer."""

import json
from pathlib import Path

import pytest

from tidegate.control.state.notices import Faults
from tidegate.control.watch import cold_starts as coldstarts
from tidegate.control.watch.cold_starts import ColdStarts
from tidegate.metrics import Exposition
from tidegate.records.gateway_sample import ColdStartSeen
from tidegate.records.replica_state import ColdStartPhases


@pytest.fixture
def faults() -> Faults:
    return Faults()


def journal(path: Path, faults: Faults) -> ColdStarts:
    return ColdStarts(path, faults)


def shown(starts: ColdStarts) -> str:
    exposition = Exposition()
    for _ in starts.expose(exposition, "echo"):
        pass
    return exposition.render().decode()


def start(starts: ColdStarts, replica: str, at: float = 100.0) -> None:
    starts.started(function="echo", revision="echo-00001", replica=replica, accelerator="cpu", at=at, from_zero=True)


def test_phases_come_from_backend_and_gateway(tmp_path: Path, faults: Faults) -> None:
    starts = journal(tmp_path / "c.jsonl", faults)
    start(starts, "r1")
    starts.progressed("r1", ColdStartPhases(decide_s=0.002, schedule_s=0.004))
    starts.progressed("r1", ColdStartPhases(decide_s=0.002, schedule_s=0.004, load_s=0.5))
    assert starts.of("echo")[0].phases.load_s == 0.5
    assert not (tmp_path / "c.jsonl").exists()
    seen = ColdStartPhases(first_response_s=0.01)
    starts.answered(ColdStartSeen(function="echo", revision="echo-00001", replica="r1", phases=seen))
    starts.answered(ColdStartSeen(function="echo", revision="echo-00001", replica="r1", phases=seen))
    (view,) = starts.of("echo")
    assert view.phases == ColdStartPhases(decide_s=0.002, schedule_s=0.004, load_s=0.5, first_response_s=0.01)
    assert view.total_s == pytest.approx(0.516)
    (line,) = (tmp_path / "c.jsonl").read_text().splitlines()
    assert json.loads(line)["phases"]["load_s"] == 0.5
    text = shown(starts)
    assert 'tidegate_cold_start_seconds_count{function="echo",phase="load"} 1\n' in text
    assert 'tidegate_cold_start_seconds_bucket{function="echo",phase="load",le="0.5"} 1\n' in text
    assert 'phase="warm"' not in text
    starts.keep({"other"})
    assert not shown(starts), "the function is deleted"


def test_a_replica_that_never_answered_is_recorded_as_far_as_it_came(tmp_path: Path, faults: Faults) -> None:
    starts = journal(tmp_path / "c.jsonl", faults)
    start(starts, "r1")
    starts.progressed("r1", ColdStartPhases(decide_s=0.001))
    starts.gone("r1")
    starts.gone("r1")
    assert starts.of("echo")[0].phases == ColdStartPhases(decide_s=0.001)
    assert len((tmp_path / "c.jsonl").read_text().splitlines()) == 1


def test_a_start_that_none_waited_for_is_complete_soon_after_it_is_ready(tmp_path: Path, faults: Faults) -> None:
    starts = journal(tmp_path / "c.jsonl", faults)
    start(starts, "r1")
    starts.sweep(100.0)
    starts.progressed("r1", ColdStartPhases(load_s=0.5))
    starts.sweep(101.0)
    starts.sweep(105.0)
    assert not (tmp_path / "c.jsonl").exists()
    starts.sweep(106.0)
    assert len((tmp_path / "c.jsonl").read_text().splitlines()) == 1
    starts.sweep(107.0)
    assert len(starts.of("echo")) == 1


def test_the_file_is_bounded(tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coldstarts, "LINES", 10)
    starts = journal(tmp_path / "c.jsonl", faults)
    for number in range(34):
        start(starts, f"r{number}", at=float(number))
        starts.gone(f"r{number}")
    lines = (tmp_path / "c.jsonl").read_text().splitlines()
    assert len(lines) <= 10
    assert json.loads(lines[-1])["replica"] == "r33"


def test_a_file_that_cannot_be_written_is_a_fault_and_nothing_else(tmp_path: Path, faults: Faults) -> None:
    starts = journal(tmp_path / "missing" / "c.jsonl", faults)
    start(starts, "r1")
    starts.gone("r1")
    assert len(starts.of("echo")) == 1
    assert "No such file" in faults.texts()[0]


def test_what_could_not_be_written_is_written_once_the_disk_is_well(tmp_path: Path, faults: Faults) -> None:
    path = tmp_path / "missing" / "c.jsonl"
    starts = journal(path, faults)
    for replica in ("r1", "r2"):
        start(starts, replica)
        starts.gone(replica)
    starts.sweep(101.0)
    assert len(faults.texts()) == 1
    path.parent.mkdir()
    starts.sweep(102.0)
    assert not faults.texts()
    assert [json.loads(line)["replica"] for line in path.read_text().splitlines()] == ["r1", "r2"]
    starts.sweep(103.0)
    assert len(path.read_text().splitlines()) == 2
