"""Finding the deployment: a control process that starts is waited for, one that is not there is not."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tidegate.control.sdk import InvokeError, NotRunningError, Tidegate
from tidegate.control.state.directory import DirectoryLock, Holder, StateDirectory

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
    monkeypatch.setattr("tidegate.control.sdk.time.sleep", answers_at_the_third_look)
    with Tidegate.local(tmp_path) as tidegate:
        assert (tidegate.url, tidegate.gateway) == ("http://127.0.0.1:9", "http://g")
    assert len(waits) == 3
    lock.release()


def test_the_wait_has_an_end_and_none_is_waited_for_who_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("tidegate.control.sdk.time.sleep", waits.append)
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


def test_one_that_is_yet_to_come_can_be_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `tidegate up & tidegate deploy FILE`: not even the directory is there at first."""
    root = tmp_path / "state"
    locks: list[DirectoryLock] = []

    def comes_at_the_second_look(_: float) -> None:
        state = StateDirectory(root)
        if not root.exists():
            state.prepare()
        elif not locks:
            assert state.token
            locks.append(state.lock())
            locks[0].describe(Holder(pid=os.getpid(), since=SINCE, epoch=1, api="http://127.0.0.1:9"))

    monkeypatch.setattr("tidegate.control.sdk.time.sleep", comes_at_the_second_look)
    with Tidegate.local(root, awaited_s=5.0) as tidegate:
        assert tidegate.url == "http://127.0.0.1:9"
    locks[0].release()


def test_one_that_does_not_come_is_not_awaited_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("tidegate.control.sdk.time.monotonic", lambda: now[0])
    monkeypatch.setattr("tidegate.control.sdk.time.sleep", lambda duration_s: now.__setitem__(0, now[0] + duration_s))
    with pytest.raises(NotRunningError, match="start one with `tidegate up`"):
        Tidegate.local(tmp_path / "none", awaited_s=5.0)
    assert 5.0 <= now[0] < 5.2


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error": {"code": "job_not_found", "message": "no such job"}}', "status 404, job_not_found: no such job"),
        (b'{"error": "in words of V2"}', "status 404: in words of V2"),
        (b'{"error": "no place", "code": "not_servable"}', "status 404, not_servable: no place"),
        (b'{"error": {"message": "too long", "type": "invalid", "code": null}}', "status 404, invalid: too long"),
        (b'{"type": "error", "error": {"type": "overloaded", "message": "busy"}}', "status 404, overloaded: busy"),
        (b'{"error": {"message": "alone"}}', "status 404: alone"),
        (b'{"error": [1]}', 'status 404: {"error": [1]}'),
        (b'{"error": {"type": "x"}}', 'status 404: {"error": {"type": "x"}}'),
        (b"<html>", "status 404: <html>"),
    ],
)
def test_an_error_is_said_in_its_own_words(body: bytes, words: str) -> None:
    error = InvokeError(404, body)
    assert (str(error), error.body) == (words, body)


def test_without_workers_here_the_gateway_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = StateDirectory(tmp_path)
    state.prepare()
    lock = state.lock()
    assert state.token
    lock.describe(Holder(pid=os.getpid(), since=SINCE, epoch=1, api="http://127.0.0.1:9"))
    status = SimpleNamespace(gateway="http://10.0.0.7:8080", certificate=None)
    monkeypatch.setattr(Tidegate, "status", lambda self: status)
    with Tidegate.local(tmp_path) as tidegate:
        assert tidegate.gateway == "http://10.0.0.7:8080"
    lock.release()
