"""Turns one revision's decision into creates, revives and removes.

Pure. A plan never asks for more than the decision, never removes more than the surplus, and gives a reason for every
line.

If more are wanted, it first revives draining replicas (their model is loaded), then wakes sleeping ones and creates
others where there is room. If
fewer are wanted, it first stops starting replicas, youngest first (nothing is lost), then those with the least work in
flight. A revision with failing servers is tried again when its back-off is over; until then the missing replicas are
``unplaced``.
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
    """One replica to revive, remove or keep."""

    replica: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplaced:
    """Wanted replicas that cannot be created now. ``until`` is None if they wait for room."""

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
    """The reasons of the decision."""

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to do."""
        return not (self.create or self.revive or self.remove)


def new_replica_id(revision_id: str, taken: Collection[str], rng: random.Random) -> str:
    """Returns ``<revision>-<5 characters>`` that is not in ``taken``."""
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
    """Returns the steps from ``replicas`` (those of other revisions are ignored) to ``decision``.

    ``room`` is the free places per accelerator for this revision, from ``Backend.room``. ``in_flight`` is requests per
    replica, for choosing victims. ``failure`` is the revision's back-off, on the same clock as ``now``.
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
        parts.keep.extend(Step(replica=each.id, reason="others end it") for each in group if each.is_ending)
        missing -= _revive(parts, [each for each in group if each.is_leaving and not each.is_ending], missing)
        free = max(0, room[accelerator].free) if accelerator in room else 0
        asleep = [each for each in group if each.state is ReplicaState.ASLEEP and each.share == share]
        woken = _wake(parts, asleep, min(missing, free))
        missing, free = missing - woken, free - woken
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
    """Returns replicas and share per accelerator. A decision that holds or is a dry run wants the present ones, broken
    ones included."""
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
    """Revives up to ``missing`` draining replicas, those furthest from their end first. Returns their number."""
    ordered = sorted(leaving, key=lambda each: (each.state is ReplicaState.DRAINED, -each.created_at, each.id))
    for each in ordered[:missing]:
        parts.revive.append(Step(replica=each.id, reason=f"wanted again while {each.state.value}"))
    for each in ordered[missing:]:
        parts.keep.append(Step(replica=each.id, reason=f"{each.state.value}, on its way out"))
    return min(missing, len(ordered))


def _wake(parts: _Parts, asleep: Sequence[ReplicaStatus], count: int) -> int:
    """Wakes up to ``count`` sleeping replicas, those that fell asleep last first: their memory is most likely still
    there. Returns their number."""
    ordered = sorted(asleep, key=lambda each: (-(each.asleep_at or 0.0), each.id))
    for each in ordered[:count]:
        parts.revive.append(Step(replica=each.id, reason="wanted, and it is asleep"))
    return min(count, len(ordered))


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
    """Removes broken replicas. They stay visible while their back-off runs."""
    waiting = missing > 0 and failure is not None and now < failure.not_before
    for each in failed:
        if waiting:
            parts.keep.append(Step(replica=each.id, reason="failed, waits for its back-off"))
        else:
            parts.remove.append(Step(replica=each.id, reason="failed" if missing else "failed, no longer wanted"))
