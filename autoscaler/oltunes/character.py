"""Character of a model: bound by computation or by memory (OLTunes, section 3.1, Eq. 1)."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tidegate.autoscaler.oltunes.ranking import is_below

COMPUTE_FROM: Final = 1.2
"""The least ratio of compute-bound to memory-bound kernels of a compute-intensive model."""


class Bound(StrEnum):
    """What limits a model's kernels."""

    COMPUTE = "CI"
    MEMORY = "MI"


@dataclass(frozen=True, slots=True)
class Character:
    """Ratio of compute-bound to memory-bound work, and the side on which it lies."""

    ratio: float
    kind: Bound


def kernel_ratio(compute: float, memory: float) -> Character:
    """Returns the character of a model with ``compute`` kernels of a compute throughput of 50 % or more, and ``memory``
    kernels of a memory throughput of 50 % or more.

    A count of zero counts as one. "Only the count that is not zero", as printed, would make a model without any
    compute-bound kernel compute-intensive. Raises ValueError for a negative or infinite count.
    """
    for name, count in (("compute", compute), ("memory", memory)):
        if not 0.0 <= count < float("inf"):
            raise ValueError(f"{count} {name}-bound kernels; a finite number, 0 or more")
    ratio = max(compute, 1) / max(memory, 1)
    return Character(ratio, Bound.MEMORY if is_below(ratio, COMPUTE_FROM) else Bound.COMPUTE)
