"""A deployment for live tests: ``tidegate up`` as people run it, on free ports and a directory of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.deadline import Patience
from tests.support.live.commands import Running, command_server
from tests.support.live.guard import guard_process, guard_state
from tidegate.control.sdk import Tidegate
from tidegate.control.state.directory import Holder, StateDirectory
from tidegate.deploy.local.records import RecordStore
from tidegate.deploy.local.recovery import end_all, survey
from tidegate.records.codec import encode

ECHO = """
import os, time
def wait(seconds, file):
    time.sleep(seconds)
    while file and not os.path.exists(file):
        time.sleep(0.01)
class Echo:
    arrays = "plain"
    inputs = {"x": ("FP32", [-1, 2])}
    outputs = {"y": ("FP32", [-1, 2])}
    concurrency = 1
    def load(self):
        print("echo is loaded", flush=True)
        wait(LOAD_S, LOAD_UNTIL)
    def predict(self, inputs):
        wait(WORK_S, WORK_UNTIL)
        return {"y": [[2 * value for value in row] for row in inputs["x"]]}
"""
POLL_S, LONGEST_POLL_S = 0.05, 0.2
"""Between two looks at a deployment, of which each takes some milliseconds of it."""
REQUEST = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}


class Deployment:
    """One state directory and the control process on it, if any."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        self.state = StateDirectory(folder / "state")
        guard_state(self.state.root)
        # Whether a surplus replica sleeps depends on how long starts take here: tests of it say so.
        own = ("--gateway-listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0", "--servers-sleep", "false")
        self.flags = (*own, *flags)
        self.process: Running | subprocess.Popen[bytes] | None = None
        self.log = folder / "control.log"

    def up(self, *flags: str, as_program: bool = False) -> Holder:
        """Starts the control process and waits until it answers. One before it must have ended or be ending.

        ``as_program``: as the program that people start, with its own command line and this process's limits, not as a
        fork of one that is running.
        """
        if self.process is not None:
            self.process.wait(45.0)
        words = ("up", "--state", str(self.state.root), *self.flags, *flags)
        with self.log.open("ab") as output:
            if as_program:
                self.begin(*flags)
            else:
                outputs = (output.fileno(), output.fileno())
                self.process = command_server().start(words, folder=Path.cwd(), outputs=outputs)
                guard_process(self.process.pid)
        holder: Holder = self.until(self._answering, 15.0, "the control process to answer")
        return holder

    def begin(self, *flags: str) -> None:
        """Starts the control process as a program, and does not wait for it."""
        command = self.command("up", *self.flags, *flags)
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        guard_process(self.process.pid)

    @property
    def is_up(self) -> bool:
        """Whether the control process answers."""
        return self._answering() is not None

    def _answering(self) -> Holder | None:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"the control process ended:\n{self.log.read_text()}")
        holder = self.state.holder()
        return holder if holder is not None and holder.api is not None else None

    def command(self, name: str, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "tidegate.control.cli", name, "--state", str(self.state.root), *arguments]

    def cli(self, name: str, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end and checks its exit code."""
        words = (name, "--state", str(self.state.root), *arguments)
        done = command_server().run(words, folder=self.folder, limit_s=60.0)
        assert done.returncode == code, f"{name} exited with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done

    def ask(self, name: str, *arguments: str) -> Any:
        """A command's JSON."""
        return json.loads(self.cli(name, *arguments, "--json").stdout)

    def status(self, function: str | None = None) -> Any:
        """What ``tidegate status --json`` prints, at a tenth of the command's processor time: for waits that ask again
        and again."""
        with self.sdk() as tidegate:
            return json.loads(encode(tidegate.status() if function is None else tidegate.function(function)))

    def sdk(self) -> Tidegate:
        return Tidegate.local(self.state.root)

    @property
    def gateway(self) -> str:
        holder = self.state.holder()
        assert holder is not None
        assert holder.gateway is not None
        return holder.gateway

    def handler(
        self,
        *,
        load_s: float = 0.0,
        load_until: Path | None = None,
        work_s: float = 0.0,
        work_until: Path | None = None,
        name: str = "echo",
    ) -> str:
        """A Python class to deploy, as ``file.py:Class``. It loads for ``load_s`` and until there is a file
        ``load_until``; each request likewise."""
        path = self.folder / f"{name}.py"
        files = [None if each is None else str(each) for each in (load_until, work_until)]
        path.write_text(f"LOAD_S, WORK_S = {load_s}, {work_s}\nLOAD_UNTIL, WORK_UNTIL = {files}\n{ECHO}")
        return f"{path}:Echo"

    def deploy(self, handler: str, *flags: str, name: str = "echo") -> None:
        """Deploys, from whatever file before, and returns when the revision is recorded; with ``--wait`` among the
        flags, which is none of the command's own, when it serves."""
        own = [flag for flag in flags if flag != "--wait"]
        waits = [] if "--wait" in flags else ["--no-wait"]
        self.cli("deploy", handler, "--name", name, "--replace", *waits, *own)

    def infer(self, *, name: str = "echo", gateway: str | None = None, timeout: float = 20.0) -> httpx.Response:
        url = f"{gateway or self.gateway}/v2/models/{name}/infer"
        return httpx.post(url, json=REQUEST, timeout=timeout, trust_env=False, verify=False)

    def living(self) -> dict[str, int]:
        """Recorded processes that live: pid by id."""
        return {each.id: each.pid or 0 for each in survey(RecordStore(self.state.processes)).living}

    def end(self, record: str) -> None:
        """``kill -9`` of a recorded process."""
        os.kill(self.living()[record], signal.SIGKILL)

    def kill(self) -> None:
        """``kill -9`` of the control process."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(45.0)

    def until(self, found: Callable[[], Any], limit_s: float, what: str) -> Any:
        """Asks until there is an answer."""
        patience = Patience(limit_s)
        while not (answer := found()):
            if patience.is_over:
                raise AssertionError(f"waited {patience} for {what}\n{self.log.read_text()[-3000:]}")
            time.sleep(min(POLL_S + patience.passed_s / 20, LONGEST_POLL_S))
        return answer

    def until_replicas(self, count: int, limit_s: float = 15.0, name: str = "echo") -> None:
        """Waits for so many processes' worth of replicas of a function."""
        self.until(lambda: self.replicas(name) == count, limit_s, f"{count} replicas of {name}")

    def replicas(self, name: str = "echo") -> int:
        return sum(key.startswith(f"{name}-") and key.endswith(".server") for key in self.living())

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.state.processes.exists():
            end_all(self.state.processes, grace_s=0.2)


@contextmanager
def deployment(folder: Path, *flags: str) -> Iterator[Deployment]:
    """A deployment of which nothing is left afterwards, whatever the test did."""
    found = Deployment(folder, *flags)
    try:
        yield found
    finally:
        found.close()


def places(folder: Path, count: int) -> tuple[str, str]:
    """The flag for so many places for replicas on this machine."""
    file = folder / "accelerators.yaml"
    file.write_text(f"accelerators: [{{name: cpu, kind: cpu, cores: 1, count: {count}, memory: 4Gi}}]\n")
    return ("--accelerators-file", str(file))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
