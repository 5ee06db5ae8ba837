"""A task of OLTunes: one request to run a model, with its class and what is known of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tidegate.autoscaler.oltunes.ranking import is_above

LATENCY_CRITICAL_ABOVE: Final = 0.5
"""The class weight above which a task is latency-critical (OLTunes, table 4); 0.5 itself is throughput-oriented."""


class JobClass(StrEnum):
    """The two classes of tasks."""

    LATENCY_CRITICAL = "LC"
    THROUGHPUT_ORIENTED = "TO"


class Variant(StrEnum):
    """Size of a model among those of its family: the upper half is high."""

    HIGH = "high"
    LOW = "low"


def job_class(class_weight: float) -> JobClass:
    """Returns the class of a class weight, 0 (only throughput counts) to 1 (only latency counts). The paper's lambda.

    Raises ValueError for a weight outside 0..1.
    """
    if not 0.0 <= class_weight <= 1.0:
        raise ValueError(f"class weight {class_weight}; 0 to 1")
    is_critical = is_above(class_weight, LATENCY_CRITICAL_ABOVE)
    return JobClass.LATENCY_CRITICAL if is_critical else JobClass.THROUGHPUT_ORIENTED


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedTask:
    """What the order of the queues depends on."""

    id: str
    class_weight: float
    deadline_s: float
    """Remaining seconds at the time of scheduling, so that waiting makes a task more urgent (our choice)."""
    average_latency_s: float
    """Mean of the predicted latencies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTask:
    """What the forming of a batch depends on."""

    id: str
    memory_gb: float
    ratio: float
    """Of compute-bound to memory-bound kernels."""
    variant: Variant | None
    """None: unknown, which counts as high."""
    devices: Sequence[str] = ()
    """Ids of the devices that the tuning objective chose for it."""
