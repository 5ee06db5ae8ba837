"""Place handover: how a new revision gets a place from the old revision of its function where none is free.

A place that is given up for a revision is *held* for its function: no other function's replica takes it, however many
wait. An old revision with several replicas gives up one of them. If it has one replica, the new revision is *promoted
early*: it takes the traffic before it is ready, so that the old one can finish and leave. This is tried once per
revision. If it fails, or the place does not come, the old revision serves again and the place is held for it.

Example, one accelerator with one place, ``echo-00001`` on it and another function waiting: ``echo-00002`` is deployed
at 0 s; at 2 s it is promoted early and ``echo-00001`` drains; at 3 s the place is free, for ``echo`` alone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tidegate.deploy.placement.ledger import Room
from tidegate.records.decision import Decision, Reason

STARVED_S: Final = 2.0
"""Time that a candidate waits for room that is being given back before it takes the only place."""
DRAIN_S: Final = 30.0
"""Longest time that an early promoted revision waits for the work of the old one to end. Our choice."""
PLACE_S: Final = 5.0
"""Longest time that it waits for the place once the old revision has left: the processes end, and the next round starts
the new one."""
HOLD_S: Final = 30.0
"""Time for which a place is held: its processes end, and the start that wants it begins."""


@dataclass(slots=True)
class _EarlyPromotion:
    number: int
    since: float
    empty_since: float | None = None
    """Time at which the old revision had left; None before."""


@dataclass(frozen=True, slots=True)
class Hold:
    accelerators: frozenset[str]
    until: float


class PlaceHandovers:
    """The early promotions and the held places, by function. ``now`` is the round's."""

    __slots__ = ("_early", "_holds", "_tried")

    def __init__(self) -> None:
        self._early: dict[str, _EarlyPromotion] = {}
        self._holds: dict[str, Hold] = {}
        self._tried: set[str] = set()

    def promoted_early(self, function: str) -> int | None:
        """Returns the number of the revision that takes the function's traffic before it has been ready; None if there
        is none."""
        found = self._early.get(function)
        return None if found is None else found.number

    def was_tried(self, revision: str) -> bool:
        return revision in self._tried

    def promote_early(self, function: str, revision: str, number: int, now: float) -> None:
        self._tried.add(revision)
        self._early[function] = _EarlyPromotion(number, now)

    def is_in_vain(self, function: str, now: float, *, is_old_there: bool) -> bool:
        """Returns whether to end the early promotion. Called each second while that revision has no place."""
        promotion = self._early[function]
        if is_old_there:
            promotion.empty_since = None
        elif promotion.empty_since is None:
            promotion.empty_since = now
        waited_for_work = now - promotion.since >= DRAIN_S
        waited_for_place = promotion.empty_since is not None and now - promotion.empty_since >= PLACE_S
        return waited_for_work or waited_for_place

    def end(self, function: str) -> None:
        """Ends an early promotion: the revision is promoted for good, or no longer serves."""
        self._early.pop(function, None)

    def hold(self, function: str, accelerators: Iterable[str], now: float) -> None:
        """Holds one place on ``accelerators`` for the function. A second call extends the hold, in time and to further
        accelerators."""
        held = self._holds.get(function)
        places = frozenset(accelerators) | (frozenset() if held is None else held.accelerators)
        if places:
            self._holds[function] = Hold(places, now + HOLD_S)

    def release(self, function: str) -> None:
        self._holds.pop(function, None)

    def holds(self, now: float) -> Mapping[str, Hold]:
        """Returns the holds in force by function; drops those that have ended."""
        self._holds = {name: hold for name, hold in self._holds.items() if now < hold.until}
        return self._holds

    def forget(self, revision: str) -> None:
        self._tried.discard(revision)

    def __repr__(self) -> str:
        return f"<PlaceHandovers {len(self._early)} promoted early, {len(self._holds)} places held>"


def less_held(room: Room, holders_free: int) -> Room:
    """Returns the ``room`` of one revision without the place that is held for another, which fits ``holders_free``
    times now.

    The two may differ in size: the place is counted as its part of what is free. Before the place is free (0), or if it
    is the only one, nothing is left.
    """
    left = room.free * (holders_free - 1) // holders_free if holders_free > 0 else 0
    return replace(room, free=left)


def without_one(decision: Decision, limit: int, accelerators: tuple[str, ...]) -> Decision:
    """Cuts a decision to ``limit`` replicas. They are taken from the groups on ``accelerators``, one of which is to
    become free."""
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
