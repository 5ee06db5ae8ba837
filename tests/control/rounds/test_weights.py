"""What the traffic manager is sent of each revision."""

import random
from dataclasses import replace

import pytest

from tests.support.worlds.autoscaling import replica_sample
from tests.support.worlds.control_world import function
from tidegate.control.rounds.tracked import TrackedRevision
from tidegate.control.rounds.weights import GroupWeights
from tidegate.control.state.registry import Deployed, RevisionRecord
from tidegate.deploy.backend import ReplicaStatus, RevisionFailure
from tidegate.records.replica_state import ReplicaState
from tidegate.records.roles import Role
from tidegate.traffic.weights import LIFT


def record(number: int, timeout_s: float) -> RevisionRecord:
    made = function(timeout_s=timeout_s)
    return RevisionRecord(number=number, function=made, manifest="", source="", created_at=0.0)


def replica(revision: str, name: str, accelerator: str, state: ReplicaState = ReplicaState.READY) -> ReplicaStatus:
    return ReplicaStatus(
        id=name,
        function="echo",
        revision=revision,
        accelerator=accelerator,
        state=state,
        address="unix:/q",
        admin="unix:/a",
        created_at=0.0,
    )


OLD, NEW = record(1, 10.0), record(2, 20.0)
BOTH = Deployed(name="echo", current=OLD, candidate=NEW, proven=True)


def test_the_serving_revision_has_the_traffic_and_speaks_for_the_function() -> None:
    tracked = [
        TrackedRevision(record=NEW, role=Role.CANDIDATE),
        TrackedRevision(record=OLD, role=Role.SERVING, percent=100.0),
    ]
    (served,) = GroupWeights().served([BOTH], tracked, [], lambda _: None, 0.0)
    assert [(share.revision.id, share.percent) for share in served.revisions] == [
        ("echo-00001", 100.0),
        ("echo-00002", 0.0),
    ]
    assert served.function.timeout_s == 10.0
    tracked = [
        TrackedRevision(record=NEW, role=Role.SERVING, percent=100.0),
        TrackedRevision(record=OLD, role=Role.RETIRED),
    ]
    (served,) = GroupWeights().served([BOTH], tracked, [], lambda _: None, 0.0)
    assert served.revisions[0].revision.id == "echo-00002"
    assert served.function.timeout_s == 20.0, "a candidate that went ahead"


def test_weights_follow_what_busy_replicas_do() -> None:
    shares = GroupWeights()
    tracked = [TrackedRevision(record=OLD, role=Role.SERVING, percent=100.0)]
    here = [replica("echo-00001", "a", "t4"), replica("echo-00001", "b", "v100")]
    (served,) = shares.served([BOTH], tracked, here, lambda _: None, 0.0)
    assert dict(served.revisions[0].weights) == {"t4": 0.5, "v100": 0.5}, "nothing known: equal"
    first = replica_sample("a", revision="echo-00001", inferences=0, busy_s=0.0)
    for accelerator, inferences in (("t4", 10), ("v100", 30)):
        shares.measured(first, replace(first, inferences=inferences, busy_s=1.0), accelerator)
    assert shares.mu_ips("echo-00001", "v100") == 30.0
    (served,) = shares.served([BOTH], tracked, here, lambda _: None, 0.0)
    assert dict(served.revisions[0].weights) == {"t4": 0.25, "v100": 0.75}
    assert dict(served.revisions[0].mu_ips) == {"t4": 10.0, "v100": 30.0}
    shares.forget("echo-00001")
    assert shares.mu_ips("echo-00001", "v100") is None


def test_a_group_that_waits_for_another_one_counts_for_a_little_more() -> None:
    shares = GroupWeights(lambda revision, accelerator: 100.0)
    before = replica_sample("a", revision="echo-00001", inferences=0, busy_s=0.0, limit=0)
    for accelerator, request_s in (("t4", 62.0), ("v100", 1.5)):
        after = replace(before, inferences=100, busy_s=1.0, in_flight_request_s=request_s)
        shares.measured(before, after, accelerator)
    tracked = [TrackedRevision(record=OLD, role=Role.SERVING, percent=100.0)]
    here = [replica("echo-00001", "a", "t4"), replica("echo-00001", "b", "v100")]
    (served,) = shares.served([BOTH], tracked, here, lambda _: None, 0.0)
    weights = served.revisions[0].weights
    assert weights["v100"] / weights["t4"] == pytest.approx(1.0 + LIFT)
    assert dict(served.revisions[0].mu_ips) == {"t4": 100.0, "v100": 100.0}, "what is known is reported as it is"


def test_a_broken_revision_tells_why() -> None:
    failure = RevisionFailure(reason="no weights", at=5.0, failures=1, not_before=6.0, was_ready=False)
    tracked = [TrackedRevision(record=OLD, role=Role.SERVING, percent=100.0)]
    failed = replica("echo-00001", "a", "t4", ReplicaState.FAILED)
    (served,) = GroupWeights().served([BOTH], tracked, [failed], lambda _: failure, 5.5)
    assert served.revisions[0].failure == "no weights"
    ready = replica("echo-00001", "b", "t4")
    (served,) = GroupWeights().served([BOTH], tracked, [failed, ready], lambda _: failure, 5.5)
    assert served.revisions[0].failure is None


def test_a_rate_that_the_autoscaler_learnt_at_the_limit_counts_before_our_own() -> None:
    learnt = {("echo-00001", "t4"): 80.0}
    shares = GroupWeights(lambda revision, accelerator: learnt.get((revision, accelerator)))
    before = replica_sample("echo-00001-a", revision="echo-00001", inferences=0, busy_s=0.0)
    after = replace(before, inferences=100, busy_s=10.0)
    for accelerator in ("t4", "cpu"):
        shares.measured(before, after, accelerator)
    assert shares.mu_ips("echo-00001", "t4") == 80.0
    assert shares.mu_ips("echo-00001", "cpu") == 10.0, "a lower bound is better than nothing"
    assert shares.mu_ips("echo-00001", "v100") is None


def weights_of(given: dict[str, float] | None, *here: ReplicaStatus) -> dict[str, float]:
    routed = replace(OLD, function=replace(OLD.function, routing=replace(OLD.function.routing, group_weights=given)))
    (served,) = GroupWeights(lambda _, accelerator: {"t4": 1.0, "v100": 3.0}[accelerator]).served(
        [replace(BOTH, current=routed)],
        [TrackedRevision(record=routed, role=Role.SERVING, percent=100.0)],
        here,
        lambda _: None,
        0.0,
    )
    return dict(served.revisions[0].weights)


def test_weights_by_hand_hold_whatever_the_groups_can_do() -> None:
    t4, v100 = replica("echo-00001", "a", "t4"), replica("echo-00001", "b", "v100")
    assert weights_of(None, t4, v100) == {"t4": 0.25, "v100": 0.75}
    assert weights_of({}, t4, v100, replica("echo-00001", "c", "t4")) == {"t4": 0.5, "v100": 0.5}
    assert weights_of({"t4": 1.0, "v100": 4.0}, t4, v100) == {"t4": 0.2, "v100": 0.8}
    assert weights_of({"v100": 1.0}, t4, v100) == {"t4": 0.0, "v100": 1.0}, "those that are not named get nothing"
    starting = replica("echo-00001", "b", "v100", ReplicaState.STARTING)
    assert weights_of({"v100": 1.0}, t4, starting) == {"t4": 1.0, "v100": 0.0}, "unless none that was named is ready"


def test_weights_come_from_uniform_to_the_equilibrium_within_seconds_and_then_stay() -> None:
    """SMIF's pair of GPUs: 65.25 and 117 inferences per second, measured with 10 % of noise each second."""
    rng, shares = random.Random(11), GroupWeights()
    tracked = [TrackedRevision(record=OLD, role=Role.SERVING, percent=100.0)]
    here = [replica("echo-00001", "a", "t4"), replica("echo-00001", "b", "v100")]
    seen = []
    for _ in range(60):
        (served,) = shares.served([BOTH], tracked, here, lambda _: None, 0.0)
        seen.append(dict(served.revisions[0].weights)["v100"])
        sample = replica_sample("a", revision="echo-00001")
        for accelerator, mu in (("t4", 65.25), ("v100", 117.0)):
            done = round(1000 * mu * rng.uniform(0.9, 1.1))
            shares.measured(sample, replace(sample, inferences=done, busy_s=1000.0), accelerator)
    assert seen[0] == 0.5
    assert all(abs(weight - 117.0 / 182.25) < 0.03 for weight in seen[5:])
    assert len(set(seen[30:])) <= 3, "a table for every flicker is of no use"
