"""Forming a batch of tasks for one device, and what follows when the device refuses it (OLTunes, algorithm 2)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from tidegate.autoscaler.oltunes.affinity import THRESHOLD, affinity
from tidegate.autoscaler.oltunes.queues import WindowRules, shorter_window_ms
from tidegate.autoscaler.oltunes.ranking import is_above, is_below
from tidegate.autoscaler.oltunes.task import BatchTask


class Submit(StrEnum):
    """Why a batch is submitted."""

    COUNT = "count"
    MEMORY = "memory"
    WINDOW = "window"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRules:
    """Limits of a batch (OLTunes, table 4)."""

    window_ms: float = 500.0
    max_tasks: int = 4
    least_free_gb: float = 0.0
    """Memory of the device that stays free; the paper's ``min_mem``, which it does not define."""
    threshold: float = THRESHOLD


@dataclass(frozen=True, slots=True)
class Formed:
    """A batch after one pass over the queues, and the tasks that stay in them."""

    batch: tuple[BatchTask, ...]
    latency_critical: tuple[BatchTask, ...]
    throughput_oriented: tuple[BatchTask, ...]
    submit: Submit | None
    """None: the batch is empty, or goes on collecting."""


def form(
    device: str,
    memory_gb: float,
    latency_critical: Sequence[BatchTask],
    throughput_oriented: Sequence[BatchTask],
    batch: Sequence[BatchTask],
    *,
    open_for_s: float,
    rules: BatchRules | None = None,
) -> Formed:
    """Passes once over the two queues, in their order, and adds to ``batch`` the tasks that may join it.

    A task that may not join stays in its queue, and the pass goes on. ``open_for_s`` is the time since the first task
    joined; it counts as 0 for a batch that is empty now.
    """
    rules = rules or BatchRules()
    window_s = rules.window_ms / 1e3
    open_for_s = open_for_s if batch else 0.0
    is_open = is_below(open_for_s, window_s)
    members = list(batch)
    free_gb = memory_gb - sum(each.memory_gb for each in members)
    left: tuple[list[BatchTask], list[BatchTask]] = ([], [])
    for queue, rest in zip((latency_critical, throughput_oriented), left, strict=True):
        for task in queue:
            joins = (
                is_open
                and len(members) < rules.max_tasks
                and not is_below(free_gb - task.memory_gb, rules.least_free_gb)
                and device in task.devices
                and affinity(task, members, rules.threshold).is_high
            )
            if joins:
                members.append(task)
                free_gb -= task.memory_gb
            else:
                rest.append(task)
    submit = None
    if members:
        if len(members) >= rules.max_tasks:
            submit = Submit.COUNT
        elif not is_above(free_gb, rules.least_free_gb):
            submit = Submit.MEMORY
        elif not is_open:
            submit = Submit.WINDOW
    return Formed(tuple(members), tuple(left[0]), tuple(left[1]), submit)


def after_failure(rules: BatchRules, window: WindowRules) -> BatchRules:
    """Returns the limits after a device has refused a batch: a window one step shorter and one task fewer, at least
    one. The tasks themselves go back to the front of the latency-critical queue."""
    return replace(
        rules,
        window_ms=shorter_window_ms(rules.window_ms, window),
        max_tasks=max(1, rules.max_tasks - 1),
    )


def after_success(rules: BatchRules, configured: BatchRules) -> BatchRules:
    """Returns the limits after a batch was served: one task more, up to the configured number."""
    return replace(rules, max_tasks=min(configured.max_tasks, rules.max_tasks + 1))
