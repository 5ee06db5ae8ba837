"""The life of a replica under orders: ready, drain, taken back, stop; old epochs are refused."""

import json

import pytest

from queue_proxy.drain import Life, NotNowError, StaleEpochError
from tidegate.records import ColdStartPhases
from tidegate.replica import ReplicaState


def ready(*, epoch: int = 1) -> Life:
    life = Life(limit=None, phases=ColdStartPhases(decide_s=0.002), epoch=epoch)
    life.model_ready(limit=4, load_s=1.5, warm_s=None)
    return life


def test_a_start_is_told_with_phases_and_limit() -> None:
    life = Life(limit=None, phases=ColdStartPhases(decide_s=0.002), epoch=1)
    assert not life.is_accepting
    assert json.loads(json.dumps(life.event()))["state"] == "starting"
    life.model_ready(limit=4, load_s=1.5, warm_s=0.1)
    event = life.event()
    assert (event["state"], event["limit"]) == ("ready", 4)
    assert event["phases"] == {
        "decide_s": 0.002,
        "schedule_s": None,
        "pull_s": None,
        "load_s": 1.5,
        "warm_s": 0.1,
        "first_response_s": None,
    }
    assert life.is_accepting


def test_a_drain_ends_when_the_work_ends_and_can_be_taken_back_before_and_after() -> None:
    life = ready()
    life.order_drain(1, is_idle=False)
    assert life.state is ReplicaState.DRAINING
    assert life.is_accepting, "credits that are out still run"
    life.order_revive(1)
    assert life.state is ReplicaState.READY
    life.order_drain(1, is_idle=False)
    life.work_ended()
    assert life.state is ReplicaState.DRAINED
    life.order_revive(1)
    assert life.state is ReplicaState.READY


def test_an_idle_replica_is_drained_at_once_and_a_second_order_changes_nothing() -> None:
    life = ready()
    life.order_drain(1, is_idle=True)
    changes = life.changes
    life.order_drain(1, is_idle=True)
    assert (life.state, life.changes) == (ReplicaState.DRAINED, changes)


def test_an_older_control_process_is_refused() -> None:
    life = ready(epoch=5)
    with pytest.raises(StaleEpochError, match="4 is older than 5"):
        life.order_drain(4, is_idle=True)
    life.order_drain(7, is_idle=True)
    with pytest.raises(StaleEpochError):
        life.order_revive(6)
    assert life.state is ReplicaState.DRAINED


def test_stopping_is_not_taken_back() -> None:
    life = ready()
    life.stop(is_idle=True)
    with pytest.raises(NotNowError):
        life.order_revive(1)


def test_drained_before_it_was_ready_it_stays_drained_when_the_model_comes() -> None:
    life = Life(limit=2, phases=ColdStartPhases(), epoch=0)
    life.order_drain(0, is_idle=True)
    with pytest.raises(NotNowError):
        life.order_revive(0)
    life.model_ready(limit=2, load_s=1.0, warm_s=None)
    assert life.state is ReplicaState.DRAINED
    life.order_revive(0)
    assert life.state is ReplicaState.READY


def test_a_failure_is_news_once_and_says_why() -> None:
    life = ready()
    assert life.model_failed("the model server refuses connections")
    assert not life.model_failed("again")
    assert life.event()["message"] == "the model server refuses connections"
    with pytest.raises(NotNowError):
        life.order_revive(1)
    life.stop(is_idle=True)
    assert life.state is ReplicaState.FAILED


def test_a_new_limit_is_a_change() -> None:
    life = ready()
    before = life.changes
    life.order_limit(1, 9)
    assert (life.limit, life.changes) == (9, before + 1)
