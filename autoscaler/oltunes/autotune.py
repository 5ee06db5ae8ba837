"""Tuning of one task of a batch before it is submitted: a larger batch size where memory is left (algorithm 3)."""

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.autoscaler.oltunes.ranking import is_above, is_below, ranked
from tidegate.autoscaler.oltunes.task import JobClass


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningRecord:
    """A way to run a task on a device, with its predicted or measured effect."""

    batch: int
    memory_gb: float
    latency_s: float
    throughput: float
    """Inferences per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunableTask:
    """A task of the batch, how it would run, and the records of it on this device."""

    id: str
    job_class: JobClass
    current: TuningRecord
    records: Sequence[TuningRecord]


def autotune(memory_gb: float, tasks: Sequence[TunableTask]) -> tuple[TunableTask, TuningRecord] | None:
    """Returns the task to tune and its new record; None if memory is full or no task gains.

    Throughput-oriented tasks come first and must gain throughput; a latency-critical one must lose latency. A record
    that does not fit is passed over for the best one that does (our choice).
    """
    free_gb = memory_gb - sum(each.current.memory_gb for each in tasks)
    if not is_above(free_gb, 0.0):
        return None
    for job_class in (JobClass.THROUGHPUT_ORIENTED, JobClass.LATENCY_CRITICAL):
        for task in tasks:
            if task.job_class is job_class and len(task.records) >= 2:
                best = _best(task, free_gb)
                if best is not None:
                    return task, best
    return None


def _best(task: TunableTask, free_gb: float) -> TuningRecord | None:
    now = task.current
    larger = [
        each
        for each in task.records
        if each.batch > now.batch and not is_above(each.memory_gb, now.memory_gb + free_gb)
    ]
    if task.job_class is JobClass.THROUGHPUT_ORIENTED:
        better = [each for each in larger if is_above(each.throughput, now.throughput)]
        order = ranked(better, (lambda each: -each.throughput, lambda each: each.memory_gb), lambda each: each.batch)
    else:
        better = [each for each in larger if is_below(each.latency_s, now.latency_s)]
        order = ranked(better, (lambda each: each.latency_s, lambda each: each.memory_gb), lambda each: each.batch)
    return order[0] if order else None
