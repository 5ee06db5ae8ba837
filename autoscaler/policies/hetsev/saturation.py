"""The trigger of scale-out: the share of the capacity in use, above a threshold for a while (HetSev, section 4.1)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.autoscaler.policies.hetsev.instances import TIE

THRESHOLD: Final = 0.8
HOLD_S: Final = 30.0
"""Time for which every sample must exceed the threshold. Our choice; the paper has "a period of time", and rates every
15 s."""


@dataclass(frozen=True, slots=True)
class RateSample:
    at: float
    """Seconds."""
    rate: float
    """Requests per second."""
    batch: float = 1.0
    """Inferences of a request."""


@dataclass(frozen=True, slots=True)
class Saturation:
    levels: tuple[float | None, ...]
    """By sample: arrivals over capacity; None without capacity."""
    is_triggered: bool


def saturation(
    samples: Sequence[RateSample], capacity_ips: float, threshold: float = THRESHOLD, hold_s: float = HOLD_S
) -> Saturation:
    """Returns the levels, and whether to scale out: all samples of the last ``hold_s`` are above the threshold, and the
    series reaches back that far. Without capacity any load triggers."""
    if capacity_ips <= TIE:
        return Saturation((None,) * len(samples), any(each.rate * each.batch > 0.0 for each in samples))
    levels = tuple(each.rate * each.batch / capacity_ips for each in samples)
    if not samples:
        return Saturation(levels, False)
    since = max(each.at for each in samples) - hold_s
    reaches_back = min(each.at for each in samples) <= since + TIE
    held = [level for each, level in zip(samples, levels, strict=True) if each.at >= since - TIE]
    return Saturation(levels, reaches_back and all(level > threshold + TIE for level in held))
