"""The file of results: what counts after an interruption."""

from dataclasses import replace

import pytest

from tidegate.loadgen.profiling.points import Measured, ProfileLine, ProfileStart, measured_in, written
from tidegate.records.profile_point import ProfileCell, ProfilePoint

POINT = ProfilePoint(
    cell=ProfileCell(accelerator="t4", cores=2, batch=4),
    execution_s=0.01,
    p50_s=0.011,
    p95_s=0.012,
    p99_s=0.02,
    slots=2,
    full_execution_s=0.019,
    rate_ips=400.0,
    requests=300,
)
START = ProfileStart(accelerator="t4", schedule_s=0.1, pull_s=0.0, load_s=2.0, warm_s=0.5, memory_bytes=1 << 28)


def test_a_run_goes_on_behind_its_last_whole_line() -> None:
    lines = [
        written(ProfileLine(source="a", point=POINT)),
        written(ProfileLine(source="a", start=START)),
        written(ProfileLine(source="a", left_out="t4, batch 8: out of memory")),
        written(ProfileLine(source="another", point=replace(POINT, cell=replace(POINT.cell, batch=8)))),
        '{"source":"a","point":{"cell":{"accel',
        "",
    ]
    found = measured_in(lines, "a")
    assert found.points == {POINT.cell: POINT}
    assert found.starts == {"t4": START}
    assert not found.left_out, "it is tried again"
    assert START.total_s == pytest.approx(2.6)


@pytest.mark.parametrize(
    "changes",
    [{"execution_s": 0.0}, {"p99_s": float("nan")}, {"rate_ips": float("inf")}, {"slots": 0}, {"requests": 0}],
)
def test_what_no_measurement_has_does_not_count(changes: dict[str, float]) -> None:
    measured = Measured("a")
    measured.add(ProfileLine(source="a", point=replace(POINT, **changes)))  # type: ignore[arg-type]
    assert not measured.points


def test_rows_come_by_accelerator_cores_and_batch() -> None:
    measured = Measured("a")
    cells = [("v100", 1, 1), ("t4", 2, 1), ("t4", 1, 8), ("t4", 1, 2)]
    for name, cores, batch in cells:
        cell = ProfileCell(accelerator=name, cores=cores, batch=batch)
        measured.add(ProfileLine(source="a", point=replace(POINT, cell=cell)))
    assert [(each.cell.accelerator, each.cell.cores, each.cell.batch) for each in measured.rows()] == sorted(cells)
