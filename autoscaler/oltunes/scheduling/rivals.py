"""The two schedulers that OLTunes is compared with: Orion and reserve and pack (section 4.1.2).

Both run a task as it asks, by its first record, and form no batches: a submission is one task.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from tidegate.autoscaler.oltunes.ranking import is_above, ranked
from tidegate.autoscaler.oltunes.scheduling.contract import DeviceView, Placed, Submission, WaitingTask
from tidegate.autoscaler.oltunes.task import JobClass


class _Lines:
    """Tasks in order of arrival, in lines that do not wait for each other."""

    def __init__(self, lines: int) -> None:
        self._lines = tuple(deque[WaitingTask]() for _ in range(lines))

    @property
    def waiting(self) -> int:
        return sum(map(len, self._lines))

    @property
    def wakes_s(self) -> float | None:
        return None

    def served(self) -> None:
        """Nothing is learnt from it."""


class OrionScheduler(_Lines):
    """Latency-critical tasks first, each on the first device with room; a throughput-oriented one only beside a
    latency-critical one of the other character, or on an idle device.

    The first device in the order in which they are given: the paper leaves the choice of the device open ("best
    effort"). Within a class the order is that of arrival, and the first task that finds no place holds up its class.
    """

    def __init__(self) -> None:
        super().__init__(2)

    def add(self, task: WaitingTask) -> None:
        self._lines[task.job_class is JobClass.THROUGHPUT_ORIENTED].append(task)

    def step(self, now: float, devices: Sequence[DeviceView]) -> Submission | None:
        for line, takes in zip(self._lines, (has_room, _takes_beside), strict=True):
            if line:
                found = next((each for each in devices if takes(each, line[0])), None)
                if found is not None:
                    return _begun(line.popleft(), found)
        return None

    def refused(self, submission: Submission) -> None:
        for each in reversed(submission.tasks):
            self._lines[each.task.job_class is JobClass.THROUGHPUT_ORIENTED].appendleft(each.task)


class ReserveAndPackScheduler(_Lines):
    """Large tasks on the reserved kinds alone, the others on the other kinds alone: on the device with the least free
    memory that has room. Order of arrival within each of the two; the first task without room holds up the others."""

    def __init__(self, reserved: Iterable[str]) -> None:
        super().__init__(2)
        self.reserved = frozenset(reserved)

    def add(self, task: WaitingTask) -> None:
        self._lines[task.is_large].append(task)

    def step(self, now: float, devices: Sequence[DeviceView]) -> Submission | None:
        for is_large, line in enumerate(self._lines):
            if line:
                own = [each for each in devices if (each.kind in self.reserved) == is_large and has_room(each, line[0])]
                if own:
                    return _begun(line.popleft(), ranked(own, (lambda each: each.free_gb,), lambda each: each.id)[0])
        return None

    def refused(self, submission: Submission) -> None:
        for each in reversed(submission.tasks):
            self._lines[each.task.is_large].appendleft(each.task)


def has_room(device: DeviceView, task: WaitingTask) -> bool:
    """Returns whether the task can run on this kind and its memory fits."""
    records = task.records.get(device.kind, ())
    return bool(records) and not is_above(records[0].memory_gb, device.free_gb)


def _takes_beside(device: DeviceView, task: WaitingTask) -> bool:
    if not has_room(device, task):
        return False
    return device.is_idle or any(
        each.job_class is JobClass.LATENCY_CRITICAL and each.character is not task.character for each in device.running
    )


def _begun(task: WaitingTask, device: DeviceView) -> Submission:
    return Submission(device.id, (Placed(task, task.records[device.kind][0]),))
