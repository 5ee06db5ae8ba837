"""A whole deployment for benchmarks and live tests: ``tidegate up`` on free ports and a state directory of its own."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tidegate.control.sdk import NotRunningError, Tidegate

START_S = 20.0
STOP_S = 30.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Deployment:
    """One deployment under ``root``; ``process`` is its control process."""

    root: Path
    front_port: int
    process: subprocess.Popen[bytes]
    config: Path
    _client: Tidegate | None = None

    @property
    def state(self) -> Path:
        return self.root / "state"

    def client(self) -> Tidegate:
        """The SDK's client of the present control process, one for all callers."""
        if self._client is None:
            self._client = Tidegate.local(self.state)
        return self._client

    def close_client(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def up_again(self) -> None:
        """Starts another control process on the same directory (the one before was killed)."""
        self.close_client()
        self.process = start(self.config, self.root)
        wait_until_up(self)

    def stop(self) -> int:
        """SIGTERM and the exit code; kills it when it does not end in time."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def output(self) -> str:
        return (self.root / "up.log").read_text(errors="replace")


def start(config: Path, root: Path) -> subprocess.Popen[bytes]:
    with (root / "up.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "tidegate.control.cli", "up", "--config", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)},
        )


def wait_until_up(deployment: Deployment) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if deployment.process.poll() is not None:
            raise RuntimeError(f"`tidegate up` ended with {deployment.process.returncode}:\n{deployment.output()}")
        try:
            deployment.client().status()
            return
        except (NotRunningError, OSError):
            deployment.close_client()
            time.sleep(0.02)
    raise RuntimeError(f"`tidegate up` was not up within {START_S} s:\n{deployment.output()}")


@contextmanager
def running(*, workers: int = 1, accelerators: str | None = None) -> Iterator[Deployment]:
    """A deployment that is stopped, and whose leftovers are removed, at the end.

    ``accelerators``: text of an accelerators file; None: what the machine has.
    """
    with tempfile.TemporaryDirectory(prefix="tidegate-") as folder:
        root = Path(folder)
        lines = [
            "[gateway]",
            f'listen = "127.0.0.1:{(front := free_port())}"',
            f"workers = {workers}",
            "[control]",
            f'listen = "127.0.0.1:{free_port()}"',
            "[state]",
            f'directory = "{root / "state"}"',
        ]
        if accelerators is not None:
            (root / "accelerators.yaml").write_text(accelerators)
            lines += ["[accelerators]", f'file = "{root / "accelerators.yaml"}"']
        config = root / "tidegate.toml"
        config.write_text("\n".join(lines) + "\n")
        deployment = Deployment(root, front, start(config, root), config)
        try:
            wait_until_up(deployment)
            yield deployment
        finally:
            deployment.close_client()
            try:
                deployment.stop()
            finally:
                subprocess.run(
                    [sys.executable, "-P", "-m", "tidegate.control.cli", "down", "--state", str(root / "state")],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    timeout=30,
                    check=False,
                )
