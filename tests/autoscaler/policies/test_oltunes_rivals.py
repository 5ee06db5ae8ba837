"""The policies ``orion`` and ``reserve-and-pack``: which kinds they choose. How many replicas: as ``oltunes``."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.support.worlds.autoscaling import T0, function, group, observation
from tidegate.autoscaler.measure.observation import GroupObservation, Observation
from tidegate.autoscaler.policies import registry
from tidegate.autoscaler.policies.contract import Policy, Recommendation
from tidegate.function import GpuNeeds, Scaling, Sla, TaskClass


def policy(name: str, parameters: Mapping[str, str] | None = None) -> Policy:
    of = function("f", scaling=Scaling(policy=name, parameters=parameters or {}), sla=Sla(latency_s=1.0))
    return registry.build(of, T0, 1)


def seen(ips: float, *groups: GroupObservation, **values: Any) -> Observation:
    return observation(*groups, at=T0, lambda_ips=ips, rps=ips, concurrency=1.0, **values)


def replicas(found: Recommendation) -> dict[str, int]:
    return {each.accelerator: each.replicas for each in found.groups or () if each.replicas}


def kinds(t4: int = 1, room: tuple[int, int, int] = (1, 4, 4), **values: Any) -> tuple[GroupObservation, ...]:
    """Ten a second each, whatever they cost."""
    values = {"mu_ips": 10.0, "one_s": 0.1} | values
    return (
        group("t4", ready=t4, room=room[0], price_per_hour=0.5, **values),
        group("a30", room=room[1], price_per_hour=1.0, **values),
        group("a100", room=room[2], price_per_hour=2.0, **values),
    )


def test_orion_fills_the_first_kind_with_room_whatever_is_quicker() -> None:
    assert replicas(policy("orion").decide(seen(15.0, *kinds()), T0)) == {"t4": 2}
    found = policy("orion").decide(seen(60.0, *kinds()), T0)
    assert replicas(found) == {"t4": 2, "a30": 5 - 1, "a100": 2}, "75 planned: 20, 40 and 15"
    assert (found.reasons[0].code, found.reasons[0].detail) == ("first_with_room", "75 inferences/s: t4, a30, a100")


def test_reserve_and_pack_keeps_the_dearest_kind_for_large_models() -> None:
    small, large = policy("reserve-and-pack"), policy("reserve-and-pack", {"large": "true"})
    found = small.decide(seen(60.0, *kinds()), T0)
    assert replicas(found) == {"t4": 2, "a30": 4}, "a100 takes none of it, although 15/s are missing"
    assert [each.code for each in found.reasons] == ["packed", "no_capacity"]
    assert replicas(large.decide(seen(8.0, *kinds(t4=0)), T0)) == {"a100": 1}


def test_the_kind_with_the_fewest_places_left_is_filled_first() -> None:
    assert replicas(policy("reserve-and-pack").decide(seen(8.0, *kinds(t4=0, room=(4, 1, 1))), T0)) == {"a30": 1}
    named = policy("reserve-and-pack", {"reserved": "t4,a30"})
    assert replicas(named.decide(seen(8.0, *kinds(t4=0, room=(4, 1, 1))), T0)) == {"a100": 1}


def test_nothing_is_reserved_where_all_kinds_have_one_price() -> None:
    groups = [group(name, room=2, price_per_hour=1.0, mu_ips=10.0, one_s=0.1) for name in ("b", "a")]
    assert replicas(policy("reserve-and-pack").decide(seen(8.0, *groups), T0)) == {"a": 1}


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"reserved": "t4,a30,a100"}, "all are reserved: a100, a30, t4"),
        ({"large": "true", "reserved": "h100"}, "large, and may use none of the reserved ones: h100"),
    ],
)
def test_a_function_that_may_use_no_kind_holds_and_says_so(parameters: dict[str, str], why: str) -> None:
    found = policy("reserve-and-pack", parameters).decide(seen(8.0, *kinds()), T0)
    assert found.desired is None
    assert (found.reasons[0].code, found.reasons[0].detail) == ("no_accelerator", why)


def test_before_anything_was_served_replicas_are_on_kinds_that_the_function_may_use() -> None:
    unknown = kinds(t4=0, room=(1, 4, 4), mu_ips=None, one_s=None)
    waits = seen(9.0, *unknown, waiting=9, waiting_inferences=9)
    found = policy("reserve-and-pack", {"large": "true"}).decide(waits, T0)
    assert replicas(found) == {"a100": found.desired}
    assert found.reasons[-1].code == "mu_unknown"


def test_orion_warns_where_a_throughput_oriented_function_shares_devices() -> None:
    shared = replace(function("f"), gpu=GpuNeeds(mps=True), task_class=TaskClass.THROUGHPUT_ORIENTED)
    assert len(registry.row("orion").warnings(shared)) == 1
    assert registry.row("orion").warnings(replace(shared, task_class=TaskClass.LATENCY_CRITICAL)) == ()
    assert registry.row("orion").warnings(replace(shared, gpu=GpuNeeds())) == ()
