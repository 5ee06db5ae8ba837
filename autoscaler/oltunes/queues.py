"""Two queues by class, ordered by urgency, and the window in which a batch collects tasks (OLTunes, section 3.4).

Urgency is the remaining time in predicted latencies: a task with 2 s left that takes 1 s goes before one with 4 s left
that takes 1 s. Tasks of equal urgency run the shortest first.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tidegate.autoscaler.oltunes.ranking import is_above, ranked
from tidegate.autoscaler.oltunes.task import JobClass, QueuedTask, job_class


@dataclass(frozen=True, slots=True)
class Queues:
    """Tasks by class, the most urgent first."""

    latency_critical: tuple[QueuedTask, ...]
    throughput_oriented: tuple[QueuedTask, ...]


def urgency(deadline_s: float, average_latency_s: float) -> float:
    """Returns the remaining time in predicted latencies; smaller is more urgent.

    A task that takes no time is never urgent while time is left, and most urgent after that (our choice).
    """
    if average_latency_s > 0.0:
        return deadline_s / average_latency_s
    return math.inf if deadline_s > 0.0 else -math.inf


def order(tasks: Iterable[QueuedTask]) -> Queues:
    """Returns the two queues: by urgency, ties by the shorter job, then by id. Raises ValueError for a class weight
    outside 0..1."""
    by_class: dict[JobClass, list[QueuedTask]] = {each: [] for each in JobClass}
    for task in tasks:
        by_class[job_class(task.class_weight)].append(task)
    critical, oriented = (
        tuple(
            ranked(
                by_class[each],
                (lambda task: urgency(task.deadline_s, task.average_latency_s), lambda task: task.average_latency_s),
                lambda task: task.id,
            )
        )
        for each in (JobClass.LATENCY_CRITICAL, JobClass.THROUGHPUT_ORIENTED)
    )
    return Queues(critical, oriented)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRules:
    """Bounds of the batch window (OLTunes, table 4). Its start is our choice."""

    start_ms: float = 500
    least_ms: float = 50
    most_ms: float = 1000
    step_ms: float = 10
    critical_share: float = 0.7
    """Share of latency-critical tasks among all above which the window shrinks."""


def next_window_ms(window_ms: float, critical: int, oriented: int, rules: WindowRules | None = None) -> float:
    """Returns the window after one round, with ``critical`` and ``oriented`` tasks in the two queues.

    Many latency-critical tasks shorten it, others lengthen it. With both queues empty it stays (our choice: the paper's
    share is 0/0).
    """
    rules = rules or WindowRules()
    if critical + oriented == 0:
        return window_ms
    if is_above(critical / (critical + oriented), rules.critical_share):
        return shorter_window_ms(window_ms, rules)
    return min(window_ms + rules.step_ms, rules.most_ms)


def shorter_window_ms(window_ms: float, rules: WindowRules) -> float:
    """Returns the window one step shorter, never below its least value."""
    return max(window_ms - rules.step_ms, rules.least_ms)
