"""Affinity of a task with the tasks of a batch: whether they slow each other little on one device (Eq. 9 to 11)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from tidegate.autoscaler.oltunes.ranking import is_below
from tidegate.autoscaler.oltunes.task import BatchTask, Variant

THRESHOLD: Final = 70.0
"""The affinity from which a task may join a batch (OLTunes, table 4)."""


@dataclass(frozen=True, slots=True)
class Affinity:
    """Affinity in percent and its two halves; None for an empty batch."""

    workload: float | None
    variant: float | None
    total: float | None
    is_high: bool


def affinity(
    task: BatchTask, batch: Sequence[BatchTask], threshold: float = THRESHOLD, *, is_rescaled: bool = False
) -> Affinity:
    """Returns the affinity of ``task`` with ``batch``, which is high for an empty batch.

    The printed sigmoid of an absolute difference lies in 50..100: equal tasks score 50. ``is_rescaled`` spreads it over
    0..100 (our choice, off by default).
    """
    if not batch:
        return Affinity(None, None, None, True)
    workload = fmean(_workload(task.ratio, each.ratio, is_rescaled) for each in batch)
    variant = fmean(_variants(task, each) for each in batch)
    total = (workload + variant) / 2.0
    return Affinity(workload, variant, total, not is_below(total, threshold))


def _workload(one: float, other: float, is_rescaled: bool) -> float:
    sigmoid = 1.0 / (1.0 + math.exp(-abs(one - other)))
    return 200.0 * (sigmoid - 0.5) if is_rescaled else 100.0 * sigmoid


def _variants(one: BatchTask, other: BatchTask) -> float:
    """Returns 0, 50 or 100 for no, two and one task of the low variant."""
    low = (one.variant is Variant.LOW, other.variant is Variant.LOW)
    return 0.0 if not any(low) else 50.0 if all(low) else 100.0
