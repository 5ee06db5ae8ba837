"""OLTunes' scheduler: batches of tasks of several functions (algorithm 2, with its faults repaired).

Each step orders the two queues and passes over them for each open batch, then for new batches on further target
devices while tasks wait, and adapts the batch window. One batch is open for each device at most, as in the paper's
figure 9; its algorithm 2 as printed has a single one, which serves no more than its tasks each window. Where memory is
left, one task of a batch is tuned before it is submitted.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from tidegate.autoscaler.oltunes.autotune import TunableTask, autotune
from tidegate.autoscaler.oltunes.batches import BatchRules, after_failure, after_success, form
from tidegate.autoscaler.oltunes.queues import WindowRules, next_window_ms, order
from tidegate.autoscaler.oltunes.ranking import is_above
from tidegate.autoscaler.oltunes.scheduling.contract import DeviceView, Placed, Submission, WaitingTask
from tidegate.autoscaler.oltunes.scheduling.targets import target
from tidegate.autoscaler.oltunes.task import BatchTask, QueuedTask

_Queues = tuple[Sequence[BatchTask], Sequence[BatchTask]]
"""Latency-critical and throughput-oriented tasks, the most urgent first."""


class _OpenBatch(NamedTuple):
    tasks: tuple[BatchTask, ...]
    since_s: float
    """When its first task joined."""


class BatchScheduler:
    """The scheduler, its queues and the batches that it collects."""

    def __init__(self, rules: BatchRules | None = None, window: WindowRules | None = None) -> None:
        self._window = window or WindowRules()
        self._configured = rules or BatchRules(window_ms=self._window.start_ms)
        self.rules = self._configured
        """The limits now: the window moves, and so does the number of tasks after a failure."""
        self._tasks: dict[str, WaitingTask] = {}
        """Everything that waits or is in an open batch, by id."""
        self._urgent: list[BatchTask] = []
        """Tasks of refused submissions: the front of the latency-critical queue."""
        self._open: dict[str, _OpenBatch] = {}
        """By device, the oldest first."""
        self.tuned = 0
        """Tasks that were given a larger batch size so far."""

    def add(self, task: WaitingTask) -> None:
        self._tasks[task.task.id] = task

    def step(self, now: float, devices: Sequence[DeviceView]) -> Submission | None:
        queues = self._ordered(now)
        by_id = {each.id: each for each in devices}
        submission = None
        for id_ in tuple(self._open):
            queues, submission = self._pass(now, by_id[id_], queues)
            if submission is not None:
                break
        while submission is None and (device := self._target(devices, queues)) is not None:
            queues, submission = self._pass(now, device, queues)
        window_ms = next_window_ms(self.rules.window_ms, len(queues[0]), len(queues[1]), self._window)
        self.rules = replace(self.rules, window_ms=window_ms)
        return submission

    def _ordered(self, now: float) -> _Queues:
        joined = {each.id for batch in self._open.values() for each in batch.tasks}
        joined.update(each.id for each in self._urgent)
        queues = order(
            QueuedTask(
                id=each.task.id,
                class_weight=each.class_weight,
                deadline_s=each.due_s - now,
                average_latency_s=each.average_latency_s,
            )
            for each in self._tasks.values()
            if each.task.id not in joined
        )
        return (
            [*self._urgent, *(self._tasks[each.id].task for each in queues.latency_critical)],
            [self._tasks[each.id].task for each in queues.throughput_oriented],
        )

    def _target(self, devices: Sequence[DeviceView], queues: _Queues) -> DeviceView | None:
        """Returns the target for a new batch, among the devices without one that take at least one waiting task."""
        needs: dict[str, float] = {}
        for queue in queues:
            for task in queue:
                for kind in task.devices:
                    needs[kind] = min(needs.get(kind, task.memory_gb), task.memory_gb)
        return target(
            each
            for each in devices
            if each.id not in self._open
            and each.kind in needs
            and not is_above(needs[each.kind] + self.rules.least_free_gb, each.free_gb)
        )

    def _pass(self, now: float, device: DeviceView, queues: _Queues) -> tuple[_Queues, Submission | None]:
        """Passes over the queues once for the batch of a device. Returns what is left of them, and the batch if it is
        to be submitted."""
        opened = self._open.get(device.id) or _OpenBatch((), now)
        formed = form(
            device.kind, device.free_gb, *queues, opened.tasks, open_for_s=now - opened.since_s, rules=self.rules
        )
        joined = {each.id for each in formed.batch}
        self._urgent = [each for each in self._urgent if each.id not in joined]
        if formed.batch:
            self._open[device.id] = _OpenBatch(formed.batch, opened.since_s)
        left = (formed.latency_critical, formed.throughput_oriented)
        return left, None if formed.submit is None else self._submitted(device)

    def _submitted(self, device: DeviceView) -> Submission:
        tasks = [self._tasks.pop(each.id) for each in self._open.pop(device.id).tasks]
        placed = [Placed(each, each.records[device.kind][0]) for each in tasks]
        found = autotune(
            device.free_gb,
            [
                TunableTask(
                    id=task.task.id, job_class=task.job_class, current=record, records=task.records[device.kind]
                )
                for task, record in placed
            ],
        )
        if found is not None:
            self.tuned += 1
            placed = [Placed(task, found[1] if task.task.id == found[0].id else record) for task, record in placed]
        return Submission(device.id, tuple(placed))

    def refused(self, submission: Submission) -> None:
        self._tasks.update((each.task.task.id, each.task) for each in submission.tasks)
        self._urgent[:0] = [each.task.task for each in submission.tasks]
        self.rules = after_failure(self.rules, self._window)

    def served(self) -> None:
        self.rules = after_success(self.rules, self._configured)

    @property
    def wakes_s(self) -> float | None:
        oldest_s = min((each.since_s for each in self._open.values()), default=None)
        return None if oldest_s is None else oldest_s + self.rules.window_ms / 1e3

    @property
    def waiting(self) -> int:
        return len(self._tasks)

    def __repr__(self) -> str:
        return f"<BatchScheduler {self.waiting} tasks, {len(self._open)} open batches, {self.rules}>"
