"""The tuning objective: which devices suit a task, and with which batch size, memory and share (OLTunes, Eq. 4 to 6).

As printed, the terms have different units and a larger power estimate raises the value, against the paper's own worked
example. Here each term is a ratio in 0..1 and power counts against a device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.autoscaler.oltunes.ranking import ranked

DEVICES: Final = 2
"""Devices that are kept for a task (Eq. 5)."""
COMBINATIONS: Final = 3
"""Combinations that are kept for each of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningRow:
    """A combination of tunables on a device; its memory fits the device."""

    device: str
    combination: int
    latency_s: float
    throughput: float
    epc: float
    """Estimated power (Eq. 7)."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Values by row, the best devices, and the best combinations of each of these."""

    values: tuple[float, ...]
    devices: tuple[str, ...]
    combinations: Mapping[str, tuple[int, ...]]


def objective(
    rows: Sequence[TuningRow], *, class_weight: float, alpha: float, beta: float, deadline_s: float
) -> Ranking:
    """Returns the rows' values and the two best devices with three combinations each, best first.

    ``alpha`` weighs the time left before the deadline, ``beta`` the power. Ties go to the lower name and the lower
    combination. A deadline of 0 or less leaves no slack; a ratio whose reference is 0 is 0, but a latency of 0 is the
    best there is.
    """
    values = _values(rows, class_weight, alpha, beta, deadline_s)
    by_device: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        by_device.setdefault(row.device, []).append(index)
    best = {device: max(values[index] for index in indices) for device, indices in by_device.items()}
    devices = tuple(ranked(by_device, (lambda device: -best[device],), lambda device: device)[:DEVICES])
    chosen = {
        device: ranked(by_device[device], (lambda index: -values[index],), lambda index: rows[index].combination)
        for device in devices
    }
    return Ranking(
        values,
        devices,
        {device: tuple(rows[index].combination for index in found[:COMBINATIONS]) for device, found in chosen.items()},
    )


def _values(
    rows: Sequence[TuningRow], class_weight: float, alpha: float, beta: float, deadline_s: float
) -> tuple[float, ...]:
    least_s = min((row.latency_s for row in rows), default=0.0)
    most = max((row.throughput for row in rows), default=0.0)
    most_epc = max((row.epc for row in rows), default=0.0)

    def value(row: TuningRow) -> float:
        speed = least_s / row.latency_s if row.latency_s > 0.0 else 1.0
        throughput = row.throughput / most if most > 0.0 else 0.0
        slack = max(0.0, deadline_s - row.latency_s) / deadline_s if deadline_s > 0.0 else 0.0
        power = row.epc / most_epc if most_epc > 0.0 else 0.0
        return class_weight * speed + (1.0 - class_weight) * throughput + alpha * slack - beta * power

    return tuple(value(row) for row in rows)
