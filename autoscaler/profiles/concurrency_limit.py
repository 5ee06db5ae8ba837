"""``concurrency: auto``: the limit of a group's replicas, learnt from their yield at different limits.

The goal is the smallest limit at which throughput is within ``GAIN`` of the best and execution leaves room inside the
latency target. Only time with every slot taken shows the yield of a limit, so a limit is judged after ``ENOUGH_S`` such
seconds. One step up, then one down, is tried unless it is known to be useless. A limit that was left is tried again
after ``RETRY_S``, twice as long each time. Without room it goes down as soon as that is known.

A pure state machine: figures in, a limit with its reason out.
"""

import math
from dataclasses import dataclass

from tidegate.autoscaler.decisions.reasons import figure, reason
from tidegate.records.decision import Reason

STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Limits that are tried, half an octave apart."""
GAIN = 0.03
"""Throughput within this part of the best is as good as the best."""
ROOM = 0.7
"""Part of the latency target that execution may take at its percentile; the rest is for waiting."""
ENOUGH_S = 20.0
"""Replica seconds with every slot taken after which a limit is judged."""
MEMORY_S = 60.0
"""Replica seconds that a judgement remembers."""
RETRY_S = 600.0
MAX_RETRY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FullWork:
    """Work of a group's replicas since the last call, in the time in which every slot was taken."""

    inferences: float = 0.0
    busy_s: float = 0.0
    tail_s: float | None = None
    """Execution time at the SLA's percentile."""


@dataclass(frozen=True, slots=True)
class Advice:
    limit: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntLevel:
    """Yield of one limit, as it is kept over a restart. Times are Unix seconds."""

    limit: int
    inferences: float
    busy_s: float
    tail_s: float | None
    retry_at: float | None
    retry_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntLimit:
    """State of a :class:`LimitLearner`, as it is kept over a restart."""

    limit: int
    most: int
    levels: tuple[LearntLevel, ...] = ()


@dataclass(slots=True)
class _Level:
    inferences: float = 0.0
    busy_s: float = 0.0
    tail_s: float | None = None
    retry_at: float = -math.inf
    """Earliest time of another try."""
    retry_s: float = RETRY_S

    @property
    def is_known(self) -> bool:
        return self.busy_s >= ENOUGH_S

    @property
    def mu_ips(self) -> float:
        return self.inferences / self.busy_s

    def add(self, work: FullWork) -> None:
        self.inferences += work.inferences
        self.busy_s += work.busy_s
        if self.busy_s > MEMORY_S:
            self.inferences *= MEMORY_S / self.busy_s
            self.busy_s = MEMORY_S
        self.tail_s = work.tail_s if work.tail_s is not None else self.tail_s

    def put_off(self, now: float) -> None:
        """Leaves this level: it is not tried again for a while."""
        self.retry_at, self.retry_s = now + self.retry_s, min(2.0 * self.retry_s, MAX_RETRY_S)

    def forget(self) -> None:
        self.inferences = self.busy_s = 0.0
        self.tail_s = None


def _below(limit: int) -> int | None:
    return max((step for step in STEPS if step < limit), default=None)


class LimitLearner:
    """The limit of one group. Without ``slo_s`` any execution time is good. ``most``: the maximum that the server
    declares."""

    __slots__ = ("_levels", "_most", "_slo_s", "limit")

    def __init__(self, start: int = 4, *, slo_s: float | None = None, most: int = STEPS[-1]) -> None:
        self.limit = max(1, min(start, most))
        self._slo_s = slo_s
        self._most = most
        self._levels: dict[int, _Level] = {}

    def retarget(self, slo_s: float | None) -> None:
        """Goes on with another latency target, by which what was measured is judged."""
        self._slo_s = slo_s

    @property
    def most(self) -> int:
        return self._most

    def learnt(self) -> LearntLimit:
        """Returns what is kept over a restart."""
        levels = tuple(
            LearntLevel(
                limit=limit,
                inferences=level.inferences,
                busy_s=level.busy_s,
                tail_s=level.tail_s,
                retry_at=level.retry_at if math.isfinite(level.retry_at) else None,
                retry_s=level.retry_s,
            )
            for limit, level in self._levels.items()
        )
        return LearntLimit(limit=self.limit, most=self._most, levels=levels)

    def restore(self, stored: LearntLimit) -> None:
        """Continues where an earlier process was."""
        self.limit, self._most = max(1, min(stored.limit, stored.most)), stored.most
        for each in stored.levels:
            figures = (each.inferences, each.busy_s, each.tail_s or 0.0, each.retry_at or 0.0, each.retry_s)
            if all(math.isfinite(number) and number >= 0.0 for number in figures):
                retry_at = -math.inf if each.retry_at is None else each.retry_at
                self._levels[each.limit] = _Level(each.inferences, each.busy_s, each.tail_s, retry_at, each.retry_s)

    def observe(self, now: float, work: FullWork) -> Advice:
        """Returns the limit from now on. ``work`` was done under the present one."""
        level = self._levels.setdefault(self.limit, _Level())
        if not (math.isfinite(work.inferences) and math.isfinite(work.busy_s)) or min(work.inferences, work.busy_s) < 0:
            return self._kept("limit_measuring", "figures that cannot be")
        if work.busy_s > 0.0:
            level.add(work)
        if not level.is_known:
            return self._kept("limit_measuring", f"{figure(level.busy_s)} of {ENOUGH_S:g} s at {self.limit}")
        if not self._has_room(level):
            return self._without_room(now, level)
        best = self._best()
        if best != self.limit:
            level.put_off(now)
            code = "limit_no_gain" if best < self.limit else "limit_too_small"
            detail = (
                f"{figure(level.mu_ips)} inferences/s at {self.limit}, {figure(self._levels[best].mu_ips)} at {best}"
            )
            return self._moved(best, code, detail)
        for step in (self._above(self.limit), _below(self.limit)) if work.busy_s > 0.0 else ():
            if step is not None and now >= self._levels.setdefault(step, _Level()).retry_at:
                self._levels[step].forget()
                level.put_off(now)
                return self._moved(step, "limit_tried", f"{step} instead of {self.limit}")
        return self._kept("limit_kept", f"{figure(level.mu_ips)} inferences/s at {self.limit}")

    def outlasted(self, now: float, tail_s: float) -> Advice | None:
        """Judges by a lower bound of execution times: clients gave up, so the yield is unknown, but at the SLA's
        percentile execution would have taken at least ``tail_s``, over ``ENOUGH_S`` under the present limit. It shows
        only whether there is room, and can only lower the limit. Returns None if there may be enough room. The yields
        of larger limits become void: their occupancy is higher."""
        level = self._levels.setdefault(self.limit, _Level())
        if self._slo_s is None or tail_s <= ROOM * self._slo_s:
            return None
        level.tail_s = tail_s
        for at, other in self._levels.items():
            if at > self.limit:
                other.forget()
        return self._without_room(now, level)

    def _has_room(self, level: _Level) -> bool:
        return self._slo_s is None or level.tail_s is None or level.tail_s <= ROOM * self._slo_s

    def _without_room(self, now: float, level: _Level) -> Advice:
        tail_s, slo_s = level.tail_s or 0.0, self._slo_s or 0.0
        detail = f"{figure(tail_s * 1e3)} ms of {figure(slo_s * 1e3)} ms at {self.limit}"
        below = _below(self.limit)
        if below is None:
            return self._kept("limit_no_room", detail)
        level.put_off(now)
        return self._moved(below, "limit_no_room", detail)

    def _best(self) -> int:
        """Returns the smallest known limit with room whose throughput is as good as the best one's."""
        known = {at: level for at, level in self._levels.items() if level.is_known and self._has_room(level)}
        most = max(level.mu_ips for level in known.values())
        return min(at for at, level in known.items() if level.mu_ips >= (1.0 - GAIN) * most)

    def _above(self, limit: int) -> int | None:
        return next((step for step in STEPS if limit < step <= self._most), None)

    def _moved(self, limit: int, code: str, detail: str) -> Advice:
        self.limit = limit
        return Advice(limit, reason(code, detail))

    def _kept(self, code: str, detail: str) -> Advice:
        return Advice(self.limit, reason(code, detail))

    def __repr__(self) -> str:
        known = {at: round(level.mu_ips, 1) for at, level in sorted(self._levels.items()) if level.is_known}
        return f"<LimitLearner {self.limit}, known {known}>"
