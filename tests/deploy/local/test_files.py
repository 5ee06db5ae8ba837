"""Bounded logs, names of sockets, free ports, what is checked before a start, stories of failures."""

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from tidegate.deploy.failures import failure_text
from tidegate.deploy.local import sockets
from tidegate.deploy.local.checks import problems
from tidegate.deploy.local.logs import open_log, prune, tail, trim
from tidegate.deploy.local.processes import Exit, SpawnError
from tidegate.deploy.local.replica import read_secrets
from tidegate.function import Function, ModelFormat, Server, ServerKind


def test_a_log_above_its_limit_keeps_the_newest_half_aside(tmp_path: Path) -> None:
    """The writer goes on at the new end, because its file is opened for appending."""
    path = tmp_path / "f" / "r.server.log"
    writer = open_log(path)
    os.write(writer, b"old\n" * 300)
    assert trim(path, 1000)
    assert path.read_bytes() == b""
    cut = b"-- tidegate: cut 1, 704 bytes before this line are lost\n"
    assert (tmp_path / "f" / "r.server.log.1").read_bytes() == cut + b"old\n" * 124
    os.write(writer, b"new\n")
    os.close(writer)
    assert path.read_bytes() == b"new\n"
    assert not trim(path, 1000)
    assert not trim(tmp_path / "absent", 1000)


def test_the_tail_is_of_this_process_only_and_safe_to_print(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"before\n" + b"one\n\n\x1b[31mtwo\x00\n" + b"x" * 500 + b"\n\xff\n")
    assert tail(path, 20, since=7) == ["one", " [31mtwo ", "x" * 400, "\ufffd"]
    assert tail(path, 1) == ["\ufffd"]
    assert tail(path, since=10_000)[0] == "before", "cut meanwhile: all of it is its own"
    assert tail(tmp_path / "absent") == []


def test_old_logs_of_stopped_replicas_go(tmp_path: Path) -> None:
    for age, name in enumerate(["c.server.log", "b.server.log.1", "b.server.log", "a.server.log"]):
        (tmp_path / name).write_text("x")
        os.utime(tmp_path / name, (age, age))
    assert prune(tmp_path, 2, living={"c"}) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.server.log", "c.server.log"]
    assert prune(tmp_path / "absent", 2, living=()) == 0


def test_a_long_name_becomes_a_short_socket() -> None:
    run = Path("/run")
    assert sockets.socket_path(run, "f-00001-aaaaa", ".q") == Path("/run/f-00001-aaaaa.q")
    long = sockets.socket_path(run, "f" * 63 + "-00001-aaaaa", ".q")
    assert len(long.name) <= sockets.NAME_LIMIT
    assert long != sockets.socket_path(run, "f" * 63 + "-00001-bbbbb", ".q")


def test_a_story_ends_with_what_the_server_said() -> None:
    assert (
        failure_text("it died", ["a", "b"], "wrong port")
        == "it died; wrong port\nlast output of the model server:\n  a\n  b"
    )
    assert failure_text("it died", []) == "it died\nthe model server wrote nothing"


def test_ways_to_end_in_words() -> None:
    assert str(Exit(status=3)) == "exited with status 3"
    assert str(Exit(signal=9)) == "was killed by SIGKILL"
    assert str(Exit(signal=64 + 1)) == "was killed by signal 65"
    assert str(Exit()) == "ended"


def test_a_secret_is_its_file_without_the_last_newline(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    assert read_secrets({"TOKEN": str(tmp_path / "token")}) == {"TOKEN": "s3cret"}
    (tmp_path / "binary").write_bytes(b"s3cret\xff")
    with pytest.raises(SpawnError) as caught:
        read_secrets({"TOKEN": str(tmp_path / "binary")})
    assert "TOKEN" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def function(tmp_path: Path, server: Server, **fields: object) -> Function:
    return Function(name="f", server=server, workdir=str(tmp_path), **fields)  # type: ignore[arg-type]


def test_what_can_be_checked_before_a_start(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"")
    (tmp_path / "h.py").write_text("")
    model = Server(kind=ServerKind.MODEL, target=str(tmp_path / "m.onnx"))
    assert problems(function(tmp_path, model), "/bin") == []
    assert problems(function(tmp_path, Server(kind=ServerKind.HANDLER, target=f"{tmp_path}/h.py:Model")), None) == []
    assert problems(function(tmp_path, Server(kind=ServerKind.COMMAND, argv=("sh", "-c", ":"))), "/bin") == []


def test_everything_that_is_missing_is_reported_at_once(tmp_path: Path) -> None:
    broken = replace(
        function(tmp_path, Server(kind=ServerKind.MODEL, target="/no/model.onnx")),
        workdir="/no/folder",
        python="/no/python",
        warmup="/no/warm.json",
        secrets={"TOKEN": "/no/token"},
    )
    reported = " ".join(problems(broken, "/bin"))
    for path in ("/no/model.onnx", "/no/folder", "/no/python", "/no/warm.json", "/no/token"):
        assert path in reported
    (wrong,) = problems(function(tmp_path, Server(kind=ServerKind.COMMAND, argv=("no-such-program",))), "/bin")
    assert "no-such-program" in wrong
    (image,) = problems(function(tmp_path, Server(kind=ServerKind.IMAGE, target="repo/x:1")), "/bin")
    assert "Kubernetes" in image


@pytest.mark.live
def test_a_port_that_is_taken_is_not_chosen() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        other = sockets.choose_port(port, ())
        assert other != port
        assert sockets.choose_port(other, {other}) != other
    assert sockets.choose_port(other, ()) == other


@pytest.mark.live
def test_a_socket_is_made_anew_over_an_old_file(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("left behind")
    with sockets.listen(path), socket.socket(socket.AF_UNIX) as client:
        assert path.stat().st_mode & 0o777 == 0o600
        client.connect(str(path))
    sockets.unlink(f"unix:{path}")
    sockets.unlink(f"unix:{path}")
    sockets.unlink("127.0.0.1:80")
    assert not path.exists()


def test_a_models_folder_must_be_there(tmp_path: Path) -> None:
    server = Server(kind=ServerKind.MODEL, target=str(tmp_path / "bert"), format=ModelFormat.HUGGINGFACE)
    function = Function(name="bert", server=server, workdir=str(tmp_path))
    assert problems(function, None) == [f"model {tmp_path}/bert is not a folder"]
    (tmp_path / "bert").mkdir()
    assert problems(function, None) == []
