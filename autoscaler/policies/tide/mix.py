"""The mix: replicas of each group that carry a capacity for the least price, counting what a change costs."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

WRITE_OFF_S: Final = 600.0
"""Time over which the start of a replica is written off."""
NODES: Final = 4000
"""Steps of the search, after which the best mix so far counts."""
EPSILON: Final = 1e-9
WORTH_A_CHANGE: Final = 0.9
"""Part of the present price below which another mix of the same capacity is worth its starts."""

Kinds = tuple[tuple[float, float, int, int, float], ...]
"""The values of a :class:`MixGroup` for each group."""


class MixGroup(NamedTuple):
    """A group, as the choice of a mix sees it."""

    slots: float
    """Capacity of one replica; 0: not usable."""
    price: float
    present: int
    most: int
    start_s: float = 0.0

    def cost(self, count: int) -> float:
        """Returns the price of ``count`` replicas, with the starts that they need."""
        new = max(0, count - self.present)
        return self.price * (count + new * (self.start_s + 1.0) / WRITE_OFF_S)


class Mix(NamedTuple):
    counts: tuple[int, ...]
    cost: float
    slots: float


def chosen(kinds: Kinds, present: float, slots: float) -> tuple[Mix, Mix | None]:
    """Returns the mix to have for ``slots``, and the next best one, if any. What is there (``present`` slots)
    stays if it has just as many, unless another one is much cheaper."""
    if abs(present - slots) >= EPSILON:
        return cheapest(kinds, slots)
    counts = tuple([count for _, _, count, _, _ in kinds])
    there = Mix(counts, math.fsum([price * count for _, price, count, _, _ in kinds]), present)
    if sum([kind[0] > 0.0 for kind in kinds]) == 1:
        return there, None
    best, other = cheapest(kinds, slots)
    return (there, other) if best.cost > WORTH_A_CHANGE * there.cost else (best, other)


@lru_cache(maxsize=8192)
def cheapest(groups: Kinds, slots: float) -> tuple[Mix, Mix | None]:
    """Returns the cheapest mix with at least ``slots`` (the largest possible one if there is none), and the next best
    that differs in the first's dearest group, if any.

    Depth-first over the groups in order of price per slot, cut off by the price that the rest must cost at least. The
    price per replica of a group never falls, so what is left is bounded by the cheapest price per slot. Kept: from one
    second to the next little changes.
    """
    kinds = tuple([MixGroup(*group) for group in groups])
    order = sorted(
        (index for index, kind in enumerate(kinds) if kind.slots > 0.0 and kind.most > 0),
        key=lambda index: (kinds[index].price / kinds[index].slots, index),
    )
    largest = tuple(kind.most if kind.slots > 0.0 else 0 for kind in kinds)
    search = _Search(kinds, order)
    search.run(slots)
    if search.best is None:
        found = _mix(kinds, largest)
        return found, None
    second = None if search.second is None else _mix(kinds, search.second)
    return _mix(kinds, search.best), second


def _mix(kinds: Sequence[MixGroup], counts: tuple[int, ...]) -> Mix:
    cost = sum(kind.cost(count) for kind, count in zip(kinds, counts, strict=True))
    return Mix(counts, cost, sum(kind.slots * count for kind, count in zip(kinds, counts, strict=True)))


class _Search:
    __slots__ = (
        "_counts",
        "_kinds",
        "_least",
        "_left",
        "_nodes",
        "_order",
        "best",
        "best_cost",
        "second",
        "second_cost",
    )

    def __init__(self, kinds: Sequence[MixGroup], order: Sequence[int]) -> None:
        self._kinds, self._order = kinds, order
        self._counts = [0] * len(kinds)
        self._nodes = 0
        self._least: list[float] = []
        """Least price per slot from each place of the order on."""
        self._left: list[float] = []
        """Slots that the groups from each place on can have."""
        least, left = float("inf"), 0.0
        for index in reversed(order):
            kind = kinds[index]
            least, left = min(least, kind.price / kind.slots), left + kind.slots * kind.most
            self._least.append(least)
            self._left.append(left)
        self._least.reverse()
        self._left.reverse()
        self.best: tuple[int, ...] | None = None
        self.second: tuple[int, ...] | None = None
        self.best_cost = self.second_cost = float("inf")

    def run(self, slots: float) -> None:
        self._from(0, slots, 0.0)

    def _from(self, place: int, missing: float, cost: float) -> None:
        if missing <= EPSILON:
            self._take(cost)
            return
        if place == len(self._order) or missing > self._left[place] + EPSILON or self._nodes >= NODES:
            return
        self._nodes += 1
        if cost + missing * self._least[place] >= self.second_cost - EPSILON:
            return
        index = self._order[place]
        kind = self._kinds[index]
        enough = min(kind.most, int(-(-(missing - EPSILON) // kind.slots)))
        for count in range(enough, -1, -1):
            self._counts[index] = count
            self._from(place + 1, missing - count * kind.slots, cost + kind.cost(count))
        self._counts[index] = 0

    def _take(self, cost: float) -> None:
        found = tuple(self._counts)
        if cost < self.best_cost - EPSILON:
            self.second, self.second_cost = self.best, self.best_cost
            self.best, self.best_cost = found, cost
        elif cost < self.second_cost - EPSILON and found != self.best:
            self.second, self.second_cost = found, cost
