"""Spreads a number of replicas over accelerators, for policies that recommend only a number.

Growing: draining replicas are taken back first (their model is loaded), then the cheapest room is filled. Shrinking:
replicas that still start go first, then the most expensive ones; the last one left is on the cheapest group. Groups
without a price come after the priced ones, in the order given (the backend lists the cheapest first). Groups on which
one inference alone takes longer than the latency target come last of all.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from msgspec import structs

from tidegate.autoscaler.decisions.reasons import reason
from tidegate.autoscaler.measure.observation import GroupObservation, Observation
from tidegate.records.decision import GroupDecision, Reason


@lru_cache(maxsize=4096)
def row(accelerator: str, replicas: int, share: int = 100) -> GroupDecision:
    """Returns one row of a decision; the same few are made over and over."""
    return GroupDecision(accelerator=accelerator, replicas=replicas, share=share)


def spread(
    desired: int,
    groups: Sequence[GroupObservation],
    base: Mapping[str, int] | None = None,
    *,
    slo_s: float | None = None,
) -> tuple[GroupDecision, ...]:
    """Returns ``desired`` replicas over ``groups``, as near as possible to ``base`` (default: what exists).

    One row for every group, zero included, in the order given. Fewer than ``desired`` if there is no room. ``slo_s``:
    the latency target.
    """
    if base is None and desired == sum([group.ready + group.starting for group in groups]):
        return tuple([row(group.accelerator, group.ready + group.starting) for group in groups])
    if base is None:
        counts = {group.accelerator: group.ready + group.starting for group in groups}
    else:
        counts = {group.accelerator: base.get(group.accelerator, 0) for group in groups}
    missing = desired - sum(counts.values())
    if missing > 0:
        _grow(counts, _cheapest_first(groups, slo_s), missing)
    elif missing < 0:
        _shrink(counts, _cheapest_first(groups, slo_s), -missing)
    return tuple([row(group.accelerator, counts[group.accelerator]) for group in groups])


def fitted(observation: Observation) -> Observation:
    """Returns the observation as if no accelerator had more replicas than it takes: where one has become smaller, the
    replicas in excess are no capacity. Returns the identical observation if no accelerator has become smaller."""
    for group in observation.groups:
        if group.room is not None and group.room < 0:
            break
    else:
        return observation
    return structs.replace(observation, groups=tuple(_fitted(group) for group in observation.groups))


def _fitted(group: GroupObservation) -> GroupObservation:
    capacity = group.capacity
    if group.room is None or group.room >= 0 or capacity is None:
        return group
    ready = min(group.ready, capacity)
    starting = min(group.starting, capacity - ready)
    draining = min(group.draining, capacity - ready - starting)
    return structs.replace(
        group, ready=ready, starting=starting, draining=draining, room=capacity - ready - starting - draining
    )


def leaving(
    groups: tuple[GroupDecision, ...], observation: Observation
) -> tuple[tuple[GroupDecision, ...], tuple[Reason, ...]]:
    """Returns ``groups``, decided for the fitted observation, plus the replicas in excess: each stays until a replica
    that is wanted elsewhere is ready."""
    observed = {group.accelerator: group for group in observation.groups}
    missing = sum(max(0, each.replicas - observed[each.accelerator].ready) for each in groups)
    kept, shrunk = [], []
    for each in groups:
        group = observed[each.accelerator]
        surplus = group.existing - (group.existing if group.capacity is None else group.capacity)
        if surplus > 0:
            stay = min(surplus, missing)
            missing -= stay
            shrunk.append(f"{group.accelerator} has {group.existing}, room for {group.capacity}")
            each = row(each.accelerator, each.replicas + stay, each.share)
        kept.append(each)
    return tuple(kept), (reason("accelerator_shrunk", ", ".join(shrunk)),) if shrunk else ()


def too_slow(groups: Sequence[GroupObservation], slo_s: float | None) -> list[GroupObservation]:
    """Returns the groups on which one inference alone takes longer than the target, as far as it is known."""
    return [] if slo_s is None else [group for group in groups if (group.unloaded_s or 0.0) > slo_s]


def _cheapest_first(groups: Sequence[GroupObservation], slo_s: float | None) -> list[GroupObservation]:
    order = order_of_price(tuple([group.price_per_hour for group in groups]))
    ordered = [groups[index] for index in order]
    slow = {group.accelerator for group in too_slow(groups, slo_s)}
    return sorted(ordered, key=lambda group: group.accelerator in slow) if slow else ordered


@lru_cache(maxsize=4096)
def order_of_price(prices: tuple[float | None, ...]) -> tuple[int, ...]:
    """Returns the indices by price, cheapest first: equal ones in the order given, those without a price last."""
    return tuple(sorted(range(len(prices)), key=lambda index: (prices[index] is None, prices[index] or 0.0)))


def _grow(counts: dict[str, int], groups: Sequence[GroupObservation], missing: int) -> None:
    for take_back in (True, False):
        for group in groups:
            if not missing:
                return
            if take_back and not group.draining:
                continue
            wanted, capacity = min(missing, group.draining) if take_back else missing, group.capacity
            if capacity is not None:
                wanted = max(0, min(wanted, capacity - counts[group.accelerator]))
            counts[group.accelerator] += wanted
            missing -= wanted


def _shrink(counts: dict[str, int], groups: Sequence[GroupObservation], surplus: int) -> None:
    for starting_only in (True, False):
        for group in reversed(groups):
            count = counts[group.accelerator]
            removable = min(count, max(0, count - group.ready)) if starting_only else count
            taken = min(surplus, removable)
            counts[group.accelerator] -= taken
            surplus -= taken
