"""Where a controller's cgroups can be made, version 1 or 2."""

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc/self")


@dataclass(frozen=True, slots=True)
class Controller:
    """A controller of the kernel, and a file that each of its groups has, by version."""

    name: str
    v1_file: str
    v2_file: str


class Cgroups:
    """The groups of one deployment with one controller: one for each replica, ``tidegate-<deployment>-<replica>``.

    With version 2 all controllers share the group of a replica. ``why`` is the reason if no group can be made.
    """

    def __init__(self, deployment: Path, controller: Controller, proc: Path = PROC) -> None:
        self._prefix = f"tidegate-{hashlib.sha256(bytes(deployment)).hexdigest()[:8]}-"
        self.parent, self.is_v2, self.why = _parent(proc, controller)

    def group(self, replica: str) -> Path | None:
        """Returns the folder of a replica's group, which need not exist. Returns None if no group can be made."""
        return None if self.parent is None else self.parent / f"{self._prefix}{replica}"

    def sweep(self, kept: Iterable[str] = ()) -> None:
        """Removes empty groups, except those of the replicas in ``kept``."""
        if self.parent is None:
            return
        names = {f"{self._prefix}{replica}" for replica in kept}
        with suppress(OSError):
            for group in self.parent.glob(f"{self._prefix}*"):
                if group.name not in names:
                    with suppress(OSError):  # A process in it is still ending.
                        group.rmdir()


def memory_bounds(proc: Path = PROC) -> list[tuple[int, int]]:
    """Returns (limit, bytes in use) of this process's group and of those above it that have a limit, as a container's
    has. Cached files not read for a while are not in use. Empty if there is no limit, or it cannot be read."""
    group, root, is_v2 = _own_group(proc)
    limit, used = ("memory.max", "memory.current") if is_v2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    stale = "inactive_file " if is_v2 else "total_inactive_file "
    found = []
    while group is not None:
        with suppress(OSError, ValueError):  # The root has no limit, and "max" is none.
            bound, taken = (int((group / name).read_text()) for name in (limit, used))
            lines = (group / "memory.stat").read_text().splitlines()
            taken -= next((int(line.split()[1]) for line in lines if line.startswith(stale)), 0)
            found.append((bound, taken))
        group = None if group == root or group == group.parent else group.parent
    return found


def _own_group(proc: Path) -> tuple[Path | None, Path, bool]:
    """Returns (folder of this process's group with the memory controller, root of its hierarchy, whether it is version
    2)."""
    try:
        mounts = [line.split() for line in (proc / "mounts").read_text(encoding="utf-8").splitlines()]
        own = [line.split(":", 2) for line in (proc / "cgroup").read_text(encoding="utf-8").splitlines()]
    except OSError:
        return None, Path(), False
    for is_v2 in (False, True):
        for mount in mounts:
            if mount[2] != ("cgroup2" if is_v2 else "cgroup") or not (is_v2 or "memory" in mount[3].split(",")):
                continue
            mine = (each[2] for each in own if (each[0] == "0" if is_v2 else "memory" in each[1].split(",")))
            root = Path(mount[1])
            group = root / next(mine, "/").lstrip("/")
            return group if group.is_dir() else root, root, is_v2  # A container may see its own group as the root.
    return None, Path(), False


def _parent(proc: Path, controller: Controller) -> tuple[Path | None, bool, str | None]:
    """Returns (folder below which groups can be made, whether it is version 2, reason if there is none)."""
    try:
        mounts = [line.split() for line in (proc / "mounts").read_text(encoding="utf-8").splitlines()]
        own = [line.split(":", 2) for line in (proc / "cgroup").read_text(encoding="utf-8").splitlines()]
    except OSError:
        return None, False, "this system has no cgroups"
    for mount in mounts:
        if mount[2] == "cgroup" and controller.name in mount[3].split(","):
            path = next((each[2] for each in own if controller.name in each[1].split(",")), "/")
            return _usable(Path(mount[1]) / path.lstrip("/"), controller, is_v2=False)
    for mount in mounts:
        if mount[2] == "cgroup2":
            path = next((each[2] for each in own if each[0] == "0"), "/")
            # A group with processes cannot delegate a controller to groups below it, so ours are its siblings.
            parent = (Path(mount[1]) / path.lstrip("/")).parent if path != "/" else Path(mount[1])
            return _usable(parent, controller, is_v2=True)
    return None, False, f"no cgroup of the controller `{controller.name}` is mounted"


def _usable(parent: Path, controller: Controller, *, is_v2: bool) -> tuple[Path | None, bool, str | None]:
    probe = parent / "tidegate-probe"
    try:
        probe.mkdir(exist_ok=True)
        there = (probe / (controller.v2_file if is_v2 else controller.v1_file)).exists()
    except OSError as error:
        return None, is_v2, f"no group can be made in {parent}: {error.strerror}"
    finally:
        with suppress(OSError):
            probe.rmdir()
    return (
        (parent, is_v2, None)
        if there
        else (None, is_v2, f"{parent} does not hand on the controller `{controller.name}`")
    )
