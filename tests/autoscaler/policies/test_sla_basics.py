"""Policies with a latency target: their decisions before anything was served, and their reasons to hold."""

from dataclasses import replace

import pytest

from tests.support.worlds.autoscaling import T0, function, group, observation
from tidegate.autoscaler.measure.observation import Observation, TokenRates
from tidegate.autoscaler.policies.sla_basics import by_concurrency, floor_ips, held
from tidegate.function import ConcurrencyUnit, Sla


def test_missing_samples_and_no_accelerator_hold() -> None:
    assert held(observation(group(ready=1))) is None
    blind = held(observation(group(ready=1), complete=False))
    assert blind is not None
    assert (blind.desired, [each.code for each in blind.reasons]) == (None, ["hold_no_data"])
    nowhere = held(Observation(function="f", revision="f-1", at=T0, complete=True))
    assert nowhere is not None
    assert (nowhere.desired, [each.code for each in nowhere.reasons]) == (None, ["no_accelerator"])


@pytest.mark.parametrize(
    ("present", "ready", "slots", "existing", "desired"),
    [
        (8.0, 2, 4, 2, 3),
        (6.4, 2, 4, 2, 2),
        (6.4 + 1e-10, 2, 4, 2, 2),
        (6.5, 2, 4, 2, 3),
        (80.0, 2, 4, 2, 4),
        (80.0, 3, 4, 3, 6),
        (0.0, 1, 4, 1, 1),
        (0.0, 2, 4, 3, 3),
        (80.0, 0, 4, 0, 1),
        (80.0, 0, 4, 2, 2),
        (3.0, 2, None, 2, 2),
        (8.0, 2, None, 2, 3),
        (3.2, 4, 1, 4, 4),
        (3.3, 4, 1, 4, 5),
    ],
)
def test_what_waits_and_runs_against_slots(
    present: float, ready: int, slots: int | None, existing: int, desired: int
) -> None:
    seen = observation(group(ready=ready, starting=existing - ready, limit=slots), concurrency=present)
    found = by_concurrency(seen, function(concurrency=None), used=0.8, most_factor=2.0)
    assert found.desired == desired
    assert found.observed == {"concurrency": present}
    assert [each.code for each in found.reasons] == ["mu_unknown"]


def test_the_functions_slots_count_while_none_are_reported_then_four() -> None:
    seen = observation(group(ready=9), concurrency=32.0)
    assert by_concurrency(seen, function(concurrency=10), used=0.8, most_factor=2.0).desired == 9
    assert by_concurrency(seen, function(concurrency=2), used=0.8, most_factor=2.0).desired == 18
    found = by_concurrency(seen, function(concurrency=None), used=0.8, most_factor=2.0)
    assert found.desired == 10
    assert found.reasons[0].detail == "32 wait or run, 4 slots a replica: 10, at most 18 at once"
    half = by_concurrency(seen, function(concurrency=None), used=0.4, most_factor=1.5)
    assert half.desired == 14


def test_a_function_that_counts_inferences_waits_in_inferences() -> None:
    counted = replace(function(concurrency=4), concurrency_unit=ConcurrencyUnit.INFERENCES)
    seen = observation(group(ready=4), concurrency=1.0, concurrency_inferences=16.0)
    assert by_concurrency(seen, counted, used=0.8, most_factor=2.0).desired == 5
    assert by_concurrency(seen, function(concurrency=4), used=0.8, most_factor=2.0).desired == 4


@pytest.mark.parametrize(
    ("target_ips", "target_tps", "per_inference", "floor"),
    [
        (None, None, None, 0.0),
        (5.0, None, None, 5.0),
        (5.0, 100.0, None, 5.0),
        (5.0, 100.0, 50.0, 5.0),
        (5.0, 100.0, 10.0, 10.0),
        (None, 100.0, 10.0, 10.0),
        (None, 100.0, 0.0, 0.0),
        (None, None, 10.0, 0.0),
    ],
)
def test_the_rate_to_provide_is_the_larger_of_inferences_and_tokens(
    target_ips: float | None, target_tps: float | None, per_inference: float | None, floor: float
) -> None:
    tokens = TokenRates(lambda_tps=1.0, prompt_tps=1.0, completion_tps=1.0, per_inference=per_inference, groups={})
    sla = Sla(latency_s=0.2, target_ips=target_ips, target_tps=target_tps)
    assert floor_ips(sla, observation(tokens=tokens)) == floor
    assert floor_ips(sla, observation()) == (target_ips or 0.0)
