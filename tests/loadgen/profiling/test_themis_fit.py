"""The fit for the policy `themis`."""

from dataclasses import replace

import pytest

from tests.loadgen.profiling.test_points import POINT
from tidegate.loadgen.profiling.points import Measured, ProfileLine
from tidegate.loadgen.profiling.themis_fit import themis_fits
from tidegate.records.profile_point import ProfileCell


def test_the_coefficients_of_exact_times_are_found() -> None:
    measured = Measured("a")
    for name, numbers in (("cpu", (1, 2, 4)), ("t4", (0,))):
        for batch in (1, 2, 4):
            for cores in numbers:
                p95_ms = 40.0 * batch / max(1, cores) + 2.0 / max(1, cores) + 8.0 * batch + 0.5
                cell = ProfileCell(accelerator=name, cores=cores, batch=batch)
                measured.add(ProfileLine(source="a", point=replace(POINT, cell=cell, p95_s=p95_ms / 1e3)))
    ((name, text),) = themis_fits(measured)
    assert name == "cpu", "t4 is not bound to cores"
    assert [float(each) for each in text.split(",")] == pytest.approx([40.0, 2.0, 8.0, 0.5], abs=1e-3)
