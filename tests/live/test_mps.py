"""The MPS daemon: started where an accelerator is shared by MPS, started again when it ends, and stopped with the rest;
one that runs already is used and left alone. Its program and the driver are fakes; the processes are real."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import fake_nvml
from tests.support.live.deployment import Deployment, deployment, is_alive

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

PROGRAM = f"""#!{sys.executable}
import os, signal, sys, time
pipes = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
file = os.path.join(pipes, "nvidia-cuda-mps-control.pid")
if sys.argv[1:] == ["-d"]:
    if os.fork() == 0:
        os.setsid()
        with open(file, "w") as made:
            made.write(str(os.getpid()))
        time.sleep(600)
    while not os.path.exists(file) or not open(file).read():
        time.sleep(0.01)
elif sys.stdin.read() == "quit\\n":
    os.kill(int(open(file).read()), signal.SIGTERM)
    os.unlink(file)
"""
ACCELERATORS = "accelerators:\n  - {name: t4, kind: nvidia, mps: true}\n"
SHARED = ("--mps-on", "true", "--gpu-core-percentage", "40", "--gpu-mem-limit", "1", "--dnn-model", "echo")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    path = tmp_path / "path"
    path.mkdir()
    shutil.copyfile(str(fake_nvml.__file__), path / "pynvml.py")
    (path / "nvidia-cuda-mps-control").write_text(PROGRAM)
    (path / "nvidia-cuda-mps-control").chmod(0o755)
    (tmp_path / "nvml.json").write_text('{"devices": {"GPU-1": {"name": "Tesla T4"}}}')
    (tmp_path / "accelerators.yaml").write_text(ACCELERATORS)
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "nvml.json"))
    monkeypatch.setenv("PYTHONPATH", str(path))
    monkeypatch.setenv("PATH", f"{path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "elsewhere"))
    with deployment(tmp_path, "--accelerators-file", str(tmp_path / "accelerators.yaml")) as made:
        yield made


def daemon(folder: Path) -> int | None:
    """The process id of a living daemon of this folder."""
    try:
        pid = int((folder / "nvidia-cuda-mps-control.pid").read_text())
    except (OSError, ValueError):
        return None
    return pid if is_alive(pid) else None


def pipes_of_server(world: Deployment) -> str:
    """Returns the folder of pipes in the environment of the only replica's model server."""
    (replica,) = world.status("echo")["revisions"][0]["replicas"]
    variables = Path(f"/proc/{replica['pids'][-1]}/environ").read_bytes().split(b"\0")
    return next(each for each in variables if each.startswith(b"CUDA_MPS_PIPE_DIRECTORY=")).decode().partition("=")[2]


def test_the_daemon_is_started_kept_and_stopped(world: Deployment) -> None:
    world.up(as_program=True)
    pipes = world.state.run / "mps"
    first = world.until(lambda: daemon(pipes), 15.0, "the daemon")
    world.deploy(world.handler(), *SHARED, "--wait")
    assert pipes_of_server(world) == str(pipes)
    os.kill(first, signal.SIGKILL)
    world.until(lambda: daemon(pipes) not in (None, first), 15.0, "the next daemon")
    assert world.status()["faults"] == []
    world.stop()
    assert daemon(pipes) is None


def test_a_daemon_that_runs_already_is_used_and_left_alone(world: Deployment) -> None:
    pipes = world.folder / "elsewhere"
    pipes.mkdir()
    subprocess.run([str(world.folder / "path" / "nvidia-cuda-mps-control"), "-d"], check=True)
    found = daemon(pipes)
    assert found is not None
    try:
        world.up(as_program=True)
        world.deploy(world.handler(), *SHARED, "--wait")
        assert pipes_of_server(world) == str(pipes)
        world.stop()
        assert daemon(pipes) == found
    finally:
        os.kill(found, signal.SIGKILL)


def test_a_program_that_is_missing_is_named_in_the_status(world: Deployment) -> None:
    (world.folder / "path" / "nvidia-cuda-mps-control").unlink()
    world.up(as_program=True)
    fault = world.until(lambda: world.status()["faults"], 15.0, "the fault")
    assert fault == [
        "mps: nvidia-cuda-mps-control cannot be run: No such file or directory; replicas with mps-on cannot start"
    ]
