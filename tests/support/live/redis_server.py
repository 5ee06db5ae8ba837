"""A real ``redis-server`` on a free port of loopback, which a test may stop, kill and start again."""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Final

import pytest

from tests.support.live.guard import guard_process

START_S: Final = 10.0


class RedisServer:
    """Keeps every write in ``folder`` before it is confirmed; the port stays the same over restarts."""

    def __init__(self, folder: Path, *flags: str, tls: tuple[Path, Path] | None = None) -> None:
        binary = shutil.which("redis-server")
        if binary is None:
            pytest.fail('a test that starts a redis-server is marked needs(tool="redis")')
        self.port = _free_port()
        ports = ["--port", str(self.port)]
        if tls is not None:
            files = ["--tls-cert-file", str(tls[0]), "--tls-key-file", str(tls[1]), "--tls-auth-clients", "no"]
            ports = ["--port", "0", "--tls-port", str(self.port), *files]
        kept = ["--dir", str(folder), "--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        self._command = [binary, "--bind", "127.0.0.1", *ports, *kept, *flags]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        self._process = process
        guard_process(process.pid)
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        said, end = b"", time.monotonic() + START_S
        while b"Ready to accept connections" not in said:
            said += process.stdout.read() or b""
            if process.poll() is not None or time.monotonic() > end:
                self.kill()
                pytest.fail(f"redis-server does not start: {said.decode(errors='replace')[-500:]}")
            time.sleep(0.01)

    def kill(self) -> None:
        """As with ``kill -9``; waits for the end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(5)
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
