"""The life of a replica is a table; every pair outside it is an error that names both."""

import pytest

from tidegate.records.replica_state import (
    TRANSITIONS,
    ColdStartPhases,
    IllegalTransitionError,
    ReplicaEvent,
    ReplicaState,
    advance,
    known_phases,
    read_phases,
    write_phases,
)


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


# --- phases of a cold start ---------------------------------------------------------------------------------------


def test_the_text_reads_back() -> None:
    phases = ColdStartPhases(decide_s=0.0018, schedule_s=0.004, pull_s=0.0, load_s=12.5)
    assert write_phases(phases) == "decide=0.0018,schedule=0.004,pull=0,load=12.5"
    assert read_phases(write_phases(phases)) == phases
    assert list(known_phases(phases))[-1] == ("load", 12.5)


def test_nothing_known_is_an_empty_text() -> None:
    assert write_phases(ColdStartPhases()) == ""
    assert read_phases("") == ColdStartPhases()


@pytest.mark.parametrize("text", ["decided=1", "decide", "decide=", "decide=-1", "decide=nan", "decide=inf", "=1"])
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"phase|duration|convert"):
        read_phases(text)
