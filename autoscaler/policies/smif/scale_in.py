"""Checks whether a smaller fleet would hold the target: the predicted latency, and earlier misses at that load."""

import math
from collections import deque
from collections.abc import Sequence

from tidegate.autoscaler.decisions.reasons import figure
from tidegate.autoscaler.measure.observation import GroupObservation
from tidegate.autoscaler.policies.smif.kinds import KindFacts, remaining, utilization_at
from tidegate.autoscaler.policies.smif.load import Load
from tidegate.autoscaler.policies.smif.waiting import spread_of, waiting_s

MISS_MEMORY_S = 6 * 3600.0
"""Time for which a miss of the target at some utilisation forbids to go back there."""
MAX_MISS_MEMORY_S = 86_400.0
SLOW_S = 300.0
"""Time for which a kind that was too slow must have been quick enough, the first time."""
LATE_MEMORY_S = 180.0
"""Memory of the late share."""
NEAR = 0.95
"""Part of the utilisation of a miss from which on a size counts as the same."""
LOAD_RELATED = 0.25
"""A miss at a lower utilisation was not for want of replicas."""
SAFE = 0.8
"""Part of the target that a smaller fleet is expected to need at most."""


class MissMemory:
    """The lowest utilisation at which the target was missed, while that is remembered.

    A miss there once more shows that the memory was right: it then lasts twice as long.
    """

    __slots__ = ("_lasts_s", "_until", "utilization")

    def __init__(self) -> None:
        self.utilization = 0.0
        self._until = 0.0
        self._lasts_s = MISS_MEMORY_S

    def missed(self, now: float, utilization: float) -> None:
        """Notes that the target was missed at ``utilization``, with the ready replicas as they were for a whole
        window."""
        if utilization < LOAD_RELATED:
            return
        is_known = self.utilization > 0.0
        if is_known and now >= self._until and utilization >= NEAR * self.utilization:
            self._lasts_s = min(2.0 * self._lasts_s, MAX_MISS_MEMORY_S)
        if not is_known or now >= self._until:
            self.utilization = utilization
        self.utilization = min(self.utilization, utilization)
        self._until = now + self._lasts_s

    def forbid(self, now: float, utilization: float) -> bool:
        """Returns whether a fleet used at ``utilization`` is expected to miss the target."""
        return self.utilization > 0.0 and now < self._until and utilization >= NEAR * self.utilization

    def __repr__(self) -> str:
        return f"<MissMemory {self.utilization:.2f} until {self._until:.0f}>"


class SlowGroupHold:
    """Holds the verdict that the execution of a kind alone misses the target. The measured time jitters, and a verdict
    that followed it would start replicas and take them away in turn. A kind that was too slow stays so until it has
    been quick enough for ``SLOW_S``, and for twice as long if that was a mistake."""

    __slots__ = ("_lasts_s", "_seen_s", "_until")

    def __init__(self) -> None:
        self._lasts_s = SLOW_S
        self._seen_s = 0.0
        self._until: float | None = None

    def update(self, now: float, execution_s: float, slo_s: float, *, is_guess: bool) -> float:
        """Returns the execution time that counts, for one seen at ``now``. ``is_guess``: the value is only a lower
        bound and must not clear the verdict."""
        is_held = self._until is not None and now < self._until
        if execution_s > slo_s:
            if self._until is not None and not is_held:
                is_soon = now - self._until < MAX_MISS_MEMORY_S
                self._lasts_s = min(2.0 * self._lasts_s, MAX_MISS_MEMORY_S) if is_soon else SLOW_S
            self._seen_s = execution_s
        elif not is_held:
            return execution_s
        if execution_s > slo_s or is_guess:
            self._until = now + self._lasts_s
        return self._seen_s

    def held(self, now: float, execution_s: float) -> float:
        """As :meth:`update`, for a time that was seen before ``now``; changes no state."""
        return max(execution_s, self._seen_s) if self._until is not None and now < self._until else execution_s

    def __repr__(self) -> str:
        return f"<SlowGroupHold {self._seen_s:.3g} s until {self._until}>"


class LateShare:
    """The late share of a group's answers over the last minutes: one bad window is chance, a bad quarter of an hour is
    not. Begins without misses; nevertheless a group with only late answers is noticed within seconds."""

    __slots__ = ("_answers", "_at", "_late")

    def __init__(self) -> None:
        self._at: float | None = None
        self._answers = self._late = 0.0

    def update(self, now: float, answers: int, late: int) -> float:
        """Returns the share at ``now``, from the counts of the latency window."""
        if self._at is None:
            self._answers = float(answers)
        step = 1.0 if self._at is None else min(max(0.0, now - self._at), LATE_MEMORY_S)
        self._at = now
        weight = step / LATE_MEMORY_S
        self._answers += weight * (answers - self._answers)
        self._late += weight * (late - self._late)
        return self._late / self._answers if self._answers > 0.0 else 0.0

    def __repr__(self) -> str:
        return f"<LateShare {self._late:.3g} of {self._answers:.3g}>"


class ScaleInTimer:
    """Measures how long a group has had more replicas than its load asks for, and the maximum that it asked for
    meanwhile."""

    __slots__ = ("_since", "_wanted")

    def __init__(self) -> None:
        self._since: float | None = None
        self._wanted: deque[tuple[float, int]] = deque()
        """(time, replicas) in falling order of replicas: an older and smaller entry never counts again."""

    def below_for_s(self, now: float, wanted: int) -> float:
        """Notes that the load asks for fewer replicas than exist; returns for how many seconds it has been so."""
        while self._wanted and self._wanted[-1][1] <= wanted:
            self._wanted.pop()
        self._wanted.append((now, wanted))
        if self._since is None:
            self._since = now
        return max(0.0, now - self._since)

    def max_wanted(self, now: float, window_s: float) -> int:
        """Returns the maximum of the last ``window_s`` seconds; 0 while nothing is remembered."""
        while self._wanted and self._wanted[0][0] < now - window_s:
            self._wanted.popleft()
        return self._wanted[0][1] if self._wanted else 0

    def __repr__(self) -> str:
        return f"<ScaleInTimer since {self._since}, {list(self._wanted)}>"


def predicted_s(group: GroupObservation, q: float, before: float, after: float, servers: tuple[int, int]) -> float:
    """Returns the latency percentile when the utilisation goes from ``before`` to ``after`` and the slots from the
    first of ``servers`` to the second.

    Present waiting beyond the formula's (bursts, bad luck) is taken to grow as u / (1 - u). Where requests share a
    replica their execution times grow with its occupancy, at most as those of a shared processor, 1 / (1 - u). Infinite
    if the remaining replicas cannot carry the load.
    """
    mean_s = group.execution_s or group.min_execution_s or 0.0
    tail_s = max(mean_s, group.tail_s or 0.0)
    if after >= 1.0:
        return math.inf
    spread = spread_of(mean_s, tail_s)
    waiting = waiting_s(servers[1], after, mean_s, spread, q)
    if group.latency_s is not None and 0.0 < before < 1.0:
        beyond = group.latency_s - tail_s - waiting_s(servers[0], before, mean_s, spread, q)
        waiting += max(0.0, beyond) * (after / (1.0 - after)) / (before / (1.0 - before))
        if group.limit != 1 and group.busy > 0.0 and group.concurrency > 1.05 * group.busy:
            tail_s *= max(1.0, (1.0 - before) / (1.0 - after))
    return tail_s + waiting


def why_overloaded(kinds: Sequence[KindFacts], counts: Sequence[int], load: Load, rho: float) -> str | None:
    """Returns why so small a fleet cannot carry the load, or None if it can. Only replicas that are ready now
    count."""
    capacity, rate = remaining(kinds, counts)[1], max(load.mid, load.steady)
    if capacity > 0.0 and rate <= rho * capacity * (1.0 + 1e-9):
        return None
    used = rate / capacity if capacity > 0.0 else 1.0
    return f"the ready ones that stay would be used at {figure(100 * used)} %"


def why_late(
    kinds: Sequence[KindFacts],
    counts: Sequence[int],
    load: Load,
    misses: MissMemory,
    slo_s: float,
    q: float,
    now: float,
) -> str | None:
    """Returns why a fleet that carries the load must not become so small (the target would be missed), or None."""
    staying, capacity = remaining(kinds, counts)
    before, after = utilization_at(load.mid, kinds), max(load.mid, load.steady) / capacity
    if misses.forbid(now, load.high / capacity):
        return f"the target was missed at {figure(100 * misses.utilization)} % before"
    servers = (
        sum(kind.ready * (kind.group.limit or 1) for kind in kinds),
        sum(count * (kind.group.limit or 1) for kind, count in zip(kinds, staying, strict=True)),
    )
    for kind, count in zip(kinds, staying, strict=True):
        if count == 0 or (kind.group.tail_s or 0.0) > slo_s or kind.group.execution_s is None:
            continue
        latency_s = predicted_s(kind.group, q, before, after, servers)
        tail_s = kind.group.tail_s or kind.group.execution_s
        if latency_s > tail_s + SAFE * (slo_s - tail_s):
            return f"{kind.group.accelerator} would come to about {figure(latency_s * 1e3)} ms"
    return None
