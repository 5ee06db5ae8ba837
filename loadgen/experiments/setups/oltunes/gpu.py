"""A GPU on which tasks of several models run side by side.

Each task occupies a part of the device: its share of the multiprocessors, as far as its batch fills them. Alone it
takes its own time. As long as the parts of all add up to no more than what the device does with such a mix, nothing
slows; beyond that all slow down alike. What it does with a mix is the mean over its pairs of what table 1 prints for
two kernels: 0.98 for two compute-bound ones, 1.10 for two memory-bound ones and 1.46 for one of each.
"""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tidegate.autoscaler.oltunes.character import Bound
from tidegate.autoscaler.oltunes.scheduling.contract import DeviceView, WaitingTask
from tidegate.loadgen.experiments.setups.oltunes.dataset import DatasetDevice
from tidegate.loadgen.simulator.kernel import Kernel

MEAN_S: Final = 2.0
"""Seconds over which the utilisation that a scheduler sees is averaged, and over which figures are sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gains:
    """Work that two executions do at once, where one does 1 (table 1)."""

    compute: float
    memory: float
    mixed: float

    def of(self, compute: int, memory: int) -> float:
        """Returns the work of so many compute-bound and memory-bound executions at once: the mean over their pairs."""
        pairs = (compute + memory) * (compute + memory - 1) / 2.0
        if not pairs:
            return 1.0
        return (
            self.compute * compute * (compute - 1) / 2.0
            + self.memory * memory * (memory - 1) / 2.0
            + self.mixed * compute * memory
        ) / pairs


@dataclass(slots=True, eq=False, kw_only=True)
class Execution:
    """A task that runs."""

    task: WaitingTask
    memory_gb: float
    share: float
    """Share of the multiprocessors, 0..1."""
    occupied: float
    """Part of the device that it occupies alone."""
    work_s: float
    """Time that it takes alone."""
    began_s: float
    ends_at: float = 0.0
    """In the device's own time, which passes more slowly while tasks slow each other."""


@dataclass(slots=True, eq=False)
class SharedGpu:
    """One device; its own clock advances by 1/slow-down."""

    name: str
    device: DatasetDevice
    kernel: Kernel
    gains: Gains
    done: Callable[[float, "SharedGpu", Execution], None]
    free_gb: float = field(init=False)
    used: list[tuple[float, float]] = field(init=False, default_factory=list)
    """(time, part of the device that is in use from then on)."""
    _running: dict[str, Execution] = field(init=False, default_factory=dict)
    _ends: list[tuple[float, int, Execution]] = field(init=False, default_factory=list)
    _own_s: float = field(init=False, default=0.0)
    _at: float = field(init=False, default=0.0)
    _occupied: float = field(init=False, default=0.0)
    _slow_down: float = field(init=False, default=1.0)
    _recent: float = field(init=False, default=0.0)
    """Mean utilisation of late."""
    _epoch: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.free_gb = float(self.device.memory_gb)

    def begin(self, now: float, execution: Execution) -> None:
        """Begins an execution."""
        self._advance(now)
        execution.ends_at = self._own_s + execution.work_s
        self._running[execution.task.task.id] = execution
        heapq.heappush(self._ends, (execution.ends_at, self._epoch, execution))
        self.free_gb -= execution.memory_gb
        self._settle(now)

    def view(self, now: float) -> DeviceView:
        """Returns what a scheduler sees."""
        if not self._running:
            idle = self._recent * math.exp(-(now - self._at) / MEAN_S)
            return DeviceView(self.name, self.device.name, float(self.device.memory_gb), self.free_gb, idle)
        self._advance(now)
        longest = max(self._running.values(), key=lambda each: each.ends_at)
        return DeviceView(
            self.name,
            self.device.name,
            float(self.device.memory_gb),
            self.free_gb,
            self._recent,
            [each.task for each in self._running.values()],
            1.0 - (longest.ends_at - self._own_s) / longest.work_s,
            (longest.ends_at - self._own_s) * self._slow_down,
        )

    def _advance(self, now: float) -> None:
        passed = now - self._at
        if passed > 0.0:
            kept = math.exp(-passed / MEAN_S)
            self._recent = self._recent * kept + min(1.0, self._occupied) * (1.0 - kept)
            self._own_s += passed / self._slow_down
            self._at = now

    def _settle(self, now: float) -> None:
        """Updates the slow-down and schedules the next end."""
        self._epoch += 1
        running = self._running.values()
        self._occupied = math.fsum(each.occupied for each in running)
        compute = sum(each.task.character is Bound.COMPUTE for each in running)
        self._slow_down = max(1.0, self._occupied / self.gains.of(compute, len(running) - compute))
        self.used.append((now, min(1.0, self._occupied)))
        if self._ends:
            left_s = max(0.0, self._ends[0][0] - self._own_s)
            self.kernel.at(now + left_s * self._slow_down, self._ended, self._epoch)

    def _ended(self, now: float, epoch: int) -> None:
        if epoch != self._epoch:
            return
        self._advance(now)
        ended = []
        # What is left at the moment that was computed for it is the error of that computation.
        while self._ends and self._ends[0][0] <= self._own_s + 1e-9:
            ended.append(heapq.heappop(self._ends)[2])
        for each in ended:
            del self._running[each.task.task.id]
            self.free_gb += each.memory_gb
        self._settle(now)
        for each in ended:
            self.done(now, self, each)

    def __repr__(self) -> str:
        return f"<SharedGpu {self.name}, {len(self._running)} executions, {self.free_gb:g} GB free>"
