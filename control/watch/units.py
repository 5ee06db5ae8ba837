"""Utilisation, power and balance of the units of accelerators, as means of a minute.

A unit of an NVIDIA kind is read by NVML, whether a replica holds it or not. A unit of a CPU kind counts the processor
time of its ready replicas; its power is that of the machine's processor packages, which all CPU kinds share. An
emulated unit has no figures.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from statistics import fmean
from typing import Final

from tidegate import metrics
from tidegate.deploy.backend import ReplicaStatus
from tidegate.deploy.devices.rapl import Packages
from tidegate.deploy.devices.usage import DeviceUse
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind
from tidegate.loadgen.metrics.usage import variation
from tidegate.metrics import Exposition
from tidegate.records.replica_state import ReplicaState

WINDOW_S: Final = 60.0


class RecentMean:
    """Mean of the values of the last minute."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: deque[tuple[float, float]] = deque()

    def add(self, now: float, value: float) -> None:
        self._values.append((now, value))
        self._expire(now)

    def mean(self, now: float) -> float | None:
        """Returns None if there was no value."""
        self._expire(now)
        return fmean(value for _, value in self._values) if self._values else None

    def _expire(self, now: float) -> None:
        while self._values and not now - WINDOW_S < self._values[0][0] <= now:
            self._values.popleft()

    def __repr__(self) -> str:
        return f"<RecentMean of {len(self._values)} values>"


def cpu_units(
    kind: Accelerator, replicas: Iterable[ReplicaStatus], percent: Mapping[str, float]
) -> dict[int, float | None]:
    """Returns percent of its cores by unit of a CPU kind: 0 without a ready replica, None if one of its ready replicas
    was not measured. ``percent``: of the cores of a replica, by its id."""
    found: dict[int, float | None] = dict.fromkeys(range(kind.count), 0.0)
    for each in replicas:
        if each.accelerator != kind.name or each.state is not ReplicaState.READY:
            continue
        used = percent.get(each.id)
        for unit in each.units:
            if unit in found:
                before = found[unit]
                found[unit] = None if used is None or before is None else before + used
    return found


class UnitMeter:
    """The figures of this machine's units."""

    def __init__(self, packages: Packages) -> None:
        self._packages = packages
        self._utilization: dict[tuple[str, int], RecentMean] = {}
        """Percent, by kind and unit."""
        self._power: dict[tuple[str, int], RecentMean] = {}
        """Watts."""
        self._package_power: dict[str, RecentMean] = {}

    def measure(
        self,
        kinds: Collection[Accelerator],
        replicas: Collection[ReplicaStatus],
        percent: Mapping[str, float],
        devices: Mapping[str, DeviceUse],
        now: float,
    ) -> None:
        """Takes one reading. ``percent``: of its cores by replica; ``devices``: the latest reading of NVML by UUID."""
        there = {(kind.name, unit) for kind in kinds for unit in range(kind.count)}
        for figures in (self._utilization, self._power):
            for gone in figures.keys() - there:
                del figures[gone]
        for package, watts in self._packages.read(now).items():
            self._package_power.setdefault(package, RecentMean()).add(now, watts)
        for kind in kinds:
            if kind.kind is AcceleratorKind.CPU:
                for unit, used in cpu_units(kind, replicas, percent).items():
                    _add(self._utilization, (kind.name, unit), now, used)
            for unit, uuid in enumerate(kind.devices):
                if uuid in devices:
                    _add(self._utilization, (kind.name, unit), now, devices[uuid].utilization)
                    _add(self._power, (kind.name, unit), now, devices[uuid].power_w)

    def utilization(self, kind: Accelerator, now: float) -> tuple[float | None, ...]:
        """Returns the percent of each unit; None where it is not known."""
        return tuple(_mean(self._utilization, (kind.name, unit), now) for unit in range(kind.count))

    def variation(self, kind: Accelerator, now: float) -> float | None:
        """Returns the balance: the coefficient of variation of utilisation over the units where it is known."""
        return variation([used for used in self.utilization(kind, now) if used is not None])

    def power_w(self, kind: Accelerator, now: float) -> float | None:
        """Returns the watts of all units together, for a CPU kind those of the machine's packages; None if one of them
        is not known."""
        if kind.kind is AcceleratorKind.CPU:
            found = [each.mean(now) for each in self._package_power.values()]
        else:
            found = [_mean(self._power, (kind.name, unit), now) for unit in range(kind.count)]
        known = [each for each in found if each is not None]
        return sum(known) if known and len(known) == len(found) else None

    def power_unknown(self, kind: Accelerator) -> str:
        """Returns why the power of a kind is not known."""
        if kind.kind is AcceleratorKind.CPU:
            return self._packages.fault or "RAPL: not read twice yet"
        return "emulated" if kind.is_emulated else "NVML reports none for at least one unit"

    def expose(self, exposition: Exposition, kinds: Iterable[Accelerator], now: float) -> None:
        """Adds all figures that are known."""
        for kind in kinds:
            for unit, used in enumerate(self.utilization(kind, now)):
                if used is not None:
                    exposition.add(metrics.UNIT_UTILIZATION, (kind.name, str(unit)), used / 100.0)
                watts = _mean(self._power, (kind.name, unit), now)
                if watts is not None:
                    exposition.add(metrics.UNIT_POWER, (kind.name, str(unit)), watts)
            balance = self.variation(kind, now)
            if balance is not None:
                exposition.add(metrics.ACCELERATOR_VARIATION, (kind.name,), balance)
        for package, each in sorted(self._package_power.items()):
            watts = each.mean(now)
            if watts is not None:
                exposition.add(metrics.PACKAGE_POWER, (package,), watts)

    def __repr__(self) -> str:
        return f"<UnitMeter of {len(self._utilization)} units, {len(self._package_power)} packages>"


def _add(into: dict[tuple[str, int], RecentMean], unit: tuple[str, int], now: float, value: float | None) -> None:
    if value is not None:
        into.setdefault(unit, RecentMean()).add(now, value)


def _mean(of: Mapping[tuple[str, int], RecentMean], unit: tuple[str, int], now: float) -> float | None:
    known = of.get(unit)
    return None if known is None else known.mean(now)
