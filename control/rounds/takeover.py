"""How a new revision gets a place where none is free: from the old revision of its function. Pure.

A place that is given up for a revision is *held* for its function: no other function's replica takes it, whoever else
waits. Where the old revision has several replicas it gives up one of them. Where it has one, the new revision *goes
ahead*: it takes the traffic before it is ready, so that the old one can finish and leave. That is tried once per
revision; when it fails, or the place does not come, the old revision serves again and the place is held for it.

Example, one accelerator with one place, ``echo-00001`` on it and another function waiting: ``echo-00002`` is deployed
at 0 s; at 2 s it goes ahead and ``echo-00001`` drains; at 3 s the place is free, for ``echo`` alone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tidegate.records.decision import Decision, Reason

if TYPE_CHECKING:
    from tidegate.deploy.placement.ledger import Room

STARVED_S: Final = 2.0
"""Room that is being given back is waited for so long before a candidate takes the only place."""
DRAIN_S: Final = 30.0
"""A revision that went ahead waits at most so long for the work of the old one. Our choice."""
PLACE_S: Final = 5.0
"""...and so long once the old one has left: its processes end, the next round starts the new one."""
HOLD_S: Final = 30.0
"""For the processes that still have the place to end, and for the start that wants it."""


@dataclass(slots=True)
class _Ahead:
    number: int
    since: float
    empty_since: float | None = None
    """When nothing of the old revision was left any more."""


@dataclass(frozen=True, slots=True)
class Hold:
    accelerators: frozenset[str]
    until: float


class TakeOvers:
    """What is under way, by function. ``now`` is the round's."""

    __slots__ = ("_ahead", "_holds", "_tried")

    def __init__(self) -> None:
        self._ahead: dict[str, _Ahead] = {}
        self._holds: dict[str, Hold] = {}
        self._tried: set[str] = set()

    def ahead(self, function: str) -> int | None:
        """Number of the revision that takes the function's traffic before it has been ready; None: none does."""
        found = self._ahead.get(function)
        return None if found is None else found.number

    def was_tried(self, revision: str) -> bool:
        return revision in self._tried

    def go_ahead(self, function: str, revision: str, number: int, now: float) -> None:
        self._tried.add(revision)
        self._ahead[function] = _Ahead(number, now)

    def is_in_vain(self, function: str, now: float, *, is_old_there: bool) -> bool:
        """To be asked each second while the revision that went ahead has no place: whether to give it up."""
        ahead = self._ahead[function]
        if is_old_there:
            ahead.empty_since = None
        elif ahead.empty_since is None:
            ahead.empty_since = now
        waited_for_work = now - ahead.since >= DRAIN_S
        waited_for_place = ahead.empty_since is not None and now - ahead.empty_since >= PLACE_S
        return waited_for_work or waited_for_place

    def end(self, function: str) -> None:
        """The revision that went ahead serves in its own right, or serves no more."""
        self._ahead.pop(function, None)

    def hold(self, function: str, accelerators: Iterable[str], now: float) -> None:
        """One place on ``accelerators`` is the function's for a while; again: for longer, there or elsewhere."""
        held = self._holds.get(function)
        places = frozenset(accelerators) | (frozenset() if held is None else held.accelerators)
        if places:
            self._holds[function] = Hold(places, now + HOLD_S)

    def release(self, function: str) -> None:
        self._holds.pop(function, None)

    def holds(self, now: float) -> Mapping[str, Hold]:
        """By function; what is over is forgotten."""
        self._holds = {name: hold for name, hold in self._holds.items() if now < hold.until}
        return self._holds

    def forget(self, revision: str) -> None:
        self._tried.discard(revision)

    def __repr__(self) -> str:
        return f"<TakeOvers {len(self._ahead)} ahead, {len(self._holds)} places held>"


def less_held(room: "Room", holders_free: int) -> "Room":
    """``room`` of one revision without the place that is held for another, which fits ``holders_free`` times now.

    The two may differ in size: the place is counted as its part of what is free. Before the place is free (0), or when
    it is the only one, nothing is left.
    """
    left = room.free * (holders_free - 1) // holders_free if holders_free > 0 else 0
    return replace(room, free=left)


def without_one(decision: Decision, limit: int, accelerators: tuple[str, ...]) -> Decision:
    """At most ``limit`` replicas, taken from the groups on ``accelerators`` (of which one shall become free)."""
    if decision.groups is None or sum(group.replicas for group in decision.groups) <= limit:
        return decision
    surplus = sum(group.replicas for group in decision.groups) - limit
    groups = []
    for group in decision.groups:
        taken = min(surplus, group.replicas) if group.accelerator in accelerators else 0
        surplus -= taken
        groups.append(replace(group, replicas=group.replicas - taken))
    reason = Reason(code="makes_room", detail="a new revision needs a place to start in")
    total = sum(group.replicas for group in groups)
    return replace(decision, desired=total, groups=tuple(groups), reasons=(*decision.reasons, reason))
