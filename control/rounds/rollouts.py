"""Rollouts under way: gathers the figures of each one's window and asks ``tidegate.traffic.stages`` how it goes on.

People ask for a change by the registry; :meth:`Rollouts.taken_up` carries it out at once, as far as that is possible.
Windows are counted from the gateways' samples as the meter adds them up. A control process that starts anew begins each
window anew; everything else of a rollout is in the registry.
"""

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from tidegate.control.state.registry import Deployed, RevisionRecord
from tidegate.control.views.views import Role
from tidegate.control.watch.traffic import Counts
from tidegate.records.decision import Reason
from tidegate.records.rollout import Rollout

if TYPE_CHECKING:
    from tidegate.control.rounds.round import Round
    from tidegate.traffic.judge import Tally

STALLED_PART: Final = 0.25
"""Of a canary's window: when nothing of it has ended for so long though requests are under way, no step is passed."""
MISSED_S: Final = 3.0
"""A window that has lasted for longer when it is first looked at, or lies ahead of the clock, is begun anew."""
BROKEN_WINDOW_S: Final = 10.0
BROKEN_REQUESTS: Final = 5
BROKEN_PART: Final = 0.5
"""A revision of whose last requests (10 s, at least 5) half failed is no reason to wait before another takes over."""


@dataclass(slots=True)
class _Side:
    """One revision of a rollout: what it had counted when the window began, and its arrivals since."""

    origin: Counts
    moved_at: float
    """When the last of its requests was seen to end, but for those that clients gave up."""
    told: int = 0
    """Requests that had ended so by then."""
    arrivals: deque[tuple[float, int]] = field(default_factory=deque)


@dataclass(slots=True)
class _Window:
    since: float
    new: _Side
    old: _Side


class Rollouts:
    """Windows by function."""

    def __init__(self, world: "Round") -> None:
        self._world = world
        self._meter = world.meter
        self._windows: dict[str, _Window] = {}
        self._seen: dict[str, tuple[Tally, Tally]] = {}

    # --- each second ---

    def review(self, now: float) -> None:
        """Every rollout under way goes on as its figures allow; the table follows at the end of the round."""
        table = self._world.table
        published = (0, 0) if table is None else table.version
        is_in_force = all(version >= published for version in self._world.gateways.versions())
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
                if self._world.registry.roll(deployed.name, after):
                    self._world.save_soon(deployed.name)
                self.rolled(deployed, after)

    def rolled(self, deployed: Deployed, after: Rollout) -> None:
        """The registry has the rollout in another state: told, and put into force with the next table."""
        before = () if deployed.rollout is None else deployed.rollout.events
        if deployed.candidate is not None:
            for event in after.events:
                if event not in before:
                    told = Reason(code=f"rollout_{event.code}", detail=event.detail)
                    self._world.autoscaler.add_reason(deployed.candidate.revision.id, told)
        self._world.sync(only=deployed.name)
        self._world.pulse.fire()

    def is_rolled_out(self, revision: str) -> bool:
        """Whether a candidate is to have a replica though nobody asks for it: for traffic, for copies, or to return."""
        tracked = self._world.find(revision)
        if tracked is None or tracked.role is not Role.CANDIDATE:
            return False
        deployed = self._world.registry.get(tracked.function)
        return deployed is not None and (deployed.rolling is not None or deployed.is_returning)

    # --- when somebody asks ---

    async def taken_up(self, name: str) -> None:
        """The registry has changed as somebody asked: carried out at once, as far as that is possible."""
        self._world.sync()
        deployed = self._world.registry.get(name)
        if deployed is not None and deployed.is_direct and deployed.candidate is not None:
            current, candidate = deployed.current.revision.id, deployed.candidate.revision.id
            # An earlier revision does not wait for its start where the present one serves nobody.
            is_broken = not self._world.is_ready(current) or self._is_failing(current)
            tracked = self._world.find(candidate)
            if tracked is not None and (self._world.is_ready(candidate) or (deployed.is_returning and is_broken)):
                await self._world.promote(tracked)
        await self._world.publish()
        self._world.soon()
        self._world.pulse.fire()

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
        """The rollout after a look at it."""
        from tidegate.traffic.stages import RolloutFacts, advanced, aligned

        if deployed.name not in self._windows:
            if not 0 <= now - rolling.since <= MISSED_S:
                rolling = replace(rolling, since=now)  # what happened before was counted by an earlier control process
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

    def tallies(self, function: str) -> "tuple[Tally, Tally] | None":
        """The new and the old revision's figures of the present window, or of the last one."""
        return self._seen.get(function)

    def _is_failing(self, revision: str) -> bool:
        """Whether half of a revision's latest requests failed."""
        counts = self._meter.recent(revision, self._world.clock.now() - BROKEN_WINDOW_S)
        total = counts.answered + counts.failed + counts.refused + counts.expired
        bad = counts.failed + counts.refused + counts.expired
        return total >= BROKEN_REQUESTS and bad >= BROKEN_PART * total

    def _window(self, deployed: Deployed, rolling: Rollout, candidate: RevisionRecord) -> _Window:
        known = self._windows.get(deployed.name)
        if known is not None and known.since == rolling.since:
            return known
        new, old = candidate.revision.id, deployed.current.revision.id
        sides = (_Side(self._meter.of(each), moved_at=rolling.since) for each in (new, old))
        fresh = _Window(rolling.since, *sides)
        self._windows[deployed.name] = fresh
        return fresh

    def _under_way(self, revision: str) -> int:
        """Requests that have not ended; streams that have begun are none."""
        total = self._meter.of(revision)
        return total.requests - total.ended - self._meter.streaming(revision)

    def _tally(self, side: _Side, revision: str, limit_s: float, now: float) -> "Tally":
        from tidegate.traffic.judge import Tally

        total = self._meter.of(revision)
        side.arrivals.append((now, total.requests))
        while len(side.arrivals) > 1 and side.arrivals[1][0] <= now - limit_s:
            side.arrivals.popleft()
        if (told := total.ended - total.cancelled) != side.told:
            side.told, side.moved_at = told, now
        at, arrived = side.arrivals[0]
        # A stream keeps its promise with its first byte; that it goes on is nothing bad.
        under_way = arrived - total.ended - self._meter.streaming(revision)
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
