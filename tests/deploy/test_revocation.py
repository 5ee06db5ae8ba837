"""Starts that come to nothing are taken back, another kind is tried, and one kind is always open."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tidegate.deploy.backend import ReplicaStatus
from tidegate.deploy.placement.ledger import Room
from tidegate.deploy.revocation import BAR_S, FORGOTTEN_S, MAX_BAR_S, PATIENCE_S, PENDING_SLACK_S, Revocations
from tidegate.records.replica_state import ReplicaState

REV, TIMEOUT_S = "f-00001", 120.0
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
BOTH = {"t4": Room(free=2, total=2), "v100": Room(free=1, total=1)}
FULL = BOTH | {"v100": Room(free=0, total=1)}


def free(
    known: Revocations, now: float, room: Mapping[str, Room] = BOTH, replicas: Sequence[ReplicaStatus] = ()
) -> dict[str, int]:
    return {name: each.free for name, each in known.without_barred(REV, replicas, room, now).items()}


def barred() -> Revocations:
    """Of t4, at 60 s."""
    known = Revocations()
    for at in (0.0, 40.0):
        known.failed(REV, "t4", at, "no space")
    assert known.review(REV, [], BOTH, TIMEOUT_S, PATIENCE_S)
    return known


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
    assert known.review(REV, [], BOTH, TIMEOUT_S, 130.0), "at once: it has been barred before"
    assert free(known, 130.0 + 2 * BAR_S - 1.0)["t4"] == 0


def test_a_kind_that_never_starts_is_barred_for_as_long_as_possible_the_thousandth_time_too() -> None:
    known, now, times = Revocations(), 0.0, 1_100
    for _ in range(times):
        known.failed(REV, "t4", now, "no space")
        now += PATIENCE_S
        known.failed(REV, "t4", now - 20.0, "no space")
        (revoked,) = known.review(REV, [], BOTH, TIMEOUT_S, now)
        now += MAX_BAR_S
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
        known.failed(REV, name, 990.0, "broken")
    assert known.review(REV, [], {"t4": BOTH["t4"]}, TIMEOUT_S, 1000.0) == []
    found = known.review(REV, [], BOTH, TIMEOUT_S, 1000.0)
    assert [each.accelerator for each in found] == ["t4"]
    for second in range(1000, 5000):
        now = float(second)
        for name in BOTH:
            known.failed(REV, name, now, "broken")
        known.review(REV, [], BOTH, TIMEOUT_S, now)
        assert any(free(known, now).values()), "one is always tried"
    known.forget(REV)
    assert free(known, 5000.0) == {"t4": 2, "v100": 1}
    assert not known.counts


def test_one_failure_after_which_nothing_was_tried_bars_no_kind() -> None:
    known = Revocations()
    known.failed(REV, "t4", 0.0, "killed once")
    assert not any(known.review(REV, [], BOTH, TIMEOUT_S, float(second)) for second in range(300))
    known.failed(REV, "t4", 300.0, "killed again")
    assert known.review(REV, [], BOTH, TIMEOUT_S, 301.0), "yet of all that was tried there, nothing started"


def test_a_failure_is_forgotten_after_an_hour() -> None:
    known = Revocations()
    for at in (0.0, FORGOTTEN_S + 1.0):
        known.failed(REV, "t4", at, "killed once")
    assert known.review(REV, [], BOTH, TIMEOUT_S, FORGOTTEN_S + 2.0) == []


def test_bars_are_forgotten_after_an_hour_too() -> None:
    known, later = barred(), 60.0 + 7 * 86_400.0
    known.failed(REV, "t4", later, "one crash")
    assert known.review(REV, [], BOTH, TIMEOUT_S, later) == []


def test_a_start_that_began_after_the_last_failure_is_let_to_its_end() -> None:
    known = Revocations()
    for at in (0.0, 40.0):
        known.failed(REV, "t4", at, "killed")
    fresh = replace(STARTING, created_at=41.0)
    late = 41.0 + TIMEOUT_S + PENDING_SLACK_S
    for second in range(41, int(late) + 1):
        assert known.review(REV, [fresh], BOTH, TIMEOUT_S, float(second)) == []
    (revoked,) = known.review(REV, [fresh], BOTH, TIMEOUT_S, late + 1.0)
    assert revoked.replicas == (fresh.id,), "its own time is over"


def test_starts_that_break_late_bar_their_kind_when_the_second_has_broken() -> None:
    known = Revocations()
    for second in range(1, 240):
        if second % 120 == 0:
            known.failed(REV, "t4", float(second), "broken")
        trying = replace(STARTING, created_at=float(second // 120 * 120))
        assert known.review(REV, [trying], BOTH, 600.0, float(second)) == []
    known.failed(REV, "t4", 240.0, "broken")
    assert known.review(REV, [], BOTH, 600.0, 240.0)


def test_a_bar_holds_only_while_another_kind_takes_a_replica_or_has_one() -> None:
    known = barred()
    there = replace(STARTING, accelerator="v100")
    assert free(known, 61.0)["t4"] == 0
    assert free(known, 61.0, FULL)["t4"] == 2, "others hold it"
    assert free(known, 61.0, {"t4": BOTH["t4"]})["t4"] == 2, "it has gone"
    assert free(known, 61.0, FULL, [there])["t4"] == 0, "one is tried there"
    assert free(known, 61.0, FULL, [replace(there, state=ReplicaState.FAILED)])["t4"] == 2


def test_a_kind_is_not_barred_for_one_that_is_full() -> None:
    known = Revocations()
    for at in range(0, 90, 10):
        known.failed(REV, "t4", float(at), "broken")
    assert known.review(REV, [STARTING], FULL, TIMEOUT_S, 90.0) == []
    assert known.review(REV, [STARTING], BOTH, TIMEOUT_S, 91.0)


def test_a_revision_of_which_nothing_starts_and_nothing_failed_is_no_concern() -> None:
    known = Revocations()
    ready = replace(STARTING, state=ReplicaState.READY, ready_at=30.0)
    assert not known.needs_review(REV, [ready])
    assert known.needs_review(REV, [ready, STARTING])
    known.failed(REV, "t4", 0.0, "no space")
    assert known.needs_review(REV, [ready])
    known.review(REV, [ready], BOTH, TIMEOUT_S, 100.0)
    assert not known.needs_review(REV, [ready]), "the ready replica proves its kind"
