"""CPU utilisation of the replicas' processes, from one second to the next; policies read it as ``cpu``."""

from collections.abc import Callable, Iterable, Mapping

from tidegate.deploy.backend import ReplicaStatus
from tidegate.records.replica_state import ReplicaState

MIN_S = 0.2
"""Smallest time between two readings: a shorter one measures the kernel's clock tick more than the work."""


class Cpus:
    """``read`` returns the CPU seconds of a process so far; None if it is gone or cannot be read."""

    def __init__(self, read: Callable[[int], float | None]) -> None:
        self._read = read
        self._before: dict[str, tuple[float, float]] = {}
        """By replica: time of the last reading, CPU seconds."""
        self._percent: dict[str, float] = {}
        self._metrics: dict[tuple[str, str], dict[str, float]] = {}

    @property
    def percent(self) -> Mapping[str, float]:
        """Percent of its cores by ready replica, as last measured."""
        return self._percent

    def metrics(self, revision: str, accelerator: str) -> Mapping[str, float]:
        """Returns ``cpu``: percent of a replica's cores (one core if not stated), mean over the ready replicas."""
        return self._metrics.get((revision, accelerator), {})

    def measure(self, replicas: Iterable[ReplicaStatus], now: float) -> None:
        """Takes one reading."""
        before, self._before = self._before, {}
        percent: dict[str, float] = {}
        groups: dict[tuple[str, str], list[float]] = {}
        for each in replicas:
            if each.state is not ReplicaState.READY or not each.pids:
                continue
            seconds = [self._read(pid) for pid in each.pids]
            known = before.get(each.id)
            if known is not None and now - known[0] < MIN_S:
                self._before[each.id] = known
                percent |= {each.id: self._percent[each.id]} if each.id in self._percent else {}
            elif all(one is not None for one in seconds):
                used = sum(one for one in seconds if one is not None)
                self._before[each.id] = (now, used)
                if known is not None and used >= known[1]:
                    cores = len(each.cores) or each.threads or 1
                    percent[each.id] = 100.0 * (used - known[1]) / ((now - known[0]) * cores)
            if each.id in percent:
                groups.setdefault((each.revision, each.accelerator), []).append(percent[each.id])
        self._percent = percent
        self._metrics = {group: {"cpu": sum(found) / len(found)} for group, found in groups.items()}

    def __repr__(self) -> str:
        return f"<Cpus {len(self._percent)} replicas>"
