"""CPU quotas: part of the cores' time, by the kernel's own quota if this user may set one (cgroups, version 2 or 1).

Each replica with a quota gets a group of its own, ``tidegate-<deployment>-<replica>``, below the group of the control
process. The group holds the model server and its children and is removed when it is empty. The period is 10 ms, so that
a request of a few milliseconds is not stopped for 50.

Theory: ``cpu.max`` (version 2) and ``cpu.cfs_quota_us`` (version 1) bound the time that all threads of the group
together run in each period; half of one core is 5 ms in 10.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from tidegate.deploy.local.limits.cgroups import PROC, Cgroups, Controller
from tidegate.deploy.placement.ledger import WHOLE, Accelerator

PERIOD_US: Final = 10_000
MIN_QUOTA_US: Final = 1_000
"""Smallest quota that the kernel accepts."""
_CPU: Final = Controller("cpu", "cpu.cfs_quota_us", "cpu.max")


class CpuQuotas:
    """The quotas of one deployment. ``why`` is the reason if none can be set, else None."""

    def __init__(self, deployment: Path, warn: Callable[[str], None], proc: Path = PROC) -> None:
        self._warn = warn
        self._warned: set[str] = set()
        """Accelerators with a quota that cannot be set, after the warning. It is written once."""
        self._groups = Cgroups(deployment, _CPU, proc)
        self.why = self._groups.why

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
        group = self._groups.group(replica)
        if group is None:
            return self.why
        quota_us = max(MIN_QUOTA_US, round(PERIOD_US * kind.cores * kind.quota / 100.0))
        try:
            group.mkdir(exist_ok=True)
            if self._groups.is_v2:
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
        self._groups.sweep(kept)
