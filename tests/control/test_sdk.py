"""Finding the deployment: a control process that starts is waited for, one that is not there is not."""

import os
from pathlib import Path

import pytest

from control.sdk import NotRunningError, Tidegate
from control.state import Holder, StateDirectory

SINCE = "2026-01-01 10:00:00+01:00"


def test_a_control_process_that_starts_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = StateDirectory(tmp_path)
    state.prepare()
    lock = state.lock()
    waits: list[float] = []

    def answers_at_the_third_look(duration_s: float) -> None:
        waits.append(duration_s)
        if len(waits) == 3:
            assert state.token
            lock.describe(Holder(pid=os.getpid(), since=SINCE, epoch=1, api="http://127.0.0.1:9", gateway="http://g"))

    lock.describe(Holder(pid=os.getpid(), since=SINCE, epoch=1))
    monkeypatch.setattr("control.sdk.time.sleep", answers_at_the_third_look)
    with Tidegate.local(tmp_path) as tidegate:
        assert (tidegate.url, tidegate.gateway) == ("http://127.0.0.1:9", "http://g")
    assert len(waits) == 3
    lock.release()


def test_the_wait_has_an_end_and_nobody_is_waited_for_who_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("control.sdk.time.sleep", waits.append)
    with pytest.raises(NotRunningError, match="start one with `tidegate up`"):
        Tidegate.local(tmp_path / "none")
    assert waits == []
    state = StateDirectory(tmp_path)
    state.prepare()
    lock = state.lock()
    lock.describe(Holder(pid=os.getpid(), since=SINCE, epoch=1))
    with pytest.raises(NotRunningError, match=f"process {os.getpid()} .* is starting or leaving"):
        Tidegate.local(tmp_path, patience_s=0.0)
    lock.release()
