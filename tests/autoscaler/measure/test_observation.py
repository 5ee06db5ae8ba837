"""Figures that an observation derives from its fields."""

import pytest

from tests.support.worlds.autoscaling import group


def test_a_request_alone_takes_a_part_of_what_it_takes_in_company() -> None:
    assert group("t4", ready=2, min_execution_s=0.3, concurrency=4.0, busy=2.0).unloaded_s == 0.15
    assert group("t4", ready=2, min_execution_s=0.3, concurrency=2.1, busy=2.0).unloaded_s == 0.3, (
        "next to none is none"
    )
    assert group("t4", ready=2, min_execution_s=0.3).unloaded_s == 0.3, "nothing is in the replicas now"
    measured = group("t4", ready=2, min_execution_s=0.3, min_execution_occupancy=3.0, concurrency=2.1, busy=2.0)
    assert measured.unloaded_s == pytest.approx(0.1), "it was measured beside others, however few there are now"
    assert group("t4", ready=2, concurrency=6.0, busy=2.0).unloaded_s is None
