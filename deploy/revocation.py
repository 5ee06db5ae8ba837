"""Revokes starts that fail or hang, so that another accelerator kind is tried.

A kind *fails* a revision while starts on it are refused or break before they are ready, and none of the revision's
replicas there is ready. It also fails at once if a start stays pending longer than the function's start timeout (on a
cluster, a Pod that no node takes never fails). After ``PATIENCE_S`` of failing, the kind is *barred* for the revision:
it has no room, and pending starts there are revoked. The bar lasts ``BAR_S``, doubled with each further one, for which
one failure is enough.

A failure that is followed by no further attempt says little. A first bar therefore needs failures that go on, and a
start that began after the last failure runs to its end first. A failure after a pause continues the former row, so that
a kind that fails one request every few minutes is barred too.

No deadlock: a kind is barred, and stays so, only while another kind that the function may use is open and has room or
holds a replica of the revision. So one is always tried, and with a single kind its back-off alone decides. A replica
that becomes ready proves its kind.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tidegate.deploy.backend import ReplicaStatus
from tidegate.deploy.placement.ledger import Room
from tidegate.records.replica_state import ReplicaState

PATIENCE_S: Final = 60.0
PAUSE_S: Final = 40.0
"""Time without a failure after which starts count as no longer tried. It exceeds the longest back-off."""
FORGOTTEN_S: Final = 3600.0
"""Age at which an earlier failure is ignored."""
PENDING_SLACK_S: Final = 10.0
"""Time beyond the function's start timeout that a backend with its own timeout has for reporting it."""
BAR_S: Final = 60.0
MAX_BAR_S: Final = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked:
    """A kind that was barred at this review."""

    accelerator: str
    replicas: tuple[str, ...]
    """Starts there that are revoked."""
    why: str


@dataclass(slots=True)
class _KindState:
    failing_since: float | None = None
    failed_at: float = 0.0
    """Time of the last failure."""
    why: str = ""
    bars: int = 0
    """Bars in a row."""
    until: float = 0.0

    def is_failing(self, starting: Sequence[ReplicaStatus], now: float) -> bool:
        """Returns True if starts have failed for long and no start is under way that may do better."""
        if self.failing_since is None or (not self.bars and now - self.failing_since < PATIENCE_S):
            return False
        goes_on = self.bars > 0 or now - self.failed_at <= PAUSE_S
        return goes_on and all(each.created_at < self.failed_at for each in starting)


class Revocations:
    """The bars of all revisions. Times in seconds on one clock."""

    __slots__ = ("_kinds", "counts")

    def __init__(self) -> None:
        self._kinds: dict[str, dict[str, _KindState]] = {}
        self.counts: Counter[tuple[str, str]] = Counter()
        """Bars so far, by (revision, accelerator)."""

    def failed(self, revision: str, accelerator: str, now: float, why: str) -> None:
        """Records a start that was refused or broke before it was ready."""
        kind = self._kinds.setdefault(revision, {}).setdefault(accelerator, _KindState())
        if now - kind.failed_at > FORGOTTEN_S:
            kind.failing_since, kind.bars = None, 0
        if kind.failing_since is None:
            kind.failing_since = now
        kind.why, kind.failed_at = why, now

    def needs_review(self, revision: str, replicas: Sequence[ReplicaStatus]) -> bool:
        """Returns True if :meth:`review` has anything to examine. Mostly nothing starts and nothing has failed."""
        return bool(self._kinds.get(revision)) or any(each.state is ReplicaState.STARTING for each in replicas)

    def review(
        self,
        revision: str,
        replicas: Sequence[ReplicaStatus],
        room: Mapping[str, Room],
        start_timeout_s: float,
        now: float,
    ) -> list[Revoked]:
        """Bars kinds that have failed for long. ``replicas`` are those of the revision, ``room`` is that of the kinds
        that it may use."""
        found: list[Revoked] = []
        for accelerator in room:
            here = [each for each in replicas if each.accelerator == accelerator]
            if any(each.state is ReplicaState.READY for each in here):
                self._kinds.get(revision, {}).pop(accelerator, None)
                continue
            starting = [each for each in here if each.state is ReplicaState.STARTING]
            longest_s = max((now - each.created_at for each in starting), default=0.0)
            is_overdue = longest_s > start_timeout_s + PENDING_SLACK_S
            if is_overdue:
                self.failed(revision, accelerator, now, f"a start is pending for {longest_s:.0f} s")
            kind = self._kinds.get(revision, {}).get(accelerator)
            if kind is None or not (is_overdue or kind.is_failing(starting, now)):
                continue
            if now < kind.until or not self._has_other(revision, accelerator, room, replicas, now):
                continue
            lasts_s = min(BAR_S * 2.0 ** min(kind.bars, 30), MAX_BAR_S)
            kind.failing_since, kind.bars, kind.until = None, kind.bars + 1, now + lasts_s
            self.counts[revision, accelerator] += 1
            words = f"{accelerator} for {lasts_s:.0f} s: {kind.why}"
            found.append(Revoked(accelerator=accelerator, replicas=tuple(each.id for each in starting), why=words))
        return found

    def without_barred(
        self, revision: str, replicas: Sequence[ReplicaStatus], room: Mapping[str, Room], now: float
    ) -> Mapping[str, Room]:
        """Returns ``room`` without the free places of barred kinds, as long as another kind is open. ``replicas`` are
        those of the revision."""
        kinds = self._kinds.get(revision)
        if not kinds:
            return room
        found = dict(room)
        for name, free in room.items():
            kind = kinds.get(name)
            if kind is None or now >= kind.until or free.free <= 0:
                continue
            if self._has_other(revision, name, room, replicas, now):
                found[name] = replace(free, free=0, why=f"no start there for {kind.until - now:.0f} s: {kind.why}")
        return found

    def forget(self, revision: str) -> None:
        self._kinds.pop(revision, None)
        for key in [key for key in self.counts if key[0] == revision]:
            del self.counts[key]

    def _has_other(
        self,
        revision: str,
        accelerator: str,
        room: Mapping[str, Room],
        replicas: Sequence[ReplicaStatus],
        now: float,
    ) -> bool:
        """Returns True if another kind is open and takes a replica or has one."""
        kinds = self._kinds.get(revision, {})
        held = {each.accelerator for each in replicas if each.is_wanted}
        return any(
            name != accelerator and (name not in kinds or kinds[name].until <= now) and (each.free > 0 or name in held)
            for name, each in room.items()
        )

    def __repr__(self) -> str:
        return f"<Revocations {sum(self.counts.values())} in {len(self._kinds)} revisions>"
