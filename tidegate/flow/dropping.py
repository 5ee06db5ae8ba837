"""Dropping requests that are too old to be worth serving, at a multiple of the latency target.

Razavi, Salmani et al., "A Tale of Two Scales" (Themis), section 6.3: under overload a request that is already late
delays those behind it that could still be in time.
"""

from math import inf
from typing import Final

TIE: Final = 1e-9
"""An age within this of the limit counts as equal to it."""


def age_limit(multiplier: float | None, target: float | None) -> float:
    """Returns the age from which on a request is dropped, in the unit of the latency ``target``; infinite if
    ``multiplier`` is 0 or None, or if there is no target."""
    return multiplier * target if multiplier and multiplier > 0.0 and target is not None else inf


def is_dropped(multiplier: float | None, age: float, target: float | None) -> bool:
    """Returns whether a request of this age, in the unit of ``target``, is dropped."""
    return age >= age_limit(multiplier, target) - TIE
