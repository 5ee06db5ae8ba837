"""The cheapest path through all slots: a table over (level of capacity, backlog), one slot after the other.

Backlog is work that could have been done and was not. With dP new work in a slot of level K it goes from x to ``max(0,
x + dP - K d)``, and must not exceed P - R, the work that may still wait. Everything is counted in whole quanta of work,
and a level does a whole number of them in a slot. The curves are rounded as a whole, not their steps, so the rounding
stays below two quanta however long the trace is.

``least[j, x]`` is the least cost of being at level j with a backlog of at most x. One slot is a shift along x and two
running minima along j, for many prices of lateness at once.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidegate.loadgen.bound.levels import Levels

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quanta:
    """The curves in whole quanta, at slot ends."""

    possible: Integers
    required: Integers
    per_level: int
    """Quanta that one level does in a slot."""


def least_costs(quanta: Quanta, levels: Levels, slot_s: float, prices: Floats) -> Floats:
    """Returns the least cost in dollars for each of ``prices``, the dollars for a quantum of work that is not done in
    time.

    Everything that runs in the first slot is free, its start too: a fleet may exist when the trace begins.
    """
    room = quanta.possible - quanta.required
    added = np.diff(quanta.possible, prepend=0)
    table = _Table(levels, slot_s, prices, quanta.per_level, width=int(room.max(initial=0)) + 1)
    free, idle, before = True, 0, 0
    for now, new in zip(room.tolist(), added.tolist(), strict=True):
        if not (now or new or before or free):
            idle += 1
            continue
        if idle:
            table.rest(idle)
            idle = 0
        table.slot(now, new, before, is_free=free)
        free, before = False, now
    if idle:
        table.rest(idle)
    return table.least(before)


class _Table:
    def __init__(self, levels: Levels, slot_s: float, prices: Floats, per_level: int, width: int) -> None:
        count = levels.count
        self._hold = (levels.price_per_s * slot_s)[None, :, None]
        self._climb = (levels.up_price * np.arange(count))[None, :, None]
        self._prices = prices[:, None, None]
        self._rows = (np.arange(count) * width)[:, None]
        self._source = np.arange(width)[None, :] + (np.arange(count) * per_level)[:, None]
        """Backlog before a slot without new work that leaves each backlog behind, by level."""
        self._count, self._width = count, width
        self._least = np.zeros((len(prices), count, width))

    def slot(self, room: int, new: int, before: int, *, is_free: bool) -> None:
        """Advances one slot: at most ``before`` waits at its beginning, ``new`` arrives, ``room`` may wait at its
        end."""
        source = self._source[:, : room + 1] - new
        index = np.clip(source, 0, before)
        index += self._rows
        if not is_free:
            self._change(before)
        moved = self._least.reshape(len(self._prices), -1).take(index, axis=1)
        if new:
            # Less than nothing left before: so much of the new work is given up, at its price.
            lowest = int(source[0, 0])
            if lowest < 0:
                rows = min(self._count, int(np.searchsorted(source[:, 0], 0)))
                moved[:, :rows] += self._prices * np.maximum(0, -source[:rows])
        if not is_free:
            moved += self._hold
        self._least[:, :, : room + 1] = moved

    def rest(self, slots: int) -> None:
        """Advances ``slots`` slots without backlog and arrivals: capacity that is not kept to the end goes at once."""
        self._change(0)
        self._least[:, :, :1] += self._hold * slots

    def _change(self, before: int) -> None:
        """Lowers capacity for free, and raises it for the price of starts."""
        least = self._least[:, :, : before + 1]
        np.minimum.accumulate(least[:, ::-1], axis=1, out=least[:, ::-1])
        least -= self._climb
        np.minimum.accumulate(least, axis=1, out=least)
        least += self._climb

    def least(self, room: int) -> Floats:
        """Returns the least costs with at most ``room`` still waiting."""
        return np.asarray(self._least[:, :, room].min(axis=1))
