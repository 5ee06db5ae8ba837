"""From what is wanted to what is done: one revision's decision becomes creates, revives and removes.

Pure. A plan never asks for more than the decision, never removes more than there is too much of, and says for every
line why it is there.

Order of preference when more are wanted: take back replicas that drain (their model is loaded), then create where
there is room. When fewer are wanted: stop those that are still starting, youngest first (nothing is lost), then those
with the least work in flight. A revision whose servers keep failing is tried again only when its back-off is over;
until then the missing replicas are ``unplaced``.
"""

import random
import string
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tidegate.deploy.backend import ReplicaStatus, RevisionFailure
from tidegate.deploy.placement.ledger import WHOLE, Room
from tidegate.records.decision import Decision, Reason
from tidegate.records.replica_state import ReplicaState

_ALPHABET = string.ascii_lowercase + string.digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    replica: str
    accelerator: str
    share: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Revive, remove or keep one replica."""

    replica: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplaced:
    """Replicas that are wanted and cannot be had now. ``until`` None: until room appears."""

    accelerator: str
    replicas: int
    reason: str
    until: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    revision: str
    create: tuple[Create, ...] = ()
    revive: tuple[Step, ...] = ()
    remove: tuple[Step, ...] = ()
    keep: tuple[Step, ...] = ()
    unplaced: tuple[Unplaced, ...] = ()
    reasons: tuple[Reason, ...] = ()
    """The decision's, passed on."""

    @property
    def is_empty(self) -> bool:
        """True when there is nothing to do."""
        return not (self.create or self.revive or self.remove)


def new_replica_id(revision_id: str, taken: Collection[str], rng: random.Random) -> str:
    """``<revision>-<5 characters>`` that is not in ``taken``."""
    while True:
        name = f"{revision_id}-{''.join(rng.choices(_ALPHABET, k=5))}"
        if name not in taken:
            return name


def plan(
    decision: Decision,
    replicas: Sequence[ReplicaStatus],
    room: Mapping[str, Room],
    *,
    now: float,
    rng: random.Random,
    in_flight: Mapping[str, int] | None = None,
    failure: RevisionFailure | None = None,
) -> Plan:
    """The steps from ``replicas`` (those of other revisions are ignored) to ``decision``.

    ``room``: free places per accelerator for this revision, as ``Backend.room`` says. ``in_flight``: requests per
    replica, for choosing victims. ``failure``: the revision's back-off. ``now``: the clock of ``failure``.
    """
    mine = [each for each in replicas if each.revision == decision.revision]
    taken = {each.id for each in replicas}
    wanted = _wanted(decision, mine)
    parts = _Parts()
    for accelerator in sorted(wanted.keys() | {each.accelerator for each in mine}):
        count, share = wanted.get(accelerator, (0, WHOLE))
        group = [each for each in mine if each.accelerator == accelerator]
        serving = [each for each in group if each.is_wanted]
        if len(serving) > count:
            _shrink(parts, serving, len(serving) - count, in_flight or {})
        else:
            parts.keep.extend(Step(replica=each.id, reason="wanted") for each in serving)
        missing = max(0, count - len(serving))
        missing -= _revive(parts, [each for each in group if each.is_leaving], missing)
        free = max(0, room[accelerator].free) if accelerator in room else 0
        _create(
            parts, decision.revision, accelerator, share, missing, free, room.get(accelerator), failure, now, taken, rng
        )
        _dismiss(parts, [each for each in group if each.state is ReplicaState.FAILED], missing, failure, now)
    return Plan(
        revision=decision.revision,
        create=tuple(parts.create),
        revive=tuple(parts.revive),
        remove=tuple(parts.remove),
        keep=tuple(parts.keep),
        unplaced=tuple(parts.unplaced),
        reasons=decision.reasons,
    )


class _Parts:
    """The plan under construction."""

    __slots__ = ("create", "keep", "remove", "revive", "unplaced")

    def __init__(self) -> None:
        self.create: list[Create] = []
        self.revive: list[Step] = []
        self.remove: list[Step] = []
        self.keep: list[Step] = []
        self.unplaced: list[Unplaced] = []


def _wanted(decision: Decision, mine: Sequence[ReplicaStatus]) -> dict[str, tuple[int, int]]:
    """Replicas and share per accelerator. A decision to hold, or of a dry run, wants what is there, broken ones
    included."""
    if decision.groups is not None and not decision.is_dry_run:
        return {group.accelerator: (group.replicas, group.share) for group in decision.groups}
    held: dict[str, tuple[int, int]] = {}
    for each in mine:
        if each.is_wanted or each.state is ReplicaState.FAILED:
            held[each.accelerator] = (held.get(each.accelerator, (0, 0))[0] + 1, each.share)
    return held


def _shrink(parts: _Parts, serving: Sequence[ReplicaStatus], surplus: int, in_flight: Mapping[str, int]) -> None:
    def order(each: ReplicaStatus) -> tuple[bool, int, float, str]:
        starting = each.state is ReplicaState.STARTING
        return (not starting, 0 if starting else in_flight.get(each.id, 0), -each.created_at, each.id)

    ordered = sorted(serving, key=order)
    for each in ordered[:surplus]:
        words = "still starting" if each.state is ReplicaState.STARTING else f"{in_flight.get(each.id, 0)} in flight"
        parts.remove.append(Step(replica=each.id, reason=f"surplus, {words}"))
    parts.keep.extend(Step(replica=each.id, reason="wanted") for each in ordered[surplus:])


def _revive(parts: _Parts, leaving: Sequence[ReplicaStatus], missing: int) -> int:
    """Takes back up to ``missing`` draining replicas, the ones furthest from their end first; answers how many."""
    ordered = sorted(leaving, key=lambda each: (each.state is ReplicaState.DRAINED, -each.created_at, each.id))
    for each in ordered[:missing]:
        parts.revive.append(Step(replica=each.id, reason=f"wanted again while {each.state.value}"))
    for each in ordered[missing:]:
        parts.keep.append(Step(replica=each.id, reason=f"{each.state.value}, on its way out"))
    return min(missing, len(ordered))


def _create(
    parts: _Parts,
    revision: str,
    accelerator: str,
    share: int,
    missing: int,
    free: int,
    room: Room | None,
    failure: RevisionFailure | None,
    now: float,
    taken: set[str],
    rng: random.Random,
) -> None:
    if missing == 0:
        return
    if failure is not None and now < failure.not_before:
        why = f"back-off after {failure.failures} failure(s)"
        parts.unplaced.append(Unplaced(accelerator=accelerator, replicas=missing, reason=why, until=failure.not_before))
        return
    for _ in range(min(missing, free)):
        name = new_replica_id(revision, taken, rng)
        taken.add(name)
        parts.create.append(Create(replica=name, accelerator=accelerator, share=share, reason="wanted"))
    if missing > free:
        total = "not an accelerator it may use" if room is None else f"{room.total} fit when empty"
        parts.unplaced.append(
            Unplaced(accelerator=accelerator, replicas=missing - free, reason=f"no room on {accelerator} ({total})")
        )


def _dismiss(
    parts: _Parts, failed: Sequence[ReplicaStatus], missing: int, failure: RevisionFailure | None, now: float
) -> None:
    """Broken replicas stay visible while their back-off runs; then others take their place."""
    waiting = missing > 0 and failure is not None and now < failure.not_before
    for each in failed:
        if waiting:
            parts.keep.append(Step(replica=each.id, reason="failed, waits for its back-off"))
        else:
            parts.remove.append(Step(replica=each.id, reason="failed" if missing else "failed, no longer wanted"))
