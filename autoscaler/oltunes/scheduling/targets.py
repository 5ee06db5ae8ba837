"""The device for the next batch (OLTunes, algorithms 2 and 3, section 3.4.1)."""

from collections.abc import Iterable
from typing import Final

from tidegate.autoscaler.oltunes.ranking import is_above, ranked
from tidegate.autoscaler.oltunes.scheduling.contract import DeviceView

FREE_ABOVE: Final = 0.8
"""Part of its memory that a busy device must have free to be a target."""
DONE_ABOVE: Final = 0.8
"""Part of its longest task that must be over on a busy device for it to be a target."""


def target(devices: Iterable[DeviceView]) -> DeviceView | None:
    """Returns the target: of the idle devices, else of the busy ones that are nearly free, the one of the lowest
    utilisation; else the one that is free the soonest. Ties go to the lower id. None without devices.

    A partition of a device is a device of its own, so a partitioned device is a target as long as one of its partitions
    is idle. The paper takes the first of an empty list where no device is available; here the soonest one follows.
    """
    given = list(devices)
    for group in ([each for each in given if each.is_idle], [each for each in given if _is_nearly_free(each)]):
        if group:
            return ranked(group, (lambda each: each.utilisation,), _id)[0]
    return ranked(given, (lambda each: each.free_in_s,), _id)[0] if given else None


def _is_nearly_free(device: DeviceView) -> bool:
    return is_above(device.free_gb, FREE_ABOVE * device.memory_gb) or is_above(device.done, DONE_ABOVE)


def _id(device: DeviceView) -> str:
    return device.id
