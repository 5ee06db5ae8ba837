"""Failures of replicas: counted by cause, and kept for an hour if the replica had been ready."""

from tidegate.control.watch.failures import WINDOW_S, ReplicaFailures
from tidegate.deploy.backend import ReplicaStatus
from tidegate.records.replica_state import FailureCause, ReplicaState


def failed(name: str, cause: FailureCause | None, ready_at: float | None = 1.0) -> ReplicaStatus:
    return ReplicaStatus(
        id=name,
        function="echo",
        revision="echo-00001",
        accelerator="cpu",
        state=ReplicaState.FAILED,
        address="unix:/q",
        admin="unix:/a",
        created_at=0.0,
        ready_at=ready_at,
        reason="the model server was killed by SIGABRT\nlast output of the model server:\n  abort",
        cause=cause,
    )


def test_a_crash_has_one_line_and_is_shown_for_an_hour() -> None:
    failures = ReplicaFailures()
    crash = failures.record(failed("a", FailureCause.KILLED), 10.0)
    assert crash is not None
    assert crash.reason == "the model server was killed by SIGABRT"
    failures.record(failed("b", FailureCause.MEMORY), 20.0)
    assert [each.replica for each in failures.crashes("echo-00001", 20.0)] == ["a", "b"]
    assert [each.replica for each in failures.crashes("echo-00001", 15.0 + WINDOW_S)] == ["b"]
    failures.forget("echo-00001")
    assert failures.crashes("echo-00001", 20.0) == ()
    assert sum(failures.counts.values()) == 2, "a counter never falls"


def test_a_start_that_failed_is_counted_and_no_crash() -> None:
    failures = ReplicaFailures()
    assert failures.record(failed("a", None, ready_at=None), 10.0) is None
    assert failures.counts == {("echo", "echo-00001", "cpu", "start"): 1}
    assert failures.crashes("echo-00001", 10.0) == ()
