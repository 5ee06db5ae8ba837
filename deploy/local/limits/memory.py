"""The limit of a replica's memory (``resources.memory``): by the kernel where this user may make cgroups, else watched.

A model server with a limit gets a group of its own, with its children. The kernel ends a process of the group at the
limit. Elsewhere the backend reads the memory of the server's session twice a second and ends it above the limit: memory
that grows faster than that is bounded by the machine only.

The watched figure is resident memory. If the sum over several processes is above the limit, pages that they share are
counted once (``Pss`` of ``smaps_rollup``), which is exact and slower.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from tidegate.deploy.local.limits.cgroups import PROC, Cgroups, Controller
from tidegate.deploy.local.proc import resident_by_session, shared_once

WATCH_EVERY_S: Final = 0.5
_MEMORY: Final = Controller("memory", "memory.limit_in_bytes", "memory.max")


class MemoryLimits:
    """The memory limits of one deployment's replicas."""

    def __init__(self, deployment: Path, proc: Path = PROC) -> None:
        self._groups = Cgroups(deployment, _MEMORY, proc)

    @property
    def why(self) -> str | None:
        """Returns why the kernel does not enforce limits here; None if it does."""
        return self._groups.why

    def hold(self, replica: str, pid: int, limit_bytes: int | None) -> bool:
        """Limits a model server. Returns False if the kernel does not enforce the limit: then it is watched."""
        group = self._groups.group(replica)
        if limit_bytes is None or group is None:
            return False
        try:
            group.mkdir(exist_ok=True)
            (group / ("memory.max" if self._groups.is_v2 else "memory.limit_in_bytes")).write_text(str(limit_bytes))
            with suppress(OSError):  # A kernel without swap accounting.
                (group / "memory.swap.max").write_text("0") if self._groups.is_v2 else None
            (group / "cgroup.procs").write_text(str(pid))
        except OSError:
            return False
        return True

    def was_exceeded(self, replica: str) -> bool:
        """Returns whether the kernel has ended a process of the replica at its limit."""
        group = self._groups.group(replica)
        if group is None:
            return False
        try:
            text = (group / ("memory.events" if self._groups.is_v2 else "memory.oom_control")).read_text()
        except OSError:
            return False
        return any(line.startswith("oom_kill ") and line.split()[1] != "0" for line in text.splitlines())

    def sweep(self, kept: Collection[str]) -> None:
        """Removes the groups of replicas that are not in ``kept``."""
        self._groups.sweep(kept)


def above_limit(servers: Mapping[int, int]) -> dict[int, int]:
    """Returns the bytes in use of those model servers that use more than their limit. ``servers``: the limit by the pid
    of the server, which leads its session. Reads all of ``/proc`` once; blocks for some milliseconds."""
    found: dict[int, int] = {}
    members: defaultdict[int, list[int]] = defaultdict(list)
    resident: defaultdict[int, int] = defaultdict(int)
    for pid, session, resident_bytes in resident_by_session(servers):
        members[session].append(pid)
        resident[session] += resident_bytes
    for session, limit in servers.items():
        used = resident[session]
        if used > limit and len(members[session]) > 1:
            used = shared_once(members[session]) or used
        if used > limit:
            found[session] = used
    return found


def amount(size: int) -> str:
    """Returns ``1.2 GiB`` or ``300 MiB``, three digits at most."""
    return f"{size / 2**30:.3g} GiB" if size >= 2**30 else f"{size / 2**20:.3g} MiB"
