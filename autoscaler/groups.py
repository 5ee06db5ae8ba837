"""Which accelerators a number of replicas goes to, for policies that only wish a number.

Growing: draining replicas are taken back first (their model is loaded), then the cheapest room is filled. Shrinking:
replicas that still start go first, then the most expensive ones; the last one left is on the cheapest group. Groups
without a price come after the priced ones, in the order given (the backend lists the cheapest first).
"""

import math
from collections.abc import Mapping, Sequence

from autoscaler.observation import GroupObservation
from tidegate.records import GroupDecision


def spread(
    desired: int, groups: Sequence[GroupObservation], base: Mapping[str, int] | None = None
) -> tuple[GroupDecision, ...]:
    """``desired`` replicas over ``groups``, as near as possible to ``base`` (default: what exists).

    One row for every group, zero included, in the order given. Fewer than ``desired`` where there is no room.
    """
    counts = {group.accelerator: group.existing for group in groups} if base is None else _known(base, groups)
    cheapest_first = sorted(
        groups, key=lambda group: math.inf if group.price_per_hour is None else group.price_per_hour
    )
    missing = desired - sum(counts.values())
    if missing > 0:
        _grow(counts, cheapest_first, missing)
    elif missing < 0:
        _shrink(counts, cheapest_first, -missing)
    return tuple(GroupDecision(accelerator=group.accelerator, replicas=counts[group.accelerator]) for group in groups)


def _known(base: Mapping[str, int], groups: Sequence[GroupObservation]) -> dict[str, int]:
    return {group.accelerator: base.get(group.accelerator, 0) for group in groups}


def _grow(counts: dict[str, int], groups: Sequence[GroupObservation], missing: int) -> None:
    for take_back in (True, False):
        for group in groups:
            free = math.inf if group.capacity is None else group.capacity - counts[group.accelerator]
            added = max(0, min(missing, free, group.draining) if take_back else min(missing, free))
            counts[group.accelerator] += int(added)
            missing -= int(added)


def _shrink(counts: dict[str, int], groups: Sequence[GroupObservation], surplus: int) -> None:
    for starting_only in (True, False):
        for group in reversed(groups):
            count = counts[group.accelerator]
            removable = min(count, max(0, count - group.ready)) if starting_only else count
            taken = min(surplus, removable)
            counts[group.accelerator] -= taken
            surplus -= taken
