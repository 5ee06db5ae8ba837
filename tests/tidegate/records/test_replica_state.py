"""The life of a replica is a table; every pair outside it is an error that names both."""

import pytest

from tidegate.records.replica_state import TRANSITIONS, IllegalTransitionError, ReplicaEvent, ReplicaState, advance


def test_a_life_that_is_taken_back_once() -> None:
    state = ReplicaState.STARTING
    for event, expected in (
        (ReplicaEvent.MODEL_READY, ReplicaState.READY),
        (ReplicaEvent.DRAIN_ORDERED, ReplicaState.DRAINING),
        (ReplicaEvent.LAST_WORK_ENDED, ReplicaState.DRAINED),
        (ReplicaEvent.REVIVE_ORDERED, ReplicaState.READY),
        (ReplicaEvent.DRAIN_ORDERED, ReplicaState.DRAINING),
        (ReplicaEvent.LAST_WORK_ENDED, ReplicaState.DRAINED),
        (ReplicaEvent.STOP_RECORDED, ReplicaState.STOPPED),
    ):
        state = advance(state, event)
        assert state is expected


@pytest.mark.parametrize("state", ReplicaState)
@pytest.mark.parametrize("event", ReplicaEvent)
def test_pairs_outside_the_table_are_refused_by_name(state: ReplicaState, event: ReplicaEvent) -> None:
    if (state, event) in TRANSITIONS:
        assert advance(state, event) is TRANSITIONS[state, event]
        return
    with pytest.raises(IllegalTransitionError, match=f"{state.value}.*{event.value}"):
        advance(state, event)


def test_a_recorded_stop_is_final() -> None:
    assert not [pair for pair in TRANSITIONS if pair[0] is ReplicaState.STOPPED]
