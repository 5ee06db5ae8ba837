"""Runs tasks on the cluster under one scheduler."""

import math
import random
from collections.abc import Sequence
from typing import NamedTuple

from tidegate.autoscaler.oltunes.affinity import THRESHOLD
from tidegate.autoscaler.oltunes.batches import BatchRules
from tidegate.autoscaler.oltunes.queues import WindowRules
from tidegate.autoscaler.oltunes.scheduling.batching import BatchScheduler
from tidegate.autoscaler.oltunes.scheduling.contract import Submission, TaskScheduler
from tidegate.autoscaler.oltunes.scheduling.rivals import OrionScheduler, ReserveAndPackScheduler
from tidegate.loadgen.experiments.setups.oltunes.gpu import Execution, SharedGpu
from tidegate.loadgen.experiments.setups.oltunes.testbed import ClusterModel, Profiles, ShareRecord, TaskTestbed
from tidegate.loadgen.simulator.kernel import Kernel

OLTUNES, ORION, RESERVE = "oltunes", "orion", "reserve-and-pack"
POLICIES = (OLTUNES, ORION, RESERVE)


class Ended(NamedTuple):
    """A task that has ended."""

    model: ClusterModel
    arrived_s: float
    began_s: float
    ended_s: float
    due_s: float
    gpu: int
    """Index of its device."""
    draw: float
    """What it adds to its device's estimated power, over the range of the device: share of the multiprocessors, times
    part of the memory, times seconds (Eq. 7)."""

    @property
    def latency_s(self) -> float:
        return self.ended_s - self.arrived_s

    @property
    def is_late(self) -> bool:
        return self.ended_s > self.due_s + 1e-9


Load = Sequence[tuple[float, ClusterModel, bool]]
"""(time, model, whether latency-critical)."""


def batch_scheduler(testbed: TaskTestbed, threshold: float = THRESHOLD) -> BatchScheduler:
    """Returns OLTunes' scheduler with this threshold of affinity."""
    window = WindowRules(start_ms=testbed.window_ms)
    return BatchScheduler(BatchRules(window_ms=testbed.window_ms, threshold=threshold), window)


def scheduler(policy: str, testbed: TaskTestbed) -> TaskScheduler:
    """Returns a new scheduler."""
    if policy == ORION:
        return OrionScheduler()
    return ReserveAndPackScheduler(testbed.reserved) if policy == RESERVE else batch_scheduler(testbed)


class TaskCluster:
    """The GPUs, and the tasks on their way through the scheduler."""

    def __init__(
        self, testbed: TaskTestbed, scheduler: TaskScheduler, load: Load, seed: int, *, refused: float = 0.0
    ) -> None:
        self._testbed = testbed
        self._scheduler = scheduler
        self._load = load
        self._profiles = Profiles(testbed, seed, is_tuned=isinstance(scheduler, BatchScheduler))
        self._rng = random.Random(f"{seed}/times")
        self._refuse = refused
        self._kernel = Kernel()
        names = [(f"{each.name}-{number}", each.name) for each in testbed.gpus for number in range(1, each.count + 1)]
        self.gpus = [
            SharedGpu(name, testbed.device[kind], self._kernel, testbed.gains, self._done) for name, kind in names
        ]
        self._index = {each.name: number for number, each in enumerate(self.gpus)}
        self._arrived: dict[str, tuple[float, ClusterModel]] = {}
        self._submission_of: dict[str, int] = {}
        self._open: dict[int, int] = {}
        self._submissions = 0
        self._wakes_s = math.inf
        self.ended: list[Ended] = []
        self.refused = 0
        for number, (at_s, *_) in enumerate(load):
            self._kernel.at(at_s, self._comes, number)

    def run(self) -> None:
        """Runs until every task has ended."""
        self._kernel.run(math.inf)

    def _comes(self, now: float, number: int) -> None:
        _, model, is_critical = self._load[number]
        name = str(number)
        self._arrived[name] = (now, model)
        self._scheduler.add(self._profiles.task(name, model, now, is_critical=is_critical))
        self._schedule(now)

    def _schedule(self, now: float) -> None:
        while True:
            found = self._scheduler.step(now, [each.view(now) for each in self.gpus])
            if found is None:
                break
            self._submitted(now, found)
        wakes_s = self._scheduler.wakes_s
        if wakes_s is not None and wakes_s != self._wakes_s:
            self._wakes_s = wakes_s
            self._kernel.at(wakes_s, self._wakes)

    def _wakes(self, now: float, _: object) -> None:
        if now >= self._wakes_s:
            self._wakes_s = math.inf
            self._schedule(now)

    def _submitted(self, now: float, submission: Submission) -> None:
        gpu = self.gpus[self._index[submission.device]]
        needs_gb = sum(each.record.memory_gb for each in submission.tasks)
        if needs_gb > gpu.free_gb + 1e-9 or (self._refuse and self._rng.random() < self._refuse):
            self.refused += 1
            self._scheduler.refused(submission)
            return
        self._submissions += 1
        self._open[self._submissions] = len(submission.tasks)
        for task, record in submission.tasks:
            assert isinstance(record, ShareRecord)
            model = self._arrived[task.task.id][1]
            batch = min(model.items, record.batch)
            noise = math.exp(self._rng.gauss(0.0, self._testbed.jitter))
            self._submission_of[task.task.id] = self._submissions
            gpu.begin(
                now,
                Execution(
                    task=task,
                    memory_gb=record.memory_gb,
                    share=record.share_pct / 100.0,
                    occupied=record.share_pct / 100.0 * batch / (batch + 4.0),
                    work_s=noise * self._testbed.alone_s(model, gpu.device.name, record),
                    began_s=now,
                ),
            )

    def _done(self, now: float, gpu: SharedGpu, execution: Execution) -> None:
        name = execution.task.task.id
        at_s, model = self._arrived.pop(name)
        began_s = execution.began_s
        draw = execution.share * execution.memory_gb / gpu.device.memory_gb * (now - began_s)
        self.ended.append(Ended(model, at_s, began_s, now, execution.task.due_s, self._index[gpu.name], draw))
        number = self._submission_of.pop(name)
        self._open[number] -= 1
        if not self._open[number]:
            del self._open[number]
            self._scheduler.served()
        self._schedule(now)
