"""The state that the round keeps of one revision while the revision or one of its replicas exists."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidegate.control.rounds.growth import ReplicaSize
from tidegate.control.rounds.roles import RevisionRole
from tidegate.control.state.registry import RevisionRecord
from tidegate.deploy.backend import ReplicaStatus, RevisionFailure
from tidegate.deploy.plan import Plan
from tidegate.records.decision import Decision, GroupDecision, Reason
from tidegate.records.replica_state import ReplicaState
from tidegate.records.roles import Role
from tidegate.records.route_table import FailureKind

UNPLACED_PATIENCE_S: Final = 5.0
"""Requests are refused for lack of room after this time only: room may just be given back while another function
drains."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer to requests that would wait in vain."""

    kind: FailureKind
    text: str


@dataclass(slots=True)
class TrackedRevision:
    """One revision, its role, and the last decision and plan for it."""

    record: RevisionRecord
    role: Role
    percent: float = 0.0
    """Share of the function's requests."""
    tags: tuple[str, ...] = ()
    shadow_percent: float = 0.0
    left_in: tuple[int, int] | None = None
    """Version of the first route table that gives a retired revision no new requests; None if it is not retired, or
    that table has not been built."""
    decision: Decision | None = None
    acted_at: float = float("-inf")
    """Time of the last decision that was carried out: an older one is void."""
    plan: Plan | None = None
    ready_at: float = float("-inf")
    """Time at which one of its replicas last became ready."""
    gone_at: float | None = None
    """Time at which one of its replicas last ended; None if this control process has seen none end."""
    unplaced_since: float | None = None
    unplaced: str | None = None
    unplaced_public: str | None = None
    """The same for clients: without the names of functions that require authentication."""
    in_place: tuple[Sequence[ReplicaStatus], tuple[GroupDecision, ...] | None] | None = None
    """Replicas and wanted numbers for which the last plan had nothing to do; None if it had."""
    size: ReplicaSize | None = None
    """What an operator has ordered each of its replicas to have; None: nothing."""
    id: str = field(init=False)
    """Id of the revision."""

    def __post_init__(self) -> None:
        self.id = self.record.revision.id

    @property
    def function(self) -> str:
        return self.record.function.name

    def assume(self, role: RevisionRole) -> None:
        """Takes a role, with its part of the traffic."""
        self.role, self.percent, self.tags, self.shadow_percent = (
            role.role,
            role.percent,
            role.tags,
            role.shadow_percent,
        )
        self.left_in = None

    def retire(self) -> None:
        """Gives the revision no traffic from now on; without effect if it is retired."""
        if self.role is not Role.RETIRED:
            self.role, self.percent, self.tags, self.shadow_percent = Role.RETIRED, 0.0, (), 0.0
            self.left_in = None

    def is_broken(self, failure: RevisionFailure | None) -> bool:
        """Returns whether its last start failed and none has succeeded since."""
        if failure is None or failure.was_ready or failure.is_excused:
            return False
        return failure.at > self.ready_at

    def refusal(self, replicas: list[ReplicaStatus], failure: RevisionFailure | None, now: float) -> Refusal | None:
        """Returns the answer to requests that should not wait; None if they should.

        After a failed start requests are refused until the next attempt is due. Then they may wait again: for an
        attempt that is under way, or to cause one. A revision that serves refuses nothing.
        """
        if any(each.state in (ReplicaState.READY, ReplicaState.DRAINING) for each in replicas):
            return None
        if failure is not None and self.is_broken(failure):
            starting = any(each.state is ReplicaState.STARTING for each in replicas)
            wanted = self.decision is not None and bool(self.decision.desired)
            if now < failure.not_before or (wanted and not starting):
                return Refusal(FailureKind.START_FAILED, failure.reason)
            return None
        is_here = any(each.state is not ReplicaState.ASLEEP for each in replicas)
        if self.unplaced is not None and self.unplaced_s(now) >= UNPLACED_PATIENCE_S and not is_here:
            return Refusal(FailureKind.NOT_SERVABLE, self.unplaced_public or self.unplaced)
        return None

    def unplaced_s(self, now: float) -> float:
        """Returns for how long it has lacked room."""
        return 0.0 if self.unplaced_since is None else now - self.unplaced_since

    def lacks_room(self, why: str | None, now: float, *, public: str | None = None, is_coming: bool = False) -> None:
        """Records why it has no place now; None if it has one or wants none. ``public``: the same for clients.
        ``is_coming``: a place is being freed for it, so that it does not lack one yet."""
        if why is None:
            self.unplaced_since = self.unplaced = self.unplaced_public = None
            return
        self.unplaced, self.unplaced_public = why, public
        if self.unplaced_since is None or is_coming:
            self.unplaced_since = now

    def __repr__(self) -> str:
        return f"<TrackedRevision {self.id} {self.role.value}>"


def serving_first(revisions: Iterable[TrackedRevision]) -> list[TrackedRevision]:
    """Returns the revisions with the most traffic first. The first one represents the function; a candidate does not
    before it serves."""
    return sorted(revisions, key=lambda each: (each.role is not Role.SERVING, -each.percent, -each.record.number))


def retirement(tracked: TrackedRevision, now: float) -> Decision:
    """Returns the decision for a retired revision: no replicas."""
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
