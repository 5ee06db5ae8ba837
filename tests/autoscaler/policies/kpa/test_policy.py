"""The KPA policy under observations; its exact numbers are replayed in tests/golden/test_knative_kpa.py."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.worlds.autoscaling import T0, World, codes, function, group, observation, revision
from tidegate.autoscaler.measure.observation import Observation
from tidegate.autoscaler.policies import registry
from tidegate.autoscaler.policies.kpa.parameters import KpaParameters, config, derive, of_function
from tidegate.autoscaler.policies.kpa.policy import KnativeScaler, KpaPolicy
from tidegate.errors import InvalidInputError
from tidegate.function import ConcurrencyUnit, Scaling


def seen(at: float, concurrency: float, ready: int = 1, **values: Any) -> Observation:
    return observation(group(ready=ready, limit=1), at=at, concurrency=concurrency, **values)


def test_one_replica_panics_just_above_its_target() -> None:
    policy = KpaPolicy(function(concurrency=10), T0, 1)
    calm = policy.decide(seen(T0, 7.0), T0)
    assert (calm.desired, [r.code for r in calm.reasons]) == (1, ["load"])
    panic = policy.decide(seen(T0 + 1, 7.2), T0 + 1)
    assert panic.desired == 2, "ceil(7.1 / 7) = 2 replicas, twice the one that is ready"
    assert "panic_enter" in [r.code for r in panic.reasons]


def test_panic_holds_the_size_and_leaves_after_a_calm_stable_window() -> None:
    policy = KpaPolicy(function(concurrency=1, parameters={"window": "10s"}), T0, 1)
    policy.decide(seen(T0, 6.0), T0)
    wished = [policy.decide(seen(T0 + second, 0.0, ready=9), T0 + second).desired for second in range(1, 13)]
    assert wished == [9] * 10 + [4] * 2, "the leaving tick is still braked: half of nine ready"


def test_the_scale_down_delay_is_a_reason_only_while_it_holds_a_larger_size() -> None:
    policy = KpaPolicy(function(concurrency=1, parameters={"window": "6s", "scale-down-delay": "20s"}), T0, 1)
    first = policy.decide(seen(T0, 3.0, ready=5), T0)
    assert "scale_down_delay" not in [r.code for r in first.reasons], "the size is what the load asks for"
    later = policy.decide(seen(T0 + 1, 0.0, ready=5), T0 + 1)
    assert "scale_down_delay" in [r.code for r in later.reasons]


def test_no_data_is_no_opinion() -> None:
    policy = KpaPolicy(function(), T0, 1)
    wish = policy.decide(seen(T0, 0.0, complete=False), T0)
    assert (wish.desired, wish.reasons[0].code) == (None, "hold_no_data")


def test_two_ticks_in_one_second_count_once_and_a_late_tick_leaves_no_hole() -> None:
    policy = KpaPolicy(function(concurrency=100), T0, 1)
    *_, last = [policy.decide(seen(now, 30.0), now) for now in (T0 + 0.01, T0 + 0.99, T0 + 2.01)]
    assert last.observed["stable_concurrency"] == 30.0


def test_an_outage_of_the_measurements_is_not_silence() -> None:
    """Constant load of 30, nine seconds without complete data: the gap has the mean that the next samples tell."""
    policy = KpaPolicy(function(concurrency=100), T0, 1)
    policy.decide(seen(T0, 30.0), T0)
    for second in range(1, 9):
        blind = policy.decide(seen(T0 + second, 0.0, complete=False), T0 + second)
        assert blind.observed["stable_concurrency"] == 30.0
    wish = policy.decide(seen(T0 + 9, 30.0), T0 + 9)
    assert (wish.observed["stable_concurrency"], wish.observed["panic_concurrency"]) == (30.0, 30.0)
    much_later = policy.decide(seen(T0 + 9999, 5.0), T0 + 9999)
    assert much_later.observed["stable_concurrency"] == 5.0


def test_a_sleep_is_neither_zeros_nor_a_panic_to_remember() -> None:
    policy = KpaPolicy(function(concurrency=1), T0, 0)
    assert policy.decide(seen(T0, 60.0), T0).desired == 86, "panic"
    for second in range(1, 6):
        asleep = policy.decide(observation(group()), T0 + second)
        assert (asleep.desired, asleep.reasons) == (0, ())
    awake = policy.decide(observation(group(starting=1), waiting=1, concurrency=0.5), T0 + 6)
    assert (awake.desired, awake.observed["stable_concurrency"], awake.observed["panic"]) == (1, 0.5, 0.0)


def test_concurrency_auto_follows_what_the_replicas_say() -> None:
    policy = KpaPolicy(function(concurrency=None), T0, 1)
    assert policy.decide(observation(group(ready=1), concurrency=10.0), T0).observed["target"] == pytest.approx(2.8)
    observed = observation(group(ready=1, limit=10), concurrency=10.0)
    assert policy.decide(observed, T0 + 1).observed["target"] == pytest.approx(7.0)


def test_no_limit_on_one_accelerator_does_not_hide_the_limit_on_another() -> None:
    """0 slots means no limit, so it is the loosest one, not the smallest."""
    assert observation(group(ready=1, limit=0), group("v100", ready=1, limit=4)).limit == 4
    assert observation(group(ready=1, limit=0)).limit == 0
    assert observation(group(starting=1)).limit is None


def test_a_function_that_counts_inferences_scales_on_inferences() -> None:
    counted = replace(function(concurrency=10), concurrency_unit=ConcurrencyUnit.INFERENCES)
    policy = KpaPolicy(counted, T0, 1)
    wish = policy.decide(seen(T0, 1.0, concurrency_inferences=70.0), T0)
    assert wish.desired == 10


def test_metric_rps_uses_arrivals() -> None:
    policy = KpaPolicy(function(parameters={"metric": "rps", "target": "10"}), T0, 1)
    wish = policy.decide(seen(T0, 1.0, rps=21.0), T0)
    assert (wish.desired, wish.observed["stable_rps"]) == (3, 21.0)


def test_settings_of_the_cluster_can_be_given_per_function() -> None:
    derived = of_function(
        function(concurrency=10, parameters={"max-scale-up-rate": "1.5", "activation-scale": "3"}), 10
    )
    assert (derived.parameters.max_scale_up_rate, derived.parameters.activation_scale) == (1.5, 3)
    assert KpaPolicy(function(parameters={"activation-scale": "3"}), T0, 0).activation_scale == 3


def test_a_restart_with_replicas_starts_in_panic_so_that_nothing_shrinks() -> None:
    scaler = KnativeScaler(of_function(function(), 1).parameters, T0, 5)
    scaler.record(T0, 0.0)
    assert scaler.evaluate(T0, 5).desired == 5
    assert repr(scaler).endswith("panic since 1.7e+09 at 5>")


def test_values_that_do_not_parse_count_as_absent() -> None:
    derived = derive({"target": "many", "window": "60"}, config({"stable-window": "30s"}), 0)
    assert (derived.parameters.total_value, derived.parameters.stable_window_s) == (100.0, 30.0)


def test_an_unknown_policy_is_an_error_that_lists_the_known_ones() -> None:
    assert "kpa" in registry.names()
    with pytest.raises(InvalidInputError, match=r"one of .*kpa"):
        registry.build(function(scaling=Scaling(policy="magic")), T0, 0)


def test_unlimited_burst_reads_silence_as_no_load() -> None:
    parameters = KpaParameters(target_value=7.0, total_value=10.0, target_burst_capacity=-1)
    result = KnativeScaler(parameters, T0, 0).evaluate(T0, 0)
    assert (result.valid, result.desired, result.excess_burst_capacity) == (True, 0, -1)


def test_the_way_to_zero_by_knatives_own_steps() -> None:
    """A load, then silence: the averages are 0 a window later, one replica stays for the rest of a window of
    serving, and zero follows at the next look."""
    at = World(revision(concurrency=1, scaling=Scaling(parameters={"zero-protocol": "knative", "window": "10s"})))
    at.load = 3.0
    at.run(20)
    at.load = 0.0
    wanted = at.run(25)
    zero = wanted.index(0)
    assert 10 <= zero <= 13, "no scale-to-zero-after: a window of silence"
    assert "zero_protocol" in codes(at.decisions[20 + zero])
    assert set(wanted[zero:]) == {0}
    at.load, at.arrivals = 1.0, 1
    assert at.push().desired == 1, "and back"


def test_knatives_steps_keep_one_replica_until_it_has_served_a_window() -> None:
    at = World(revision(concurrency=1, scaling=Scaling(parameters={"zero-protocol": "knative", "window": "30s"})))
    wanted = at.run(60)
    assert wanted.index(0) in range(31, 36), "active since it became ready, two seconds after the deploy"


def test_missing_data_stops_knatives_steps_too() -> None:
    at = World(revision(concurrency=1, scaling=Scaling(parameters={"zero-protocol": "knative", "window": "10s"})))
    at.run(8)
    at.are_samples_lost = True
    assert 0 not in at.run(40)
