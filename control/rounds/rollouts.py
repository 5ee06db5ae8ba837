"""Rollouts under way: collects the figures of each one's window, from which ``tidegate.traffic.stages`` makes the
next state.

Operators change a rollout through the registry; :meth:`Rollouts.take_up` puts the change into force at once, as far as
that is possible. Windows are counted from the gateways' samples, as the traffic meter adds them up. A restarted control
process begins each window again; everything else of a rollout is in the registry.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from tidegate.aio.loop.tasks import TaskOwner
from tidegate.clock import Clock
from tidegate.control.rounds.publisher import Publisher
from tidegate.control.rounds.tracked import TrackedRevision
from tidegate.control.rounds.world import World
from tidegate.control.state.registry import Deployed, RevisionRecord
from tidegate.control.watch.traffic import Counts, TrafficMeter
from tidegate.deploy.backend import ReplicaStatus
from tidegate.records.decision import Reason
from tidegate.records.rollout import Rollout
from tidegate.traffic.judge import Tally
from tidegate.traffic.stages import RolloutFacts, advanced, aligned

STALLED_PART: Final = 0.25
"""Part of a canary's window. If nothing of it has ended for that long while requests are under way, no step is
passed."""
MISSED_S: Final = 3.0
"""A window that has lasted for longer when it is first looked at, or that begins in the future, begins again."""
BROKEN_WINDOW_S: Final = 10.0
BROKEN_REQUESTS: Final = 5
BROKEN_PART: Final = 0.5
"""A revision counts as failing if half of its requests of the last 10 s failed, of at least 5. A rollback does not wait
for a start in place of a failing revision."""


@dataclass(slots=True)
class _Side:
    """One revision of a rollout: its counts when the window began, and its arrivals since."""

    origin: Counts
    moved_at: float
    """Time at which one of its requests was last seen to end; those that clients cancelled do not count."""
    ended: int = 0
    """Number of requests that had ended by then."""
    arrivals: deque[tuple[float, int]] = field(default_factory=deque)


@dataclass(slots=True)
class _Window:
    since: float
    new: _Side
    old: _Side


class Rollouts:
    """The windows of the rollouts under way, by function."""

    def __init__(
        self,
        *,
        world: World,
        publisher: Publisher,
        traffic: TrafficMeter,
        add_reason: Callable[[str, Reason], None],
        clock: Clock,
        tasks: TaskOwner,
    ) -> None:
        """``add_reason``: adds a reason to a revision's next decision."""
        self._world = world
        self._publisher = publisher
        self._traffic = traffic
        self._add_reason = add_reason
        self._clock = clock
        self._tasks = tasks
        self._saving: asyncio.Task[None] | None = None
        self._windows: dict[str, _Window] = {}
        self._seen: dict[str, tuple[Tally, Tally]] = {}

    # --- each second ---

    def review(self, now: float) -> None:
        """Advances each rollout as its figures allow; the table follows at the end of the round."""
        is_in_force = self._publisher.is_in_force
        functions = self._world.registry.all()
        for name in (self._seen.keys() | self._windows.keys()) - {deployed.name for deployed in functions}:
            self._seen.pop(name, None)
            self._windows.pop(name, None)
        for deployed in functions:
            if deployed.rolling is None or deployed.candidate is None:
                self._windows.pop(deployed.name, None)
                continue
            is_ready = self._world.is_ready(deployed.candidate.revision.id)
            after = self._advanced(deployed, deployed.rolling, deployed.candidate, is_ready, is_in_force, now)
            if after is not deployed.rolling:
                self._world.registry.roll(deployed.name, after)
                self.changed(deployed, after)
        if self._world.registry.has_unsaved and (self._saving is None or self._saving.done()):
            self._saving = self._tasks.spawn(self._world.registry.save_all(), name="save functions")

    def changed(self, deployed: Deployed, after: Rollout) -> None:
        """Takes the rollout's new state from the registry: adds its events to the decisions and changes the roles. The
        next table puts it into force."""
        before = () if deployed.rollout is None else deployed.rollout.events
        if deployed.candidate is not None:
            for event in after.events:
                if event not in before:
                    reason = Reason(code=f"rollout_{event.code}", detail=event.detail)
                    self._add_reason(deployed.candidate.revision.id, reason)
        self._world.sync(only=deployed.name)
        self._publisher.announce()

    def replica_changed(self, status: ReplicaStatus) -> None:
        """Takes a change of a replica: a candidate has traffic only while one of its replicas is ready."""
        deployed = self._world.registry.get(status.function)
        if deployed is not None and deployed.rolling is not None:
            self._world.sync(only=deployed.name)

    # --- promotion ---

    def promote_soon(self, tracked: TrackedRevision) -> None:
        self._tasks.spawn(self.promote(tracked), name=f"promote {tracked.id}")

    async def promote(self, tracked: TrackedRevision) -> None:
        """Makes a revision that is awaited the one that serves."""
        if not self._world.is_awaited(tracked):
            return  # another of its replicas was ready before
        registry = self._world.registry
        registry.promote(tracked.function, tracked.record.number)
        self._world.handovers.end(tracked.function)
        self._world.sync(only=tracked.function)
        await asyncio.gather(self._publisher.publish(), registry.save(tracked.function))
        self._publisher.announce()

    async def take_up(self, name: str) -> None:
        """Puts a change of the registry into force at once, as far as that is possible."""
        self._world.sync()
        deployed = self._world.registry.get(name)
        if deployed is not None and deployed.is_direct and deployed.candidate is not None:
            current, candidate = deployed.current.revision.id, deployed.candidate.revision.id
            # An earlier revision does not wait for its start if the present one cannot serve.
            is_broken = not self._world.is_ready(current) or self._is_failing(current)
            tracked = self._world.find(candidate)
            if tracked is not None and (self._world.is_ready(candidate) or (deployed.is_returning and is_broken)):
                await self.promote(tracked)
        await self._publisher.publish()

    # --- figures ---

    def _advanced(
        self,
        deployed: Deployed,
        rolling: Rollout,
        candidate: RevisionRecord,
        is_ready: bool,
        is_in_force: bool,
        now: float,
    ) -> Rollout:
        """Returns the rollout's next state."""
        if deployed.name not in self._windows:
            if not 0 <= now - rolling.since <= MISSED_S:
                rolling = replace(rolling, since=now)  # an earlier control process counted what happened before
            rolling = aligned(rolling, now)
        sla = candidate.function.sla
        window = self._window(deployed, rolling, candidate)
        limit_s = sla.latency_s or rolling.plan.canary_window_s
        new = self._tally(window.new, candidate.revision.id, limit_s, now)
        old = self._tally(window.old, deployed.current.revision.id, limit_s, now)
        still_s = now - window.new.moved_at
        is_stalled = self._under_way(candidate.revision.id) > 0 and (
            still_s >= STALLED_PART * rolling.plan.canary_window_s
        )
        self._seen[deployed.name] = (new, old)
        budget = 1.0 - sla.percentile / 100.0
        seen = RolloutFacts(
            is_ready=is_ready, is_in_force=is_in_force, is_stalled=is_stalled, new=new, old=old, budget=budget
        )
        return advanced(rolling, seen, now)

    def tallies(self, function: str) -> tuple[Tally, Tally] | None:
        """Returns the figures of the new and the old revision in the present window, or the last one."""
        return self._seen.get(function)

    def _is_failing(self, revision: str) -> bool:
        """Returns whether half of a revision's latest requests failed."""
        counts = self._traffic.recent(revision, self._clock.now() - BROKEN_WINDOW_S)
        total = counts.answered + counts.failed + counts.refused + counts.expired
        bad = counts.failed + counts.refused + counts.expired
        return total >= BROKEN_REQUESTS and bad >= BROKEN_PART * total

    def _window(self, deployed: Deployed, rolling: Rollout, candidate: RevisionRecord) -> _Window:
        known = self._windows.get(deployed.name)
        if known is not None and known.since == rolling.since:
            return known
        new, old = candidate.revision.id, deployed.current.revision.id
        sides = (_Side(self._traffic.of(each), moved_at=rolling.since) for each in (new, old))
        fresh = _Window(rolling.since, *sides)
        self._windows[deployed.name] = fresh
        return fresh

    def _under_way(self, revision: str) -> int:
        """Returns the number of requests that have not ended; streams that have begun do not count."""
        total = self._traffic.of(revision)
        return total.requests - total.ended - self._traffic.streaming(revision)

    def _tally(self, side: _Side, revision: str, limit_s: float, now: float) -> Tally:
        total = self._traffic.of(revision)
        side.arrivals.append((now, total.requests))
        while len(side.arrivals) > 1 and side.arrivals[1][0] <= now - limit_s:
            side.arrivals.popleft()
        if (ended := total.ended - total.cancelled) != side.ended:
            side.ended, side.moved_at = ended, now
        at, arrived = side.arrivals[0]
        # A stream meets the SLA with its first byte: one that goes on is not overdue.
        under_way = arrived - total.ended - self._traffic.streaming(revision)
        overdue = under_way if at <= now - limit_s else 0
        since = replace(total)
        since.add(side.origin, sign=-1)
        return Tally(
            answered=since.answered,
            failed=since.failed,
            refused=since.refused,
            expired=since.expired,
            late=since.answered - since.within_sla,
            overdue=max(0, overdue),
        )

    def __repr__(self) -> str:
        return f"<Rollouts {len(self._windows)} under way>"
