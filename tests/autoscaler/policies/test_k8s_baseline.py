"""HetSev's baseline: HPA on the use of the throughput, kinds drawn at random."""

from collections import Counter

from tests.support.worlds.autoscaling import T0, function, group, observation
from tidegate.autoscaler.measure.observation import ArrivalCounts
from tidegate.autoscaler.policies import registry
from tidegate.autoscaler.policies.contract import Recommendation
from tidegate.autoscaler.policies.k8s_baseline import K8sBaselinePolicy, warnings
from tidegate.autoscaler.policies.policy_state import restored, snapshot
from tidegate.function import Function, GpuNeeds, Scaling, Server, ServerKind


def baseline(name: str = "resnet", ready: int = 1, **parameters: str) -> tuple[Function, K8sBaselinePolicy]:
    of = function(name, scaling=Scaling(policy="k8s-baseline"), parameters=parameters)
    policy = registry.build(of, T0, ready)
    assert isinstance(policy, K8sBaselinePolicy)
    return of, policy


def after(
    policy: K8sBaselinePolicy, rate: float, counts: dict[str, int], seconds: int = 31, places: int = 8, since: int = 0
) -> Recommendation:
    """The last recommendation of some seconds in which nothing is carried out."""
    found = None
    for second in range(since, since + seconds):
        groups = [group(name, ready=count, room=places - count, mu_ips=20.0) for name, count in counts.items()]
        arrived = ArrivalCounts(sizes=((1.0, rate * second),), late=0.0)
        found = policy.decide(
            observation(*groups, at=T0 + second, counts=arrived, rps=rate, concurrency=1.0), T0 + second
        )
    assert found is not None
    return found


def replicas(found: Recommendation) -> dict[str, int]:
    return {each.accelerator: each.replicas for each in found.groups or ()}


def test_it_holds_the_use_of_the_throughput() -> None:
    assert after(baseline()[1], 16.0, {"t4": 1, "v100": 0}).desired == 1
    assert after(baseline()[1], 17.0, {"t4": 1, "v100": 0}).desired == 1, "within the tolerance"
    found = after(baseline()[1], 64.0, {"t4": 1, "v100": 0})
    assert found.desired == 4
    assert found.reasons[0].detail == "throughput 320 %, target 80 %, 1 replicas: 4"
    assert after(baseline(target="40")[1], 16.0, {"t4": 1, "v100": 0}).desired == 2


def test_kinds_are_drawn_uniformly_and_a_replay_draws_the_same() -> None:
    drawn: Counter[str] = Counter()
    for number in range(200):
        first, again = (after(baseline(f"f{number}")[1], 16.0 * 3, {"t4": 1, "v100": 0}) for _ in range(2))
        assert replicas(first) == replicas(again)
        drawn.update({name: count - (name == "t4") for name, count in replicas(first).items()})
    assert sum(drawn.values()) == 400
    assert 150 < drawn["t4"] < 250


def test_only_kinds_with_room_are_drawn() -> None:
    assert replicas(after(baseline()[1], 200.0, {"t4": 1, "v100": 0}, places=2)) == {"t4": 2, "v100": 2}


def test_it_shrinks_after_the_stabilization() -> None:
    _, policy = baseline(ready=4)
    assert after(policy, 16.0, {"t4": 2, "v100": 2}, seconds=280).desired == 4
    assert after(policy, 16.0, {"t4": 2, "v100": 2}, seconds=60, since=280).desired == 1


def test_without_a_rate_it_holds() -> None:
    _, policy = baseline()
    seen = observation(group("t4", ready=1), counts=ArrivalCounts(sizes=(), late=0.0))
    found = [policy.decide(seen, T0 + second) for second in range(31)][-1]
    assert found.desired is None
    assert [each.code for each in found.reasons] == ["mu_unknown"]
    assert policy.decide(observation(complete=False), T0 + 40).desired is None


def test_at_zero_it_wants_nothing() -> None:
    _, policy = baseline()
    assert policy.decide(observation(group("t4"), at=T0), T0).desired == 0


def test_its_state_is_recorded() -> None:
    of, policy = baseline()
    after(policy, 64.0, {"t4": 1, "v100": 0})
    keeps = registry.row("k8s-baseline").keeps
    other = restored(snapshot(policy, of, keeps), of, keeps)
    assert after(other, 160.0, {"t4": 2, "v100": 2}, since=31) == after(policy, 160.0, {"t4": 2, "v100": 2}, since=31)


def test_a_part_of_a_device_is_warned_of() -> None:
    server = Server(kind=ServerKind.COMMAND, argv=("x",))
    assert warnings(Function(name="f", server=server)) == ()
    assert "whole devices" in warnings(Function(name="f", server=server, gpu=GpuNeeds(mps=True)))[0]


def test_a_removal_takes_from_kinds_that_have_some() -> None:
    for number in range(20):
        _, policy = baseline(f"f{number}", ready=0)
        found = after(policy, 16.0, {"t4": 0, "v100": 3, "k80": 0})
        assert replicas(found) == {"t4": 0, "v100": 1, "k80": 0}


def test_it_decides_each_period_and_counts_a_window() -> None:
    _, policy = baseline(window="60s", period="15s")
    first = after(policy, 16.0, {"t4": 1, "v100": 0}, seconds=31)
    assert first.observed == {"arrivals_ips": 16.0, "capacity_ips": 20.0}
    held = after(policy, 64.0, {"t4": 1, "v100": 0}, seconds=14, since=31)
    assert held.observed["arrivals_ips"] == 16.0
    grown = after(policy, 64.0, {"t4": 1, "v100": 0}, seconds=1, since=45)
    assert grown.observed["arrivals_ips"] > 60.0


def test_before_a_period_of_arrivals_it_holds_and_says_so() -> None:
    _, policy = baseline(window="60s", period="15s")
    early = after(policy, 16.0, {"t4": 1}, seconds=15)
    assert early.desired is None
    assert early.reasons[0].detail == "arrivals of 14 s of 15 s"
    assert after(policy, 16.0, {"t4": 1}, seconds=1, since=15).desired == 1


def test_bounds_of_the_function_hold_and_a_restart_shrinks_nothing() -> None:
    of = function("x", scaling=Scaling(policy="k8s-baseline", min_scale=2, max_scale=3))
    policy = K8sBaselinePolicy(of, T0, 0)
    assert after(policy, 200.0, {"t4": 1, "v100": 0}).desired == 3
    policy = K8sBaselinePolicy(of, T0, 0)
    assert after(policy, 0.1, {"t4": 3, "v100": 0}).desired == 2
    policy = K8sBaselinePolicy(of, T0, 3)
    assert after(policy, 0.1, {"t4": 3, "v100": 0}).desired == 3
    assert (policy.activation_scale, policy.retention_s) == (1, 0.0)
    assert repr(policy) == "<K8sBaselinePolicy <HpaScaler target 80, 2 recommendations>, 0 draws>"
