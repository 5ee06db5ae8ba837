"""Runs `tidegate` commands as processes of their own that need not import the command line again.

A first process imports it, and each command is a fork of that process: with its own descriptors, folder, environment
and exit code, at a tenth of the processor time. ``tests/live/test_cli_start.py`` starts the real program.
"""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

PRELOADED = ("tidegate.control.cli.main", "tidegate.control.sdk", "tidegate.manifest.reader", "rich.table")
ROOT = Path(__file__).resolve().parents[3]
_START_S = 30.0
_MOST_BYTES = 1 << 20


class CommandServer:
    """The first process, and a socket on which it takes commands."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="commands-")
        self._path = f"{self._folder.name}/socket"
        self._process = subprocess.Popen([sys.executable, "-m", __name__, self._path], cwd=ROOT)
        end = time.monotonic() + _START_S
        while not Path(self._path).exists():
            assert self._process.poll() is None, "the process of the commands has ended"
            assert time.monotonic() < end, "the process of the commands does not start"
            time.sleep(0.02)

    def run(
        self, arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str] | None = None, limit_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Runs ``tidegate ARGUMENTS`` to its end; stdin is empty. Raises TimeoutExpired."""
        order = {"arguments": list(arguments), "folder": str(folder), "environment": dict(environment or os.environ)}
        with (
            tempfile.TemporaryFile("w+") as out,
            tempfile.TemporaryFile("w+") as err,
            socket.socket(socket.AF_UNIX) as s,
        ):
            s.connect(self._path)
            socket.send_fds(s, [json.dumps(order).encode()], [out.fileno(), err.fileno()])
            s.shutdown(socket.SHUT_WR)
            s.settimeout(limit_s)
            with s.makefile("r") as answers:
                pid = int(answers.readline())
                try:
                    code = int(answers.readline() or -signal.SIGKILL)
                except TimeoutError:
                    os.kill(pid, signal.SIGKILL)
                    raise subprocess.TimeoutExpired(list(arguments), limit_s) from None
            for each in (out, err):
                each.seek(0)
            return subprocess.CompletedProcess(list(arguments), code, out.read(), err.read())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


_lock = threading.Lock()


@cache
def _opened() -> CommandServer:
    server = CommandServer()
    atexit.register(server.close)
    return server


def command_server() -> CommandServer:
    """Returns the one of this process of pytest; it ends with it."""
    with _lock:
        return _opened()


# --- the first process ----------------------------------------------------------------------------------------------


def _serve(path: str) -> NoReturn:
    for name in PRELOADED:
        __import__(name)
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
            _command(line)
        line.close()
    sys.exit(0)


def _command(line: socket.socket) -> NoReturn:
    """Carries out one order and reports the exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    line.settimeout(None)
    received, descriptors, _, _ = socket.recv_fds(line, _MOST_BYTES, 2)
    while piece := line.recv(_MOST_BYTES):
        received += piece
    order: dict[str, Any] = json.loads(received)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for wanted, given in enumerate((nothing, *descriptors)):
        os.dup2(given, wanted)
        os.close(given)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = ["tidegate", *order["arguments"]]
    line.sendall(f"{os.getpid()}\n".encode())
    code = _exit_code()
    sys.stdout.flush()
    sys.stderr.flush()
    line.sendall(f"{code}\n".encode())
    os._exit(code)


def _exit_code() -> int:
    from tidegate.control.cli.main import main

    try:
        main()
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
    _serve(sys.argv[1])
