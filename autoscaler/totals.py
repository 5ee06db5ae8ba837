"""How one limit on the replicas of all functions is shared: everybody's minimum first, then evenly.

Max-min fair: nobody gets more while another who wants more has less. What somebody does not want is there for the
others. Ties go by name, so that the same wants always give the same shares.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Want(NamedTuple):
    """What one revision would have without the limit."""

    wanted: int
    least: int = 0
    """Its minimum; taken first."""


def allot(total: int, wants: Mapping[str, Want]) -> dict[str, int]:
    """Replicas for each, at most what it wants, together at most ``total``."""
    granted = dict.fromkeys(wants, 0)
    left = _fill(max(0, total), granted, {name: min(want.least, want.wanted) for name, want in wants.items()})
    _fill(left, granted, {name: want.wanted for name, want in wants.items()})
    return granted


def _fill(left: int, granted: dict[str, int], goals: Mapping[str, int]) -> int:
    """Raises the lowest towards their goals until nothing is left; answers what is."""
    open_names = sorted(name for name in granted if granted[name] < goals[name])
    while left > 0 and open_names:
        level = min(granted[name] for name in open_names)
        lowest = [name for name in open_names if granted[name] == level]
        # As far as the next one, or the nearest goal, for all of the lowest at once; the rest one each.
        steps = [goals[name] - level for name in lowest] + [granted[name] - level for name in open_names]
        step = min(min(each for each in steps if each > 0), left // len(lowest))
        if step == 0:
            for name in lowest[:left]:
                granted[name] += 1
            return 0
        for name in lowest:
            granted[name] += step
        left -= step * len(lowest)
        open_names = [name for name in open_names if granted[name] < goals[name]]
    return left


class Totals:
    """The limit over a tick: who may have how many, when the ones that are still there count too."""

    __slots__ = ("_free", "_granted", "_wants", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        """0: no limit."""
        self._wants: dict[str, Want] = {}
        self._granted: dict[str, int] = {}
        self._free = 0

    def begin(self, there: Iterable[tuple[str, int]]) -> None:
        """A tick begins; ``there``: replicas of each revision, draining ones included."""
        counts = dict(there)
        self._free = max(0, self.total - sum(counts.values()))
        self._wants = {name: want for name, want in self._wants.items() if name in counts}
        self._granted = allot(self.total, self._wants)

    def most(self, revision: str, existing: int) -> int:
        """What the revision may have now: its share, and no more than there is place for yet."""
        share = self._granted.get(revision)
        if share is None:
            # It is seen for the first time: a share is counted out for it at the next tick.
            share = existing + min(1, self._free)
        return min(share, existing + self._free)

    def wanted(self, revision: str, want: Want, existing: int, got: int) -> None:
        """What it would have and what it got."""
        self._wants[revision] = want
        self._free = max(0, self._free - max(0, got - existing))

    def __repr__(self) -> str:
        return f"<Totals {self.total}, {self._free} free, {len(self._wants)} wants>"
