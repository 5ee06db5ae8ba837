"""The sockets of model servers, each in a folder of its own."""

from pathlib import Path

from tidegate.deploy.local import sockets


def test_a_model_servers_socket_has_a_private_folder_that_goes_with_it(tmp_path: Path) -> None:
    path = sockets.model_socket(tmp_path, "echo-00001-abcde")
    assert path == tmp_path / "echo-00001-abcde.m" / "s"
    sockets.make_folder(f"unix:{path}")
    sockets.make_folder(f"unix:{path}")
    assert path.parent.stat().st_mode & 0o777 == 0o700
    path.touch()
    sockets.unlink(f"unix:{path}")
    assert not path.parent.exists()
    sockets.make_folder(f"unix:{tmp_path}/own/server.sock")
    assert not (tmp_path / "own").exists(), "a socket that the function names has its own place"


def test_what_a_crash_left_is_swept_away_and_living_sockets_stay(tmp_path: Path) -> None:
    living, dead = (sockets.model_socket(tmp_path, name) for name in ("a", "b"))
    for path in (living, dead):
        sockets.make_folder(f"unix:{path}")
        path.touch()
    (tmp_path / "old.m").touch()
    (tmp_path / "c.q").touch()
    (tmp_path / "quotas.sock").touch()
    sockets.sweep(tmp_path, {f"unix:{living}", f"unix:{tmp_path}/c.q"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.m", "c.q", "quotas.sock"]
    assert living.exists()
