"""Starts the shipped model server as a real process and speaks to it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from tests.support.deadline import Patience

ROOT = Path(__file__).resolve().parents[3]
START_S = 20.0


class UnixConnection(HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str, timeout: float = 20.0) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


@dataclass
class RuntimeProcess:
    """A running model server. ``listen`` is ``unix:/path`` or ``host:port``."""

    process: subprocess.Popen[str]
    listen: str

    def connect(self) -> HTTPConnection:
        if self.listen.startswith("unix:"):
            return UnixConnection(self.listen.removeprefix("unix:"))
        return HTTPConnection(self.listen, timeout=20)

    def request(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes, Mapping[str, str]]:
        """Status, body and headers of one request on a connection of its own."""
        with contextlib.closing(self.connect()) as connection:
            connection.request(method, path, body=body or None, headers=dict(headers or {}))
            response = connection.getresponse()
            return response.status, response.read(), {key.lower(): value for key, value in response.getheaders()}

    def wait_for(self, path: str, status: int = 200) -> None:
        """Waits until ``GET path`` answers with ``status``."""
        patience = Patience(START_S)
        while True:
            with contextlib.suppress(OSError):
                if self.request("GET", path)[0] == status:
                    return
            if self.process.poll() is not None or patience.is_over:
                raise AssertionError(f"never ready; exit code {self.process.poll()}")
            time.sleep(0.005)

    def metric(self, name: str, labels: str = "") -> float:
        """The present value of a metric whose label text contains ``labels``."""
        text = self.request("GET", "/metrics")[1].decode()
        (line,) = (line for line in text.splitlines() if line.startswith(name + "{") and labels in line)
        return float(line.rsplit(" ", 1)[1])

    def terminate(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(START_S)


def free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start(listen: str, environment: Mapping[str, Any], python: Sequence[str] = (sys.executable,)) -> RuntimeProcess:
    """Starts the server without waiting for anything; its stderr is kept for :func:`running`."""
    variables = {key: value for key, value in os.environ.items() if not key.startswith("TIDEGATE_")}
    variables |= {f"TIDEGATE_RUNTIME_{key}": str(value) for key, value in environment.items()}
    variables |= {"TIDEGATE_RUNTIME_LISTEN": listen, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [*python, "-P", "-m", "tidegate.runtime.main"], env=variables, stderr=subprocess.PIPE, text=True
    )
    return RuntimeProcess(process, listen)


@contextlib.contextmanager
def running(
    listen: str, environment: Mapping[str, Any], python: Sequence[str] = (sys.executable,)
) -> Iterator[RuntimeProcess]:
    """A server that is ready; ended with SIGTERM, which must give the exit code 0."""
    server = start(listen, environment, python)
    try:
        server.wait_for("/v2/health/ready")
        yield server
        if server.process.poll() is None:
            assert server.terminate() == 0
    finally:
        finish(server)


def finish(server: RuntimeProcess) -> str:
    """Ends whatever still runs; returns what the server wrote to stderr."""
    server.process.kill()
    server.process.wait()
    assert server.process.stderr is not None
    with server.process.stderr as stream:
        return stream.read()


def failed(listen: str, environment: Mapping[str, Any]) -> tuple[int, str]:
    """Exit code and stderr of a server that ends by itself."""
    server = start(listen, environment)
    try:
        code = server.process.wait(START_S)
    finally:
        text = finish(server)
    return code, text
