"""Facts about processes of this machine, above all their identity.

A pid alone identifies nothing, since pids are used again. Pid, start time in clock ticks since boot (field 22 of
``/proc/PID/stat``) and the boot's id together identify one process for ever. Signals go through a pidfd that was opened
*before* the check, so that they cannot hit a successor.

Without ``/proc`` (macOS) ``ps`` and ``sysctl`` are used instead, with seconds instead of ticks.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

PROC = Path("/proc")
_LISTENING = "0A"
"""State of a listening socket in ``/proc/net/tcp``."""


@cache
def boot_id() -> str:
    """Returns the identity of this boot of the machine."""
    path = PROC / "sys/kernel/random/boot_id"
    if path.exists():
        return path.read_text(encoding="ascii").strip()
    return _output_of("sysctl", "-n", "kern.boottime")


def start_time(pid: int) -> int | None:
    """Returns the start time of a process, in clock ticks since boot. Returns None if there is none, or only its
    zombie."""
    if not PROC.joinpath("self").exists():
        return _start_time_by_ps(pid)
    fields = _stat_fields(pid)
    if fields is None or fields[0] in ("Z", "X"):
        return None
    return int(fields[19])


def child_start_time(pid: int) -> int | None:
    """Returns :func:`start_time` of a child that has not been waited for. Its zombie counts too."""
    fields = _stat_fields(pid)
    return int(fields[19]) if fields is not None else start_time(pid)


def cpu_seconds(pid: int) -> float | None:
    """Returns the CPU time of a process and of its ended children, from Linux's ``/proc``. Returns None if it cannot be
    read."""
    fields = _stat_fields(pid)
    if fields is None or len(fields) < 15:
        return None
    return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def _stat_fields(pid: int) -> list[str] | None:
    """Returns the fields of ``/proc/PID/stat`` from the third (state) on. The second may contain blanks and
    brackets."""
    try:
        text = PROC.joinpath(str(pid), "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def _start_time_by_ps(pid: int) -> int | None:
    text = _output_of("ps", "-o", "state=,lstart=", "-p", str(pid))
    if not text or text.startswith("Z"):
        return None
    # The words of a start time as a number, which is only compared with itself.
    return int.from_bytes(text.split(maxsplit=1)[1].encode(), "big") % (1 << 62)


def _output_of(*command: str) -> str:
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=5)
    return found.stdout.strip()


def is_same(pid: int, started: int, boot: str) -> bool:
    """Returns True if the recorded process itself lives."""
    return boot == boot_id() and start_time(pid) == started


class ProcessHandle:
    """A process with a verified identity, for signals and for waiting. Made by :meth:`open`."""

    __slots__ = ("_fd", "_started", "pid")

    def __init__(self, pid: int, started: int | None, fd: int | None) -> None:
        self.pid = pid
        self._started = started
        self._fd = fd

    @classmethod
    def of_child(cls, pid: int) -> "ProcessHandle":
        """Returns a handle of a child that has not been waited for: no other process can have its pid."""
        return cls(pid, None, _open_pidfd(pid))

    @classmethod
    def open(cls, pid: int, started: int | None = None, boot: str | None = None) -> "ProcessHandle | None":
        """Returns a handle if the process lives; with ``started`` and ``boot`` only if it is that one."""
        try:
            fd = _open_pidfd(pid)
        except ProcessLookupError:
            return None
        found = start_time(pid)
        same = found is not None and started in (None, found) and boot in (None, boot_id())
        if not same or found is None:
            if fd is not None:
                os.close(fd)
            return None
        return cls(pid, found, fd)

    @property
    def fd(self) -> int | None:
        """The pidfd, readable once the process has ended. None if the system has no pidfds."""
        return self._fd

    def send(self, number: signal.Signals) -> bool:
        """Signals the process. Returns False if it has ended."""
        try:
            if self._fd is not None and hasattr(signal, "pidfd_send_signal"):
                signal.pidfd_send_signal(self._fd, number)
            elif self.is_alive():
                os.kill(self.pid, number)
            else:
                return False
        except ProcessLookupError:
            return False
        return True

    def is_alive(self) -> bool:
        """Returns False for a zombie, too."""
        found = start_time(self.pid)
        return found is not None and self._started in (None, found)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __repr__(self) -> str:
        return f"<ProcessHandle {self.pid}>"


def _open_pidfd(pid: int) -> int | None:
    """Returns None if the system has no pidfds. Raises ProcessLookupError if there is no such process."""
    try:
        return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
    except ProcessLookupError:
        raise
    except OSError:
        return None


def pids() -> list[int]:
    """Returns all processes of the machine. Empty without ``/proc``."""
    return [int(name) for name in os.listdir(PROC) if name.isdigit()] if PROC.is_dir() else []  # noqa: PTH208


def with_variable(variable: str, accepts: Callable[[str], bool]) -> list[tuple[int, str]]:
    """Returns this user's processes that were started with ``variable`` in their environment, and those started by
    them, with its value, if ``accepts(value)``."""
    prefix = f"{variable}=".encode()
    found = []
    for pid in pids():
        try:
            environment = PROC.joinpath(str(pid), "environ").read_bytes()
        except OSError:
            continue  # It has ended meanwhile or is not ours.
        if prefix not in environment:
            continue
        for entry in environment.split(b"\0"):
            if entry.startswith(prefix) and accepts(value := os.fsdecode(entry[len(prefix) :])):
                found.append((pid, value))
                break
    return found


def session_members(leader: int) -> list[int]:
    """Returns the processes of the session that ``leader`` leads; only itself without ``/proc``."""
    found = [pid for pid in pids() if (fields := _stat_fields(pid)) is not None and int(fields[3]) == leader]
    return found or [leader]


def resident_by_session(sessions: Container[int]) -> list[tuple[int, int, int]]:
    """Returns (pid, session, resident bytes) of the processes in these sessions. Empty without ``/proc``."""
    page, found = os.sysconf("SC_PAGE_SIZE"), []
    for pid in pids():
        fields = _stat_fields(pid)
        if fields is not None and int(fields[3]) in sessions:
            found.append((pid, int(fields[3]), int(fields[21]) * page))
    return found


def is_stopped(pid: int) -> bool:
    """Returns whether a process is stopped (SIGSTOP). False without ``/proc``."""
    fields = _stat_fields(pid)
    return fields is not None and fields[0] == "T"


def continue_sessions(leaders: Container[int]) -> None:
    """Continues all processes of these sessions (SIGCONT)."""
    for pid, _, _ in resident_by_session(leaders):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGCONT)


def shared_once(members: Iterable[int]) -> int | None:
    """Returns the resident bytes of processes, where pages that they share count once. Returns None if the system does
    not report that."""
    total = 0
    for pid in members:
        try:
            text = PROC.joinpath(str(pid), "smaps_rollup").read_text(encoding="ascii")
        except ProcessLookupError:
            continue  # It has ended meanwhile.
        except OSError:
            return None
        total += next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0) * 1024
    return total


def set_affinity(pid: int, cores: Iterable[int]) -> bool:
    """Binds every thread of the process to ``cores``. Returns False if the system cannot, or the process has ended."""
    if not hasattr(os, "sched_setaffinity"):
        return False
    wanted = set(cores)
    tasks = PROC / str(pid) / "task"
    seen: set[str] = set()
    try:
        os.sched_setaffinity(pid, wanted)
        while new := set(os.listdir(tasks)) - seen:  # noqa: PTH208 - threads born meanwhile inherit or are seen next
            for task in new:
                _bind(int(task), wanted)
            seen |= new
    except OSError:
        return False
    return True


def _bind(task: int, cores: set[int]) -> None:
    try:
        os.sched_setaffinity(task, cores)
    except ProcessLookupError:
        return  # The thread has ended meanwhile.


def listening_ports(leader: int) -> tuple[int, ...]:
    """Returns the TCP ports on which the processes of ``leader``'s session listen, for reporting a wrong port to a
    developer."""
    inodes = {inode for pid in session_members(leader) for inode in _socket_inodes(pid)}
    ports = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = PROC.joinpath("net", name).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENING and fields[9] in inodes:
                ports.add(int(fields[1].rsplit(":", 1)[1], 16))
    return tuple(sorted(ports))


def _socket_inodes(pid: int) -> set[str]:
    folder = PROC / str(pid) / "fd"
    found = set()
    try:
        for name in os.listdir(folder):  # noqa: PTH208
            target = os.readlink(folder / name)  # noqa: PTH115
            if target.startswith("socket:["):
                found.add(target[8:-1])
    except OSError:
        return found  # It has ended meanwhile or is not ours.
    return found
