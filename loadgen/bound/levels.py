"""Capacity in whole steps, and the least cost of each level.

Every group's capacity is rounded up to a multiple of one step, so that the capacity of every fleet is a whole number of
steps. A fleet may be stronger here than it is, never weaker, at its true cost.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

FINEST: Final = 32
"""Maximum parts into which a group's capacity is divided."""
ROUNDING: Final = 0.005
"""A step that makes no group stronger than this share is fine enough."""
ROUNDED_LEVELS: Final = 180
"""Above this many levels no step is chosen for the sake of rounding."""
MAX_LEVELS: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """One group in the table's terms."""

    capacity: float
    """Reference slots of one replica, at its best batch."""
    price_per_s: float
    start_s: float
    max_replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """Level j has ``step * j`` reference slots."""

    step: float
    price_per_s: NDArray[np.float64]
    """Price of the cheapest fleet with the level's capacity."""
    up_price: float
    """Dollars for each level by which capacity rises."""

    @property
    def count(self) -> int:
        return len(self.price_per_s)


def levels(supplies: Sequence[Supply], most: float, slot_s: float, limit: int = MAX_LEVELS) -> Levels:
    """Returns the levels up to ``most`` reference slots, above which no more capacity can be used. ``start_s`` of every
    group is at least ``2 * slot_s``.

    With more than ``limit`` levels, one stands for k steps. A fleet counts as a level that is less than two levels
    above it, and pays at least for its capacity there. It changes its level only after it has crossed a whole one since
    the last time, so no rise is counted twice.
    """
    step = _step([each.capacity for each in supplies], most)
    sizes = [math.ceil(each.capacity / step - 1e-9) for each in supplies]
    # Two steps more: what comes and what waits is rounded up by two quanta at the most.
    useful = _up(most / step) + 2
    most_steps = min(useful, sum(size * each.max_replicas for size, each in zip(sizes, supplies, strict=True)))
    prices = _cheapest(supplies, sizes, most_steps)
    up_price = min(
        each.price_per_s * (each.start_s - 2.0 * slot_s) / size for size, each in zip(sizes, supplies, strict=True)
    )
    each_level = _up(most_steps / limit)
    if each_level <= 1:
        return Levels(step=step, price_per_s=prices, up_price=up_price)
    count = _up(most_steps / each_level) + 2
    least = np.clip((np.arange(count) - 2) * each_level + 1, 0, most_steps)
    return Levels(step=step * each_level, price_per_s=prices[least], up_price=up_price * each_level)


def _up(value: float) -> int:
    return math.ceil(value - 1e-9)


def _step(capacities: Sequence[float], most: float) -> float:
    """Returns a part of some group's capacity: the coarsest that is fine enough, or the one with the least rounding
    among those with few enough levels; the weakest group's where none has."""
    steps = {each / parts for each in capacities for parts in range(1, FINEST + 1)}
    few = sorted((each for each in steps if each <= min(capacities) and most / each <= ROUNDED_LEVELS), reverse=True)
    errors = [max(_up(each / step) * step / each for each in capacities) - 1.0 for step in few]
    fine = next((step for step, error in zip(few, errors, strict=True) if error <= ROUNDING), None)
    if fine is not None:
        return fine
    return few[errors.index(min(errors))] if few else min(capacities)


def _cheapest(supplies: Sequence[Supply], sizes: Sequence[int], most: int) -> NDArray[np.float64]:
    """Returns the price of the cheapest fleet with at least that many steps, for 0..``most``; every group has its
    limit."""
    prices = np.full(most + 1, inf)
    prices[0] = 0.0
    for size, supply in zip(sizes, supplies, strict=True):
        left = supply.max_replicas
        share = 1
        while left > 0:  # Bounded knapsack: 1, 2, 4, ... replicas at once, each lot taken or not.
            lot = min(share, left)
            left, share = left - lot, 2 * share
            steps = min(size * lot, most)
            more = prices + supply.price_per_s * lot
            with_lot = np.full(most + 1, inf)
            with_lot[steps:] = more[: most + 1 - steps]
            with_lot[most] = min(with_lot[most], more[most - steps :].min())  # Beyond the last step counts as it.
            prices = np.minimum(prices, with_lot)
    return np.asarray(np.minimum.accumulate(prices[::-1])[::-1])
