"""Gives a new revision the place that it needs: what is under way for each function, seen from the round.

The rules and their memory are in ``tidegate.control.rounds.takeover``; here they meet the backend, the registry and
the decisions. Only a revision that is to take over at once goes ahead of the old one; one that is rolled out step by
step waits for room.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tidegate.control.rounds.takeover import STARVED_S, TakeOvers, less_held, without_one
from tidegate.control.rounds.tracked import TrackedRevision
from tidegate.control.state.registry import Deployed
from tidegate.control.views.views import Role
from tidegate.records.decision import Decision, GroupDecision

if TYPE_CHECKING:
    from tidegate.control.rounds.round import Round
    from tidegate.deploy.backend import ReplicaStatus
    from tidegate.deploy.placement.ledger import Room

STUCK_S: Final = 60.0
"""A candidate for which room is being made is given up by those who wait for it after so long."""


class Succession:
    """One per round, which it reads and whose :meth:`Round.sync` it calls."""

    def __init__(self, world: "Round") -> None:
        self._world = world
        self._take_overs = TakeOvers()

    def ahead(self, function: str) -> int | None:
        """Number of the revision that takes the function's traffic before it has been ready; None: none does."""
        return self._take_overs.ahead(function)

    def is_ahead(self, revision: str) -> bool:
        """Whether it is such a revision."""
        tracked = self._world.find(revision)
        return tracked is not None and self.ahead(tracked.function) == tracked.record.number

    def end(self, function: str) -> None:
        """The revision that went ahead serves in its own right, or serves no more."""
        self._take_overs.end(function)

    def forget(self, revision: str) -> None:
        self._take_overs.forget(revision)

    def turn(self, tracked: TrackedRevision) -> int:
        """Who is planned first in a round. The serving ones see whether a candidate has found its place; a candidate
        whose chance is past takes none from them."""
        if tracked.role is Role.SERVING:
            return 1
        return 2 if tracked.role is Role.CANDIDATE and self._take_overs.was_tried(tracked.id) else 0

    def starved(self, serving: TrackedRevision) -> TrackedRevision | None:
        """The candidate that finds no room beside the serving revision, and has not had its chance."""
        deployed = self._world.registry.get(serving.function)
        if deployed is None or deployed.current.number != serving.record.number:
            return None  # one of several that serve gives up a place
        others = (each for each in self._world.tracked(serving.function) if each.role is Role.CANDIDATE)
        waiting = (each for each in others if each.unplaced_since is not None and not self.has_place(each))
        return next((each for each in waiting if not self._take_overs.was_tried(each.id)), None)

    def has_place(self, tracked: TrackedRevision) -> bool:
        return any(each.is_wanted for each in self._world.replicas_of(tracked.id))

    def make_room(self, serving: TrackedRevision, candidate: TrackedRevision, decision: Decision) -> Decision:
        """The serving revision's decision, less the place that the candidate needs."""
        now = self._world.clock.now()
        here = self._world.replicas_of(serving.id)
        present = sum(each.is_wanted for each in here)
        deployed = self._world.registry.get(serving.function)
        is_direct = deployed is not None and deployed.is_direct
        if decision.is_dry_run:
            decision = _as_it_is(decision, here)
        usable = self._world.backend.room(candidate.record.revision)
        self._take_overs.hold(serving.function, {each.accelerator for each in here} & usable.keys(), now)
        if is_direct and present <= 1 and candidate.unplaced_s(now) >= STARVED_S:
            self._take_overs.go_ahead(serving.function, candidate.id, candidate.record.number, now)
            self._world.sync(only=serving.function)
            self._world.publish_soon()
            return decision
        limit = present if present <= 1 or any(each.is_leaving for each in here) else present - 1
        return without_one(decision, limit, tuple(usable))

    def review(self, now: float) -> None:
        """Gives up what is in vain, and what is held for those who have their place."""
        for deployed in self._world.registry.all():
            if self._take_overs.ahead(deployed.name) is not None:
                self._review_ahead(deployed, now)
        for name in tuple(self._take_overs.holds(now)):
            there = (each for each in self._world.tracked(name) if each.role is not Role.RETIRED)
            waiting = [each for each in there if self.turn(each) < 2]
            if all(self.has_place(each) for each in waiting):
                self._take_overs.release(name)

    def _review_ahead(self, deployed: Deployed, now: float) -> None:
        candidate = deployed.candidate
        tracked = None if candidate is None else self._world.find(candidate.revision.id)
        if tracked is None or tracked.record.number != self._take_overs.ahead(deployed.name):
            self._take_overs.end(deployed.name)  # replaced meanwhile
            self._world.sync(only=deployed.name)
            return
        if self.has_place(tracked) or tracked.unplaced_since is None:
            return
        old = deployed.current.revision.id
        is_old_there = bool(self._world.replicas_of(old))
        if self._take_overs.is_in_vain(deployed.name, now, is_old_there=is_old_there):
            self._give_back(deployed.name)

    def fall_back(self, status: "ReplicaStatus") -> None:
        """A candidate that was let ahead could not start: the old revision serves again."""
        deployed = self._world.registry.get(status.function)
        if deployed is None or deployed.candidate is None:
            return
        candidate = deployed.candidate
        if candidate.revision.id == status.revision and self._take_overs.ahead(deployed.name) == candidate.number:
            self._take_overs.hold(deployed.name, (status.accelerator,), self._world.clock.now())
            self._give_back(deployed.name)

    def _give_back(self, function: str) -> None:
        """The traffic goes back to the old revision, and the place with it."""
        held = self._take_overs.holds(self._world.clock.now()).get(function)
        if held is not None:
            self._take_overs.hold(function, held.accelerators, self._world.clock.now())
        self._take_overs.end(function)
        self._world.sync(only=function)
        self._world.publish_soon()

    def stuck(self, tracked: TrackedRevision, now: float) -> str | None:
        """Why a revision has no place, where nothing is under way that would give it one."""
        lacks_s = tracked.unplaced_s(now)
        if tracked.unplaced is None or lacks_s < STARVED_S or self.has_place(tracked):
            return None
        if self._take_overs.ahead(tracked.function) == tracked.record.number:
            return None
        is_helped = tracked.role is Role.CANDIDATE and not self._take_overs.was_tried(tracked.id)
        return None if is_helped and lacks_s < STUCK_S else tracked.unplaced

    def room(self, tracked: TrackedRevision) -> "dict[str, Room]":
        """Free places for a revision, less those that are held for other functions."""
        found = dict(self._world.backend.room(tracked.record.revision))
        for name, hold in self._take_overs.holds(self._world.clock.now()).items():
            if name == tracked.function or not hold.accelerators & found.keys():
                continue
            for holder in self._world.tracked(name)[:1]:
                theirs = self._world.backend.room(holder.record.revision)
                for accelerator in hold.accelerators & found.keys() & theirs.keys():
                    found[accelerator] = less_held(found[accelerator], theirs[accelerator].free)
        return found

    def __repr__(self) -> str:
        return f"<Succession {self._take_overs!r}>"


def _as_it_is(decision: Decision, here: "Sequence[ReplicaStatus]") -> Decision:
    """What a dry run really has, as a decision to cut from."""
    counts = Counter(each.accelerator for each in here if each.is_wanted)
    groups = tuple(GroupDecision(accelerator=name, replicas=count) for name, count in sorted(counts.items()))
    return replace(decision, desired=counts.total(), groups=groups, is_dry_run=False)
