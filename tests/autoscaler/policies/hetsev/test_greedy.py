"""The greedy rule: one type where one suffices, a mix where none does, and one removal at a time."""

import pytest

from tidegate.autoscaler.policies.hetsev.greedy import ScaleOut, room_for, scale_in, scale_out
from tidegate.autoscaler.policies.hetsev.instances import InstanceType


def kind(name: str = "t4", **fields: object) -> InstanceType:
    given: dict[str, object] = {"cost": 1.0, "throughput_ips": 10.0, "latency_s": 0.1, "needs": {name: 1.0}}
    return InstanceType(**{**given, **fields})  # type: ignore[arg-type]


def out(types: list[InstanceType], ips: float, free: dict[str, float], weight: float = 0.01) -> ScaleOut:
    return scale_out(types, ips, 0.4, weight, free, 0.8)


def test_the_worked_example() -> None:
    v100 = kind("v100", cost=0.764, throughput_ips=36.7, launch_s=30.0)
    t4 = kind("t4", cost=0.096, throughput_ips=19.8, launch_s=30.0)
    found = out([v100, t4], 100.0, {"v100": 9.0, "t4": 9.0})
    assert (found.launch, found.is_satisfied) == ((0, 7), True)
    assert found.cost == pytest.approx(0.8736)
    assert out([v100, t4], 100.0, {"v100": 4.0, "t4": 6.0}).launch == (4, 0)
    assert out([v100, t4], 100.0, {"v100": 4.0}).cost == pytest.approx(4 * 0.764 * 1.3)


@pytest.mark.parametrize(("ips", "count"), [(0.0, 0), (0.1, 1), (8.0, 1), (8.0 + 1e-10, 1), (8.1, 2), (16.0, 2)])
def test_a_launch_carries_the_load_at_the_threshold(ips: float, count: int) -> None:
    assert out([kind()], ips, {"t4": 9.0}) == ScaleOut((count,), float(count), True)
    assert out([kind(running=2)], 16.0 + ips, {"t4": 9.0}).launch == (count,)


def test_the_cheapest_by_itself_is_taken_and_among_equal_ones_that_of_more_throughput() -> None:
    free = {"a": 9.0, "b": 9.0}
    assert out([kind("a", cost=3.0), kind("b", cost=2.0)], 16.0, free).launch == (0, 2)
    assert out([kind("a", cost=2.0), kind("b", cost=3.0)], 16.0, free).launch == (2, 0)
    assert out([kind("a", cost=1.0), kind("b", cost=2.0, throughput_ips=20.0)], 16.0, free).launch == (0, 1)
    assert out([kind("b", cost=2.0, throughput_ips=20.0), kind("a", cost=1.0)], 16.0, free).launch == (1, 0)
    assert out([kind("a"), kind("b")], 16.0, free).launch == (2, 0), "the first of equals"
    assert out([kind("a", launch_s=50.0), kind("b", cost=1.4)], 8.0, free).launch == (0, 1), "1.5 with its launch"
    assert out([kind("a", launch_s=50.0), kind("b", cost=1.6)], 8.0, free).launch == (1, 0)


def test_a_mix_takes_the_cheapest_throughput_first_and_no_more_than_fits() -> None:
    types = [kind("a", cost=3.0), kind("b", cost=1.0), kind("c", cost=2.0)]
    free = {"a": 9.0, "b": 2.0, "c": 1.0}
    assert out(types, 96.0, free) == ScaleOut((9, 2, 1), 31.0, True)
    assert out(types, 96.1, free) == ScaleOut((9, 2, 1), 31.0, False)
    assert out(types, 90.0, free).launch == (9, 2, 1)
    assert out(types, 80.0, free).launch == (7, 2, 1)
    assert free == {"a": 9.0, "b": 2.0, "c": 1.0}, "what is free is asked, not taken"
    dense = [kind("a", cost=2.0, throughput_ips=20.0), kind("b", cost=1.0)]
    assert out(dense, 32.0, {"a": 1.0, "b": 1.0}).launch == (1, 1)
    assert out(dense, 25.0, {"a": 1.0, "b": 2.0}).launch == (1, 2)


def test_types_that_share_a_resource_share_its_room() -> None:
    types = [kind("a", needs={"gpu": 0.5, "memory": 4.0}), kind("b", cost=2.0, needs={"gpu": 1.0})]
    assert out(types, 40.0, {"gpu": 3.0, "memory": 13.0}).launch == (3, 1)
    assert out(types, 40.0, {"gpu": 4.5, "memory": 13.0}).launch == (3, 2)


def test_what_cannot_be_launched_is_none() -> None:
    assert out([], 0.0, {}) == ScaleOut((), 0.0, True)
    assert out([], 1.0, {}) == ScaleOut((), 0.0, False)
    assert out([kind()], 1.0, {}) == ScaleOut((0,), 0.0, False)
    slow = [kind(running=2, latency_s=1.0)]
    assert out(slow, 12.0, {"t4": 9.0}) == ScaleOut((0,), 0.0, True)
    assert out(slow, 17.0, {"t4": 9.0}) == ScaleOut((0,), 0.0, False)


@pytest.mark.parametrize("unknown", [{"throughput_ips": None}, {"latency_s": None}, {"throughput_ips": 0.0}])
def test_a_type_without_a_profile_is_not_launched(unknown: dict[str, object]) -> None:
    types, free = [kind("t4", **unknown), kind("v100", cost=9.0)], {"t4": 9.0, "v100": 9.0}
    assert out(types, 8.0, free).launch == (0, 1)
    assert not out(types[:1], 8.0, free).is_satisfied


def removed(
    types: list[InstanceType], ips: float, *, now: float = 1000.0, last: float | None = 0.0, low: int = 1
) -> int | None:
    return scale_in(types, ips, 0.8, now, last, 300.0, low)


@pytest.mark.parametrize(("now", "index"), [(299.0, None), (300.0 - 1e-10, 0), (300.0, 0)])
def test_a_removal_waits_for_the_cool_down(now: float, index: int | None) -> None:
    assert removed([kind(running=3)], 1.0, now=now) == index
    assert removed([kind(running=3)], 1.0, now=now, last=None) == 0


def test_the_minimum_stays() -> None:
    types = [kind(running=2), kind("b", running=1)]
    assert removed(types, 1.0, low=2) == 0
    assert removed(types, 1.0, low=3) is None
    assert removed([kind(running=1)], 0.0, low=0) == 0
    assert removed([kind()], 0.0, low=-1) is None
    assert removed([], 0.0, low=-1) is None


@pytest.mark.parametrize(("ips", "index"), [(16.0, 0), (16.0 + 1e-10, 0), (16.1, None)])
def test_the_others_carry_the_load_below_the_threshold(ips: float, index: int | None) -> None:
    assert removed([kind(running=3)], ips) == index


def test_the_dearest_goes_first_and_among_equal_ones_that_of_less_throughput() -> None:
    assert removed([kind(running=2), kind("b", running=2, cost=2.0)], 1.0) == 1
    assert removed([kind(running=2, cost=2.0), kind("b", running=2)], 1.0) == 0
    assert removed([kind(running=2), kind("b", running=2, throughput_ips=5.0)], 1.0) == 1
    assert removed([kind(running=2, throughput_ips=5.0), kind("b", running=2)], 1.0) == 0
    assert removed([kind(running=2), kind("b", running=2)], 1.0) == 0
    assert removed([kind(running=2), kind("b", cost=2.0)], 1.0) == 0, "none of b runs"
    assert removed([kind(running=2), kind("b", running=1, cost=9.0, throughput_ips=30.0)], 20.0) == 0, "b is needed"
    assert removed([kind(running=2), kind("b", running=1, cost=2.0, throughput_ips=None)], 16.0) == 1


def test_room_is_what_the_scarcest_resource_allows() -> None:
    assert room_for({"memory": 4.0, "cores": 2.0}, {"memory": 13.0, "cores": 4.0}) == 2
    assert room_for({"memory": 4.0}, {}) == 0
    assert room_for({"memory": 4.0}, {"memory": -3.0}) == 0
    assert room_for({"memory": 0.0}, {}) == float("inf")
    assert room_for({"memory": 0.1}, {"memory": 0.1 + 0.2}) == 3, "binary noise takes none"
