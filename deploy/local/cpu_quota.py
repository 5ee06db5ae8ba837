"""CPU quotas: part of the cores' time, by the kernel's own quota if this user may set one (cgroups, version 2 or 1).

Each replica with a quota gets a group of its own, ``tidegate-<deployment>-<replica>``, below the group of the control
process. The group holds the model server and its children and is removed when it is empty. The period is 10 ms, so that
a request of a few milliseconds is not stopped for 50.

Theory: ``cpu.max`` (version 2) and ``cpu.cfs_quota_us`` (version 1) bound the time that all threads of the group
together run in each period; half of one core is 5 ms in 10.
"""

import hashlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from tidegate.deploy.placement.ledger import WHOLE, Accelerator

PERIOD_US: Final = 10_000
MIN_QUOTA_US: Final = 1_000
"""Smallest quota that the kernel accepts."""
_PROC: Final = Path("/proc/self")


class CpuQuotas:
    """The quotas of one deployment. ``why`` is the reason if none can be set, else None."""

    def __init__(self, deployment: Path, warn: Callable[[str], None], proc: Path = _PROC) -> None:
        self._warn = warn
        self._warned: set[str] = set()
        """Accelerators with a quota that cannot be set, after the warning. It is written once."""
        self._prefix = f"tidegate-{hashlib.sha256(bytes(deployment)).hexdigest()[:8]}-"
        self._parent, self._is_v2, self.why = _parent(proc)

    def hold(self, replica: str, pid: int, kind: Accelerator) -> None:
        """Limits a model server to its accelerator's quota. Warns once if that is impossible."""
        if kind.quota >= WHOLE:
            return
        why = self._set(replica, pid, kind)
        if why is not None and kind.name not in self._warned:
            self._warned.add(kind.name)
            self._warn(f"replicas on {kind.name} get their whole cores, not {kind.quota:g} % of them: {why}")

    def _set(self, replica: str, pid: int, kind: Accelerator) -> str | None:
        """Sets a quota. Returns None if it is set, else the reason."""
        if self._parent is None:
            return self.why
        quota_us = max(MIN_QUOTA_US, round(PERIOD_US * kind.cores * kind.quota / 100.0))
        group = self._parent / f"{self._prefix}{replica}"
        try:
            group.mkdir(exist_ok=True)
            if self._is_v2:
                (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
            else:
                (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (group / "cpu.cfs_quota_us").write_text(str(quota_us))
            (group / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            return f"{group}: {error.strerror}"
        return None

    def sweep(self, kept: Iterable[str] = ()) -> None:
        """Removes empty groups, except those of the replicas in ``kept``."""
        if self._parent is None:
            return
        names = {f"{self._prefix}{replica}" for replica in kept}
        with suppress(OSError):
            for group in self._parent.glob(f"{self._prefix}*"):
                if group.name not in names:
                    with suppress(OSError):  # A process in it is still ending.
                        group.rmdir()


def _parent(proc: Path) -> tuple[Path | None, bool, str | None]:
    """Returns (folder below which groups can be made, whether it is version 2, reason if there is none)."""
    try:
        mounts = [line.split() for line in (proc / "mounts").read_text(encoding="utf-8").splitlines()]
        own = [line.split(":", 2) for line in (proc / "cgroup").read_text(encoding="utf-8").splitlines()]
    except OSError:
        return None, False, "this system has no cgroups"
    for mount in mounts:
        if mount[2] == "cgroup" and "cpu" in mount[3].split(","):
            path = next((each[2] for each in own if "cpu" in each[1].split(",")), "/")
            return _usable(Path(mount[1]) / path.lstrip("/"), is_v2=False)
    for mount in mounts:
        if mount[2] == "cgroup2":
            path = next((each[2] for each in own if each[0] == "0"), "/")
            # A group with processes cannot delegate a controller to groups below it, so ours are its siblings.
            return _usable((Path(mount[1]) / path.lstrip("/")).parent if path != "/" else Path(mount[1]), is_v2=True)
    return None, False, "no cgroup of the controller `cpu` is mounted"


def _usable(parent: Path, *, is_v2: bool) -> tuple[Path | None, bool, str | None]:
    probe = parent / "tidegate-probe"
    try:
        probe.mkdir(exist_ok=True)
        there = (probe / ("cpu.max" if is_v2 else "cpu.cfs_quota_us")).exists()
    except OSError as error:
        return None, is_v2, f"no group can be made in {parent}: {error.strerror}"
    finally:
        with suppress(OSError):
            probe.rmdir()
    return (parent, is_v2, None) if there else (None, is_v2, f"{parent} does not hand on the controller `cpu`")
