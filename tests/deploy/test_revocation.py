"""Starts that come to nothing are taken back, another kind is tried, and one kind is always open."""

from dataclasses import replace

from deploy.backend import ReplicaStatus
from deploy.placement.ledger import Room
from deploy.revocation import BAR_S, LONGEST_BAR_S, PATIENCE_S, PENDING_SLACK_S, Revocations
from tidegate.replica import ReplicaState

REV, BOTH, TIMEOUT_S = "f-00001", ("t4", "v100"), 120.0
STARTING = ReplicaStatus(
    id="f-00001-aaaaa",
    function="f",
    revision=REV,
    accelerator="t4",
    state=ReplicaState.STARTING,
    address="unix:/x",
    admin="unix:/y",
    created_at=0.0,
)
ROOM = {"t4": Room(free=2, total=2), "v100": Room(free=1, total=1)}


def free(known: Revocations, now: float) -> dict[str, int]:
    return {name: room.free for name, room in known.open_room(REV, ROOM, now).items()}


def test_a_start_that_stays_pending_is_taken_back_and_its_kind_has_no_room_for_a_while() -> None:
    known, late = Revocations(), TIMEOUT_S + PENDING_SLACK_S + 1.0
    assert known.review(REV, [STARTING], BOTH, TIMEOUT_S, TIMEOUT_S) == []
    (revoked,) = known.review(REV, [STARTING], BOTH, TIMEOUT_S, late)
    assert (revoked.accelerator, revoked.replicas) == ("t4", ("f-00001-aaaaa",))
    assert "pending for 131 s" in revoked.why
    assert free(known, late) == {"t4": 0, "v100": 1}
    assert free(known, late + BAR_S) == {"t4": 2, "v100": 1}
    assert known.counts == {(REV, "t4"): 1}


def test_starts_that_fail_for_a_minute_bar_their_kind_for_longer_each_time() -> None:
    known = Revocations()
    known.failed(REV, "t4", 0.0, "no space")
    known.failed(REV, "t4", 40.0, "no space")
    assert known.review(REV, [], BOTH, TIMEOUT_S, PATIENCE_S - 1.0) == []
    assert known.review(REV, [], BOTH, TIMEOUT_S, PATIENCE_S)
    known.failed(REV, "t4", 130.0, "no space")
    assert known.review(REV, [], BOTH, TIMEOUT_S, 190.0)
    assert free(known, 190.0 + 2 * BAR_S - 1.0)["t4"] == 0


def test_a_kind_that_never_starts_is_barred_for_as_long_as_possible_the_thousandth_time_too() -> None:
    known, now, times = Revocations(), 0.0, 1_100
    for _ in range(times):
        known.failed(REV, "t4", now, "no space")
        now += PATIENCE_S
        (revoked,) = known.review(REV, [], BOTH, TIMEOUT_S, now)
        now += LONGEST_BAR_S
        assert revoked.accelerator == "t4"
    assert free(known, now - 1.0)["t4"] == 0
    assert known.counts == {(REV, "t4"): times}


def test_a_ready_replica_proves_its_kind() -> None:
    known = Revocations()
    known.failed(REV, "t4", 0.0, "no space")
    ready = replace(STARTING, state=ReplicaState.READY, ready_at=30.0)
    assert known.review(REV, [ready], BOTH, TIMEOUT_S, 100.0) == []
    assert known.review(REV, [], BOTH, TIMEOUT_S, 200.0) == []


def test_the_only_kind_and_the_last_open_one_are_never_barred() -> None:
    known = Revocations()
    for name in BOTH:
        known.failed(REV, name, 0.0, "broken")
    assert known.review(REV, [], ("t4",), TIMEOUT_S, 1000.0) == []
    barred = known.review(REV, [], BOTH, TIMEOUT_S, 1000.0)
    assert [each.accelerator for each in barred] == ["t4"]
    for second in range(1000, 5000):
        now = float(second)
        for name in BOTH:
            known.failed(REV, name, now, "broken")
        known.review(REV, [], BOTH, TIMEOUT_S, now)
        assert any(free(known, now).values()), "one is always tried"
    known.forget(REV)
    assert free(known, 5000.0) == {"t4": 2, "v100": 1}
    assert not known.counts


def test_a_revision_of_which_nothing_starts_and_nothing_failed_is_no_concern() -> None:
    known = Revocations()
    ready = replace(STARTING, state=ReplicaState.READY, ready_at=30.0)
    assert not known.concerns(REV, [ready])
    assert known.concerns(REV, [ready, STARTING])
    known.failed(REV, "t4", 0.0, "no space")
    assert known.concerns(REV, [ready])
    known.review(REV, [ready], BOTH, TIMEOUT_S, 100.0)
    assert not known.concerns(REV, [ready]), "the ready replica proves its kind"
