"""Facts about the groups of a decision: where a service rate comes from, and what a backlog is."""

from typing import Any

import pytest

from tidegate.autoscaler.measure.observation import GroupObservation, Observation
from tidegate.autoscaler.policies.smif.kinds import KindFacts, backlog_of, service_rate
from tidegate.function import ConcurrencyUnit


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({"mu_ips": 10.0, "is_mu_learnt": True, "mu_bound_ips": 20.0}, (10.0, "learnt")),
        ({"mu_ips": 13.0, "mu_bound_ips": 10.0}, (13.0, "profile")),
        ({"mu_ips": 12.0, "mu_bound_ips": 10.0}, (10.0, "best seen")),
        ({"limit": 2, "execution_s": 0.1}, (20.0, "slots")),
        ({"limit": 2, "execution_s": 0.1, "mean_batch": 3.0}, (60.0, "slots")),
        ({"limit": 2, "execution_s": 0.1, "mu_bound_ips": 25.0}, (25.0, "slots")),
        ({"limit": 2, "execution_s": 0.1, "mu_expected_ips": 15.0}, (15.0, "company")),
        ({}, (0.0, "best seen")),
    ],
)
def test_a_service_rate_comes_from_the_best_source(facts: dict[str, Any], found: tuple[float, str]) -> None:
    group = GroupObservation(accelerator="cpu", **facts)
    rate, origin = service_rate(group, ConcurrencyUnit.REQUESTS)
    assert rate == pytest.approx(found[0])
    assert origin == found[1]


def test_slots_in_inferences_are_not_multiplied_by_the_batch() -> None:
    group = GroupObservation(accelerator="cpu", limit=2, execution_s=0.1, mean_batch=3.0)
    rate, origin = service_rate(group, ConcurrencyUnit.INFERENCES)
    assert rate == pytest.approx(20.0)
    assert origin == "slots"


def kind(
    ready: int, execution_s: float | None, *, unloaded_s: float | None = None, is_stream: bool = False
) -> KindFacts:
    group = GroupObservation(accelerator="cpu", one_s=unloaded_s)
    return KindFacts(group, 10.0, "slots", 10.0, ready, ready, 9, execution_s, is_stream)


@pytest.mark.parametrize(
    ("kinds", "backlog"),
    [
        ((kind(2, 0.1),), 3.0),
        ((kind(2, None),), 3.0),
        ((kind(2, 1.0),), 1.5),
        ((kind(2, 0.1), kind(1, 1.0)), 1.5),
        ((kind(2, 0.1, unloaded_s=1.0, is_stream=True),), 1.5),
        ((kind(2, 1.0, unloaded_s=0.1, is_stream=True),), 3.0),
        ((kind(0, 0.1),), 0.0),
        ((), 0.0),
    ],
)
def test_a_backlog_is_measured_against_what_is_served_within_the_target(
    kinds: tuple[KindFacts, ...], backlog: float
) -> None:
    waiting = Observation(function="f", revision="f-00001", at=0.0, complete=True, waiting_inferences=30)
    inside = Observation(function="f", revision="f-00001", at=0.0, complete=True, concurrency_inferences=30.0)
    for observation in (waiting, inside):
        assert backlog_of(observation, kinds, 0.5) == pytest.approx(backlog)
