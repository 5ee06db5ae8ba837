"""How one limit on the replicas of all functions is shared: everybody's minimum first, then what is asked for, then
what only waits for its time to go to zero or for a first start; each of these evenly.

Max-min fair within each: nobody gets more while another who wants more has less. What somebody does not want is there
for the others. A place that is too few for all who are equal stays with whoever has it, then with its function (whose
new revision follows the old one), then it goes to who was granted one last, then by name: the same wants of the same
holders always give the same shares. A revision without any takes one from its own function's revisions where one of
them has several.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from tidegate.autoscaler.measure.observation import Observation
from tidegate.records.decision import Decision

IDLE_S: Final = 2.0
"""A revision without work for so long gives way to those who are asked for. Our choice: a pause between two requests
takes no replica."""


class Want(NamedTuple):
    """What one revision would have without the limit."""

    wanted: int
    least: int = 0
    """Its minimum; taken first."""
    idle: int = 0
    """Of those wanted: replicas that nobody asks for now; taken last."""
    function: str | None = None
    """Whose revision it is; None: it stands alone."""


def is_idle(observation: Observation, idle_s: float) -> bool:
    """Whether nobody asks for the revision now: its replicas only wait for their time to go, or it for a first start.
    ``idle_s``: without work, since it is ready. A start under way is let to its end."""
    if not observation.is_quiet:
        return False
    return observation.existing == 0 or (observation.ready > 0 and idle_s >= IDLE_S)


def starts(decision: Decision, observation: Observation) -> int:
    """Replicas that a decision needs new places for: draining ones that are taken back have theirs."""
    here = {group.accelerator: group.existing + group.draining for group in observation.groups}
    return sum(max(0, each.replicas - here.get(each.accelerator, 0)) for each in decision.groups or ())


def allot(
    total: int,
    wants: Mapping[str, Want],
    held: Mapping[str, int] | None = None,
    before: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Replicas for each, at most what it wants, together at most ``total``. ``held``: those that are there. ``before``:
    what was granted last, for a place that one has left and the next has not yet taken."""
    granted = dict.fromkeys(wants, 0)
    ranked = _ranking(wants, granted, held or {}, before or {})
    left = _fill(max(0, total), granted, {name: min(want.least, want.wanted) for name, want in wants.items()}, ranked)
    asked_for = {name: max(granted[name], want.wanted - want.idle) for name, want in wants.items()}
    left = _fill(left, granted, asked_for, ranked)
    _fill(left, granted, {name: want.wanted for name, want in wants.items()}, ranked)
    _lend(granted, wants)
    return granted


def _ranking(
    wants: Mapping[str, Want], granted: Mapping[str, int], held: Mapping[str, int], before: Mapping[str, int]
) -> Callable[[list[str], int], list[str]]:
    """Orders revisions that have ``level`` replicas each: who is to have another one first."""

    def ranked(names: list[str], level: int) -> list[str]:
        free, those = dict.fromkeys(wants, 0), frozenset(names)
        of_function = Counter[str | None]()
        for name, want in wants.items():
            takes = name in those and held.get(name, 0) > level
            free[name] = max(held.get(name, 0), before.get(name, 0)) - granted[name] - takes
            of_function[want.function] += free[name]

        def follows(name: str) -> bool:
            """Whether another revision of its function leaves a place to it."""
            function = wants[name].function
            return function is not None and of_function[function] > free[name]

        return sorted(
            names,
            key=lambda name: (
                held.get(name, 0) <= level,
                not follows(name),
                before.get(name, 0) <= level,
                name,
            ),
        )

    return ranked


def _fill(
    left: int, granted: dict[str, int], goals: Mapping[str, int], ranked: Callable[[list[str], int], list[str]]
) -> int:
    """Raises the lowest towards their goals until nothing is left; answers what is."""
    open_names = sorted(name for name in granted if granted[name] < goals[name])
    while left > 0 and open_names:
        level = min(granted[name] for name in open_names)
        lowest = [name for name in open_names if granted[name] == level]
        # As far as the next one, or the nearest goal, for all of the lowest at once; the rest one each.
        steps = [goals[name] - level for name in lowest] + [granted[name] - level for name in open_names]
        step = min(min(each for each in steps if each > 0), left // len(lowest))
        if step == 0:
            for name in ranked(lowest, level)[:left]:
                granted[name] += 1
            return 0
        for name in lowest:
            granted[name] += step
        left -= step * len(lowest)
        open_names = [name for name in open_names if granted[name] < goals[name]]
    return left


def _lend(granted: dict[str, int], wants: Mapping[str, Want]) -> None:
    """A revision that wants some and has none takes one from the largest of its function, if that has several: a new
    revision starts, however busy the old one is."""
    largest: dict[str, str] = {}
    for name in sorted(wants):
        function = wants[name].function
        if function is not None and granted[name] > granted.get(largest.get(function, ""), 1):
            largest[function] = name
    for name in sorted(wants):
        giver = largest.get(wants[name].function or "")
        if giver is not None and wants[name].wanted > 0 and granted[name] == 0 and granted[giver] > 1:
            granted[giver] -= 1
            granted[name] = 1


class Totals:
    """The limit over a tick: who may have how many, when the ones that are still there count too."""

    __slots__ = ("_free", "_granted", "_spare", "_wants", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        """0: no limit."""
        self._wants: dict[str, Want] = {}
        self._granted: dict[str, int] = {}
        self._free = 0
        self._spare = 0
        """Places that nobody wanted: whoever asks next may have them at once."""

    def begin(self, there: Iterable[tuple[str, int]]) -> None:
        """A tick begins; ``there``: replicas of each revision, draining ones included."""
        counts = dict(there)
        self._free = max(0, self.total - sum(counts.values()))
        self._wants = {name: want for name, want in self._wants.items() if name in counts}
        self._granted = allot(self.total, self._wants, counts, self._granted)
        self._spare = self.total - sum(self._granted.values())

    def most(self, revision: str, existing: int, draining: int = 0) -> int:
        """What the revision may have now: its share, and no more than there is place for yet."""
        share = self._granted.get(revision)
        if share is None:
            # It is seen for the first time: a share is counted out for it at the next tick.
            return existing + min(1, self._free)
        return min(share + self._spare, existing + draining + self._free)

    def wanted(self, revision: str, want: Want, got: int, started: int) -> None:
        """What it would have, what it got, and for how many of these a place is taken that was free."""
        self._wants[revision] = want
        self._free = max(0, self._free - started)
        self._spare = max(0, self._spare - max(0, got - self._granted.get(revision, 0)))

    def __repr__(self) -> str:
        return f"<Totals {self.total}, {self._free} free, {len(self._wants)} wants>"
