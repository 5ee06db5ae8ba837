"""State kept from one tick to the next to save time changes no decision."""

import pytest

from tests.autoscaler.ticks import Ticks, lines


@pytest.mark.parametrize("seed", range(5))
def test_a_fleet_that_is_reported_anew_is_decided_upon_like_the_very_same_one(seed: int) -> None:
    assert list(lines(seed, 60)) == list(lines(seed, 60, is_copied=True))


def test_the_world_of_these_tests_has_what_can_happen() -> None:
    world, codes, are_same = Ticks(0), set[str](), 0
    for _ in range(120):
        before = [each.seen for each in world.functions]
        for _, decision in world.second():
            codes |= {reason.code for reason in decision.reasons}
        are_same += sum(each.seen is seen for each, seen in zip(world.functions, before, strict=True))
    assert codes >= {"load", "panic", "sla_load", "utilization", "capped_by_capacity", "hold_no_data", "activation"}
    assert set(world.collector.faults) >= {"garbage", "repeated"}
    assert are_same > 400, "fleets mostly stay as they are"
