"""Shares one limit on the replicas of all functions: minimums first, then demand, then idle replicas and first starts;
each of these evenly.

Max-min fair within each: no revision gets more while another that wants more has less. What a revision does not want is
there for the others. A remainder smaller than the number of equals stays with the revision that has it, then with its
function (whose new revision follows the old one), then it goes to the one that was granted a place last, then to the
most recently used one, then by name.
The same wants of the same holders always give the same shares. A revision without any replica takes one from its own
function's revisions if one of them has several.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from tidegate.autoscaler.measure.observation import Observation
from tidegate.records.decision import Decision

IDLE_S: Final = 2.0
"""A revision without work for this long gives way to revisions with demand. Our choice: a pause between two requests
takes no replica."""


class Want(NamedTuple):
    """Demand of one revision without the limit."""

    wanted: int
    least: int = 0
    """Its minimum; taken first."""
    idle: int = 0
    """Wanted replicas without present demand; granted last."""
    function: str | None = None
    """The revision's function; None if it stands alone."""
    unused_s: float = 0.0
    """Time since its last work; infinite if it has had none. Of equals the longest unused one gives way."""


def is_idle(observation: Observation, idle_s: float) -> bool:
    """Returns whether the revision has no demand now: its replicas only wait for their time to go, or it waits for a
    first start. ``idle_s``: time without work since it is ready. A start under way is not interrupted."""
    if not observation.is_quiet:
        return False
    return observation.existing == 0 or (observation.ready > 0 and idle_s >= IDLE_S)


def starts(decision: Decision, observation: Observation) -> int:
    """Returns the replicas that a decision needs new places for: draining ones that are taken back have theirs."""
    here = {group.accelerator: group.existing + group.draining for group in observation.groups}
    return sum(max(0, each.replicas - here.get(each.accelerator, 0)) for each in decision.groups or ())


def allot(
    total: int,
    wants: Mapping[str, Want],
    held: Mapping[str, int] | None = None,
    before: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Returns the replicas for each revision, at most what it wants, together at most ``total``. ``held``: present
    replicas. ``before``: the last grants, for a place that one revision has left and the next has not yet taken."""
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
    """Returns a function that orders revisions with ``level`` replicas each by their claim to another one."""

    def ranked(names: list[str], level: int) -> list[str]:
        free, those = dict.fromkeys(wants, 0), frozenset(names)
        of_function = Counter[str | None]()
        for name, want in wants.items():
            takes = name in those and held.get(name, 0) > level
            free[name] = max(held.get(name, 0), before.get(name, 0)) - granted[name] - takes
            of_function[want.function] += free[name]

        def follows(name: str) -> bool:
            """Returns whether another revision of its function leaves a place to it."""
            function = wants[name].function
            return function is not None and of_function[function] > free[name]

        return sorted(
            names,
            key=lambda name: (
                held.get(name, 0) <= level,
                not follows(name),
                before.get(name, 0) <= level,
                wants[name].unused_s,
                name,
            ),
        )

    return ranked


def _fill(
    left: int, granted: dict[str, int], goals: Mapping[str, int], ranked: Callable[[list[str], int], list[str]]
) -> int:
    """Raises the lowest grants towards their goals until nothing is left; returns the rest."""
    open_names = sorted(name for name in granted if granted[name] < goals[name])
    while left > 0 and open_names:
        level = min(granted[name] for name in open_names)
        lowest = [name for name in open_names if granted[name] == level]
        # All of the lowest rise at once to the next level or the nearest goal; the rest is given one each.
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
    """A revision that wants replicas and has none takes one from the largest of its function, if that has several: a
    new revision starts, however busy the old one is."""
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
    """The limit over a tick: each revision's maximum, while replicas that still drain count too."""

    __slots__ = ("_free", "_granted", "_spare", "_wants", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        """0: no limit."""
        self._wants: dict[str, Want] = {}
        self._granted: dict[str, int] = {}
        self._free = 0
        self._spare = 0
        """Places that no revision wanted: the next demand may have them at once."""

    def begin(self, there: Iterable[tuple[str, int]]) -> None:
        """Begins a tick; ``there``: replicas of each revision, draining ones included."""
        counts = dict(there)
        self._free = max(0, self.total - sum(counts.values()))
        self._wants = {name: want for name, want in self._wants.items() if name in counts}
        self._granted = allot(self.total, self._wants, counts, self._granted)
        self._spare = self.total - sum(self._granted.values())

    def most(self, revision: str, existing: int, draining: int = 0) -> int:
        """Returns the present maximum of a revision: its share, and no more than there is place for yet."""
        share = self._granted.get(revision)
        if share is None:
            # It is seen for the first time: it gets a share at the next tick.
            return existing + min(1, self._free)
        return min(share + self._spare, existing + draining + self._free)

    def wanted(self, revision: str, want: Want, got: int, started: int) -> None:
        """Notes a revision's demand, its grant, and how many of these took a place that was free."""
        self._wants[revision] = want
        self._free = max(0, self._free - started)
        self._spare = max(0, self._spare - max(0, got - self._granted.get(revision, 0)))

    def __repr__(self) -> str:
        return f"<Totals {self.total}, {self._free} free, {len(self._wants)} wants>"
