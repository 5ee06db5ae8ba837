"""The rollout of a new revision: its plan as the developer wrote it, and its progress.

``tidegate.traffic.stages`` decides, ``tidegate.control.rounds.rollouts`` carries out, and the registry keeps the
:class:`Rollout` of each function.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

KEPT_EVENTS: Final = 50
"""The latest events of a rollout that are kept."""


class Strategy(StrEnum):
    DIRECT = "direct"
    """All traffic at once, when a replica is ready."""
    GRADUAL = "gradual"
    """A growing share over a given time, without checks (Knative's rollout-duration)."""
    CANARY = "canary"
    """Step by step; each step is judged by errors and SLA misses in comparison with the serving revision."""
    SHADOW = "shadow"
    """Copies of requests only; no client sees its responses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """At most one of duration, steps and shadow is given; without any, all traffic moves at once."""

    duration_s: float = 0.0
    canary_steps: tuple[float, ...] = ()
    """Rising percents of the traffic."""
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
    """The phase of a rollout. The last four are final."""

    STARTING = "starting"
    """No replica of the new revision has been ready yet."""
    RUNNING = "running"
    PAUSED = "paused"
    PROMOTED = "promoted"
    TAKEN_BACK = "taken-back"
    """Judged bad: the previous revision has all traffic again."""
    ABORTED = "aborted"
    SUPERSEDED = "superseded"
    """Replaced by another deploy, rollout or split."""


ENDS: Final = frozenset({Phase.PROMOTED, Phase.TAKEN_BACK, Phase.ABORTED, Phase.SUPERSEDED})


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutEvent:
    """An event of a rollout, with a known code and the figures behind it."""

    at: float
    code: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """State of a gradual rollout (``tidegate.traffic.ramp``): the share of each revision, the newest last."""

    goal: int
    """Percent of the traffic that all of them have together."""
    parts: tuple[tuple[int, int], ...]
    """(number of the revision, whole percent), oldest first."""
    began_at: float | None = None
    """Time at which the newest got its first percent. None if no ramp is in progress."""
    step: int = 0
    period_s: float = 0.0
    next_at: float | None = None
    """Time at which the newest gets ``step`` more. None before its route is in force."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """The rollout of one revision."""

    candidate: int
    """Number of the new revision."""
    base: int
    """Number of the revision that serves meanwhile, and again after a rollback."""
    plan: RolloutPlan
    began_at: float
    phase: Phase = Phase.STARTING
    step: int = 0
    """Index into the plan's steps of a canary."""
    since: float = 0.0
    """Start of the present window."""
    unready_since: float | None = None
    """Time since when no replica of the candidate is ready, after one was. None if one is ready."""
    losses: int = 0
    """Number of times that the candidate has lost its last ready replica at this step."""
    ramp: Ramp | None = None
    verdict: str = ""
    """Result of the last comparison of the figures, in words."""
    events: tuple[RolloutEvent, ...] = ()

    @property
    def strategy(self) -> Strategy:
        return self.plan.strategy

    @property
    def is_over(self) -> bool:
        return self.phase in ENDS

    @property
    def percent(self) -> float:
        """The candidate's percent of the requests now, while a replica of it is ready."""
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
        """Returns the rollout with one more event."""
        event = RolloutEvent(at=at, code=code, detail=detail)
        return replace(self, events=(*self.events, event)[-KEPT_EVENTS:])
