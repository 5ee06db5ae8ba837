"""The policy ``oltunes``: which kinds it chooses, and how many replicas."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from msgspec import structs

from tests.support.worlds.autoscaling import T0, function, group, observation
from tidegate.autoscaler.measure.observation import GroupObservation, Observation
from tidegate.autoscaler.policies import registry
from tidegate.autoscaler.policies.contract import Recommendation
from tidegate.autoscaler.policies.oltunes.policy import OltunesPolicy
from tidegate.function import Scaling, Sla, TaskClass

CRITICAL, ORIENTED = TaskClass.LATENCY_CRITICAL, TaskClass.THROUGHPUT_ORIENTED


def policy(task_class: TaskClass = CRITICAL, parameters: Mapping[str, str] | None = None) -> OltunesPolicy:
    of = function("f", scaling=Scaling(policy="oltunes", parameters=parameters or {}), sla=Sla(latency_s=1.0))
    built = registry.build(replace(of, task_class=task_class), T0, 1)
    assert isinstance(built, OltunesPolicy)
    return built


def kinds(quick: int = 0, wide: int = 0, room: int = 4) -> list[GroupObservation]:
    """Quick: 10 ms and 20/s. Wide: 100 ms and 80/s."""
    return [
        group("quick", ready=quick, room=room - quick, mu_ips=20.0, one_s=0.01, price_per_hour=1.0),
        group("wide", ready=wide, room=room - wide, mu_ips=80.0, one_s=0.1, price_per_hour=1.0),
    ]


def seen(ips: float, groups: list[GroupObservation] | None = None, at: float = T0, **values: Any) -> Observation:
    return observation(*(groups or kinds(quick=1)), at=at, lambda_ips=ips, rps=ips, concurrency=1.0, **values)


def replicas(found: Recommendation) -> dict[str, int]:
    return {each.accelerator: each.replicas for each in found.groups or () if each.replicas}


def test_the_class_decides_between_the_quick_and_the_wide_kind() -> None:
    assert replicas(policy(CRITICAL).decide(seen(15.0), T0)) == {"quick": 1}
    assert replicas(policy(ORIENTED).decide(seen(15.0), T0)) == {"wide": 1}
    assert replicas(policy(ORIENTED, {"class-weight": "1"}).decide(seen(15.0), T0)) == {"quick": 1}


def test_a_dear_kind_loses_as_more_of_the_capacity_is_used() -> None:
    """Cheap has half of the yield and of the speed of the other kind, for a twentieth of the price."""
    groups = [
        group("dear", ready=1, room=3, mu_ips=20.0, one_s=0.05, price_per_hour=1.0),
        group("cheap", room=4, mu_ips=10.0, one_s=0.1, price_per_hour=0.05),
    ]
    assert replicas(policy().decide(seen(1.0, groups), T0)) == {"dear": 1}
    found = policy().decide(seen(76.0, groups), T0)
    assert replicas(found) == {"cheap": 4, "dear": 3}, "76 / 0.8 = 95: 40 and 55"


def test_the_best_kind_is_filled_first_and_then_the_second() -> None:
    found = policy(CRITICAL).decide(seen(96.0, kinds(quick=1, room=3)), T0)
    assert replicas(found) == {"quick": 3, "wide": 1}, "120 planned: 60 and 60"
    assert found.reasons[0].detail.startswith("120 inferences/s: quick ")
    more = policy(CRITICAL).decide(seen(960.0, kinds(quick=1, room=3)), T0)
    assert replicas(more) == {"quick": 3, "wide": 3}
    assert [each.code for each in more.reasons] == ["tuned", "no_capacity"]
    assert more.reasons[1].detail == "900 inferences/s are missing"


def test_what_waits_counts_within_the_deadline_or_within_a_minute() -> None:
    assert replicas(policy(CRITICAL).decide(seen(0.0, waiting=32, waiting_inferences=32), T0)) == {"quick": 2}
    waits = seen(0.0, waiting=64 * 60, waiting_inferences=64 * 60)
    assert replicas(policy(ORIENTED).decide(waits, T0)) == {"wide": 1}, "64/s within a minute"


def test_a_rate_is_provided_for_until_the_cool_down_has_passed() -> None:
    of = policy(CRITICAL, {"cooldown": "30s"})
    assert of.decide(seen(48.0), T0).desired == 3
    assert of.decide(seen(8.0, at=T0 + 29.0), T0 + 29.0).desired == 3
    assert of.decide(seen(8.0, at=T0 + 31.0), T0 + 31.0).desired == 1


def test_replicas_of_another_kind_stay_until_the_chosen_ones_carry_the_load() -> None:
    of = policy(ORIENTED)
    groups = [
        group("slow", ready=2, room=2, mu_ips=5.0, one_s=1.0, price_per_hour=1.0),
        *kinds(),
    ]
    assert replicas(of.decide(seen(8.0, groups), T0)) == {"slow": 2, "wide": 1}
    groups[2] = group("wide", ready=1, room=3, mu_ips=80.0, one_s=0.1, price_per_hour=1.0)
    assert replicas(of.decide(seen(8.0, groups, at=T0 + 1.0), T0 + 1.0)) == {"wide": 1}


def test_without_a_known_rate_it_goes_by_requests_and_without_work_to_zero() -> None:
    unknown = [group("quick", ready=1, room=3, limit=1)]
    found = policy().decide(observation(*unknown, at=T0, concurrency=2.0), T0)
    assert (found.desired, found.reasons[-1].code) == (2, "mu_unknown")
    assert policy().decide(observation(group("quick", room=4), at=T0), T0).desired == 0


def test_missing_data_means_hold() -> None:
    for found, code in (
        (policy().decide(seen(5.0, complete=False), T0), "hold_no_data"),
        (policy().decide(structs.replace(observation(at=T0), groups=()), T0), "no_accelerator"),
    ):
        assert (found.desired, found.reasons[0].code) == (None, code)
