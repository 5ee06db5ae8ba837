"""Replacement of a revision by a new one that finds no free place: applies the rules of
``tidegate.control.rounds.handover`` to the world.

Only a revision that takes over at once is promoted early. One that is rolled out step by step waits for room.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol

from tidegate.control.rounds.handover import STARVED_S, without_one
from tidegate.control.rounds.tracked import TrackedRevision
from tidegate.control.rounds.world import World
from tidegate.control.state.registry import Deployed
from tidegate.deploy.backend import ReplicaStatus
from tidegate.records.decision import Decision, GroupDecision
from tidegate.records.roles import Role

STUCK_S: Final = 60.0
"""A candidate for which room is being made counts as stuck after this time."""
PLANNING_ORDER: Final = (0, 1, 2)
"""Values of :meth:`Replacement.planning_order`, first to last."""


class TableChanges(Protocol):
    """The part of the publisher that is used here."""

    def publish_soon(self) -> None: ...


class Replacement:
    """Decides which serving revision gives up a place, and when a candidate is promoted early."""

    def __init__(self, world: World, publisher: TableChanges) -> None:
        self._world = world
        self._handovers = world.handovers
        self._publisher = publisher

    def planning_order(self, tracked: TrackedRevision) -> int:
        """Returns when a revision is planned in a round, smaller first. Serving revisions come after candidates, so
        that they see whether a candidate has found its place. A candidate that had its chance comes last and takes no
        place from them."""
        if tracked.role is Role.SERVING:
            return 1
        return 2 if tracked.role is Role.CANDIDATE and self._handovers.was_tried(tracked.id) else 0

    def starved(self, serving: TrackedRevision) -> TrackedRevision | None:
        """Returns the candidate that finds no room beside the serving revision and has not had its chance."""
        deployed = self._world.registry.get(serving.function)
        if deployed is None or deployed.current.number != serving.record.number:
            return None  # one of several that serve gives up a place
        others = (each for each in self._world.tracked(serving.function) if each.role is Role.CANDIDATE)
        waiting = (each for each in others if each.unplaced_since is not None and not self._world.has_place(each.id))
        return next((each for each in waiting if not self._handovers.was_tried(each.id)), None)

    def make_room(
        self, serving: TrackedRevision, candidate: TrackedRevision, decision: Decision, now: float
    ) -> Decision:
        """Returns the serving revision's decision without the place that the candidate needs."""
        here = self._world.replicas_of(serving.id)
        present = sum(each.is_wanted for each in here)
        deployed = self._world.registry.get(serving.function)
        is_direct = deployed is not None and deployed.is_direct
        if decision.is_dry_run:
            decision = _present(decision, here)
        usable = self._world.backend.room(candidate.record.revision)
        self._handovers.hold(serving.function, {each.accelerator for each in here} & usable.keys(), now)
        if is_direct and present <= 1 and candidate.unplaced_s(now) >= STARVED_S:
            self._handovers.promote_early(serving.function, candidate.id, candidate.record.number, now)
            self._world.sync(only=serving.function)
            self._publisher.publish_soon()
            return decision
        limit = present if present <= 1 or any(each.is_leaving for each in here) else present - 1
        return without_one(decision, limit, tuple(usable))

    def review(self, now: float) -> None:
        """Ends early promotions that are in vain, and the holds of functions that have their places."""
        for deployed in self._world.registry.all():
            if self._handovers.promoted_early(deployed.name) is not None:
                self._review_early(deployed, now)
        for name in tuple(self._handovers.holds(now)):
            there = (each for each in self._world.tracked(name) if each.role is not Role.RETIRED)
            waiting = [each for each in there if self.planning_order(each) < 2]
            if all(self._world.has_place(each.id) for each in waiting):
                self._handovers.release(name)

    def _review_early(self, deployed: Deployed, now: float) -> None:
        candidate = deployed.candidate
        tracked = None if candidate is None else self._world.find(candidate.revision.id)
        if tracked is None or tracked.record.number != self._handovers.promoted_early(deployed.name):
            self._handovers.end(deployed.name)  # replaced meanwhile
            self._world.sync(only=deployed.name)
            return
        if self._world.has_place(tracked.id) or tracked.unplaced_since is None:
            return
        old = deployed.current.revision.id
        is_old_there = bool(self._world.replicas_of(old))
        if self._handovers.is_in_vain(deployed.name, now, is_old_there=is_old_there):
            self._give_back(deployed.name, now)

    def start_failed(self, status: ReplicaStatus, now: float) -> None:
        """Takes the failure of a replica: if its revision was promoted early, the old revision serves again."""
        deployed = self._world.registry.get(status.function)
        if deployed is None or deployed.candidate is None:
            return
        candidate = deployed.candidate
        is_early = self._handovers.promoted_early(deployed.name) == candidate.number
        if candidate.revision.id == status.revision and is_early:
            self._handovers.hold(deployed.name, (status.accelerator,), now)
            self._give_back(deployed.name, now)

    def _give_back(self, function: str, now: float) -> None:
        """Returns the traffic and the place to the old revision."""
        held = self._handovers.holds(now).get(function)
        if held is not None:
            self._handovers.hold(function, held.accelerators, now)
        self._handovers.end(function)
        self._world.sync(only=function)
        self._publisher.publish_soon()

    def stuck(self, tracked: TrackedRevision, now: float) -> str | None:
        """Returns why a revision has no place; None if it has one, or one is being made for it."""
        lacks_s = tracked.unplaced_s(now)
        if tracked.unplaced is None or lacks_s < STARVED_S or self._world.has_place(tracked.id):
            return None
        if self._handovers.promoted_early(tracked.function) == tracked.record.number:
            return None
        is_helped = tracked.role is Role.CANDIDATE and not self._handovers.was_tried(tracked.id)
        return None if is_helped and lacks_s < STUCK_S else tracked.unplaced

    def __repr__(self) -> str:
        return f"<Replacement {self._handovers!r}>"


def _present(decision: Decision, here: Sequence[ReplicaStatus]) -> Decision:
    """Returns the replicas that a dry run really has as a decision to be carried out."""
    counts = Counter(each.accelerator for each in here if each.is_wanted)
    groups = tuple(GroupDecision(accelerator=name, replicas=count) for name, count in sorted(counts.items()))
    return replace(decision, desired=counts.total(), groups=groups, is_dry_run=False)
