"""Whether an SLA can be held, with figures: by profiles, by learnt rates, against the places that there are."""

from dataclasses import replace

import pytest

from tests.support.worlds.autoscaling import revision
from tidegate.autoscaler.oltunes.prediction.served import FirstPrediction
from tidegate.autoscaler.profiles.admission import Assessment, Kind, Source, assess
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind, Profile, Room
from tidegate.function import Batching, Function, Scaling, Sla

T4 = Accelerator(
    name="t4",
    kind=AcceleratorKind.EMULATED,
    count=8,
    memory_bytes=1,
    price_per_hour=0.5,
    profile=Profile(base_s=0.009, per_item_s=0.006),
)
V100 = replace(T4, name="v100", count=2, price_per_hour=3.0, profile=Profile(base_s=0.005, per_item_s=0.003))
CPU = Accelerator(name="cpu", kind=AcceleratorKind.CPU, count=2, memory_bytes=1, cores=1)


def kind(accelerator: Accelerator, **values: object) -> Kind:
    room = Room(free=accelerator.count, total=accelerator.count)
    return replace(Kind(accelerator=accelerator, room=room), **values)  # type: ignore[arg-type]  # fields of Kind


def function(latency_s: float | None = None, target_ips: float | None = None, **values: object) -> Function:
    sla = Sla(latency_s=latency_s, target_ips=target_ips)
    return replace(revision().function, sla=sla, **values)  # type: ignore[arg-type]  # fields of Function


def test_a_profile_tells_the_time_of_one_inference_and_the_yield() -> None:
    found = assess(function(0.2), [kind(T4), kind(V100)])
    assert [(each.source, each.meets_latency) for each in found.kinds] == [(Source.PROFILE, True)] * 2
    assert [each.one_s for each in found.kinds] == [pytest.approx(0.015), pytest.approx(0.008)]
    assert [each.mu_ips for each in found.kinds] == [pytest.approx(1 / 0.015), pytest.approx(125.0)]
    assert (found.price_per_hour, found.warnings, found.refusal) == (0.5, (), None)


def test_batches_are_as_large_as_the_latency_leaves_room_for() -> None:
    """0.7 x 50 ms leave room for batches of four on t4 (33 ms); of 8 where the latency is wide."""
    batching = Batching(max_size=8)
    assert assess(function(0.05, batching=batching), [kind(T4)]).kinds[0].mu_ips == pytest.approx(4 / 0.033)
    assert assess(function(1.0, batching=batching), [kind(T4)]).kinds[0].mu_ips == pytest.approx(8 / 0.057)


def test_the_target_rate_is_provided_by_the_cheapest_kinds() -> None:
    """53.3 inferences/s of a t4 at 80 %: eight carry 427, one v100 the rest of 500 at 100 each."""
    found = assess(function(0.2, 500.0), [kind(T4), kind(V100)])
    assert dict(found.provided) == {"t4": 8, "v100": 1}
    assert found.provided_ips == pytest.approx(8 * 0.8 / 0.015 + 100.0)
    assert found.price_per_hour == pytest.approx(8 * 0.5 + 3.0)
    assert found.warnings == ()


def test_the_policy_s_own_utilisation_counts() -> None:
    scaling = Scaling(policy="smif", parameters={"target-utilization": "50%"})
    assert dict(assess(function(0.2, 100.0, scaling=scaling), [kind(T4)]).provided) == {"t4": 3}


def test_too_few_places_or_too_small_a_scale_is_a_warning_with_figures() -> None:
    few = assess(function(0.2, 5000.0), [kind(T4), kind(V100)])
    assert few.warnings == (
        "target-ips 5000 cannot be provided: 10 replicas carry 627 inferences/s at 80 % use, "
        "and there are no more places",
    )
    small = assess(function(0.2, 500.0, scaling=Scaling(max_scale=3)), [kind(T4), kind(V100)])
    assert dict(small.provided) == {"t4": 3}
    assert "max-scale is 3" in small.warnings[0]
    assert few.refusal is None is small.refusal


def test_a_latency_that_no_profile_can_meet_is_refused() -> None:
    found = assess(function(0.007), [kind(T4), kind(V100)])
    assert found.refusal == "at least 8 ms: what one inference takes on v100 by its declared profile"
    jittered = replace(V100, profile=Profile(base_s=0.005, per_item_s=0.003, jitter=0.2))
    assert assess(function(0.007), [kind(T4), kind(jittered)]).refusal is None, "sometimes it does"


def test_what_is_not_declared_is_not_refused() -> None:
    """A CPU may be able to; of what was learnt only a warning comes."""
    assert assess(function(0.007), [kind(CPU), kind(V100)]).refusal is None
    slow = assess(function(0.1), [kind(CPU, one_s=0.3, mu_ips=3.0, is_own=True)])
    assert slow.refusal is None
    assert slow.warnings == (
        "one inference alone takes longer than the latency target on cpu 300 ms (learnt), target 100 ms; "
        "no kind is left that meets it: the fastest serves, and is late",
    )


def test_what_was_learnt_counts_more_than_a_profile() -> None:
    found = assess(function(0.2, 100.0), [kind(T4, mu_ips=20.0, one_s=0.05)])
    assert found.kinds[0].source is Source.EARLIER
    assert dict(found.provided) == {"t4": 7}, "100 / (0.8 x 20)"


def test_a_kind_that_is_too_slow_provides_nothing() -> None:
    found = assess(function(0.010, 50.0), [kind(T4), kind(V100)])
    assert dict(found.provided) == {"v100": 1}
    assert "t4 15 ms (profile)" in found.warnings[0]


def test_nothing_known_says_nothing() -> None:
    found = assess(function(0.2, 100.0), [kind(CPU)])
    assert found.provided == ()
    assert (found.price_per_hour, found.warnings) == (None, ())
    assert assess(function(0.2), []) == Assessment(kinds=())


def predicted(one_s: float, error: float) -> Kind:
    return kind(CPU, predicted=FirstPrediction(one_s=one_s, error=error, basis="its graph", is_cold=True))


@pytest.mark.parametrize(
    ("one_s", "meets"), [(0.03, True), (0.05, True), (0.06, None), (0.19, None), (0.21, False), (None, None)]
)
def test_a_predicted_time_meets_or_misses_only_where_its_error_leaves_no_doubt(
    one_s: float | None, meets: bool | None
) -> None:
    """Within a factor of two of 100 ms."""
    found = assess(function(0.1), [kind(CPU) if one_s is None else predicted(one_s, 1.0)])
    assert found.kinds[0].meets_latency is meets
    assert found.kinds[0].source is (Source.UNKNOWN if one_s is None else Source.PREDICTED)
    assert found.kinds[0].basis == (None if one_s is None else "its graph")
    assert bool(found.warnings) == (meets is False)
    assert found.refusal is None


def test_what_was_learnt_or_declared_goes_before_a_prediction() -> None:
    guess = FirstPrediction(one_s=9.0, error=0.1, basis="its graph", is_cold=False)
    found = assess(function(0.1), [kind(T4, predicted=guess), kind(CPU, one_s=0.02, is_own=True, predicted=guess)])
    assert [each.source for each in found.kinds] == [Source.PROFILE, Source.LEARNT]
    assert [each.error for each in found.kinds] == [None, None]


def test_the_latency_of_streams_is_that_of_the_first_token() -> None:
    streams = kind(CPU, mu_ips=2.0, one_s=2.0, first_s=0.1)
    found = assess(function(0.5), [streams])
    assert found.kinds[0].meets_latency
    assert found.warnings == ()
    (warning,) = assess(function(0.05), [streams]).warnings
    assert warning.startswith("the first token of one stream alone takes longer than the latency target on cpu 100 ms")
