"""The state directory: private, owned by one control process at a time, with an epoch that only rises."""

import errno
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from tidegate.control.state.directory import (
    SOCKET_PATH_LIMIT,
    DirectoryLock,
    Holder,
    StateDirectory,
    StateError,
    StateLockedError,
    default_directory,
    own_directory,
    socket_directory,
    usable,
    write_atomically,
)


@pytest.fixture
def state(tmp_path: Path) -> StateDirectory:
    directory = StateDirectory(tmp_path / "state")
    directory.prepare()
    return directory


def test_only_the_owner_may_look(state: StateDirectory) -> None:
    assert state.root.stat().st_mode & 0o777 == 0o700
    assert len(state.token) >= 40
    assert (state.root / "token").stat().st_mode & 0o777 == 0o600
    assert (state.root / "link-token").exists() is False
    assert state.link_token != state.token
    assert state.link_token_file.stat().st_mode & 0o777 == 0o600


def test_a_directory_that_was_open_to_others_is_closed(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o755)
    StateDirectory(tmp_path / "state").prepare()
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


def test_a_link_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateError, match="not a directory"):
        own_directory(tmp_path / "run")


def test_tokens_survive(state: StateDirectory) -> None:
    assert state.read_token() is None
    token = state.token
    assert StateDirectory(state.root).token == token == state.read_token()


def test_each_start_takes_a_higher_epoch(state: StateDirectory) -> None:
    assert state.last_epoch() == 0
    assert [state.next_epoch(), StateDirectory(state.root).next_epoch()] == [1, 2]


def test_a_damaged_epoch_is_not_taken_for_zero(state: StateDirectory) -> None:
    state.epoch_file.write_text("seven\n")
    with pytest.raises(StateError, match="should hold a number"):
        state.next_epoch()


def test_the_second_owner_is_reported_who_the_first_is(state: StateDirectory) -> None:
    lock = state.lock()
    holder = Holder(pid=os.getpid(), since="2026-01-01 10:00:00+01:00", epoch=3, api="http://127.0.0.1:8081")
    lock.describe(holder)
    assert state.holder() == holder
    with pytest.raises(StateLockedError, match=f"process {os.getpid()}, since 2026-01-01") as refused:
        StateDirectory(state.root).lock()
    assert refused.value.holder == holder
    lock.release()
    assert state.holder() is None
    state.lock().release()


def test_a_shorter_description_replaces_a_longer_one(state: StateDirectory) -> None:
    lock = state.lock()
    lock.describe(Holder(pid=os.getpid(), since="x" * 80, epoch=1))
    lock.describe(Holder(pid=os.getpid(), since="y", epoch=1))
    assert state.holder() == Holder(pid=os.getpid(), since="y", epoch=1)
    lock.release()


def test_what_a_killed_holder_wrote_is_no_address(state: StateDirectory) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    old = Holder(pid=child.pid, since="long ago", epoch=1, api="http://127.0.0.1:1")
    state.lock_file.write_text(json.dumps(asdict(old)))
    assert state.holder() is None
    lock = state.lock()
    holder = state.holder()
    assert holder is not None
    assert holder.api is None
    lock.describe(old)
    holder = state.holder()
    assert holder is not None
    assert holder.api is None
    lock.release()


def test_a_child_does_not_keep_the_lock(state: StateDirectory) -> None:
    lock = state.lock()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        lock.release()
        state.lock().release()
        child.communicate(b"\n")


def test_the_default_place_follows_the_environment() -> None:
    assert default_directory({"XDG_STATE_HOME": "/x", "HOME": "/home/a"}) == Path("/x/tidegate")
    assert default_directory({"XDG_STATE_HOME": "", "HOME": "/home/a"}) == Path("/home/a/.local/state/tidegate")
    assert default_directory({"XDG_STATE_HOME": "relative", "HOME": "/home/a"}) == Path("/home/a/.local/state/tidegate")


def test_long_paths_get_a_short_place_for_sockets(tmp_path: Path) -> None:
    long = tmp_path / ("d" * 90)
    run = socket_directory(long)
    assert len(os.fsencode(run)) + 40 <= SOCKET_PATH_LIMIT
    assert run == socket_directory(long)
    assert run != socket_directory(tmp_path / ("e" * 90))
    assert socket_directory(Path("/srv/tidegate")) == Path("/srv/tidegate/run")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "routes.json"
    write_atomically(path, b"old")
    with pytest.raises(TypeError):
        write_atomically(path, "text")  # type: ignore[arg-type]  # the fault this test is about
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["routes.json"]


def test_a_file_in_place_of_the_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no folder")
    state = StateDirectory(tmp_path / "state")
    for refused in (state.prepare, state.lock):
        with pytest.raises(StateError, match="choose a directory, not a file, with --state"):
            refused()
    assert state.holder() is None
    assert state.read_token() is None


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.ENOSPC, "make room on the disk"), (errno.EROFS, "can be written"), (errno.EACCES, "of your own")],
)
def test_what_the_system_refuses_is_reported_with_advice(number: int, advice: str) -> None:
    with pytest.raises(StateError, match=f"{os.strerror(number)}; .*{advice}"), usable(Path("/s/token")):
        raise OSError(number, os.strerror(number), "/s/token")


def test_a_full_disk_is_a_state_error(state: StateDirectory) -> None:
    fd = os.open("/dev/full", os.O_RDWR)
    try:
        with pytest.raises(StateError, match="No space left"):
            DirectoryLock(fd, state.lock_file).describe(Holder(pid=1, since="now", epoch=1))
    finally:
        os.close(fd)


def test_sockets_outside_the_directory_leave_nothing_behind(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / ("long" * 30))
    state.prepare()
    assert state.run.parent != state.root
    (state.run / "g0.sock").touch()
    state.clear()
    assert state.run.exists(), "somebody still listens there"
    (state.run / "g0.sock").unlink()
    state.clear()
    assert not state.run.exists()


def test_nothing_in_the_directory_is_readable_by_others(state: StateDirectory) -> None:
    state.prepare()
    state.database.chmod(0o644)  # as an older version left it
    state.prepare()
    for file in (state.database, state.cold_starts, state.control_log):
        assert file.stat().st_mode & 0o777 == 0o600
