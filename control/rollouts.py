"""Rollouts under way: gathers the figures of each one's window and asks ``traffic.stages`` how it goes on.

Windows are counted from the gateways' samples as the meter adds them up. A control process that starts anew begins each
window anew; everything else of a rollout is in the registry.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from control.meter import Counts, TrafficMeter
from control.registry import Deployed
from tidegate.records import Decision, GroupDecision, Reason
from tidegate.rollout import Rollout, RolloutEvent

if TYPE_CHECKING:
    from traffic.canary import Tally

BROKEN_WINDOW_S: Final = 10.0
BROKEN_REQUESTS: Final = 5
BROKEN_PART: Final = 0.5
"""A revision of whose last requests (10 s, at least 5) half failed is no reason to wait before another takes over."""


@dataclass(slots=True)
class _Side:
    """One revision of a rollout: what it had counted when the window began, and its arrivals since."""

    origin: Counts
    arrivals: deque[tuple[float, int]] = field(default_factory=deque)


@dataclass(slots=True)
class _Window:
    since: float
    new: _Side
    old: _Side


class Rollouts:
    """Windows by function."""

    def __init__(self, meter: TrafficMeter) -> None:
        self._meter = meter
        self._windows: dict[str, _Window] = {}
        self._seen: dict[str, tuple[Tally, Tally]] = {}

    def advanced(self, deployed: Deployed, *, is_ready: bool, is_in_force: bool, now: float) -> Rollout | None:
        """The rollout of a function after a look at it; None: it has none under way."""
        from traffic.stages import Seen, advanced

        rolling, candidate = deployed.rolling, deployed.candidate
        if rolling is None or candidate is None:
            self._windows.pop(deployed.name, None)
            return None
        sla = candidate.function.sla
        window = self._window(deployed, rolling)
        limit_s = sla.latency_s or rolling.plan.canary_window_s
        new = self._tally(window.new, candidate.revision.id, limit_s, now)
        old = self._tally(window.old, deployed.current.revision.id, limit_s, now)
        self._seen[deployed.name] = (new, old)
        budget = 1.0 - sla.percentile / 100.0
        seen = Seen(is_ready=is_ready, is_in_force=is_in_force, new=new, old=old, budget=budget)
        return advanced(rolling, seen, now)

    def tallies(self, function: str) -> "tuple[Tally, Tally] | None":
        """The new and the old revision's figures of the present window, or of the last one."""
        return self._seen.get(function)

    def forget(self, function: str) -> None:
        self._windows.pop(function, None)
        self._seen.pop(function, None)

    def is_failing(self, revision: str, now: float) -> bool:
        """Whether half of a revision's latest requests failed."""
        counts = self._meter.recent(revision, now - BROKEN_WINDOW_S)
        total = counts.answered + counts.failed + counts.refused + counts.expired
        bad = counts.failed + counts.refused + counts.expired
        return total >= BROKEN_REQUESTS and bad >= BROKEN_PART * total

    def _window(self, deployed: Deployed, rolling: Rollout) -> _Window:
        known = self._windows.get(deployed.name)
        if known is not None and known.since == rolling.since:
            return known
        assert deployed.candidate is not None
        new, old = deployed.candidate.revision.id, deployed.current.revision.id
        fresh = _Window(rolling.since, _Side(self._meter.of(new)), _Side(self._meter.of(old)))
        self._windows[deployed.name] = fresh
        return fresh

    def _tally(self, side: _Side, revision: str, limit_s: float, now: float) -> "Tally":
        from traffic.canary import Tally

        total = self._meter.of(revision)
        side.arrivals.append((now, total.requests))
        while len(side.arrivals) > 1 and side.arrivals[1][0] <= now - limit_s:
            side.arrivals.popleft()
        at, arrived = side.arrivals[0]
        overdue = arrived - total.ended if at <= now - limit_s else 0
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


def fresh_events(before: Rollout | None, after: Rollout) -> tuple[RolloutEvent, ...]:
    """What has happened between two states."""
    known = () if before is None else before.events
    return tuple(event for event in after.events if event not in known)


def kept_awake(decision: Decision, accelerators: Iterable[str], *, existing: int) -> Decision:
    """At least one replica, on the first of ``accelerators`` where there is none: it is to take traffic, or copies."""
    wanted = existing if decision.desired is None else decision.desired
    first = next(iter(accelerators), None)
    if wanted >= 1 or first is None:
        return decision
    reason = Reason(code="rollout_awake", detail="it is being rolled out: one replica stays ready")
    groups = (GroupDecision(accelerator=first, replicas=1),)
    return replace(decision, desired=1, groups=groups, reasons=(*decision.reasons, reason), is_dry_run=False)
