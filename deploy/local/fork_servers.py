"""Fork servers of this machine: processes that have imported what replicas need, and become them.

There is one for each interpreter and set of modules (``Launch.preload``), started when a function that needs it is
deployed. It is a child of this process like any other, with a record and a log. A process that comes from it is a child
of this process too, with its own record, session, log and exit status: only its start differs.

A start waits a moment for a server that still imports: a spawn would import the same, beside it. Where a server takes
longer, cannot fork, has ended, or the system is not Linux, a start is an ordinary spawn. The first one after a server
has ended reports that and starts the server again.
"""

import asyncio
import contextlib
import ctypes
import hashlib
import json
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tidegate.deploy.environment import Host, Launch, fork_launch
from tidegate.deploy.local.processes import Child, Exit, ProcessTable, SpawnError, Warn
from tidegate.deploy.local.records import MARK, ProcessKind
from tidegate.deploy.local.recovery import end_hidden

ANSWER_S: Final = 2.0
"""Time for one fork. A server that exceeds it is killed."""
IMPORT_S: Final = 1.0
"""Time that a start waits for a server that imports."""
_MESSAGE_BYTES: Final = 1 << 17
_SET_CHILD_SUBREAPER: Final = 36
"""Number of the call of prctl(2)."""


class ForkServer:
    """One fork server: starting, ready, then ended or faulty."""

    def __init__(self, name: str, launch: Launch, table: ProcessTable, logs: Path, warn: Warn) -> None:
        """Starts it. Raises SpawnError and OSError."""
        self.name = name
        self.fault: str | None = None
        """Why it can fork nothing. None if nothing is known."""
        self.is_ready = False
        self.settled = asyncio.Event()
        """Set when it is ready, or never will be."""
        self._warn = warn
        self._libc = ctypes.CDLL(None)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            number = str(theirs.fileno())
            self._child: Child = table.spawn(
                ProcessKind.FORK_SERVER,
                f"fork-{name}",
                [number if word == "{fd}" else word for word in launch.argv],
                env=launch.env,
                log=logs / f"fork-{name}.log",
                fds=(theirs.fileno(),),
            )
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()
        self._socket.settimeout(ANSWER_S)
        asyncio.get_running_loop().add_reader(self._socket, self._on_imported)
        self._child.on_exit(self._on_exit)

    @property
    def exit(self) -> Exit | None:
        """Its end. None while it lives."""
        return self._child.exit

    @property
    def pid(self) -> int:
        return self._child.pid

    def fork(self, module: str, cwd: str | None, env: Mapping[str, str], descriptors: Mapping[int, int]) -> int | None:
        """Makes a process that runs ``module``. ``descriptors``: ours by the number that it gets. Returns its pid:
        that of a child of this process. Returns None if it has to be spawned. Blocks for some milliseconds."""
        order = json.dumps({"module": module, "env": dict(env), "cwd": cwd, "fds": list(descriptors)}).encode()
        if not self.is_ready or len(order) > _MESSAGE_BYTES:
            return None
        self._libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(self._socket, [order], list(descriptors.values()))
            answer = json.loads(self._socket.recv(_MESSAGE_BYTES) or b"{}")
        except OSError:  # It has ended, or it took too long.
            self._child.kill()
            answer = {}
        finally:
            self._libc.prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        pid = answer.get("pid")
        if pid is not None and _is_own(pid):
            return int(pid)
        if pid is not None:
            self._refuse("this system does not hand its processes over to the control process")
        if "fault" not in answer:
            self._close()
            end_hidden({env[MARK]})  # It may have forked nevertheless.
        return None

    async def stop(self) -> None:
        """Ends it. Processes that came from it go on running."""
        self._close()
        await self._child.stop()

    def _on_imported(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket)
        try:
            answer = json.loads(self._socket.recv(_MESSAGE_BYTES) or b"{}")
        except OSError:
            return  # Its end follows.
        self.is_ready = "ready" in answer
        self.settled.set()
        if "fault" in answer:
            self._refuse(answer["fault"])

    def _refuse(self, why: str) -> None:
        self.fault = why
        self._warn(f"replicas do not come from the fork server {self.name} and are spawned: {why}")
        self._close()
        self._child.kill()

    def _close(self) -> None:
        self.is_ready = False
        self.settled.set()
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()

    def _on_exit(self, _: Exit) -> None:
        self._close()

    def __repr__(self) -> str:
        return f"<ForkServer {self.name} pid {self.pid}: {self.fault or ('ready' if self.is_ready else 'not ready')}>"


def _is_own(pid: int) -> bool:
    """Returns whether the process is a child of this one, running or not waited for."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


class ForkServers:
    """The fork servers of one deployment. Made inside the running loop."""

    def __init__(self, table: ProcessTable, host: Host, logs: Path, warn: Warn) -> None:
        self._table = table
        self._host = host
        self._logs = logs
        self._warn = warn
        self._servers: dict[str, ForkServer] = {}
        self._is_closing = False

    @property
    def servers(self) -> Mapping[str, ForkServer]:
        return self._servers

    def prepare(self, preload: str, python: str) -> ForkServer | None:
        """Starts the server of these modules and this interpreter, unless it runs. Returns it if it is ready."""
        if not sys.platform.startswith("linux") or self._is_closing:
            return None
        name = self._name(preload, python)
        server = self._servers.get(name)
        if server is not None and (server.exit is None or server.fault is not None):
            return server if server.is_ready else None
        if server is not None:
            self._warn(f"the fork server {name} {server.exit}: replicas are spawned until it runs again")
        try:
            launch = fork_launch(preload, python, self._host)
            self._servers[name] = ForkServer(name, launch, self._table, self._logs, self._warn)
        except (OSError, SpawnError) as error:
            self._warn(f"the fork server {name} cannot be started, and replicas are spawned: {error}")
        return None

    def of(self, launch: Launch) -> ForkServer | None:
        """Returns the server that the launch can come from now. Returns None if it has to be spawned."""
        if launch.preload is None:
            return None
        server = self.prepare(launch.preload, launch.argv[0])
        is_there = launch.cwd is None or os.access(launch.cwd, os.X_OK)  # The spawn reports a missing folder.
        return server if is_there else None

    async def settle(self, preload: str, python: str) -> None:
        """Waits a moment for a server that imports, and starts it first if there is none. One that has ended is started
        again and not waited for."""
        name = self._name(preload, python)
        before = self._servers.get(name)
        self.prepare(preload, python)
        server = self._servers.get(name)
        if server is not None and before in (None, server):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(server.settled.wait(), IMPORT_S)

    def _name(self, preload: str, python: str) -> str:
        """Returns ``onnx``, or ``runtime-1f2e3d4c`` with another interpreter than Tidegate's own."""
        if python == self._host.python:
            return preload
        return f"{preload}-{hashlib.sha256(python.encode()).hexdigest()[:8]}"

    async def close(self) -> None:
        """Ends the servers. Processes that came from them go on running."""
        self._is_closing = True
        await asyncio.gather(*(server.stop() for server in self._servers.values()))

    def __repr__(self) -> str:
        return f"<ForkServers {list(self._servers.values())}>"
