"""What ``tide`` has learnt, apart from what it holds at the moment: it outlives the process and the revision."""

import msgspec
from msgspec import UNSET, UnsetType

from tidegate.autoscaler.policies.tide.cover import LatePrice
from tidegate.autoscaler.policies.tide.outlook import Outlook
from tidegate.autoscaler.policies.tide.silence import Silence


class TideMemory(msgspec.Struct, frozen=True, gc=False):
    """Neither the level nor what is held belongs to it: both are found again within seconds."""

    reference: str | None
    """The group that loads are measured in."""
    sla: tuple[float, ...]
    """(seconds, percentile, and seconds per output token if there is such a target) that the price is for."""
    ca2: float
    shares: dict[float, float]
    """Of the batch sizes."""
    starts: dict[str, tuple[float, ...]]
    """Last start-up times in seconds by group."""
    price: LatePrice
    outlook: Outlook
    silence: Silence | UnsetType = UNSET
    """Unset in what an earlier version has learnt."""
