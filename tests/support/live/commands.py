"""Runs our programs as processes of their own that need not import their modules again.

A first process imports them, and each program is a fork of that process: with its own descriptors, folder, environment
and exit code, at a tenth of the processor time. So run the commands of ``tidegate``, with ``tidegate up`` as one that
runs on (``tests/live/test_cli_start.py`` and ``tests/live/test_deployment.py`` start the real program), and the
gateways, queue_proxies and model servers of ``tests/support/live/live_edge.py``, except on plain asyncio.
"""

import atexit
import fcntl
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from tests.support.deadline import Patience

COMMAND = "tidegate.control.cli"
GATEWAY, QUEUE_PROXY = "tidegate.gateway.main", "tidegate.queue_proxy.main"
MODEL_SERVER = "tests.support.models.scripted_server"
PRELOADED = {
    "commands": (
        "tidegate.control.cli.main",
        "tidegate.control.cli.app",
        "tidegate.control.sdk",
        "tidegate.manifest.reader",
        "rich.table",
        "tidegate.control.main",
        "tidegate.control.build",
        "tidegate.control.api.connections",
        "tidegate.store.embedded",
        "httpcore",
        "anyio._backends._asyncio",
        "pydantic.v1",
        "pynvml",
        "uvicorn.lifespan.off",
        "uvicorn.protocols.http.h11_impl",
        "uvloop",
    ),
    "data plane": (
        "tidegate.gateway.live",
        "tidegate.queue_proxy.live",
        "uvloop",
        GATEWAY,
        QUEUE_PROXY,
        MODEL_SERVER,
    ),
}
ROOT = Path(__file__).resolve().parents[3]
_START_S = 30.0
LOOK_S = 1.0
_MOST_BYTES = 1 << 20
_HIGH = 1000
"""From here on no program is given a descriptor by its number."""


class CommandServer:
    """The first process, and a socket on which it takes orders. ``kind``: of ``PRELOADED``."""

    def __init__(self, kind: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="commands-")
        self._path = f"{self._folder.name}/socket"
        self._process = subprocess.Popen([sys.executable, "-m", __name__, self._path, kind], cwd=ROOT)
        patience = Patience(_START_S)
        while not Path(self._path).exists():
            assert self._process.poll() is None, "the process of the commands has ended"
            assert not patience.is_over, f"the process of the commands does not start within {patience}"
            time.sleep(0.02)

    def run(
        self, arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str] | None = None, limit_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Runs ``tidegate ARGUMENTS`` to its end; stdin is empty. Raises TimeoutExpired."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            outputs = (out.fileno(), err.fileno())
            with self.start(arguments, folder=folder, environment=environment, outputs=outputs) as running:
                patience = Patience(limit_s)
                while (code := running.look(LOOK_S)) is None:
                    if patience.is_over:
                        running.kill()
                        raise subprocess.TimeoutExpired(running.args, patience.passed_s)
            for each in (out, err):
                each.seek(0)
            return subprocess.CompletedProcess(list(arguments), code, out.read(), err.read())

    def start(
        self,
        arguments: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        outputs: tuple[int, int],
        program: str = COMMAND,
        kept: Sequence[int] = (),
    ) -> "Running":
        """Starts ``python -m PROGRAM ARGUMENTS``. ``outputs``: the descriptors of stdout and stderr, stdin is empty;
        ``kept``: descriptors that it gets under the same numbers."""
        order = {
            "program": program,
            "arguments": list(arguments),
            "folder": str(folder),
            "environment": dict(environment or os.environ),
            "kept": list(kept),
        }
        line = socket.socket(socket.AF_UNIX)
        try:
            line.connect(self._path)
            socket.send_fds(line, [json.dumps(order).encode()], (*outputs, *kept))
            line.shutdown(socket.SHUT_WR)
            return Running(arguments, line)
        except BaseException:
            line.close()
            raise

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


def is_readable(descriptor: int, timeout: float | None) -> bool:
    """Whether there is something to read within ``timeout`` seconds, None without end; by poll, since select ends at
    descriptor 1023."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if timeout is None else timeout * 1000.0))


class Running:
    """A command that runs: what tests need of ``subprocess.Popen``. A context manager that closes its own sockets."""

    def __init__(self, arguments: Sequence[str], line: socket.socket) -> None:
        self.args = list(arguments)
        self.returncode: int | None = None
        self._line = line
        self._answers = line.makefile("r")
        self.pid = int(self._answers.readline())

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._close()

    def poll(self) -> int | None:
        """Returns the exit code, None while it runs; -9 if a signal ended it."""
        return self.look(0.0)

    def look(self, timeout: float) -> int | None:
        """The same, after at most so many seconds."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(timeout)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit code when no process has the number any more. Raises TimeoutExpired."""
        if self.returncode is None:
            if not is_readable(self._line.fileno(), timeout):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            code = self._answers.readline()
            self._answers.read()  # to the end of the process
            while Path(f"/proc/{self.pid}").exists():
                time.sleep(0.001)
            self.returncode = int(code) if code else -signal.SIGKILL
            self._close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _close(self) -> None:
        self._answers.close()
        self._line.close()


_lock = threading.Lock()


@cache
def _opened(kind: str) -> CommandServer:
    server = CommandServer(kind)
    atexit.register(server.close)
    return server


def command_server(kind: str = "commands") -> CommandServer:
    """Returns the one of this process of pytest; it ends with it."""
    with _lock:
        return _opened(kind)


# --- the first process ----------------------------------------------------------------------------------------------


def _serve(path: str, kind: str) -> NoReturn:
    for name in PRELOADED[kind]:
        __import__(name)
        if name in (GATEWAY, QUEUE_PROXY, MODEL_SERVER):
            del sys.modules[name]  # a fork runs it as __main__
    gc.collect()
    gc.freeze()  # so that a fork's collector leaves these pages as they are
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{path}.new")
    listener.listen(64)
    Path(f"{path}.new").rename(path)
    parent = os.getppid()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel takes the children away
    listener.settimeout(1.0)
    while os.getppid() == parent:
        try:
            line, _ = listener.accept()
        except TimeoutError:
            continue
        if os.fork() == 0:
            listener.close()
            _carry_out(line)
        line.close()
    sys.exit(0)


def _carry_out(line: socket.socket) -> NoReturn:
    """Carries out one order and reports the exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    line.settimeout(None)
    received, descriptors, _, _ = socket.recv_fds(line, _MOST_BYTES, 16)
    while piece := line.recv(_MOST_BYTES):
        received += piece
    order: dict[str, Any] = json.loads(received)
    # Out of the way first: a wanted number may be one that is in use here.
    line = socket.socket(fileno=fcntl.fcntl(line.detach(), fcntl.F_DUPFD_CLOEXEC, _HIGH))
    nothing = os.open(os.devnull, os.O_RDONLY)
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, _HIGH) for each in (nothing, *descriptors)]
    for given in (nothing, *descriptors):
        os.close(given)
    for wanted, given in zip((0, 1, 2, *order["kept"]), moved, strict=True):
        os.dup2(given, wanted)
        os.close(given)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = [order["program"], *order["arguments"]]
    line.sendall(f"{os.getpid()}\n".encode())
    code = _exit_code(order["program"])
    sys.stdout.flush()
    sys.stderr.flush()
    line.sendall(f"{code}\n".encode())
    os._exit(code)


def _exit_code(program: str) -> int:
    try:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


if __name__ == "__main__":
    _serve(*sys.argv[1:])
