"""The rollout of a new revision: its plan as the developer wrote it, and its progress.

``tidegate.traffic.stages`` decides, ``tidegate.control.rounds.rollouts`` carries out, and the registry keeps the
:class:`Rollout` of each function.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

KEPT_EVENTS: Final = 50
"""What happened last in a rollout."""


class Strategy(StrEnum):
    DIRECT = "direct"
    """All traffic at once, when a replica is ready."""
    GRADUAL = "gradual"
    """More and more over a time, whatever happens (Knative's rollout-duration)."""
    CANARY = "canary"
    """Step by step; each step is judged by errors and SLA misses beside the revision that serves."""
    SHADOW = "shadow"
    """Copies of requests only; no client sees its answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """At most one of duration, steps and shadow is given; none: all at once."""

    duration_s: float = 0.0
    canary_steps: tuple[float, ...] = ()
    """Percent of the traffic, rising."""
    canary_window_s: float = 30.0
    shadow_percent: float = 0.0

    @property
    def strategy(self) -> Strategy:
        if self.canary_steps:
            return Strategy.CANARY
        if self.shadow_percent > 0:
            return Strategy.SHADOW
        return Strategy.GRADUAL if self.duration_s > 0 else Strategy.DIRECT


class Phase(StrEnum):
    """Where a rollout is. The last four are ends."""

    STARTING = "starting"
    """No replica of the new revision has been ready yet."""
    RUNNING = "running"
    PAUSED = "paused"
    PROMOTED = "promoted"
    TAKEN_BACK = "taken-back"
    """Judged bad: the revision before has all traffic again."""
    ABORTED = "aborted"
    SUPERSEDED = "superseded"
    """Another deploy, rollout or split has taken its place."""


ENDS: Final = frozenset({Phase.PROMOTED, Phase.TAKEN_BACK, Phase.ABORTED, Phase.SUPERSEDED})


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutEvent:
    """Something that happened in a rollout, with a known word and the figures behind it."""

    at: float
    code: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """State of a gradual rollout (``tidegate.traffic.ramp``): who has how much, the newest last."""

    goal: int
    """Percent that all of them have together."""
    parts: tuple[tuple[int, int], ...]
    """(number of the revision, whole percent), oldest first."""
    began_at: float | None = None
    """When the newest got its first percent; None: nothing is under way."""
    step: int = 0
    period_s: float = 0.0
    next_at: float | None = None
    """When the newest gets ``step`` more; None: not known before its route is in force."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One revision on its way to its function's traffic."""

    candidate: int
    """Number of the new revision."""
    base: int
    """Number of the one that serves meanwhile, and again if the new one is taken back."""
    plan: RolloutPlan
    began_at: float
    phase: Phase = Phase.STARTING
    step: int = 0
    """Of a canary: index into the plan's steps."""
    since: float = 0.0
    """When the present window began."""
    unready_since: float | None = None
    """Since when no replica of the candidate is ready, after one was."""
    losses: int = 0
    """How often the candidate has lost its last ready replica at this step."""
    ramp: Ramp | None = None
    verdict: str = ""
    """What the last look at the figures says, in words."""
    events: tuple[RolloutEvent, ...] = ()

    @property
    def strategy(self) -> Strategy:
        return self.plan.strategy

    @property
    def is_over(self) -> bool:
        return self.phase in ENDS

    @property
    def percent(self) -> float:
        """The candidate's part of the requests now, while a replica of it is ready."""
        if self.is_over or self.phase is Phase.STARTING:
            return 0.0
        if self.ramp is not None:
            return float(dict(self.ramp.parts).get(self.candidate, 0))
        return self.plan.canary_steps[self.step] if self.strategy is Strategy.CANARY else 0.0

    @property
    def shadow_percent(self) -> float:
        is_on = self.strategy is Strategy.SHADOW and self.phase is Phase.RUNNING
        return self.plan.shadow_percent if is_on else 0.0

    def noted(self, at: float, code: str, detail: str = "") -> "Rollout":
        """With one more event."""
        event = RolloutEvent(at=at, code=code, detail=detail)
        return replace(self, events=(*self.events, event)[-KEPT_EVENTS:])
