"""The states that a replica reports, and the orders that it obeys."""

import json

import pytest

from tidegate.queue_proxy.lifecycle import NotNowError, ReplicaLifecycle, StaleEpochError
from tidegate.records.replica_state import ColdStartPhases, ReplicaState


def ready(*, epoch: int = 1) -> ReplicaLifecycle:
    life = ReplicaLifecycle(limit=None, phases=ColdStartPhases(decide_s=0.002), epoch=epoch)
    life.model_ready(limit=4, load_s=1.5, warm_s=None)
    life.entered(ReplicaState.READY)
    return life


def test_a_start_is_reported_with_phases_and_limit() -> None:
    life = ReplicaLifecycle(limit=None, phases=ColdStartPhases(decide_s=0.002), epoch=1)
    assert json.loads(json.dumps(life.event()))["state"] == "starting"
    life.model_ready(limit=4, load_s=1.5, warm_s=0.1)
    life.entered(ReplicaState.READY)
    event = life.event()
    assert (event["state"], event["limit"], event["message"]) == ("ready", 4, "")
    assert event["phases"] == {
        "decide_s": 0.002,
        "schedule_s": None,
        "pull_s": 0.0,
        "load_s": 1.5,
        "warm_s": 0.1,
        "first_response_s": None,
    }


def test_every_change_is_counted_so_that_a_listener_knows_when_to_look() -> None:
    life = ready()
    before = life.changes
    life.drain_ordered(1)
    life.entered(ReplicaState.DRAINING)
    life.entered(ReplicaState.DRAINED)
    life.limit_ordered(1, 9)
    assert (life.changes, life.limit) == (before + 3, 9)


def test_an_older_control_process_is_refused() -> None:
    life = ready(epoch=5)
    with pytest.raises(StaleEpochError, match="4 is older than 5"):
        life.drain_ordered(4)
    life.drain_ordered(7)
    for order in (life.drain_ordered, life.revive_ordered):
        with pytest.raises(StaleEpochError):
            order(6)
    with pytest.raises(StaleEpochError):
        life.limit_ordered(6, 1)


def test_stopping_is_not_taken_back() -> None:
    life = ready()
    life.is_stopping = True
    with pytest.raises(NotNowError, match="stopping"):
        life.revive_ordered(1)


def test_what_never_was_ready_cannot_be_revived() -> None:
    life = ReplicaLifecycle(limit=2, phases=ColdStartPhases(), epoch=0)
    life.entered(ReplicaState.DRAINED)
    with pytest.raises(NotNowError, match="drained"):
        life.revive_ordered(0)
    life.model_ready(limit=2, load_s=1.0, warm_s=None)
    life.revive_ordered(0)


def test_a_failure_is_news_once_says_why_and_stands() -> None:
    life = ready()
    assert life.model_failed("the model server refuses connections")
    assert not life.model_failed("again")
    life.entered(ReplicaState.DRAINED)
    assert life.event()["state"] == "failed"
    assert life.event()["message"] == "the model server refuses connections"
    with pytest.raises(NotNowError, match="failed"):
        life.revive_ordered(1)
