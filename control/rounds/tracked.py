"""What the round remembers of one revision while anything of it is left."""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tidegate.control.rounds.roles import RevisionRole
from tidegate.control.state.registry import RevisionRecord
from tidegate.control.views.views import Role
from tidegate.records.decision import Decision, Reason
from tidegate.records.replica_state import ReplicaState
from tidegate.records.route_table import FailureKind

if TYPE_CHECKING:
    from tidegate.deploy.backend import ReplicaStatus, RevisionFailure
    from tidegate.deploy.plan import Plan

UNPLACED_PATIENCE_S: Final = 5.0
"""Room that is just being given back (another function drains) is no reason to refuse requests."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """What requests are told that would wait in vain."""

    kind: FailureKind
    text: str


@dataclass(slots=True)
class TrackedRevision:
    """One revision at work. ``turn`` lets one plan be carried out at a time."""

    record: RevisionRecord
    role: Role
    percent: float = 0.0
    """Of the function's requests."""
    tags: tuple[str, ...] = ()
    shadow_percent: float = 0.0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    left_in: tuple[int, int] | None = None
    """Retired: the first route table that gives it no new requests."""
    decision: Decision | None = None
    acted_at: float = float("-inf")
    """Time of the last decision that was carried out: an older one is void."""
    plan: "Plan | None" = None
    ready_at: float = float("-inf")
    """When a replica of it last became ready."""
    unplaced_since: float | None = None
    unplaced: str | None = None

    @property
    def id(self) -> str:
        return self.record.revision.id

    @property
    def function(self) -> str:
        return self.record.function.name

    def take(self, part: RevisionRole) -> None:
        """What it is from now on."""
        self.role, self.percent, self.tags, self.shadow_percent = (
            part.role,
            part.percent,
            part.tags,
            part.shadow_percent,
        )
        self.left_in = None

    def retire(self) -> None:
        if self.role is not Role.RETIRED:
            self.role, self.percent, self.tags, self.shadow_percent = Role.RETIRED, 0.0, (), 0.0
            self.left_in = None

    def is_broken(self, failure: "RevisionFailure | None") -> bool:
        """Whether its last start failed and none has succeeded since."""
        if failure is None or failure.was_ready or failure.is_excused:
            return False
        return failure.at > self.ready_at

    def refusal(self, replicas: "list[ReplicaStatus]", failure: "RevisionFailure | None", now: float) -> Refusal | None:
        """What waiting requests are told instead of waiting; None: let them wait.

        After a failed start that is so until the next attempt is due. Then requests may wait again: for an attempt
        that is under way, or to cause one. While it serves nothing of this applies.
        """
        if any(each.state in (ReplicaState.READY, ReplicaState.DRAINING) for each in replicas):
            return None
        if failure is not None and self.is_broken(failure):
            starting = any(each.state is ReplicaState.STARTING for each in replicas)
            wanted = self.decision is not None and bool(self.decision.desired)
            if now < failure.not_before or (wanted and not starting):
                return Refusal(FailureKind.START_FAILED, failure.reason)
            return None
        if self.unplaced is not None and self.unplaced_s(now) >= UNPLACED_PATIENCE_S and not replicas:
            return Refusal(FailureKind.NOT_SERVABLE, self.unplaced)
        return None

    def unplaced_s(self, now: float) -> float:
        """How long it has lacked room."""
        return 0.0 if self.unplaced_since is None else now - self.unplaced_since

    def __repr__(self) -> str:
        return f"<Tracked {self.id} {self.role.value}>"


def farewell(tracked: TrackedRevision, now: float) -> Decision:
    """A retired revision is wanted by nobody."""
    return Decision(
        function=tracked.function,
        revision=tracked.id,
        at=now,
        policy=tracked.record.function.scaling.policy,
        ready=0,
        desired=0,
        groups=(),
        reasons=(Reason(code="retired", detail="another revision has taken over, or the function was deleted"),),
    )
