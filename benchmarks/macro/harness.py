"""Processes of a measurement: started fresh, pinned to a core, counted, and gone at the end.

The proxies run on one core; load, backend and this process share the next one (guide to the method:
``docs/operate/benchmarks.md``). CPU time is what the kernel's scheduler counted (``/proc/PID/task/*/schedstat``) for
all threads and child processes.
"""

import contextlib
import http.client
import itertools
import os
import platform
import random
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from tidegate.aio.loop import sockets

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PATIENCE_S = 15.0
WHERE = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/go/bin"


_PORTS = itertools.cycle(random.Random(os.getpid()).sample(range(10_000, 32_000), 5_000))
"""Below the range from which the kernel takes ports for connections: wrk and the proxies use thousands of those."""


def free_port() -> int:
    """Returns a free port; never the same twice in a run."""
    while True:
        port = next(_PORTS)
        with contextlib.suppress(OSError), socket.socket() as sock:
            sock.bind(("0.0.0.0", port))
            return port


def open_socket(address: str, source: str | None = None) -> socket.socket:
    """A connected blocking socket to ``host:port`` or ``unix:/path``; ``source``: the local IP address."""
    if sockets.is_unix(address):
        sock = socket.socket(socket.AF_UNIX)
        where: str | tuple[str, int] = address.removeprefix(sockets.UNIX)
    else:
        sock = socket.socket()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        where = sockets.host_port(address)
        if source is not None:
            sock.bind((source, 0))
    sock.settimeout(PATIENCE_S)
    try:
        sock.connect(where)
    except OSError:
        sock.close()
        raise
    return sock


def tree(pid: int) -> list[int]:
    """A process and all that descend from it."""
    found = [pid]
    for parent in found:
        for listing in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += [int(child) for child in listing.read_text().split()]
    return found


def cpu_ns(pid: int) -> int:
    """CPU time of all threads of a process and of its children, in nanoseconds."""
    total = 0
    for process in tree(pid):
        for task in Path(f"/proc/{process}/task").iterdir():
            with contextlib.suppress(OSError):
                total += int((task / "schedstat").read_text().split()[0])
    return total


def rss_mb(pid: int) -> float:
    """Resident memory of a process and its children, in 10^6 bytes."""
    pages = 0
    for process in tree(pid):
        pages += int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


@dataclass(slots=True)
class Server:
    """Something that listens, and the processes whose CPU time it costs."""

    name: str
    address: str
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def cpu_us(self) -> float:
        """So far; raises RuntimeError when a process has ended."""
        for process in self.processes:
            if process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {process.returncode} under load")
        return sum(cpu_ns(process.pid) for process in self.processes) / 1e3

    def rss_mb(self) -> float:
        return sum(rss_mb(process.pid) for process in self.processes)


@dataclass(frozen=True, slots=True)
class Machine:
    """The cores in use, and what a result says about where it was taken."""

    cores: tuple[int, ...]

    @property
    def proxy_core(self) -> str:
        return str(self.cores[0])

    @property
    def load_core(self) -> str:
        return str(self.cores[1])

    def __str__(self) -> str:
        python = f"Python {platform.python_version()}"
        return f"{platform.machine()}, {len(self.cores)} cores, Linux {platform.release()}, {python}"


def commit() -> str:
    """Returns the commit of the checkout; with a plus if files differ from it."""
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--exclude", "*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or "unknown"


@dataclass(frozen=True, slots=True)
class Bench:
    """One run: where, with which tools, how long."""

    machine: Machine
    tools: Mapping[str, str]
    """Paths of what was found: nginx, wrk, haproxy, go (the built proxy), gogrpc (built)."""
    absent: Mapping[str, str]
    """Peers that are not there, and why."""
    peers: tuple[str, ...] = ()
    """NAME=COMMAND with {port}, {upstream} (host:port), {upstream_port}."""
    rounds: int = 5
    seconds: int = 2
    """Length of one visit."""
    smoke: bool = False

    def counted(self) -> Iterator[bool]:
        """Once per round: whether its figures count. The first round warms up; a smoke run has none."""
        if not self.smoke:
            yield False
        for _ in range(self.rounds):
            yield True

    def length_s(self, counts: bool) -> int:
        """Length of a visit in such a round."""
        return self.seconds if counts else 1


def find_tools(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Paths of the tools that are there, and for the others what is missing."""
    tools, absent = {}, {}
    for name, package in (("nginx", "nginx-light"), ("wrk", "wrk"), ("haproxy", "haproxy"), ("taskset", "util-linux")):
        found = shutil.which(name, path=WHERE)
        if found is None:
            absent[name] = f"{name} is not installed (Debian: apt-get install {package})"
        else:
            tools[name] = found
    go = shutil.which("go", path=WHERE)
    for name, source, environment in _GO_PROGRAMS:
        if go is None:
            absent[name] = "no Go toolchain is installed"
            continue
        built = _build(go, folder / source, source, environment)
        if built.returncode == 0:
            tools[name] = str(folder / source)
        else:
            absent[name] = f"{source} does not build: {built.stderr.strip()}"
    return tools, absent


_GO_PROGRAMS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("go", "goproxy", {"GOFLAGS": "-mod=mod", "GOPROXY": "off"}),
    ("gogrpc", "gogrpc", {}),
)
"""Name of the tool, folder beside this file, environment: goproxy is made of the standard library alone, so nothing is
downloaded; gogrpc needs golang.org/x/net, by its go.sum."""


def _build(go: str, binary: Path, source: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    is_module = (HERE / source / "go.mod").exists()
    return subprocess.run(
        [go, "build", "-o", str(binary), "." if is_module else str(HERE / source / "main.go")],
        cwd=HERE / source if is_module else binary.parent,
        env={**os.environ, "HOME": os.environ.get("HOME", str(binary.parent)), "GOTOOLCHAIN": "local", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


class Stage:
    """The processes of one question and a folder for their files; all end with the block."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._folder = tempfile.TemporaryDirectory(prefix="bench-")
        self.folder = Path(self._folder.name)
        self._started: list[subprocess.Popen[bytes]] = []
        self._listeners: list[socket.socket] = []

    def __enter__(self) -> "Stage":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._started:
            process.send_signal(signal.SIGKILL)
        for process in self._started:
            process.wait()
        for listener in self._listeners:
            listener.close()
        self._folder.cleanup()

    def start(
        self,
        name: str,
        core: str,
        command: Sequence[str],
        address: str,
        *,
        fds: tuple[int, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Server:
        """Starts a server on a core and waits until it accepts; raises RuntimeError when it does not."""
        process = subprocess.Popen(
            [self.bench.tools["taskset"], "-c", core, *command],
            cwd=self.folder,
            env={"PATH": WHERE, "HOME": str(self.folder), **(environment or {})},
            stdout=subprocess.DEVNULL,
            pass_fds=fds,
        )
        self._started.append(process)
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            if process.poll() is not None:
                raise RuntimeError(f"{shlex.join(command)} ended with {process.returncode}")
            with contextlib.suppress(OSError), open_socket(address):
                return Server(name, address, [process])
            time.sleep(0.02)
        raise RuntimeError(f"{shlex.join(command)} does not accept on {address} within {PATIENCE_S} s")

    def module(
        self,
        name: str,
        core: str,
        words: Sequence[str],
        address: str,
        *,
        fds: tuple[int, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Server:
        """Starts ``python -m`` with a module of this checkout and its arguments."""
        command = [sys.executable, "-P", "-m", *words]
        more = {"PYTHONPATH": str(ROOT), **(environment or {})}
        return self.start(name, core, command, address, fds=fds, environment=more)

    def listener(self, port: int = 0) -> socket.socket:
        """A listening socket that processes share (SO_REUSEPORT) or inherit; port 0: any free one."""
        sock = sockets.listen(f"127.0.0.1:{port}", reuse_port=True)
        self._listeners.append(sock)
        return sock

    def unix_listener(self, name: str) -> socket.socket:
        """A listening unix socket ``name`` in the stage's folder, for a process to inherit."""
        sock = sockets.listen(f"unix:{self.folder / name}")
        self._listeners.append(sock)
        return sock


def answered(address: str, target: str, within_s: float = PATIENCE_S, host: str = "resnet.localhost") -> None:
    """Waits until a POST gets a 2xx; raises RuntimeError with the last answer."""
    end = time.monotonic() + within_s
    last = "nothing"
    while time.monotonic() < end:
        connection = http.client.HTTPConnection(address, timeout=within_s)
        try:
            connection.request("POST", target, b"{}", {"Host": host, "Content-Type": "application/json"})
            answer = connection.getresponse()
            last = f"{answer.status} {answer.read()!r}"
            if answer.status // 100 == 2:
                return
        except OSError as error:
            last = str(error)
        finally:
            connection.close()
        time.sleep(0.05)
    raise RuntimeError(f"{address}{target} is not served within {within_s} s: {last}")
