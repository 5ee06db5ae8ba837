"""Utilisation of the GPUs: read once a second, reported to the policies, shown as a mean over a minute.

Only devices that a ready replica of a function holds count for it. A shared device counts whole for each of its
holders, since NVML does not distinguish them.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from tidegate.autoscaler.policies.hpa import RollingUtilization
from tidegate.control.watch.threads import in_daemon_thread
from tidegate.deploy.backend import ReplicaStatus
from tidegate.deploy.devices.usage import DeviceUse
from tidegate.deploy.placement.ledger import Accelerator
from tidegate.records.replica_state import ReplicaState

WINDOW_S: Final = 60.0

Read = Callable[[Collection[str]], "Mapping[str, DeviceUse]"]


class Gpus:
    """``read`` blocks; it runs in a thread, one call at a time, so that a hanging driver delays nothing."""

    def __init__(self, read: Read | None) -> None:
        self._read = read
        self._rolling_of = RollingUtilization
        self._rolling: dict[str, RollingUtilization] = {}
        self._metrics: dict[tuple[str, str], dict[str, float]] = {}
        self._is_reading = False
        self.devices: Mapping[str, DeviceUse] = {}
        """The latest reading of all devices by UUID. Empty while the driver does not answer."""

    def metrics(self, revision: str, accelerator: str) -> Mapping[str, float]:
        """Returns ``gpu-utilization``, ``gpu-memory`` and ``gpu-memory-busy`` in percent, mean over the devices that
        its ready replicas hold."""
        return self._metrics.get((revision, accelerator), {})

    def utilization(self, function: str, now: float) -> float | None:
        """Returns the mean percent of the last minute over the devices that the function held then; None if it held
        none."""
        rolling = self._rolling.get(function)
        return None if rolling is None else rolling.mean(now)

    @property
    def functions(self) -> Collection[str]:
        return self._rolling.keys()

    async def measure(self, replicas: Iterable[ReplicaStatus], kinds: Iterable[Accelerator], now: float) -> None:
        """Takes one reading, unless the last one has not returned."""
        kinds = tuple(kinds)
        held = held_devices(replicas, kinds)
        uuids = {uuid for kind in kinds for uuid in kind.devices}.union(*held.values())
        for gone in self._rolling.keys() - {function for function, _, _ in held}:
            if self._rolling[gone].mean(now) is None:
                del self._rolling[gone]
        if self._read is None or self._is_reading or not uuids:
            self.devices = {}
            self._metrics = {} if not held else self._metrics
            return
        self._is_reading = True
        try:
            found = await in_daemon_thread(self._read, uuids)
        finally:
            self._is_reading = False
        self.devices = found
        self._metrics = {
            (revision, accelerator): _means([found[uuid] for uuid in mine if uuid in found])
            for (_, revision, accelerator), mine in held.items()
        }
        by_function: dict[str, dict[str, float | None]] = {}
        for (function, _, _), mine in held.items():
            used = {uuid: found[uuid].utilization for uuid in mine if uuid in found}
            by_function.setdefault(function, {}).update(used)
        for function, values in by_function.items():
            self._rolling.setdefault(function, self._rolling_of(WINDOW_S)).add(now, values)

    def __repr__(self) -> str:
        return f"<Gpus {len(self._metrics)} groups, {len(self._rolling)} functions>"


def held_devices(
    replicas: Iterable[ReplicaStatus], kinds: Iterable[Accelerator]
) -> dict[tuple[str, str, str], set[str]]:
    """Returns (function, revision, accelerator) -> uuids of the devices that its ready replicas hold.

    ``accelerator`` is the kind's name at the start of the replica. The kind may have another one since."""
    devices = {kind.name: kind.devices for kind in kinds if kind.devices}
    held: dict[tuple[str, str, str], set[str]] = {}
    for each in replicas:
        mine = set(each.devices)
        if not mine:  # Started by a version that recorded no devices.
            there = devices.get(each.accelerator, ())
            mine = {there[unit] for unit in each.units if unit < len(there)}
        if each.state is ReplicaState.READY and mine:
            held.setdefault((each.function, each.revision, each.accelerator), set()).update(mine)
    return held


def _means(uses: list[DeviceUse]) -> dict[str, float]:
    if not uses:
        return {}
    return {
        "gpu-utilization": sum(use.utilization for use in uses) / len(uses),
        "gpu-memory": sum(use.memory for use in uses) / len(uses),
        "gpu-memory-busy": sum(use.memory_busy for use in uses) / len(uses),
    }
