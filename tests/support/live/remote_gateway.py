"""Remote gateways for live tests: ``tidegate gateway`` as people run it, each with a line to Redis that a test cuts."""

import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import httpx

from tests.support.live.deployment import REQUEST, Deployment
from tests.support.live.guard import guard_process, guard_state
from tidegate.control.state.directory import StateDirectory
from tidegate.deploy.local.records import RecordStore
from tidegate.deploy.local.recovery import end_all, survey


class Line:
    """A port of loopback that passes connections on to another one until it is cut, as the network between machines."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._is_whole = True
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Bytes on their way are kept, as by a network that drops packets: neither end hears of it."""
        self._is_whole = False
        self._woken.send(b"x")

    def join(self) -> None:
        """Connections from before are broken, new ones pass."""
        for pair in self._pairs:
            for each in pair:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        self._is_whole = True
        self._woken.send(b"x")

    def close(self) -> None:
        self._listener.close()
        self._woken.close()
        self._thread.join(5.0)
        self._wake.close()

    def _run(self) -> None:
        while True:
            pairs = {a: b for pair in self._pairs for a, b in (pair, pair[::-1])}
            watched = [self._wake, *((self._listener, *pairs) if self._is_whole else ())]
            try:
                readable, _, _ = select.select(watched, (), ())
            except (OSError, ValueError):
                readable = [self._wake]
            for each in readable:
                if each is self._wake:
                    if not self._wake.recv(64):
                        for pair in self._pairs:
                            for end in pair:
                                end.close()
                        return
                elif each is self._listener:
                    with suppress(OSError):
                        near = self._listener.accept()[0]
                        try:
                            self._pairs.append((near, socket.create_connection(("127.0.0.1", self._to), 1.0)))
                        except OSError:
                            near.close()
                else:
                    self._pass(each, pairs[each])

    def _pass(self, here: socket.socket, there: socket.socket) -> None:
        try:
            piece = here.recv(65536)
            there.sendall(piece)
        except OSError:
            piece = b""
        if not piece:
            self._pairs = [pair for pair in self._pairs if here not in pair]
            here.close()
            there.close()


class RemoteGateway:
    """One ``tidegate gateway``, with a state directory of its own."""

    def __init__(self, world: Deployment, name: str, redis_port: int, *flags: str) -> None:
        """``world``: the deployment with its control process; it has the flag ``--store-name blue``."""
        self.name = name
        self.line = Line(redis_port)
        self.state = StateDirectory(world.folder / name)
        self._token = world.state.link_token_file
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None
        self.log = world.folder / f"{name}.log"

    def start(self) -> None:
        store = ("--store-url", f"redis://127.0.0.1:{self.line.port}/0", "--store-name", "blue")
        own = ("--name", self.name, "--token-file", str(self._token), "--gateway-listen", "127.0.0.1:0")
        command = [sys.executable, "-m", "tidegate.control.cli", "gateway", "--state", str(self.state.root)]
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [*command, *own, *store, *self._flags], stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        guard_process(self._process.pid)
        guard_state(self.state.root)

    @property
    def text(self) -> str:
        return self.log.read_text()

    @property
    def url(self) -> str | None:
        """Base URL of its front door; None until it serves."""
        found = re.findall(rf"gateway {self.name} serves (\S+),", self.text)
        return f"http://{found[-1]}" if found else None

    def infer(self, name: str = "echo", timeout_s: float = 20.0) -> httpx.Response:
        return httpx.post(f"{self.url}/v2/models/{name}/infer", json=REQUEST, timeout=timeout_s, trust_env=False)

    def kill(self) -> None:
        """``kill -9`` of the gateway with all its workers, as a machine ends."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(5.0)
        for pid in self.workers().values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def workers(self) -> dict[str, int]:
        """Recorded processes that live: pid by id."""
        return {each.id: each.pid or 0 for each in survey(RecordStore(self.state.processes)).living}

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(45.0)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(5.0)
        if self.state.processes.exists():
            end_all(self.state.processes, grace_s=0.2)
        self.line.close()


@contextmanager
def remote_gateways(world: Deployment, redis_port: int, count: int, *flags: str) -> Iterator[list[RemoteGateway]]:
    """So many gateways that serve, of which nothing is left afterwards."""
    found = [RemoteGateway(world, f"edge{number}", redis_port, *flags) for number in range(count)]
    try:
        for each in found:
            each.start()
        for each in found:
            world.until(partial(getattr, each, "url"), 30.0, f"{each.name} to serve")
        yield found
    finally:
        for each in found:
            each.close()
