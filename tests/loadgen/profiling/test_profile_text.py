"""The profile file: what is written is what `deploy` and `simulate` read."""

from dataclasses import replace

import pytest

from tests.loadgen.profiling.test_points import POINT, START
from tidegate.loadgen.profile_file import parse
from tidegate.loadgen.profiling.points import Measured, ProfileLine
from tidegate.loadgen.profiling.profile_text import profile_text
from tidegate.records.profile_point import ProfileCell


def grid(part: float = 0.5) -> Measured:
    """Times of a model that takes 10 ms for each inference on one core."""
    measured = Measured("a")
    for batch in (1, 2, 8):
        for cores in (2, 4):
            seconds = 0.01 * batch * ((1 - part) + part / cores)
            cell = ProfileCell(accelerator="t4", cores=cores, batch=batch)
            measured.add(ProfileLine(source="a", point=replace(POINT, cell=cell, execution_s=seconds)))
    measured.add(ProfileLine(source="a", start=START))
    return measured


def test_what_is_written_is_read() -> None:
    measured = grid()
    found = parse(profile_text(measured), source="p.yaml")
    entry = found["t4", ""]
    assert {each.cell: each for each in entry.measured} == measured.points
    assert entry.memory_bytes == 1 << 28
    assert entry.start is not None
    assert entry.start.total_s == pytest.approx(2.6)
    for cores in (1, 2, 4):
        nominal = entry.profile.nominal(8, cores=cores)
        assert nominal == pytest.approx(0.08 * (0.5 + 0.5 / cores), rel=1e-3), "as measured, and on one core"


def test_a_model_that_cores_do_not_speed_up_has_no_parallel_part() -> None:
    assert "parallel" not in profile_text(grid(0.0))


def test_an_accelerator_without_a_point_has_no_entry() -> None:
    measured = grid()
    measured.add(ProfileLine(source="a", start=replace(START, accelerator="v100", memory_bytes=None)))
    assert "v100" not in profile_text(measured)
